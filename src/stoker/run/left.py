"""Jobs that drivers left on platforms that did not answer: which they are, and their end.

A driver that is stopped at once records the jobs as an event of its run. They are over once they were ended here, or
once a later driver of the run took over, which adopts or ends them.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

from stoker import stacks
from stoker.backends.base.platforms import Away
from stoker.backends.registry import BACKENDS
from stoker.plan import plandoc
from stoker.store.batch import RowBatch
from stoker.store.rows import EventRow
from stoker.store.store import Store

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two tries to reach a platform, longer each time."""

Identity = Mapping[str, Any]


def recorded_jobs(store: Store, run_id: str = "") -> dict[str, dict[str, list[Identity]]]:
    """The jobs that were left, of one run or of all: run → the backend's name in its stack → identities."""
    left: dict[str, dict[str, list[Identity]]] = {}
    for event in store.records.left_events(run_id):
        if event.kind == "left":
            jobs = left.setdefault(event.run_id, {}).setdefault(str(event.data.get("backend", "")), [])
            jobs += [job for job in event.data.get("jobs", ()) if isinstance(job, dict)]
        else:
            left.pop(event.run_id, None)
    return left


def names(jobs: Iterable[Identity]) -> list[str]:
    """What jobs are called, for people."""
    return list(dict.fromkeys(str(job.get("job", "a job")) for job in jobs))


def end_recorded_jobs(store: Store, run_id: str, say: Callable[[str], None]) -> list[str]:
    """End the jobs that a run left; the names of those that still ran. A platform that does not answer is asked again
    until it does.
    """
    row = store.records.run(run_id)
    text = store.records.plan(row.id)
    options = plandoc.load(text).settings.backend if text else {}
    ended: list[str] = []
    for name, jobs in recorded_jobs(store, row.id).get(row.id, {}).items():
        stack = stacks.load(row.stack)
        part = stack.part(name)
        end = BACKENDS.load(part.flavor).end_recorded
        if end is not None:
            ended += _persistently(partial(end, options.get(name, part.options), jobs), say)
    event = EventRow(
        run_id=row.id,
        seq=store.records.next_seq(row.id),
        time=time.time(),
        kind="left-ended",
        data={"jobs": ended},
    )
    batch = RowBatch()
    batch.event(event)
    store.records.write(batch, run_id=row.id, token=row.token)
    return ended


def _persistently(end: Callable[[], Sequence[str]], say: Callable[[str], None]) -> Sequence[str]:
    tries, first = 0, time.time()
    while True:
        try:
            return end()
        except Away as error:
            pause = PAUSES[min(tries, len(PAUSES) - 1)]
            tries += 1
            if tries == 1:
                since = time.strftime("%H:%M:%S", time.localtime(first))
                say(f"the platform has not answered since {since}: {error.message}; asked again until it does (Ctrl-C)")
            time.sleep(pause)
