"""Runs of flows by Metaflow's names: `Flow("X").latest_successful_run.data.y`. Thin views of the same store.

Flow → Run → Step → Task → DataArtifact. A task's id is its key in the run, such as "train[3]".
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, Iterable, Iterator

from stoker.client.client import Client
from stoker.client.runs import Run as StoredRun
from stoker.core.errors import NotFound, UsageError, nearest
from stoker.flows.client_tasks import Step, Task, TaskData
from stoker.flows.namespaces import get_namespace, parts_of, rows_by_step, stored_run

_SYSTEM: Final = ("user:", "project:", "project_branch:")
_TRIES: Final = 20
"""How often tags are set again when the run's driver changed in between."""
_PAGE: Final = 100


def _runs(client: Client, name: str, tags: Iterable[str]) -> Iterator[Run]:
    wanted = [tag for tag in (get_namespace(), *tags) if tag]
    offset = 0
    while True:
        page = client.runs(pipeline=name, tag=wanted[0] if wanted else None, limit=_PAGE, offset=offset)
        for found in page:
            if set(wanted) <= set(found.tags):
                yield Run(found)
        if len(page) < _PAGE:
            return
        offset += _PAGE


class Metaflow:
    """All flows of the store."""

    def __init__(self) -> None:
        self._client = Client()

    @property
    def flows(self) -> list[Flow]:
        """Every flow that was run in the namespace."""
        return list(self)

    def __iter__(self) -> Iterator[Flow]:
        names = [found.pipeline for found in self._client.runs(limit=None, tag=get_namespace())]
        return (Flow(name) for name in dict.fromkeys(names))

    def __getitem__(self, name: str) -> Flow:
        return Flow(name)


class Flow:
    """A flow by its name, newest run first; `NotFound` if nobody ran it in the namespace."""

    def __init__(self, pathspec: str) -> None:
        self._client = Client()
        self.id = pathspec
        if next(_runs(self._client, pathspec, ()), None) is None:
            known = {found.pipeline for found in self._client.runs()}
            where = f" in namespace '{get_namespace()}'" if get_namespace() else ""
            raise NotFound(
                f"there is no run of a flow '{pathspec}'{where}{nearest(pathspec, known)}",
                fix="namespace(None) looks everywhere",
            )

    @property
    def pathspec(self) -> str:
        """Its name."""
        return self.id

    @property
    def latest_run(self) -> Run | None:
        """The newest run, however it went."""
        return next(self.runs(), None)

    @property
    def latest_successful_run(self) -> Run | None:
        """The newest run that went well."""
        return next((run for run in self.runs() if run.successful), None)

    def runs(self, *tags: str) -> Iterator[Run]:
        """Runs, newest first; only those with all the tags."""
        return _runs(self._client, self.id, tags)

    def __iter__(self) -> Iterator[Run]:
        return self.runs()

    def __getitem__(self, id: str) -> Run:
        return Run(f"{self.id}/{id}")

    def __repr__(self) -> str:
        return f"Flow('{self.id}')"


class Run:
    """One run: `Run("Train/1qge…")`."""

    def __init__(self, pathspec: str | StoredRun) -> None:
        if isinstance(pathspec, str):
            self._run = stored_run(*parts_of(pathspec, 2, "Run"))
        else:
            self._run = pathspec

    @property
    def id(self) -> str:
        """Its id."""
        return self._run.id

    @property
    def pathspec(self) -> str:
        """Flow and id."""
        return f"{self._run.pipeline}/{self._run.id}"

    @property
    def finished(self) -> bool:
        """Whether it is over."""
        return self._run.refresh().status != "running"

    @property
    def successful(self) -> bool:
        """Whether it went well."""
        return self._run.refresh().status == "succeeded"

    @property
    def status(self) -> str:
        """Where it stands, in Stoker's words."""
        return self._run.refresh().status

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self._run.created

    @property
    def finished_at(self) -> datetime | None:
        """When it ended."""
        return self._run.refresh().ended

    @property
    def tags(self) -> frozenset[str]:
        """Its tags."""
        return frozenset(self._run.tags)

    @property
    def user_tags(self) -> frozenset[str]:
        """The tags that people gave it."""
        return frozenset(tag for tag in self._run.tags if not tag.startswith(_SYSTEM))

    @property
    def system_tags(self) -> frozenset[str]:
        """The tags that it got by itself."""
        return self.tags - self.user_tags

    def add_tag(self, tag: str) -> None:
        """Give it a tag."""
        self.add_tags([tag])

    def add_tags(self, tags: Iterable[str]) -> None:
        """Give it tags."""
        self.replace_tags((), tags)

    def remove_tag(self, tag: str) -> None:
        """Take a tag off."""
        self.remove_tags([tag])

    def remove_tags(self, tags: Iterable[str]) -> None:
        """Take tags off."""
        self.replace_tags(tags, ())

    def replace_tag(self, tag_to_remove: str, tag_to_add: str) -> None:
        """One tag for another."""
        self.replace_tags([tag_to_remove], [tag_to_add])

    def replace_tags(self, tags_to_remove: Iterable[str], tags_to_add: Iterable[str]) -> None:
        """Take some tags off and give others; those that it got by itself stay."""
        off, on = _texts(tags_to_remove), _texts(tags_to_add)
        fixed = sorted(tag for tag in off if tag.startswith(_SYSTEM))
        if fixed:
            raise UsageError(f"the tag '{fixed[0]}' was not given by a person and stays")
        records = self._run._store.records
        for _ in range(_TRIES):
            row = records.run(self.id)
            kept = [tag for tag in row.tags if tag not in off]
            if records.set_run(self.id, row.token, tags=list(dict.fromkeys([*kept, *on]))):
                self._run.refresh()
                return
        raise UsageError(f"run {self.id} changes hands all the time; its tags were not set")

    def steps(self, *tags: str) -> Iterator[Step]:
        """Its steps that were reached, the last first."""
        return iter(list(self._steps().values())[::-1])

    def __iter__(self) -> Iterator[Step]:
        return self.steps()

    def __getitem__(self, name: str) -> Step:
        found = self._steps()
        if name not in found:
            raise KeyError(f"run {self.pathspec} has no step '{name}'{nearest(name, found)}")
        return found[name]

    def __contains__(self, name: str) -> bool:
        return name in self._steps()

    @property
    def end_task(self) -> Task | None:
        """The task of the last step; None before it is done."""
        last = next(self.steps(), None)
        if not self.successful or last is None:
            return None
        return last.task

    @property
    def data(self) -> TaskData | None:
        """The artifacts of the last step as attributes; None before it is done."""
        end = self.end_task
        return None if end is None else end.data

    def _steps(self) -> dict[str, Step]:
        rows = rows_by_step(self._run)
        return {name: Step(f"{self.pathspec}/{name}", _of=(self._run, found)) for name, found in rows.items()}

    def __repr__(self) -> str:
        return f"Run('{self.pathspec}')"


def _texts(tags: Iterable[str]) -> list[str]:
    found = list(tags)
    if isinstance(tags, str) or not all(found):
        raise UsageError(f"{tags!r} is not a list of tags", fix='write ["tested"]')
    return found
