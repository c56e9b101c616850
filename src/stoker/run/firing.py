"""Starts the run of a firing: of a schedule's due time, or of what a watcher saw.

The firing's row is claimed before anything starts (`store.schedules`), and has the id that the run gets: whoever else
is started for it creates no second run. The run itself is a process of its own, `stoker run FILE`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import BinaryIO, Callable, Final, Sequence, cast

from stoker.backends.base.backend import DetachedRun, DriverStart, TimerJob
from stoker.core.cron import Cron
from stoker.core.errors import NotFound
from stoker.core.plan import Code
from stoker.core.values import frozen
from stoker.run.driver import new_id, new_token
from stoker.stacks import Stack, table_of, toml_text
from stoker.store.schedules import EXPIRES, FiringRow, ScheduleRow, Schedules
from stoker.store.store import Store

RUN_ID: Final = "STOKER_RUN_ID"
"""The variable with the id that a run gets which something else has announced."""
EARLY: Final = 30.0
"""Seconds by which a platform's clock may be ahead of this machine's."""
PAUSE: Final = 5.0
"""Seconds between two looks at the run that is waited for."""


@frozen(kw_only=True)
class Command:
    """What is run: the words behind `stoker run`, and where."""

    file: str
    words: Sequence[str]
    folder: str
    stack: str

    def start(self, run_id: str) -> int:
        """Run it to its end with this id; its exit code."""
        argv = [sys.executable, "-m", "stoker", "run", "--stack", self.stack, self.file, *self.words]
        environment = {**os.environ, RUN_ID: run_id}
        return subprocess.run(argv, cwd=self.folder, env=environment, check=False).returncode


class PlatformStart:
    """What a platform that has nothing of this machine's starts a schedule with; asked for it, it packages the code."""

    def __init__(self, store: Store, row: ScheduleRow, stack: Stack, job: TimerJob) -> None:
        self._store = store
        self._row = row
        self._stack = stack
        self._mark = job.mark
        self._words = job.words[1:]  # the interpreter is the pod's
        self._output = job.output
        self._start: DriverStart | None = None

    @property
    def code(self) -> str:
        """The digest of the package; empty where nobody asked for it."""
        return "" if self._start is None else self._start.code.package

    def __call__(self) -> DriverStart:
        if self._start is None:
            self._start = self._made()
        return self._start

    def _made(self) -> DriverStart:
        from stoker.images import context
        from stoker.images.wheel import driver_bundle
        from stoker.run.detaching import WHEELS

        row, store = self._row, self._store
        path = Path(row.path)
        root = Path(row.folder) if Path(row.folder) in path.parents else path.parent
        digest = row.code
        if not digest:
            package = context.package(root, [path], home=Path(store.home))
            with store.blobs.writer() as writer:
                context.write(package, cast("BinaryIO", writer))
            digest = writer.digest
        table, variables = table_of(self._stack)
        return DriverStart(
            run=self._mark,
            name=self._mark,
            words=(*self._words, "--code", digest, "--root", str(root)),
            environment={},
            folder=row.folder,
            output=self._output,
            facts=DetachedRun(
                home=str(store.home), database=store.database_uri, artifacts=store.blobs.uri, dynamic=True
            ),
            code=Code(package=digest, root=str(root), bundle=str(driver_bundle(Path(store.home) / WHEELS))),
            stack=toml_text(self._stack.name, table),
            variables=variables,
        )


def bring_code(store: Store, package: str, root: str) -> None:
    """Unpack the code of a schedule to where it was, on a machine that does not have it."""
    from stoker.worker.codecopy import remove, unpack_code

    folder = unpack_code(package, store.blobs.uri)
    try:
        shutil.copytree(folder, root, symlinks=True, dirs_exist_ok=True)
    finally:
        remove(folder)


class FiringStarter:
    """Starts runs of firings, each once."""

    def __init__(
        self,
        store: Store,
        start: Callable[[str], int],
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        expires: float = EXPIRES,
    ) -> None:
        self._store = store
        self._schedules = Schedules(store.records.database)
        self._start = start
        self._now = now
        self._sleep = sleep
        self._expires = expires

    def fire(self, schedule: ScheduleRow, *, manual: bool = False) -> tuple[str, int]:
        """Start what is due of a schedule now, or with `manual` whatever is due: (a sentence, an exit code)."""
        now = self._now()
        moment = datetime.fromtimestamp(now, timezone.utc)
        if manual:
            return self._fire(schedule, f"by hand {moment.isoformat(timespec='milliseconds')}", now)
        if schedule.paused:
            return f"schedule '{schedule.name}' is paused: nothing is started", 0
        since = datetime.fromtimestamp(schedule.since, timezone.utc)
        early = moment + timedelta(seconds=EARLY)
        due = Cron.parse(schedule.cron).last(early, schedule.zone, since=since)
        if due is None:
            return f"nothing of schedule '{schedule.name}' was due since it was added or resumed", 0
        due = due.astimezone(timezone.utc)
        return self._fire(schedule, due.isoformat(), due.timestamp())

    def _fire(self, schedule: ScheduleRow, occasion: str, due: float) -> tuple[str, int]:
        firing = self.claim(schedule.source, occasion, due)
        what = f"'{schedule.name}', {occasion}"
        if firing is None:
            return f"{what}: somebody else has it", 0
        earlier = self._running(schedule, firing)
        if earlier and schedule.overlap == "skip":
            note = f"run {earlier} was still running"
            self._schedules.settle(firing, "skipped", now=self._now(), note=note)
            return f"{what}: skipped, {note}", 0
        while earlier and schedule.overlap == "queue":
            self._schedules.settle(firing, "waiting", now=self._now(), note=f"for run {earlier} to end")
            self._sleep(PAUSE)
            earlier = self._running(schedule, firing)
        return self.begin(firing)

    def claim(self, source: str, occasion: str, due: float) -> FiringRow | None:
        """Make a firing this process's; None where it is somebody else's."""
        now = self._now()
        row = FiringRow(
            source=source,
            occasion=occasion,
            state="claimed",
            due=due,
            run_id=new_id(now),
            owner=new_token(),
            changed=now,
        )
        return self._schedules.claim(row, expires=self._expires)

    def begin(self, firing: FiringRow) -> tuple[str, int]:
        """Start the run of a firing and wait for its end."""
        code = self._start(firing.run_id)
        try:
            run = self._store.records.run(firing.run_id)
        except NotFound:
            note = f"`stoker run` ended with code {code} before there was a run"
            self._schedules.settle(firing, "failed", now=self._now(), note=note)
            return f"{firing.source}, {firing.occasion}: {note}", code or 1
        self._schedules.settle(firing, "started", now=self._now())
        return f"{firing.source}, {firing.occasion}: run {run.id} {run.status}", code

    def _running(self, schedule: ScheduleRow, firing: FiringRow) -> str:
        """The id of a run of the schedule that goes on, or of one that is before this one in the queue."""
        from stoker.client import Client

        client = Client(store=self._store)
        for row in self._schedules.firings(schedule.source, limit=50):
            if row.occasion == firing.occasion:
                continue
            try:
                if client.run(row.run_id).status == "running":
                    return row.run_id
            except NotFound:  # it is about to begin, or never did
                before = (row.due, row.occasion) < (firing.due, firing.occasion)
                alive = row.state in ("claimed", "waiting") and row.changed > self._now() - self._expires
                if before and alive:
                    return row.run_id
        return ""
