"""Devices for jobs: what is refused before, who waits and is told why, and what becomes free again, whatever fails."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

from stoker.backends.base import leasing as leasing_module
from stoker.backends.base.backend import Services
from stoker.backends.base.leasing import Leasing
from stoker.backends.local.inline import InlineBackend
from stoker.core.devices import Devices, Inventory, Lease
from stoker.core.errors import BackendError
from stoker.core.graph import StepOutput
from stoker.core.plan import Job, JobStatus, Site, StepPlan
from stoker.core.protocol import FunctionSource, StepResult, StepTask, WorkerJob
from stoker.core.resources import Monitor, ResourceSettings
from stoker.core.settings import StepSettings
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation
from stoker.worker.processes import this_process


def step(key: str = "train", **settings: Any) -> StepPlan:
    return StepPlan(
        key=key,
        name=key,
        source=FunctionSource(kind="module", module="steps", qualname=key),
        outputs=(StepOutput(name="output"),),
        unpack=False,
        inputs={},
        settings=StepSettings(**settings),
        backend="orchestrator",
        code="",
        where="train.py:3",
    )


def job(key: str = "train", *, attempt: int = 1, kind: Any = "step", **resources: Any) -> Job:
    settings = {name: resources.pop(name) for name in ("accelerator_policy", "monitor") if name in resources}
    planned = step(key, resources=ResourceSettings(**resources), **settings)
    return Job(name=f"run/{key}/{attempt}", run="run", key=key, attempt=attempt, step=planned, inputs={}, kind=kind)


OFTEN = Monitor(0.05, idle_below=5, idle_for=600)


class Faltering(Ledger):
    """A ledger that can be made to fail."""

    fails = False

    def answer(self, ticket: str) -> Lease | str:
        self._perhaps()
        return super().answer(ticket)

    def release(self, ticket: str) -> None:
        super().release(ticket)
        self._perhaps()

    def _perhaps(self) -> None:
        if self.fails:
            raise BackendError("the disk is full")


class Place:
    """A leasing and the ledger below it."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.ledger = Faltering(lambda: parse_simulation(text), lambda inventory: (), folder=folder / "leases")
        self.leasing = self.another()

    def another(self, *, limits: bool = True, ledger: Devices | None = None) -> Leasing:
        me = this_process()
        scratch = str(self.folder / "scratch")
        found: Devices = ledger or self.ledger
        return Leasing(lambda: found, process=(me["pid"], me["started"]), scratch=scratch, limits=limits)

    def tickets(self) -> list[tuple[str, int]]:
        return [(entry.holder.key, len(entry.devices)) for entry in self.ledger.entries()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, "2xH100-80GB")


def test_who_comes_second_waits_and_is_told_once(place: Place) -> None:
    leasing = place.leasing
    first, second = job("first", gpu_count=2), job("second", gpu_count=1)
    granted = leasing.ask(first)
    assert isinstance(granted, Lease) and len(granted.held) == 2
    assert leasing.ask(first) is granted, "asking twice takes nothing more"
    reason = leasing.ask(second)
    assert reason == "waiting for 1 of 2 GPUs: 2 leased to this run"
    assert leasing.wait(second, reason) and not leasing.wait(second, reason)
    assert leasing.waits(second.name)
    assert not leasing.due_jobs(), "it has just asked"
    leasing.release(first.name)
    assert leasing.due_jobs() == [second], "what this process gives back is known at once"
    assert isinstance(leasing.ask(second), Lease) and not leasing.due_jobs() and not leasing.waits(second.name)
    leasing.release_all()
    assert not place.tickets()


def test_a_reason_that_changes_all_the_time_is_told_now_and_then(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(leasing_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    waits = job(gpu_count=1)
    told = []
    for look in range(50):
        if place.leasing.wait(waits, f"1 in use by pid 4711 ({look} GB)"):
            told.append(look)
        assert not place.leasing.due_jobs()
        clock[0] += leasing_module.ASK_AGAIN
        assert place.leasing.due_jobs() == [waits]
    every = leasing_module.TELL_AGAIN / leasing_module.ASK_AGAIN
    assert told == [0, every, 2 * every]


def test_who_leaves_the_line_stands_in_nobodys_way(place: Place) -> None:
    leasing = place.leasing
    leasing.ask(job("first", gpu_count=1))
    big, small = job("big", gpu_count=2), job("small", gpu_count=1)
    for one in (big, small):
        reason = leasing.ask(one)
        assert isinstance(reason, str)
        leasing.wait(one, reason)
    assert "kept for another step of this run" in str(leasing.ask(small))
    leasing.release(big.name)
    assert isinstance(leasing.ask(small), Lease)


def test_a_ledger_that_fails(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    leasing = place.leasing
    first, second = job("first", gpu_count=2), job("second", gpu_count=1)
    leasing.ask(first)
    leasing.wait(second, str(leasing.ask(second)))
    place.ledger.fails = True
    with pytest.raises(BackendError, match="the disk is full"):
        leasing.ask(second)
    assert not leasing.waits(second.name)
    with caplog.at_level(logging.WARNING):
        leasing.release(first.name)
    assert "run/first/1 only become free when this process ends: the disk is full" in caplog.text
    place.ledger.fails = False
    assert not place.tickets(), "a job that is refused holds no place in the line"


def test_samples_of_an_attempt_that_was_lost_are_not_this_ones(place: Place) -> None:
    one = job(gpu_count=1)
    place.leasing.ask(one)
    (lease,) = place.leasing.leases(one)
    samples = Path(lease.samples)
    samples.write_text("of a driver that died\n")
    place.leasing.release(one.name)
    place.leasing.ask(one)
    assert place.leasing.leases(one)[0].samples == str(samples) and not samples.exists()


def test_every_attempt_has_a_file_of_its_own(place: Place) -> None:
    keys = ["a_b", "a-b", "a[1]", "a1", "a[11]", "a_b[1]", "ä"]
    jobs = [job(key, attempt=attempt, gpu_count=1) for key in keys for attempt in (1, 11)]
    found = set()
    for one in jobs:
        place.leasing.ask(one)
        found.add(place.leasing.leases(one)[0].samples)
        place.leasing.release(one.name)
    assert len(found) == len(jobs) and all(Path(path).parent == place.folder / "scratch" for path in found)


def test_what_others_are_told_of_a_lease(tmp_path: Path) -> None:
    place = Place(tmp_path, "2xH100-80GB;driver=535.104.05")
    one = job(gpu_count=1, gpu_memory="20GB", share=True, monitor=Monitor(0.5, idle_below=10, idle_for=60))
    assert place.leasing.leases(one) == []
    place.leasing.ask(one)
    (lease,) = place.leasing.leases(one)
    told = {
        name: getattr(lease, name) for name in ("memory", "asked", "driver", "cuda", "simulated", "policy", "fallback")
    }
    assert told == {
        "memory": 20 * 10**9,
        "asked": "1 GPU (20GB of one, shared)",
        "driver": "535.104.05",
        "cuda": (12, 2),
        "simulated": True,
        "policy": "require",
        "fallback": "",
    }
    assert (lease.interval, lease.idle_below, lease.idle_for) == (0.5, 10, 60)
    assert [device.uuid for device in lease.held] == ["GPU-simulated-0000-0000-0000-000000000000"]
    assert lease.on_idle == "warn"


def test_the_nodes_of_a_gang_hold_different_devices(tmp_path: Path) -> None:
    place = Place(tmp_path, "4xH100-80GB")
    gang = job(gpu_count=2, nodes=2)
    granted = place.leasing.ask(gang)
    assert isinstance(granted, Lease) and len(granted.held) == 4
    leases = place.leasing.leases(gang)
    uuids = [device.uuid for lease in leases for device in lease.held]
    assert [len(lease.held) for lease in leases] == [2, 2] and len(set(uuids)) == 4
    assert len({lease.samples for lease in leases}) == 2
    assert place.tickets() == [("train", 4)]


def test_a_step_that_prefers_devices_is_given_the_reason(tmp_path: Path) -> None:
    place = Place(tmp_path, "1xL4")
    wanted = job(gpu_count=2, accelerator_policy="prefer")
    granted = place.leasing.ask(wanted)
    assert isinstance(granted, Lease) and granted.devices == () and "1" in granted.fallback
    assert place.leasing.leases(wanted)[0].fallback == granted.fallback and not place.tickets()
    place.leasing.release(wanted.name)
    # Where it can have them, it waits for them like everybody else.
    assert len(place.leasing.ask(job("one", gpu_count=1, accelerator_policy="prefer")).held) == 1  # type: ignore[union-attr]
    assert isinstance(place.leasing.ask(job("two", gpu_count=1, accelerator_policy="prefer")), str)


def test_hooks_and_steps_without_devices_hold_none(place: Place) -> None:
    assert place.leasing.wants(job(gpu_count=1))
    assert not place.leasing.wants(job(gpu_count=1, kind="hook"))
    assert not place.leasing.wants(job(cpu_count=1))


def test_findings(place: Place) -> None:
    def findings(policy: Any = "require", environment: Mapping[str, str] | None = None, **resources: Any) -> list[Any]:
        asked = step(resources=ResourceSettings(**resources), accelerator_policy=policy, environment=environment or {})
        return [*place.leasing.check(asked)]

    assert findings() == findings(gpu_count=2) == findings(accelerators=["L4:1", "H100:2"]) == []
    (refused,) = findings(gpu_count=3)
    assert (refused.code, refused.level, refused.where) == ("STK103", "error", "train.py:3 step 'train'")
    assert "--stack NAME" in refused.fix and "--simulate 3xH100-80GB" in refused.fix
    assert "--set steps.train.accelerator_policy=prefer" in refused.fix
    assert "--simulate 1xL4" in findings(accelerators="L4:1")[0].fix
    (prefers,) = findings("prefer", gpu_count=3)
    assert (prefers.code, prefers.level) == ("STK111", "translated") and "it runs without" in prefers.what
    (own, _) = findings(environment={"CUDA_VISIBLE_DEVICES": "0", "COLOUR": "red"}, gpu_count=3)
    assert own.code == "STK112" and "remove CUDA_VISIBLE_DEVICES" in own.fix
    assert [one.code for one in findings(environment={"HIP_VISIBLE_DEVICES": ""})] == ["STK112"]


def test_how_many_devices_limit_a_run(place: Place) -> None:
    assert place.leasing.room() == 2
    assert place.another(limits=False).room() is None, "nobody asks, and no driver is started"
    shared = attrs.evolve(parse_simulation("1xL4").devices[0], kind="apple", exclusive=False)
    ledger = Ledger(lambda: Inventory(devices=(shared,)), lambda inventory: (), folder=place.folder / "other")
    assert place.another(ledger=ledger).room() is None, "all may use the same one"


# In the driver's own process.


Execute = Callable[[WorkerJob, StepTask], StepResult]


@pytest.fixture
def opened(place: Place) -> Iterator[Callable[[Execute], InlineBackend]]:
    """Opens the backend with a function that runs its jobs."""
    backends = []

    def open_inline(execute: Execute) -> InlineBackend:
        site = Site(artifacts=str(place.folder / "artifacts"), scratch=str(place.folder))
        backends.append(InlineBackend(site, {}, Services(leasing=place.leasing, execute=execute)))
        return backends[-1]

    yield open_inline
    for backend in backends:
        backend.close()


def woken(backend: InlineBackend) -> bool:
    return bool(select.select(list(backend.wakeups()), [], [], 0)[0])


def runs(seen: list[str]) -> Execute:
    def execute(message: WorkerJob, step: StepTask) -> StepResult:
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return StepResult(job=message.job, ok=True, start=1.0, end=2.0)

    return execute


def test_inline_tells_of_the_lease_before_the_step_runs(
    opened: Callable[[Execute], InlineBackend], place: Place
) -> None:
    seen: list[str] = []
    inline = opened(runs(seen))
    first, second = job("first", gpu_count=2, monitor=OFTEN), job("second", gpu_count=1, monitor=OFTEN)
    inline.submit(first)
    inline.submit(second)
    news = inline.poll(())
    assert news[first.name].lease.held and news[second.name].message.endswith("2 leased to this run")
    assert not seen and woken(inline)
    news = inline.poll(())
    assert news[first.name].state == "succeeded" and len(seen[0].split(",")) == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ or os.environ["CUDA_VISIBLE_DEVICES"] != seen[0]
    samples = Path(news[first.name].lease.samples).read_text().splitlines()
    assert '"why":"told"' in samples[-1] and f'"pid":{os.getpid()}' in samples[0]
    assert inline.poll(())[second.name].state == "running"
    assert inline.poll(())[second.name].state == "succeeded" and len(seen[1].split(",")) == 1
    assert not place.tickets() and not woken(inline)


def test_inline_cancels_whoever_does_not_run_yet(opened: Callable[[Execute], InlineBackend], place: Place) -> None:
    inline = opened(runs([]))
    ready, waits, plain = job("ready", gpu_count=2), job("waits", gpu_count=1), job("plain")
    for one in (ready, waits, plain):
        inline.submit(one)
    for one in (waits, ready, plain):
        inline.cancel(one.name, grace=1.0)
    cancelled = JobStatus(state="failed", cause="cancelled")
    news = inline.poll(())
    assert {name: attrs.evolve(status, ended=None) for name, status in news.items()} == dict.fromkeys(
        (ready.name, waits.name, plain.name), cancelled
    )
    inline.cancel(ready.name, grace=1.0)
    assert not inline.poll(()) and not place.tickets()


def test_inline_gives_back_what_an_interrupted_step_held(
    opened: Callable[[Execute], InlineBackend], place: Place
) -> None:
    def interrupted(message: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
        assert place.tickets() == [("train", 1)]
        raise KeyboardInterrupt

    inline = opened(interrupted)
    inline.submit(job(gpu_count=1, monitor=OFTEN))
    inline.poll(())
    with pytest.raises(KeyboardInterrupt):
        inline.poll(())
    assert not place.tickets()


def test_inline_refuses_a_job_whose_ledger_fails(opened: Callable[[Execute], InlineBackend], place: Place) -> None:
    inline = opened(runs([]))
    first, second = job("first", gpu_count=2, monitor=OFTEN), job("second", gpu_count=2)
    inline.submit(first)
    inline.submit(second)
    inline.poll(())
    inline.poll(())
    place.ledger.fails = True
    news = inline.poll(())
    assert news[second.name].cause == "refused" and "the disk is full" in news[second.name].message
    with pytest.raises(BackendError):
        inline.submit(job("third", gpu_count=1))
