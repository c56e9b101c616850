"""Ladders: steps that run out of memory are tried again with less or more, each change is told, what worked is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.steps import planned_step

from stoker.config import Alternative, ResourceSettings, Scale
from stoker.core.findings import Finding
from stoker.core.ladder import Rung
from stoker.core.plan import StepPlan
from stoker.core.settings import NO_RETRY, StepSettings
from stoker.engine.escalation import Escalation, number_wire, whole_number
from stoker.engine.recorder import Recorder
from stoker.store import artifacts
from stoker.store.rows import RunRow
from stoker.store.store import Store, open_store

SCRIPT = """
import os

from stoker import pipeline, step
from stoker.config import Alternative, Halve, ResourceSettings, Retry, Scale
from stoker.core.errors import StokerError

FULL = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.78 GiB total capacity)"

def room() -> int:
    return int(os.environ.get("ROOM", "16"))

def gpu(size):
    print("size", size)
    if size > room():
        raise RuntimeError(FULL)
    return size

@step(retry=Retry(on_oom=[Halve("batch_size", times=3)]))
def train(batch_size: int = 64) -> int:
    return gpu(batch_size)

@step(cache=False, retry=Retry(on_oom=["halve batch_size 3 times"]))
def uncached(batch_size: int = 64) -> int:
    return gpu(batch_size)

@step(retry=Retry(times=9, on_oom=[Halve("batch_size", least=32, times=9), Scale("memory"), Alternative()]))
def never(batch_size: int = 64) -> int:
    return gpu(batch_size)

@step(retry=Retry(times=3, on=["gpu-oom"], on_oom=[Halve("batch_size", least=32)]))
def named(batch_size: int = 64) -> int:
    return gpu(batch_size)

@step(retry=Retry(times=1, on_oom=[Halve("batch_size", times=3)]))
def bounded(batch_size: int = 64) -> int:
    return gpu(batch_size)

@step(
    resources=ResourceSettings(memory="100MB"),
    retry=Retry(on_oom=[Scale("gpu_memory", 2), Scale("memory", 1e9), Scale("memory", 2), Halve("rows")]),
)
def host(rows: int) -> int:
    tries = len(open("host", "a+").write("x") and open("host").read())
    if tries < 3:
        raise MemoryError
    return rows

@step(retry=Retry(times=3, on_oom=[Halve("batch_size", times=2)]))
def unlucky(batch_size: int = 32) -> int:
    size = gpu(batch_size)
    tries = open("unlucky", "a+").write("x") and open("unlucky").read()
    if len(tries) < 2:
        raise ConnectionError("not yet")
    return size

@step(retry=Retry(times=2, on=["killed"], on_oom=[Halve("batch_size", times=2)]))
def stumbles(batch_size: int = 32) -> int:
    if not os.path.exists("mended"):
        raise ValueError("mend me")
    return gpu(batch_size)

@step(cache=False, retry=Retry(on_oom=[Halve("batch_size", times=3)]))
def each_of(shard: int, batch_size: int = 64) -> int:
    if batch_size > shard:
        raise RuntimeError(FULL)
    return batch_size

@step
def number() -> int:
    return 64

@pipeline
def training(batch_size: int = 64):
    train(batch_size)

@pipeline
def again():
    uncached()

@pipeline(failure_mode="continue")
def ladders():
    never()
    named()
    bounded()
    host(8)
    unlucky()

@pipeline
def stumbling():
    stumbles()

@pipeline
def fan():
    each_of.map([64, 16, 32, 64])

@pipeline(dynamic=True)
def lively():
    assert uncached(32) == 16

@pipeline
def upstream():
    train(number())

@step
def labelled(name: str, rate: float = 0.5, sizes: list[int] = [1], flag: bool = True) -> int:
    return 1

@pipeline
def wrong(which: str):
    labelled.with_options(retry=Retry(on_oom=[Halve(which)]))("x")

@pipeline
def mapped():
    train.map([64, 16])

@step(retry=Retry(on_oom=[Halve("size")]))
def anything(size) -> int:
    return 1

@pipeline
def loose():
    anything.map([8, "x"])

if __name__ == "__main__":
    wrongs = [(wrong, which) for which in ("nmae", "name", "rate", "sizes", "flag")]
    for call, *given in ((upstream,), (loose,), *wrongs):
        try:
            call(*given)
        except StokerError as error:
            print(error)
"""


@pytest.fixture
def steps(lab: Any) -> Any:
    """A store of the test's own: what one run learns is remembered by the next."""
    return lab.write("work.py", SCRIPT)


def run(lab: Any, name: str, *more: str, code: int = 0, room: int = 16) -> str:
    return str(lab.run("stoker", "run", f"work.py:{name}", *more, code=code, env={"ROOM": str(room)}))


def events(run: Any, kind: str, key: str = "") -> list[dict[str, Any]]:
    return [dict(event.data) for event in run.events if event.kind == kind and key in ("", event.key)]


@pytest.fixture(scope="module")
def trained(module_lab: Any) -> tuple[Any, str]:
    said = run(module_lab.write("work.py", SCRIPT), "training")
    return module_lab, said


def test_a_parameter_is_halved_until_it_fits(trained: tuple[Any, str]) -> None:
    lab, said = trained
    step = lab["training"].steps["train"]
    assert (step.status, step.load()) == ("succeeded", 16)
    assert [attempt.status for attempt in step.attempts] == ["failed", "failed", "succeeded"]
    assert [attempt.failure.cause for attempt in step.attempts[:2]] == ["gpu-oom", "gpu-oom"]
    assert [line.text for number in (1, 2, 3) for line in step.logs(number)] == ["size 64", "size 32", "size 16"]
    changes = [[str(change) for change in attempt.changes] for attempt in step.attempts]
    assert changes == [[], ["batch_size 64 → 32"], ["batch_size 64 → 16"]]
    assert (step.attempts[2].changes[0].what, step.attempts[2].changes[0].new) == ("batch_size", 16)
    for attempt, change in ((1, "batch_size 64 → 32"), (2, "batch_size 32 → 16")):
        assert f"train: attempt {attempt} ended: gpu-oom: CUDA out of memory. Tried to allocate 20.00 MiB (" in said
        assert f"total capacity); again in 0 ms, {change}" in said


def test_each_change_is_an_event_of_the_run(trained: tuple[Any, str]) -> None:
    lab, _ = trained
    first, second = events(lab["training"], "escalated", "train")
    assert first == {
        "rung": "halve batch_size",
        "what": "batch_size",
        "old": 64,
        "new": 32,
        "cause": "gpu-oom",
        "attempt": 1,
        "passed": [],
    }
    assert (second["old"], second["new"], second["attempt"]) == (32, 16, 2)


def test_changes_are_shown(trained: tuple[Any, str]) -> None:
    lab, _ = trained
    id = lab["training"].id
    text = lab.run("stoker", "show", id)
    assert "batch_size 64 → 32" in text and "batch_size 32 → 16" in text and "gpu-oom" in text
    attempts = json.loads(lab.run("stoker", "show", id, "--json"))["steps"][0]["attempts"]
    assert attempts[2]["changes"] == [{"what": "batch_size", "old": 64, "new": 16}]
    assert "with batch_size 64 → 16" in repr(lab["training"].steps["train"].attempts[2])


def test_the_cache_knows_what_really_ran(steps: Any) -> None:
    run(steps, "training")
    ran = steps["training"].steps["train"]
    assert "≡ train" in run(steps, "training", "--batch-size", "16"), "asked for outright"
    assert ran.inputs == steps["training"].steps["train"].inputs
    assert "≡ train" in run(steps, "training"), "remembered"
    assert steps["training"].steps["train"].status == "cached"
    assert not events(steps["training"], "escalated")


def test_what_worked_is_tried_first_the_next_time(steps: Any) -> None:
    def again(*more: str, room: int = 16) -> str:
        return run(steps, "again", *more, room=room)

    def told(*fields: str) -> list[Any]:
        return [tuple(one[name] for name in fields) for one in events(steps["again"], "escalated")]

    def tried_by(run: Any) -> tuple[int, int]:
        return run.steps["uncached"].load(), run.steps["uncached"].attempt_count

    again()
    learned = steps["again"].id
    said = again()
    assert tried_by(steps["again"]) == (16, 1)
    assert [str(change) for change in steps["again"].steps["uncached"].attempts[0].changes] == ["batch_size 64 → 16"]
    assert told("cause", "run", "new") == [("remembered", learned, 32), ("remembered", learned, 16)]
    assert f"uncached: batch_size 64 → 16, which worked in run {learned}; --no-cache" in said
    assert learned in steps.run("stoker", "show", steps["again"].id)

    # With even less room the ladder goes on from what is remembered, and that is remembered instead.
    again(room=8)
    deeper = steps["again"].id
    assert told("cause") == [("remembered",), ("remembered",), ("gpu-oom",)]
    again(room=8)
    assert set(told("run")) == {(deeper,)} and tried_by(steps["again"]) == (8, 1)

    # Without the cache, what is not needed any more is forgotten.
    again("--no-cache", room=64)
    assert tried_by(steps["again"]) == (64, 1) and not told("cause")
    again(room=64)
    assert tried_by(steps["again"]) == (64, 1) and not told("cause"), "it was forgotten"

    # Another request remembers nothing of this one.
    again("--set", "steps.uncached.resources.cpu_count=1")
    assert told("cause") == [("gpu-oom",)] * 2


@pytest.fixture(scope="module")
def climbed(module_lab: Any) -> tuple[Any, str]:
    said = run(module_lab.write("work.py", SCRIPT), "ladders", code=1)
    return module_lab["ladders"], said


def test_without_a_rung_the_failure_is_final(climbed: tuple[Any, str]) -> None:
    made, said = climbed
    step = made.steps["never"]
    assert (step.status, step.cause, step.attempt_count) == ("failed", "gpu-oom", 2)
    (ended,) = events(made, "ladder-ended", "never")
    assert (ended["cause"], ended["attempt"]) == ("gpu-oom", 2)
    why = {one["rung"]: one["why"] for one in ended["passed"]}
    assert why == {
        "halve batch_size least 32": "batch_size is 32 already",
        "scale memory 2": "it does not help against gpu-oom",
        "alternative": "no accelerators are named",
    }
    assert "never: no rung of on_oom is left after gpu-oom: halve" in said
    assert "alternative: no accelerators are named" in said


def test_the_same_request_is_tried_again_only_if_the_cause_is_named(climbed: tuple[Any, str]) -> None:
    made, _ = climbed
    attempts = made.steps["named"].attempts
    assert [[str(change) for change in attempt.changes] for attempt in attempts] == [
        [],
        *[["batch_size 64 → 32"]] * 3,
    ]


def test_times_bounds_the_ladder_too(climbed: tuple[Any, str]) -> None:
    made, _ = climbed
    assert made.steps["bounded"].attempt_count == 2
    assert len(events(made, "escalated", "bounded")) == 1, "what is not tried again changes nothing"
    assert not events(made, "ladder-ended", "bounded")


def test_rungs_that_do_not_help_or_cannot_be_had_are_passed_over(climbed: tuple[Any, str]) -> None:
    made, said = climbed
    step = made.steps["host"]
    assert (step.status, step.load()) == ("succeeded", 4)
    assert [attempt.failure.cause for attempt in step.attempts[:2]] == ["host-oom", "host-oom"]
    memory, halved = events(made, "escalated", "host")
    assert (memory["rung"], memory["old"], memory["new"]) == ("scale memory 2", 10**8, 2 * 10**8)
    passed = {one["rung"]: one["why"] for one in memory["passed"]}
    assert passed["scale gpu_memory 2"] == "it does not help against host-oom"
    assert "this machine has" in passed["scale memory 1000000000"]
    assert (halved["rung"], halved["new"]) == ("halve rows", 4)
    assert [str(change) for change in step.attempts[2].changes] == ["memory 100MB → 200MB", "rows 8 → 4"]
    assert "again in 0 ms, memory 100MB → 200MB" in said


def test_other_failures_are_tried_again_with_the_request_as_it_is_now(climbed: tuple[Any, str]) -> None:
    made, _ = climbed
    step = made.steps["unlucky"]
    assert [attempt.failure and attempt.failure.cause for attempt in step.attempts] == ["gpu-oom", "user-error", None]
    assert [[str(change) for change in attempt.changes] for attempt in step.attempts] == [
        [],
        *[["batch_size 32 → 16"]] * 2,
    ]
    assert step.load() == 16


def test_a_resumed_run_still_has_its_ladder(steps: Any) -> None:
    run(steps, "stumbling", code=1)
    assert steps["stumbling"].steps["stumbles"].cause == "user-error"
    (steps.folder / "mended").touch()
    steps.run("stoker", "resume", steps["stumbling"].id, env={"ROOM": "8"})
    step = steps["stumbling"].steps["stumbles"]
    assert (step.load(), [attempt.number for attempt in step.attempts]) == (8, [1, 2, 3, 4])


def test_elements_climb_by_themselves_and_the_longest_way_is_remembered(steps: Any) -> None:
    run(steps, "fan")
    made = steps["fan"]
    assert made.steps["each_of"].load() == [64, 16, 32, 64]
    assert {key: made.steps[f"each_of[{key}]"].attempt_count for key in range(4)} == {0: 1, 1: 3, 2: 2, 3: 1}
    said = run(steps, "fan")
    assert steps["fan"].steps["each_of"].load() == [16] * 4
    assert said.count("which worked in run") == 1, "once for all elements"
    remembered = events(steps["fan"], "escalated")
    assert len(remembered) == 8 and {one["run"] for one in remembered} == {made.id}


@pytest.mark.long
def test_a_dynamic_pipeline_climbs_too(steps: Any) -> None:
    run(steps, "lively")
    assert [attempt.status for attempt in steps["lively"].steps["uncached"].attempts] == ["failed", "succeeded"]


REFUSED = (
    "'halve batch_size 3 times': batch_size is what step 'number' returns",
    "size is a value of type str for an element",
    "the step has no parameter 'nmae', did you mean 'name'?",
    "name is a value of type str",
    "rate is a value of type float",
    "sizes is a value of type list",
    "flag is a value of type bool",
)


def test_what_cannot_be_halved_is_refused_before_anything_runs(steps: Any) -> None:
    said = steps.run("work.py")
    for words in REFUSED:
        assert words in said
    assert said.count("work.py:") >= len(REFUSED) and said.count("retry.on_oom") >= len(REFUSED)
    assert not steps.client.runs()


@pytest.mark.long
def test_numbers_of_a_mapped_list_are_halved(steps: Any) -> None:
    run(steps, "mapped", room=32)
    assert steps["mapped"].steps["train"].load() == [32, 16]


def test_a_ladder_can_be_given_on_the_command_line_and_to_a_resumed_run(steps: Any) -> None:
    run(steps, "training", "--no-cache", "--set", "steps.train.retry={times: 1, on_oom: halve batch_size}", code=1)
    first = steps["training"]
    assert first.steps["train"].attempt_count == 2
    typo = ["--set", "steps.train.retry.on_oom=halve batch_sise"]
    assert "did you mean 'batch_size'" in steps.run("stoker", "resume", first.id, *typo, code=2)
    more = ["--set", "steps.train.retry={times: 3, on_oom: [halve batch_size 3 times]}"]
    steps.run("stoker", "resume", first.id, "--no-cache", *more, env={"ROOM": "16"})
    assert steps["training"].steps["train"].load() == 16


# What needs a platform with accelerators


class Platform:
    """A backend that has so much of everything, and refuses the rest."""

    name = "platform"

    def __init__(self, gpu_memory: int = 80 * 10**9) -> None:
        self.gpu_memory = gpu_memory

    def check(self, step: StepPlan) -> Iterable[Finding]:
        wanted = step.settings.resources.get("gpu_memory", 0)
        if wanted > self.gpu_memory:
            yield Finding(code="STK103", level="error", what=f"asks for {wanted} of {self.gpu_memory}")


class Spoken:
    def __init__(self) -> None:
        self.said_: list[str] = []

    def message(self, text: str) -> None:
        self.said_.append(text)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(home=str(tmp_path / "store"))
    for id in ("r1", "r2"):
        opened.records.create_run(RunRow(id=id, pipeline="p", token="t"))
    yield opened
    opened.close()


def planned(*rungs: Rung, **resources: Any) -> StepPlan:
    retry = attrs.evolve(NO_RETRY, times=9, on_oom=rungs)
    return planned_step(StepSettings(resources=ResourceSettings(**resources), retry=retry))


def desk(store: Store, platform: Platform, run: str = "r1") -> Escalation:
    recorder = Recorder(store, run=run, token="t")
    observer: Any = Spoken()
    backends: Any = {"orchestrator": platform}
    return Escalation(recorder, backends, observer, pipeline="p", remembers=True)


def climb(found: Escalation, cause: str) -> str:
    """The change that a cause brings, taken as after a retry of the machine; empty for none."""
    proposed = found.climb("train", "", 1, cause)
    taken = found.accept("train", 1, cause)
    assert (proposed is None) == (taken is None)
    return "" if taken is None else str(taken[0])


def test_gpu_memory_is_scaled_and_alternatives_are_taken_only_for_a_full_gpu(store: Store) -> None:
    found = desk(store, Platform())
    found.start("train", planned(Scale("gpu_memory", 2), gpu_memory="20GB", gpu_count=1), {})
    assert climb(found, "host-oom") == ""
    assert climb(found, "gpu-oom") == "gpu_memory 20GB → 40GB"
    assert climb(found, "gpu-oom") == "", "a rung is used once"
    other = desk(store, Platform())
    other.start("train", planned(Alternative(), Alternative(), accelerators=["L4:1", "A100:2"]), {})
    assert climb(other, "gpu-oom") == "accelerators L4:1 → A100:2"
    assert climb(other, "gpu-oom") == "", "it was the last"


def test_the_task_counts_what_is_asked_for_now(store: Store) -> None:
    found = desk(store, Platform())
    asked = planned(Scale("memory", 3), Alternative(), memory="1GB", accelerators=["L4:1", "A100:2"])
    found.start("train", asked, {})
    task = found.climb("train", "parent", 1, "host-oom")
    assert task is not None
    assert (task.key, task.parent, task.memory, task.devices, task.retries) == ("train", "parent", 3 * 10**9, 1, 9)
    assert task.climbs == {"gpu-oom", "host-oom"} and not task.ahead
    found.accept("train", 1, "host-oom")
    bigger = found.climb("train", "", 2, "gpu-oom")
    assert bigger is not None and (bigger.memory, bigger.devices) == (3 * 10**9, 2), "rungs add up"


def test_what_the_backend_refuses_is_passed_over(store: Store) -> None:
    found = desk(store, Platform(gpu_memory=30 * 10**9))
    found.start("train", planned(Scale("gpu_memory", 4), Scale("gpu_memory", 1.5), gpu_memory="20GB"), {})
    assert climb(found, "gpu-oom") == "gpu_memory 20GB → 30GB"


def test_shared_memory_is_scaled_for_shared_memory_only(store: Store) -> None:
    found = desk(store, Platform())
    found.start("train", planned(Scale("shared_memory", 8), Scale("memory", 2), shared_memory="64MB", memory="1GB"), {})
    assert climb(found, "shm-too-small") == "shared_memory 64MB → 512MB"
    assert climb(found, "host-oom") == "memory 1GB → 2GB"


def test_a_proposal_that_is_not_taken_changes_nothing(store: Store) -> None:
    found = desk(store, Platform())
    found.start("train", planned(Scale("memory", 2), memory="1GB"), {})
    assert found.climb("train", "", 1, "host-oom") is not None
    assert found.climb("train", "", 1, "user-error") is None
    assert found.accept("train", 1, "user-error") is None
    assert found.changes("train") == []


def test_what_is_remembered_is_asked_of_the_backend_again(store: Store) -> None:
    asked = planned(Scale("gpu_memory", 2), gpu_memory="20GB")
    first = desk(store, Platform())
    first.start("train", asked, {})
    climb(first, "gpu-oom")
    first.record_success("train")
    step, _ = desk(store, Platform(), "r2").start("train", asked, {})
    assert step.settings.resources.gpu_memory == 40 * 10**9
    smaller, _ = desk(store, Platform(gpu_memory=30 * 10**9), "r2").start("train", asked, {})
    assert smaller.settings.resources.gpu_memory == 20 * 10**9, "the platform has shrunk since"


@pytest.mark.parametrize("number", [0, 7, -1, 10**30])
def test_a_number_is_kept_as_the_store_keeps_it(store: Store, number: int) -> None:
    assert number_wire(number) == artifacts.save(number, store.blobs).wire()
    assert whole_number({"value": number_wire(number)}) == number


@pytest.mark.parametrize("value", [True, 1.0, "1", None, [1]])
def test_what_is_no_whole_number(store: Store, value: Any) -> None:
    assert whole_number({"value": artifacts.save(value, store.blobs).wire()}) is None
    assert whole_number({"list": []}) is None and whole_number(None) is None
