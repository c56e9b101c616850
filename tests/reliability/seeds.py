"""The engine under seeded storms, in a time of its own: one seed is one run, replayed exactly by its number.

    python -m tests.reliability.seeds [--first 0] [--seeds 1000] [--jobs 2] [--mutants]
    python -m tests.reliability.seeds --seed 4711 --trace

The engine, the recorder, the writer with its journal, adoption and SQLite are Stoker's own; the cluster is that of
`stoker simulate`. A seed draws the graph and the cluster, and at each commit, submission and answer whether the driver
dies there, the database goes away (before or after it did what it was asked), the disk is full, answers come twice,
late or in another order, a job is lost before it begins, nodes are lost, steps fail, somebody cancels, or another
driver takes over from one that was only stopped. What must hold is in `Storm.check`, and where a job is submitted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import inspect
import itertools
import os
import random
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import attrs
from tests.steps import planned_step

from stoker.backends.base.adoption import EarlierJobs
from stoker.core.artifact import from_wire
from stoker.core.errors import DatabaseUnreachable, StokerError, StoreError
from stoker.core.graph import StepOutput
from stoker.core.plan import Job, JobStatus, StepPlan
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Retry, StepSettings
from stoker.core.status import STEP_GOOD
from stoker.engine import clock
from stoker.engine.execution import Policy
from stoker.engine.inputs import StepBindings
from stoker.engine.jobs import RunJobs
from stoker.engine.machine import Machine
from stoker.engine.pool import Pool
from stoker.engine.recorder import Recorder
from stoker.engine.runner import RunLoop
from stoker.plan.cachekey import FixedEnvironment
from stoker.simulation.backend import Events, SimulatedBackend, SimulatedCluster, Stuck
from stoker.simulation.cluster import ClusterFile, Nodes, Queue, Spread, StepFacts
from stoker.simulation.predicting import NOTHING, _Silent
from stoker.store import artifacts, writer
from stoker.store.batch import RowBatch
from stoker.store.records import Records
from stoker.store.rows import RunRow
from stoker.store.store import open_store
from stoker.store.writer import RunWriter, restore

SESSIONS: Final = 12
"""Drivers that one run meets faults with; the next ones meet none, and the run has to end."""
TURNS: Final = 20_000
"""Waits of one driver until it counts as one that never ends."""
PATIENCE: Final = 300.0
"""Seconds for which a driver waits for its database."""


class Killed(BaseException):
    """The driver dies here: what it did not do before, it never does."""


class Wrong(Exception):
    """What must never be."""


def wire_of(text: str) -> dict[str, Any]:
    return {"d": hashlib.sha256(text.encode()).hexdigest(), "s": "str", "t": "builtins.str", "n": len(text), "i": text}


def digests_in(tree: Any, blobs: Any) -> Iterator[str]:
    """The digests of all values of an input, of lists those of their elements."""
    if "list" in tree or "dict" in tree:
        for part in tree["list"] if "list" in tree else tree["dict"].values():
            yield from digests_in(part, blobs)
    elif tree["value"]["s"] == "list":
        for part in artifacts.each_item(from_wire(tree["value"]), blobs):
            yield from digests_in({"value": part.wire()}, blobs)
    elif tree["value"] != NOTHING:
        yield tree["value"]["d"]


class Storm:
    """One seed: a run, its cluster and its faults."""

    def __init__(self, seed: int, home: str, *, trace: bool = False) -> None:
        self.seed, self.home, self.tracing = seed, home, trace
        self.draw = random.Random(seed)
        self.events = Events(1_700_000_000.0)
        self.steps, facts = self._graph()
        self.policy = self.draw.choice(["fifo", "backfill", "none"])
        self.max_parallel = self.draw.choice([None, None, 1, 3])
        self.fail_fast = self.draw.random() < 0.5
        self.cluster = self._cluster(facts)
        self.rate = self.draw.choice([0.0, 0.01, 0.03, 0.1])
        self.kinds = {kind for kind in FAULTS if self.draw.random() < 0.6}
        self.calm = False
        self.away_until = 0.0
        self.session = 0
        self.token = ""
        self.outputs: dict[str, Mapping[str, Any]] = {}
        self.durable: set[str] = set()
        """Digests of outputs that were committed, or are in the journal."""
        self.recorded: set[tuple[str, int]] = set()
        """Step and number of attempts of which the same is true."""
        self.journaled: set[tuple[str, int]] = set()
        """Those that only the journal has."""
        self.writing = RowBatch()
        self.cancels = 0

    def trace(self, text: str) -> None:
        if self.tracing:
            print(f"{self.events.now - 1_700_000_000.0:10.2f} {self.session:>3} {text}")

    # What is drawn

    def _graph(self) -> tuple[list[StepPlan], dict[str, StepFacts]]:
        draw, steps, facts = self.draw, [], {}
        split: set[str] = set()
        for number in range(draw.randint(2, 7)):
            key = f"s{number}"
            before = draw.sample([step.key for step in steps], min(len(steps), draw.choice([0, 1, 1, 2])))
            inputs: dict[str, Any] = {f"x{one}": {"step": one, "output": "output"} for one in before}
            mapped: tuple[str, ...] = ()
            if draw.random() < 0.35:
                mapped = ("each",)
                fans = [step.key for step in steps if step.mapped]
                if fans and draw.random() < 0.4:
                    inputs["each"] = {"step": draw.choice(fans), "output": "output"}
                elif split and draw.random() < 0.5:
                    inputs["each"] = {"step": draw.choice(sorted(split)), "output": "output"}
                else:
                    inputs["each"] = {"list": [{"value": NOTHING}] * draw.randint(0, 5)}
            elif draw.random() < 0.3:
                split.add(key)
            retry = Retry(times=draw.choice([0, 1, 3]), on=(), delay=draw.choice([0.0, 30.0]), backoff=2.0,
                          max_delay=600.0, jitter=0.1, on_oom=())  # fmt: skip
            settings = StepSettings(
                retry=retry,
                timeout=draw.choice([None, None, None, 60.0]),
                resources=ResourceSettings(cpu_count=draw.choice([1, 1, 2]), nodes=draw.choice([1, 1, 1, 2])),
                cache=draw.random() < 0.5,
            )
            steps.append(
                planned_step(
                    settings,
                    key=key,
                    name=key,
                    inputs=inputs,
                    mapped=mapped,
                    code=key,
                    outputs=(StepOutput(name="output"),),
                    position=number,
                    split=("output",) if key in split else (),
                )
            )
            facts[key] = StepFacts(
                duration=Spread(median=draw.choice([0.0, 0.1, 20.0, 70.0]), sigma=draw.choice([0.0, 0.7])),
                failure_rate=draw.choice([0.0, 0.0, 0.2]),
                failure_cause=draw.choice(["crashed", "user-error", "host-oom", "killed"]),
                elements=draw.randint(0, 4) if key in split else None,
                checkpoint=draw.choice([None, None, 10.0]),
            )
        return steps, facts

    def _cluster(self, facts: Mapping[str, StepFacts]) -> SimulatedCluster:
        spot = self.draw.choice([None, None, 200.0])
        nodes = Nodes(
            name="n", count=self.draw.randint(2, 4), cpus=self.draw.choice([2, 4]), memory="8GB",
            mean_time_between_losses=spot, notice=self.draw.choice([0.0, 10.0]), returns=30.0,
        )  # fmt: skip
        queue = Queue(policy=self.policy, start=Spread(median=self.draw.choice([0.0, 3.0])))
        durations = {name: one.duration for name, one in facts.items() if one.duration is not None}
        cluster = ClusterFile(nodes=(nodes,), queue=queue, steps=facts)
        return SimulatedCluster(cluster, durations, self.events, seed=self.seed, results=self._results)

    def strikes(self, kind: str, weight: float = 1.0) -> bool:
        """Whether a fault happens here."""
        return not self.calm and kind in self.kinds and self.draw.random() < self.rate * weight

    # What jobs return: what they make of their inputs, so that another result could not hide

    def _results(self, job: Job) -> Mapping[str, Any]:
        content = sorted(digest for tree in job.inputs.values() for digest in digests_in(tree, self.blobs))
        text = f"{job.key}:{hashlib.sha256(repr(content).encode()).hexdigest()[:12]}"
        count = self.cluster.cluster.steps[job.step.name].elements
        wire = wire_of(text)
        if count is not None:
            parts = [from_wire(wire_of(f"{text}/{number}")) for number in range(count)]
            wire = artifacts.gather(parts, self.blobs).wire()
        if job.key in self.outputs and self.outputs[job.key]["output"] != wire:
            raise Wrong(f"{job.key} made something else than before")
        self.outputs[job.key] = {"output": wire}
        return self.outputs[job.key]

    # The run

    def play(self) -> None:
        """Drive the run to its end through all faults, and check it; `Wrong` where something is."""
        times = SimpleNamespace(time=self.events.time, monotonic=self.events.monotonic, sleep=self._sleep)
        with (
            clock.replaced(self),
            mock.patch.object(writer, "time", times),
            mock.patch.object(os, "urandom", self.draw.randbytes),
            mock.patch.object(writer, "_write_whole", self._write_whole(writer._write_whole)),
        ):
            status = ""
            while not status:
                self.session += 1
                self.calm = self.session > SESSIONS
                if self.session > SESSIONS + 3:
                    raise Wrong("the run does not end")
                status = self._drive()
                self._sleep(self.draw.choice([0.0, 5.0, 100.0]))
        self.check(status)

    time = property(lambda self: self.events.time)
    monotonic = property(lambda self: self.events.monotonic)

    def wait(self, selector: Any, seconds: float) -> Any:
        """The clock's wait of the engine; counts turns, so that a loop that never ends is found."""
        self.turns += 1
        if self.turns > TURNS:
            raise Wrong("the driver turns for ever")
        if self.strikes("cancel", 0.05):
            self.trace("somebody cancels the run")
            self.cancels += 1
            with contextlib.suppress(StoreError):
                self.records.request_end("run", self.draw.choice(["cancel", "now"]))
        return self.events.wait(selector, seconds)

    def _sleep(self, seconds: float) -> None:
        until, news = self.events.now + seconds, self.events.has_news
        self.events.has_news = lambda: False
        self.events.wait(SimpleNamespace(select=lambda seconds: []), max(0.0, until - self.events.now))  # type: ignore[arg-type]
        self.events.has_news = news

    def _drive(self) -> str:
        """One driver, until it is over in any way; the run's status where it ended by itself."""
        self.turns, self.dead, self.writing, self.journaled = 0, False, RowBatch(), set()
        store = open_store("", "", self.home)
        self.records, self.blobs = store.records, store.blobs
        row = None if not self.token else store.records.run("run")
        token = f"t{self.session}"
        self._break(store.records)
        recording = _Writer(self, store, run="run", token=token, patience=PATIENCE)
        backend = _Backend(self)
        try:
            if row is None:
                recording.patiently(lambda: store.records.create_run(
                    RunRow(id="run", pipeline="p", created=1.0, started=1.0, token=token)))  # fmt: skip
            else:
                restore(store, "run", self.token)  # without patience, as `stoker resume` does
                if store.records.run("run").status == "succeeded":
                    self.trace("the run had succeeded already")
                    return "succeeded"
                taken = recording.patiently(
                    lambda: store.records.take_over("run", expected=self.token, token=token, driver={})
                )
                if not taken:
                    raise Wrong("a driver could not take the run over")
            self.token = token
            status, mine = "failed", ""
            try:
                recorder = recording.patiently(lambda: self._recorder(store, recording, resumed=row is not None))
                loop = RunLoop(
                    run="run",
                    recorder=recorder,
                    inputs=StepBindings(store.blobs),
                    backends={"orchestrator": backend},
                    observer=_Silent(),
                    policy=Policy(
                        pipeline="p", environment=FixedEnvironment("image", "i"), fail_fast=self.fail_fast,
                        use_cache=False, max_parallel=self.max_parallel,
                    ),
                )  # fmt: skip
                backend.loop = loop
                loop.add(self.steps)
                loop.close()
                status = mine = loop.loop()
            finally:
                if not self.dead:
                    recording.end(status=status, ended=self.events.now, error="")
            self.trace(f"the driver ends: {status}")
            return "" if status == "cancelled" else mine
        except Killed:
            self.trace("the driver is dead")
        except StokerError as error:
            if recording.is_overtaken:
                self.recorded -= self.journaled  # its journal is not for the run of another driver
            self.trace(f"the driver gives up: {type(error).__name__}: {error.message}")
        except Stuck as error:
            raise Wrong(f"everybody waits for ever: {error}") from None
        finally:
            self.away_until = min(self.away_until, self.events.now)  # whoever resumes a run does so with its database
            backend.close()
            store.close()
        return ""

    def _recorder(self, store: Any, recording: RunWriter, *, resumed: bool) -> Recorder:
        recorder = Recorder(store, run="run", token=recording._token, writer=recording)
        if resumed:
            recorder.load_earlier()
            recorder.record_event("resumed", "", {})
        return recorder

    def die(self, where: str) -> None:
        self.trace(f"the driver is killed {where}")
        self.dead = True
        raise Killed

    # The database and the disk

    def _break(self, records: Records) -> None:
        database = records.database
        for name in ("row", "rows", "change", "begin"):
            setattr(database, name, self._unreliable(getattr(database, name)))
        write = records._write

        def _write(*arguments: Any) -> bool:
            self._reach("before a commit")
            if self.strikes("disk", 0.3):
                self.trace("the disk is full")
                raise StoreError("the database cannot be written: no space left on device")
            # Whoever resumes a run writes its journal first, so nobody takes it over during that.
            if self.token == f"t{self.session}" and self.strikes("stopped", 0.3):
                self.trace("the driver is stopped, and another one takes over")
                self._take_away(records)
            done = write(*arguments)
            if done and arguments[2] not in ("", self.token):
                raise Wrong("a driver wrote after it had lost the run")
            if done:
                self.committed(self.writing)
            if self.strikes("kill"):
                self.die("after a commit")
            if self.strikes("answers"):
                self.trace("the answer to a commit is lost")
                self.away_until = self.events.now + self.draw.choice([0.0, 10.0])
                raise DatabaseUnreachable("the answer was lost")
            return done

        records._write = _write  # type: ignore[method-assign]

    def _unreliable(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any) -> Any:
            if self.dead:
                raise Killed
            if self.events.now < self.away_until:
                raise DatabaseUnreachable("the database is away")
            return call(*arguments)

        return made

    def _reach(self, where: str) -> None:
        if self.dead:
            raise Killed
        if self.strikes("kill"):
            self.die(where)
        if self.strikes("away", 0.5):
            self.away_until = self.events.now + self.draw.choice([1.0, 20.0, 100.0, 2 * PATIENCE])
            self.trace(f"the database is away until {self.away_until - 1_700_000_000.0:.2f}")
        if self.events.now < self.away_until:
            raise DatabaseUnreachable("the database is away")

    def _take_away(self, records: Records) -> None:
        """Give the run to a driver that does nothing: the one that is stopped has to see that."""
        token = f"other {self.session}"
        if records.take_over("run", expected=self.token, token=token, driver={}):
            self.token = token

    def _write_whole(self, write: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
        def made(descriptor: int, line: bytes) -> None:
            if self.dead:
                raise Killed
            if self.strikes("disk", 0.3):
                self.trace("the disk of the journal is full")
                raise OSError(errno.ENOSPC, "no space left on device")
            if self.strikes("kill"):
                os.write(descriptor, line[: self.draw.randrange(len(line))])
                self.die("inside a line of the journal")
            write(descriptor, line)

        return made

    # What must hold

    def committed(self, batch: RowBatch) -> None:
        """Rows that are in the database or the journal now."""
        self.durable.update(row[3] for row in batch.outputs)
        self.recorded.update((row[1], row[2]) for row in batch.attempts)

    def check_submission(self, job: Job) -> None:
        """What a job needs is durable before the job is sent."""
        for name, tree in job.inputs.items():
            for digest in digests_in(tree, self.blobs):
                known = digest in self.durable or self._is_part(digest)
                if not known:
                    raise Wrong(f"{job.name} was submitted before its input '{name}' was recorded")

    def _is_part(self, digest: str) -> bool:
        for outputs in self.outputs.values():
            wire = outputs["output"]
            if wire["s"] == "list" and wire["d"] in self.durable and digest in digests_in({"value": wire}, self.blobs):
                return True
        return False

    def check(self, status: str) -> None:
        """After the end: every result is there once and is what it should be, nothing ran twice without a reason,
        nothing began before what it depends on, and nothing was tried more often than it may be."""
        store = open_store("", "", self.home)
        try:
            self.blobs = store.blobs
            rows = {row.key: row for row in store.records.all_steps("run")}
            outputs = {key: store.records.outputs("run", key) for key in rows}
            tries = {key: store.records.attempts("run", key) for key in rows}
            whole = store.records.run("run")
        finally:
            store.close()
        lost = self.recorded - {(one.key, one.number) for several in tries.values() for one in several}
        if lost:
            raise Wrong(f"attempts that were recorded are lost: {sorted(lost)}")
        if whole.status != status:
            raise Wrong(f"the run ended as {status}, and its row says {whole.status}")
        for step in self.steps:
            if step.key not in rows:
                raise Wrong(f"{step.key} has no row")
        for key, row in rows.items():
            if row.status in ("pending", "running"):
                raise Wrong(f"{key} is {row.status} in a run that is over")
            if status == "succeeded" and row.status not in STEP_GOOD:
                raise Wrong(f"{key} is {row.status} in a run that succeeded")
            if row.status in STEP_GOOD and row.count is None:
                made = [one.artifact.wire() for one in outputs[key]]
                if made != [self.outputs.get(key, {}).get("output")]:
                    raise Wrong(f"{key} has the outputs {made}, and made {self.outputs.get(key)}")
            if row.status == "failed" and row.count is None and not any(one.cause for one in tries[key]):
                raise Wrong(f"{key} failed without an attempt that did")
        if status == "failed" and not any(row.status == "failed" for row in rows.values()):
            raise Wrong("the run failed, and none of its steps")
        for step in self.steps:
            row = rows[step.key]
            if row.status in STEP_GOOD and step.mapped:
                there = [key for key in rows if rows[key].parent == step.key and rows[key].status in STEP_GOOD]
                if len(there) != row.count:
                    raise Wrong(f"{step.key} succeeded with {len(there)} of {row.count} elements")
        self._check_executions(rows)

    def _check_executions(self, rows: Mapping[str, Any]) -> None:
        by_key: dict[str, list[Any]] = {}
        for one in self.cluster.jobs:
            by_key.setdefault(one.job.key, []).append(one)
        for key, jobs in by_key.items():
            good = [one for one in jobs if one.status is not None and one.status.state == "succeeded"]
            if len([one for one in good if not one.asked_to_end]) > 1:
                raise Wrong(f"{key} was executed {len(good)} times: {[one.job.name for one in good]}")
            if key in rows and rows[key].status == "failed" and any(not one.asked_to_end for one in good):
                raise Wrong(f"{key} succeeded, and was recorded as failed")
            spans = sorted((one.placed, one.status.ended if one.status else float("inf")) for one in jobs if one.nodes)
            for (_, end), (begin, _) in itertools.pairwise(spans):
                if begin < end:
                    raise Wrong(f"{key} ran twice at one time: {[one.job.name for one in jobs]}")


FAULTS: Final = ("kill", "away", "answers", "disk", "stopped", "order", "late", "twice", "lost", "cancel")


class _Writer(RunWriter):
    """The writer of a driver; what it has written is durable."""

    def __init__(self, storm: Storm, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._storm = storm

    def write(self, batch: RowBatch) -> None:
        self._storm.writing = batch
        super().write(batch)
        self._storm.committed(batch)
        if self.is_away:
            self._storm.journaled.update((row[1], row[2]) for row in batch.attempts)


class _Backend(SimulatedBackend):
    """The driver's view of the cluster, through an unreliable line."""

    loop: RunLoop

    def __init__(self, storm: Storm) -> None:
        super().__init__(storm.cluster)
        self._storm = storm
        self._held: dict[str, JobStatus] = {}
        self._old: list[tuple[str, JobStatus]] = []
        self._known: dict[str, Job] = {}
        self._failures: dict[str, int] = {}
        self._began = storm.events.now

    def submit(self, job: Job) -> str:
        storm = self._storm
        if storm.dead:
            raise Killed
        if storm.strikes("kill"):
            storm.die(f"before it submits {job.name}")
        storm.trace(f"submit {job.name}")
        storm.check_submission(job)
        if job.name in self._known:
            raise Wrong(f"{job.name} was submitted twice by one driver")
        self._known[job.name] = job
        self._check_room(job)
        super().submit(job)
        if storm.strikes("kill"):
            storm.die(f"after it submitted {job.name}")
        if storm.strikes("lost"):
            self._lose(job.name)
        return job.name

    def _check_room(self, job: Job) -> None:
        capacity = self.capacity()
        running = [one for one in self._known.values() if not one.behind]
        most = self._storm.max_parallel
        if most is not None and len(running) > most:
            raise Wrong(f"{job.name} is the {len(running)}th of at most {most} at a time")
        if capacity is not None and len(running) > 1:
            cores = sum(
                one.step.settings.resources.cpu_count * one.step.settings.resources.node_count for one in running
            )
            if cores > capacity.cpus:
                raise Wrong(f"{job.name}: {cores} of {capacity.cpus} cores are taken")

    def _lose(self, name: str) -> None:
        """The platform loses a job that did not begin."""
        one = self._jobs.get(name)
        if one is not None and one.placed is None and one.status is None:
            self._storm.trace(f"{name} is lost")
            one.status = JobStatus(state="failed", lost=True)
            del self._jobs[name]
            self._tell(one, one.status)

    def poll(self, ids: Any) -> Mapping[str, JobStatus]:
        storm = self._storm
        news = {**self._held, **super().poll(ids)}
        self._held = {}
        if storm.strikes("kill"):
            storm.die("with answers in its hands")
        names = list(news)
        if "order" in storm.kinds:
            storm.draw.shuffle(names)
        for name in list(names):
            if storm.strikes("late", 5):
                names.remove(name)
                self._held[name] = news[name]
                self._news.setdefault("", JobStatus(state="unknown"))  # so that the next wait ends
        answers = {name: news[name] for name in names if name}
        over = [
            one for one in self._old if one[0] not in self._known
        ]  # a later job may have the name of an adopted one
        if over and storm.strikes("twice", 5):
            name, status = storm.draw.choice(over)
            answers.setdefault(name, attrs.evolve(status, events=()))
        for name, status in answers.items():
            storm.trace(f"{name} {status.state} {status.cause} {'lost' if status.lost else ''}")
            if not status.lost:  # the next one has the same name
                self._old.append((name, status))
            if status.lost or status.state in ("succeeded", "failed"):
                job = self._known.pop(name, None)
                if job is not None and not status.lost and status.state == "failed":
                    failures = self._failures[job.key] = self._failures.get(job.key, 0) + 1
                    if failures > job.step.settings.retry.times + 1:
                        raise Wrong(f"{job.key} was tried {failures} times by one driver")
        return answers


# Proof that it finds what is wrong

MUTANTS: Final[Mapping[str, tuple[Any, str, str, str]]] = {
    "submit before the commit": (
        RunLoop,
        "_drain",
        "self._recorder.flush()\n        if self._submissions:",
        "if self._submissions:",
    ),
    "forget that answers come twice": (RunJobs, "_receive", "            del self._jobs[job]\n", "            pass\n"),
    "give room back twice": (Pool, "release", "        self.running -= 1\n", "        self.running -= 2\n"),
    "one too many at a time": (Pool, "_fits", "self.running < capacity.slots", "self.running <= capacity.slots"),
    "one retry too many": (
        Machine,
        "_may_retry",
        "state.failures < state.task.retries",
        "state.failures <= state.task.retries",
    ),
    "start with one requirement open": (Machine, "_release", "if not follower.unmet and", "if follower.unmet < 2 and"),
    "forget numbers of earlier attempts": (Recorder, "load_earlier", "self._attempts[row.key] = max(", "_ = max("),
    "forget what earlier drivers finished": (Recorder, "load_earlier", "self._finished[row.key] = row", "pass"),
    "adopt nothing": (EarlierJobs, "adopt", "adopted = earlier", "pass"),
    "do not renumber adopted attempts": (Machine, "_renumber", "state.attempt = event.earlier", "pass"),
    "write without the token": (Records, "_write", "if cursor.fetchone() is None:", "if False:"),
    "keep nothing while the database is away": (RunWriter, "_keep", "self._journal.append(entry)", "pass"),
    "drop what waits before it is written": (
        RunWriter,
        "_write_waiting",
        "self._commit(self._waiting[0])\n            self._waiting.popleft()",
        "self._commit(self._waiting.popleft())",
    ),
    "do not read the journal of a dead driver": (
        sys.modules[__name__],
        "restore",
        "for entry in journal.entries():",
        "for entry in ():",
    ),
    "lose a lost job": (Machine, "_resubmit", "pool.join(state.task, first=True)", "pass"),
    "ignore who cancels": (RunLoop, "_beat", "            self.stop()\n", "            pass\n"),
}
"""What is made wrong → where, and how: text of the function, and what takes its place."""


@contextlib.contextmanager
def mutated(name: str) -> Iterator[None]:
    """Stoker with one of `MUTANTS`."""
    owner, function, old, new = MUTANTS[name]
    original = getattr(owner, function)
    text = inspect.getsource(original)
    assert text.count(old) == 1, f"{name}: {function} has changed"
    scope = dict(original.__globals__)
    exec(compile(textwrap.dedent(text.replace(old, new)), f"<{name}>", "exec"), scope)
    with mock.patch.object(owner, function, scope[function]):
        yield


def template() -> str:
    """A home with an empty database, which each seed copies."""
    home = tempfile.mkdtemp(prefix="stoker-seeds-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    open_store("", "", f"{home}/empty").close()
    return home


def play(seed: int, home: str, *, trace: bool = False) -> str:
    """One seed; what is wrong, or nothing."""
    folder = f"{home}/{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(f"{home}/empty", folder)
    storm = Storm(seed, folder, trace=trace)
    try:
        storm.play()
    except (Wrong, AssertionError, LookupError, TypeError, ValueError, AttributeError) as error:
        if trace:
            raise
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return ""


def first_wrong(mutant: str, home: str, seeds: range) -> tuple[int, str] | None:
    """The first seed that finds a mutant, and what it says."""
    with mutated(mutant):
        for seed in seeds:
            wrong = play(seed, home)
            if wrong:
                return seed, wrong
    return None


def _some(arguments: tuple[range, str]) -> list[tuple[int, str]]:
    seeds, home = arguments
    return [(seed, wrong) for seed in seeds if (wrong := play(seed, home))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--mutants", action="store_true", help="say with which seed each mutant is found")
    options = parser.parse_args()
    home = template()
    try:
        if options.seed is not None:
            wrong = play(options.seed, home, trace=options.trace)
            print(wrong or "nothing is wrong")
            return bool(wrong)
        if options.mutants:
            for mutant in MUTANTS:
                found = first_wrong(mutant, home, range(options.first, options.first + options.seeds))
                print(
                    f"| {mutant} | " + ("not found |" if found is None else f"{found[0] + 1} | {found[1]} |"),
                    flush=True,
                )
            return 0
        began = time.monotonic()
        pieces = [range(one, min(one + 50, options.first + options.seeds))
                  for one in range(options.first, options.first + options.seeds, 50)]  # fmt: skip
        count = 0
        with ProcessPoolExecutor(options.jobs) as pool:
            for piece in pool.map(_some, [(piece, home) for piece in pieces]):
                for seed, wrong in piece:
                    count += 1
                    print(f"seed {seed}: {wrong}\n  replay: python -m tests.reliability.seeds --seed {seed} --trace")
        print(f"{options.seeds} seeds in {time.monotonic() - began:.0f} s: {count} wrong")
        return bool(count)
    finally:
        shutil.rmtree(Path(home), ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
