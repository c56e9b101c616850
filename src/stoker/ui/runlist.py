"""The list of runs: what an address asks for, and a page of it."""

from __future__ import annotations

from typing import Final, Mapping

import attrs

from stoker.client import Client, Run
from stoker.client.liveness import SHOWN_STATUSES
from stoker.core.errors import NotFound
from stoker.core.values import frozen

PAGE: Final = 50
"""Runs of a page."""
STATUSES: Final = SHOWN_STATUSES


@frozen(kw_only=True)
class RunQuery:
    """What is looked for; an empty field looks for anything."""

    text: str = ""
    pipeline: str = ""
    status: str = ""
    tag: str = ""
    stack: str = ""
    since: str = ""
    before: str = ""
    """The id of a run: only older ones."""

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> RunQuery:
        """What an address asks for; names that it does not know are another page's."""
        names = [field.name for field in attrs.fields(cls)]
        return cls(**{name: values[name].strip() for name in names if name in values})

    def as_dict(self) -> dict[str, str]:
        """The fields that are not empty, for an address."""
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @property
    def filters(self) -> bool:
        """Whether it leaves runs out."""
        return any(value for name, value in self.as_dict().items() if name != "before")


@frozen(kw_only=True)
class RunPage:
    """Some runs, newest first."""

    runs: tuple[Run, ...]
    more: bool
    """Whether there are older ones."""


def run_page(client: Client, query: RunQuery, *, size: int = PAGE) -> RunPage:
    """The newest runs that a query finds. `UsageError` for a status or a time that is none."""
    before: Run | None = None
    if query.before:
        try:
            before = client.run(query.before)
        except NotFound as error:
            message = f"the run {query.before}, from which this page goes on, was removed"
            raise NotFound(message, fix="begin with the newest runs") from error
    runs = client.runs(
        query.pipeline or None,
        status=query.status or None,
        tag=query.tag or None,
        stack=query.stack or None,
        text=query.text or None,
        since=query.since or None,
        limit=size + 1,
        before=before,
    )
    return RunPage(runs=tuple(runs[:size]), more=len(runs) > size)


def last_good(client: Client, run: Run) -> Run | None:
    """The newest earlier run of the same pipeline that succeeded, or the newest at all; None without one."""
    earlier = client.runs(run.pipeline, status="succeeded", limit=1, before=run)
    found = earlier or client.runs(run.pipeline, status="succeeded", limit=2)
    return next((one for one in found if one.id != run.id), None)
