"""The way into a store: runs by filter, one run, one artifact; and removing a run."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from itertools import count, islice
from typing import Final, Iterator

import attrs

from stoker import stacks
from stoker.client.liveness import SHOWN
from stoker.client.outputs import Output
from stoker.client.runs import Run
from stoker.core.errors import NotFound, UsageError, nearest
from stoker.core.units import duration
from stoker.store.records import RunFilter
from stoker.store.store import Store, open_store

LATEST: Final = ("latest", "last")
"""Instead of an id: the newest run. Ids are written without the letter l, so none begins like it."""
_EVERYTHING: Final = 2**31 - 1
_DIGEST: Final = 64
_PAGE: Final = 200
"""Rows read at a time where the database alone cannot say which are meant."""


class Client:
    """The store of a stack, of the one that is meant when nobody says, or a store that is open already."""

    def __init__(self, stack: str | None = None, *, store: Store | None = None) -> None:
        if stack is not None and store is not None:
            raise UsageError("a client takes a stack or a store, not both", fix=f"Client({stack!r})")
        self._stack = stack
        self._opened = store
        self._given = store is not None

    @property
    def store(self) -> Store:
        """The store, opened when it is first needed."""
        if self._opened is None:
            stack = stacks.load(self._stack)
            self._opened = open_store(stack.database, stack.artifact_store, str(stack.home))
        return self._opened

    def runs(
        self,
        pipeline: str | None = None,
        *,
        status: str | None = None,
        tag: str | None = None,
        since: datetime | timedelta | float | str | None = None,
        limit: int | None = 50,
        offset: int = 0,
    ) -> list[Run]:
        """Runs, newest first. `since`: a time, or how long ago, in seconds or as "2h"; `limit=None`: all of them."""
        if status is not None and status not in SHOWN:
            raise UsageError(f"no run is ever '{status}'{nearest(status, SHOWN)}")
        for name, value in (("limit", limit), ("offset", offset)):
            if value is not None and value < 0:
                raise UsageError(f"{name}={value} is not a number of runs", fix="write 0 or more")
        alive_matters = status in ("running", "interrupted")
        which = RunFilter(
            pipeline=pipeline or "",
            status="running" if alive_matters else status or "",
            tag=tag or "",
            since=_moment(since),
            limit=_EVERYTHING if limit is None else limit,
            offset=offset,
        )
        if not alive_matters:
            return [Run(self.store, row) for row in self.store.records.runs(which)]
        found = (run for run in self._pages(which) if run.status == status)
        return list(islice(found, which.offset, which.offset + which.limit))

    def run(self, id: str) -> Run:
        """The run with this id, the only one whose id begins so, or the newest for "latest" and "last"."""
        if id not in LATEST:
            return Run(self.store, self.store.records.run(id))
        newest = self.runs(limit=1)
        if not newest:
            raise NotFound("there are no runs yet", fix="call a pipeline, or `stoker run FILE`")
        return newest[0]

    def artifact(self, digest: str) -> Output:
        """The oldest output with these bytes, by their digest or its beginning; its `producers` are all of them."""
        found = self._digests(digest.lower())
        if not found:
            raise NotFound(f"there is no output with the digest '{digest}'", fix="digests are in step.outputs")
        if len(found) > 1:
            shown = ", ".join(name[:16] for name in found[:5]) + (", …" if len(found) > 5 else "")
            raise NotFound(f"'{digest}' begins several digests: {shown}", fix="write more of the digest")
        return Output(self.store, self.store.records.lineage(found[0])[0])

    def delete(self, run: Run | str) -> None:
        """Remove a run with its steps, logs, checkpoints and entries of the cache; a `Run` that is gone is fine.

        The values stay until `stoker gc`: other runs may have the same.
        """
        id = run.id if isinstance(run, Run) else run
        try:
            found = self.run(id)
        except NotFound:
            if isinstance(run, Run):
                return
            raise
        if found.status == "running":
            raise UsageError(f"run {found.id} is running", fix=f"stoker cancel {found.id} first")
        # Files first: what is interrupted here leaves a run that can be deleted again.
        self.store.checkpoints.delete(found.id)
        self.store.records.delete_run(found.id)
        self.store.logs.delete(found.id)

    def close(self) -> None:
        """Close what this client opened; it opens again when it is used again."""
        if self._opened is not None and not self._given:
            self._opened.close()

    def __repr__(self) -> str:
        return f"<Client of {self._opened.home}>" if self._opened is not None else "<Client>"

    def _pages(self, which: RunFilter) -> Iterator[Run]:
        """Every run that the filter means, whatever its limit."""
        for offset in count(0, _PAGE):
            rows = self.store.records.runs(attrs.evolve(which, limit=_PAGE, offset=offset))
            for row in rows:
                yield Run(self.store, row)
            if len(rows) < _PAGE:
                return

    def _digests(self, begun: str) -> list[str]:
        """The digests that begin so, six at most; one that is whole is the only one."""
        if len(begun) == _DIGEST:
            return [begun] if self.store.records.lineage(begun) else []
        database = self.store.records.database
        statement = "SELECT DISTINCT digest FROM outputs WHERE substr(digest, 1, ?) = ? ORDER BY digest LIMIT 6"
        return [str(row[0]) for row in database.rows(database.sql(statement), (len(begun), begun))] if begun else []


def _moment(since: datetime | timedelta | float | str | None) -> float | None:
    if since is None:
        return None
    return since.timestamp() if isinstance(since, datetime) else time.time() - duration(since)
