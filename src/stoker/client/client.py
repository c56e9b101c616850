"""The entry to a store: list runs, read one run or one artifact, delete a run."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Iterable, Iterator, Mapping, overload

from stoker import stacks
from stoker.client.leftjobs import SHOWN_STATUSES
from stoker.client.names import ArtifactVersion, ModelVersion
from stoker.client.outputs import Output
from stoker.client.runs import Run
from stoker.core.errors import NotFound, UsageError, nearest
from stoker.core.registry import LATEST as LATEST_VERSION
from stoker.core.registry import Artifact, Model, Version, names_label
from stoker.core.units import duration
from stoker.core.values import lazy_pattern
from stoker.store.records import RunFilter
from stoker.store.store import Store, open_store
from stoker.worker.context import context
from stoker.worker.secrets import READ, SHORTEST, StepSecrets

if TYPE_CHECKING:
    from stoker.client.namedsecrets import SecretValues

LATEST: Final = ("latest", "last")
"""Names of the newest run. Ids have no letter l, so that none of them begins like these."""
TRUST: Final = "STOKER_TRUST"
"""The variable that, as "1", lets every client load what can run code, from any store."""
_EVERYTHING: Final = 2**31 - 1
_DIGEST: Final = 64
_DIGITS: Final = lazy_pattern(r"[0-9a-f]{1,64}")


class Client:
    """Reads the store of a stack (by default the active one), or a store that is open already.

    Outputs of another user's store that only pickle can load raise `UntrustedArtifact`, since loading them can run any
    code. `trust=True` loads them; so does a stack with `shared = true`, and the environment variable `STOKER_TRUST=1`.
    """

    def __init__(self, stack: str | None = None, *, store: Store | None = None, trust: bool = False) -> None:
        if stack is not None and store is not None:
            raise UsageError("a client takes a stack or a store, not both", fix=f"Client({stack!r})")
        self._stack = stack
        self._opened = store
        self._owns_store = store is None
        self._trust = trust or os.environ.get(TRUST) == "1"
        if store is not None and not self._trust and store.is_foreign:
            store.blobs.trusted = False

    @property
    def stack(self) -> str | None:
        """The stack that it was made for; None for the active one, or for a store that was open."""
        return self._stack

    @property
    def store(self) -> Store:
        """The store, opened when it is first needed."""
        if self._opened is None:
            stack = stacks.load(self._stack)
            self._opened = open_store(stack.database, stack.artifact_store, str(stack.home), shared=stack.shared)
            self._opened.blobs.trusted = self._trust or stack.shared or not self._opened.is_foreign
        return self._opened

    def runs(  # noqa: PLR0913  # a filter's fields
        self,
        pipeline: str | None = None,
        *,
        status: str | None = None,
        tag: str | None = None,
        stack: str | None = None,
        author: str | None = None,
        text: str | None = None,
        since: datetime | timedelta | float | str | None = None,
        limit: int | None = 50,
        offset: int = 0,
        before: Run | None = None,
    ) -> list[Run]:
        """Runs, newest first. `since`: a time, or how long ago, in seconds or as "2h"; `limit=None`: all of them.

        `author` is "user@host", or a user on any host; `text` is part of an id, of a pipeline's name or of a tag, in
        any case. With `before`, the runs that are older than another: pages of a long list that stay the same while
        runs are added.
        """
        if status is not None and status not in SHOWN_STATUSES:
            raise UsageError(f"no run is ever '{status}'{nearest(status, SHOWN_STATUSES)}")
        for name, value in (("limit", limit), ("offset", offset)):
            if value is not None and value < 0:
                raise UsageError(f"{name}={value} is not a number of runs", fix="write 0 or more")
        needs_liveness = status in ("running", "interrupted")
        run_filter = RunFilter(
            pipeline=pipeline or "",
            status="running" if needs_liveness else status or "",
            tag=tag or "",
            stack=stack or "",
            author=author or "",
            text=text or "",
            before=None if before is None else before.place,
            since=_time_of(since),
            limit=_EVERYTHING if limit is None else limit,
            offset=offset,
        )
        if not needs_liveness:
            return [Run(self.store, row) for row in self.store.records.runs(run_filter)]
        matches = (run for run in self._all_runs(run_filter) if run.status == status)
        return list(islice(matches, run_filter.offset, run_filter.offset + run_filter.limit))

    def run(self, id: str) -> Run:
        """The run with this id, the only one whose id begins so, or the newest for "latest" and "last"."""
        if id not in LATEST:
            return Run(self.store, self.store.records.run(id))
        newest = self.runs(limit=1)
        if not newest:
            where = self.store.records.database.label
            raise NotFound(f"there are no runs yet in {where}", fix="call a pipeline, or `stoker run FILE`")
        return newest[0]

    @overload
    def artifact(self, name: str, version: Version) -> ArtifactVersion: ...
    @overload
    def artifact(self, name: str, version: None = None) -> ArtifactVersion | Output: ...
    def artifact(self, name: str, version: Version | None = None) -> ArtifactVersion | Output:
        """A version of a named artifact: "latest", which is the default, a number, "tag:NAME" or a digest.

        In place of a name, the digest of an output or its beginning, without a version: the oldest output with these
        bytes; its `producers` are all of them.
        """
        registry = self.store.registry
        if version is not None or registry.has_artifact(name) or not _DIGITS.fullmatch(name.lower()):
            return ArtifactVersion(self.store, registry.artifact(name, LATEST_VERSION if version is None else version))
        return self._output(name)

    def artifacts(
        self, text: str = "", *, tag: str | None = None, limit: int | None = 50, offset: int = 0
    ) -> list[ArtifactVersion]:
        """The latest version of each named artifact, the name that changed last first; `limit=None`: all of them.

        `text` is part of a name, in any case. With a tag, the newest version that has it, by name.
        """
        most = _EVERYTHING if limit is None else limit
        rows = self.store.registry.artifacts(text=text, tag=tag or "", limit=most, offset=offset)
        return [ArtifactVersion(self.store, row) for row in rows]

    def save_artifact(
        self, value: Any, name: str, *, tags: Iterable[str] = (), metadata: Mapping[str, Any] | None = None
    ) -> ArtifactVersion:
        """Save a value as the next version of a name."""
        from stoker.store import artifacts

        given = Artifact(name, tags=tags, metadata=metadata or {})  # refused before anything is written
        saved = artifacts.save(value, self.store.blobs)
        row = self.store.registry.save(name, saved, tags=given.tags, metadata=given.metadata)
        return ArtifactVersion(self.store, row)

    def model(self, name: str, version: Version = LATEST_VERSION) -> ModelVersion:
        """A version of a model: "latest", a number, a stage such as "production", a label, or "tag:NAME"."""
        return ModelVersion(self.store, self.store.registry.model(name, version))

    def models(
        self, text: str = "", *, stage: str | None = None, limit: int | None = 50, offset: int = 0
    ) -> list[ModelVersion]:
        """The latest version of each model, the one that changed last first; with a stage the version that has it."""
        most = _EVERYTHING if limit is None else limit
        rows = self.store.registry.models(text=text, stage=stage or "", limit=most, offset=offset)
        return [ModelVersion(self.store, row) for row in rows]

    def create_model_version(
        self,
        name: str,
        label: str | None = None,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> ModelVersion:
        """Make the next version of a model; with a label such as "1.0.0", the version that has it if there is one."""
        if label is not None and not names_label(label):
            raise UsageError(f"{label!r} is no label of a version", fix='write a word such as "1.0.0"')
        model = Model(name, label, description=description, tags=tags, metadata=metadata or {})
        return ModelVersion(self.store, self.store.registry.create_model(model))

    def log_metadata(self, metadata: Mapping[str, Any], *, run: str, step: str | None = None) -> None:
        """Add metadata to a run, or to one of its steps; `Run.metadata` and `Step.metadata` have it."""
        found = self.run(run)
        key = found.id if step is None else f"{found.id}/{found.steps[step].key}"
        self.store.registry.set_facts("run" if step is None else "step", key, 0, metadata)

    def _output(self, digest: str) -> Output:
        digests = self._digests(digest.lower())
        if not digests:
            raise NotFound(f"there is no output with the digest '{digest}'", fix="digests are in step.outputs")
        if len(digests) > 1:
            listed = ", ".join(name[:16] for name in digests[:5]) + (", …" if len(digests) > 5 else "")
            raise NotFound(f"'{digest}' begins several digests: {listed}", fix="write more of the digest")
        return Output(self.store, self.store.records.lineage(digests[0])[0])

    def secret(self, name: str) -> SecretValues:
        """The value or the fields of a secret by name, read in this process; see `stoker secret set`.

        What a step reads so is masked in its output from then on.
        """
        from stoker.client.namedsecrets import NamedSecrets  # which few programs need

        values = NamedSecrets(stacks.load(self._stack)).values(name)
        if context:
            StepSecrets.current = StepSecrets.current or StepSecrets()
            StepSecrets.current.add(values.by_reference)
        READ.update((value, text) for text, value in values.by_reference.items() if len(value) >= SHORTEST)
        return values

    def delete(self, run: Run | str) -> None:
        """Remove a run with its steps, logs, checkpoints and entries of the cache; a `Run` that is gone is fine.

        The values stay until `stoker gc`: other runs may have the same.
        """
        id = run.id if isinstance(run, Run) else run
        try:
            target = self.run(id)
        except NotFound:
            if isinstance(run, Run):
                return
            raise
        if target.status == "running":
            raise UsageError(f"run {target.id} is running", fix=f"stoker cancel {target.id} first")
        # Checkpoints first: if this is interrupted, the run still has its row and can be deleted again.
        self.store.checkpoints.delete(target.id)
        self.store.records.delete_run(target.id)
        self.store.logs.delete(target.id)

    def close(self) -> None:
        """Close the store if this client opened it; the next use opens it again."""
        if self._opened is not None and self._owns_store:
            self._opened.close()

    def __repr__(self) -> str:
        return f"<Client of {self._opened.home}>" if self._opened is not None else "<Client>"

    def _all_runs(self, run_filter: RunFilter) -> Iterator[Run]:
        """Every run that matches the filter, read in pages; the filter's own limit and offset do not apply."""
        for row in self.store.records.every_run(run_filter):
            yield Run(self.store, row)

    def _digests(self, prefix: str) -> list[str]:
        """The digests with this prefix, six at most; for a whole digest itself, if an output has it."""
        if not _DIGITS.fullmatch(prefix):
            return []
        if len(prefix) == _DIGEST:
            return [prefix] if self.store.records.lineage(prefix) else []
        database = self.store.records.database
        statement = "SELECT DISTINCT digest FROM outputs WHERE substr(digest, 1, ?) = ? ORDER BY digest LIMIT 6"
        return [str(row[0]) for row in database.rows(database.sql(statement), (len(prefix), prefix))] if prefix else []


def _time_of(since: datetime | timedelta | float | str | None) -> float | None:
    if since is None:
        return None
    return since.timestamp() if isinstance(since, datetime) else time.time() - duration(since)
