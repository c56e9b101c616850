"""Failure modes, retries, hooks, and how a run is stopped from inside and outside."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

MODES = """
import os
import sys
import time
from pathlib import Path

from stoker import pipeline, step
from stoker.config import LocalSettings, Retry
from stoker.core.errors import RunFailed

TWO = {"orchestrator.local": LocalSettings(cpus=2)}

def note(text):
    with open("notes", "a") as file:
        file.write(text + chr(10))

@step
def fails(wait_for: str) -> int:
    deadline = time.monotonic() + 60
    while wait_for and not Path(wait_for).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)
    raise ValueError("broken")

@step
def long(name: str) -> int:
    Path(name).touch()
    try:
        time.sleep(300)
    finally:
        note(f"{name} left")
    return 0

@step
def quick(x: int) -> int:
    return x

@step
def follows(x: int) -> int:
    return x

@step(retry=Retry(3, delay=0.2, backoff=2, jitter=0, on=["user-error"]))
def flaky(x: int) -> int:
    note(f"flaky {time.time()}")
    if len([line for line in Path("notes").read_text().splitlines() if line.startswith("flaky")]) < 3:
        raise OSError("a network")
    return x

@step(retry=Retry(1, delay=30))
def patient(x: int) -> int:
    raise OSError("waits long")

@pipeline(settings=TWO)
def fast():
    fails("running")
    follows(long("running"))
    quick(5)

@pipeline(settings=TWO, failure_mode="continue")
def on():
    failed = fails("")
    follows(failed)
    follows.with_options(after=failed)(2)
    quick(6)
    partly.map([1, 2, 3])
    follows.map(partly.map([1, 3]))

@step
def partly(x: int) -> int:
    if x == 2:
        raise ValueError("only the second")
    return x

@pipeline
def again():
    flaky(1)

def told_step(told):
    facts = [told.step, told.status, told.cause, told.message, bool(told.traceback), told.pipeline, len(told.run)]
    note(" ".join(["step", *map(str, facts)]))

def told_nothing():
    note("told nothing")

def told_pipeline(told):
    note(f"pipeline {told.pipeline} {told.step!r} {told.status} {told.cause} {told.message}")

def hook_fails(told):
    print("a hook speaks")
    raise RuntimeError("a hook fell")

@step(on_success=told_step, on_failure=told_nothing, cache=False)
def hooked(x: int) -> int:
    return x

@step(on_failure=told_step)
def hooked_failure() -> int:
    raise ValueError("for the hook")

@step(on_success=hook_fails, cache=False)
def bad_hook(x: int) -> int:
    return x

@pipeline(on_success=told_pipeline)
def hooks():
    hooked(1)
    bad_hook(2)
    hooked.with_options(on_success=told_nothing)(3)

@pipeline(on_failure=told_pipeline)
def failure_hooks():
    hooked_failure()

if __name__ == "__main__":
    for name in sys.argv[1:] or ["fast", "on", "again", "hooks", "failure_hooks"]:
        try:
            globals()[name]()
        except RunFailed as error:
            print(f"{name}: {error}")
"""


@pytest.fixture(scope="module")
def modes(module_lab: Any) -> Any:
    module_lab.write("modes.py", MODES)
    module_lab.said = module_lab.run("modes.py")
    return module_lab


def test_fail_fast_ends_what_runs_and_starts_nothing_more(modes: Any) -> None:
    run = modes["fast"]
    assert run.status == "failed"
    statuses = {key: step.status for key, step in run.steps.items()}
    assert (statuses["fails"], statuses["long"], statuses["follows"]) == ("failed", "cancelled", "skipped")
    assert statuses["quick"] in ("skipped", "succeeded")
    assert run.steps["long"].cause == "cancelled"
    assert "running left" in modes.read("notes"), "its finally block ran"
    assert not run.steps["follows"].attempts


def test_continue_runs_all_that_does_not_need_what_failed(modes: Any) -> None:
    run = modes["on"]
    assert run.status == "failed"
    statuses = {key: step.status for key, step in run.steps.items()}
    assert statuses == {
        "fails": "failed",
        "follows": "skipped",
        "follows_2": "skipped",
        "quick": "succeeded",
        "partly": "failed",
        "partly_2": "succeeded",
        "follows_3": "succeeded",
    }
    assert [element.status for element in run.steps["partly"]] == ["succeeded", "failed", "succeeded"]
    assert "partly[1]: only the second" in run.steps["partly"].message
    assert run.steps["follows_3"].load() == [1, 3]


def test_retries_wait_longer_each_time(modes: Any) -> None:
    run = modes["again"]
    step = run.steps["flaky"]
    assert (run.status, step.attempt_count) == ("succeeded", 3)
    assert [attempt.failure and attempt.failure.message for attempt in step.attempts] == ["a network"] * 2 + [None]
    waits = [event.data["wait"] for event in run.events if event.kind == "retry"]
    assert waits == pytest.approx([0.2, 0.4], abs=0.1)
    times = [float(line.split()[1]) for line in modes.read("notes") if line.startswith("flaky")]
    assert times[1] - times[0] >= 0.19 and times[2] - times[1] >= 0.39
    assert "again in" in modes.said


def test_hooks_are_told_what_happened(modes: Any) -> None:
    notes = modes.read("notes")
    assert "step hooked succeeded   False hooks 12" in notes
    assert "step hooked_failure failed user-error for the hook True failure_hooks 12" in notes
    assert notes.count("told nothing") == 1, "a hook without parameters is called once, and not the other one"
    assert "pipeline hooks '' succeeded  " in notes
    failed = next(line for line in notes if line.startswith("pipeline failure_hooks"))
    assert failed.startswith("pipeline failure_hooks '' failed user-error") and "for the hook" in failed


def test_a_hook_that_fails_is_recorded_and_fails_nothing(modes: Any) -> None:
    run = modes["hooks"]
    assert run.status == "succeeded"
    assert run.steps["bad_hook"].status == "succeeded"
    event = next(event for event in run.events if event.kind == "hook-failed")
    assert (event.key, event.data["hook"], event.data["message"]) == ("bad_hook", "on_success", "a hook fell")
    assert "bad_hook: its on_success hook failed: a hook fell" in modes.said
    assert [line.text for line in run.steps["bad_hook"].logs(0)] == ["a hook speaks"]


CANCEL = """
import signal
import subprocess
import sys
import time

from stoker import pipeline, step
from stoker.config import LocalSettings
from stoker.engine import jobs

@step
def polite() -> int:
    try:
        print("polite runs", flush=True)
        time.sleep(300)
    finally:
        print("polite left", flush=True)
    return 1

@step
def stubborn() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "300"])
    print("child", child.pid, flush=True)
    print("stubborn runs", flush=True)
    time.sleep(300)
    return 1

@step
def later(x: int) -> int:
    return x

@pipeline
def soft():
    later(polite())

@pipeline
def hard():
    later(stubborn())

def hangs():
    print("hook hangs", flush=True)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(300)

@pipeline(on_success=hangs)
def hanging():
    later(1)

@pipeline
def hanging_step():
    later.with_options(on_success=hangs)(1)

if __name__ == "__main__":
    if sys.argv[2:]:
        jobs.GRACE = float(sys.argv[2])
    globals()[sys.argv[1]]()
"""
ENDLESS = "3600"
"""A grace that no test outlives: what ends meanwhile has not waited for its end, however slow the machine is."""


def test_one_interrupt_lets_steps_clean_up(lab: Any) -> None:
    driver = lab.write("cancel.py", CANCEL).start("cancel.py", "soft")
    driver.until_written("polite runs")
    driver.signal(signal.SIGINT)
    said = driver.wait(130)
    run = lab["soft"]
    assert run.status == "cancelled"
    assert {key: (step.status, step.cause) for key, step in run.steps.items()} == {
        "polite": ("cancelled", "cancelled"),
        "later": ("skipped", ""),
    }
    assert [line.text for line in run.steps["polite"].logs()] == ["polite runs", "polite left"]
    assert [attempt.failure.cause for attempt in run.steps["polite"].attempts] == ["cancelled"]
    assert "stoker resume" in said and "Traceback" not in said


def test_a_second_interrupt_ends_at_once(lab: Any, gone: Callable[[int], bool]) -> None:
    driver = lab.write("cancel.py", CANCEL).start("cancel.py", "hard", ENDLESS)
    driver.until_written("stubborn runs")
    driver.signal(signal.SIGTERM)
    driver.until_written("asked to end")
    driver.signal(signal.SIGINT)
    driver.wait(130)
    run = lab["hard"]
    assert (run.status, run.steps["stubborn"].status) == ("cancelled", "cancelled")
    assert gone(int(next(line for line in driver.lines if " child " in line).split()[-1]))


@pytest.mark.parametrize("pipeline", ["hanging_step", pytest.param("hanging", marks=pytest.mark.long)])
def test_a_hook_that_hangs_can_be_interrupted(lab: Any, pipeline: str) -> None:
    driver = lab.write("cancel.py", CANCEL).start("cancel.py", pipeline, ENDLESS)
    driver.until_written("hook hangs")
    driver.signal(signal.SIGINT)
    driver.until_written("asked to end")
    driver.signal(signal.SIGINT)
    driver.wait(None)
    run = lab[pipeline]
    assert run.status in ("succeeded", "cancelled")
    assert run.steps["later"].status == "succeeded"


def test_another_process_asks_for_the_end(lab: Any) -> None:
    driver = lab.write("cancel.py", CANCEL).start("cancel.py", "soft")
    driver.until_written("polite runs")
    run = lab["soft"]
    assert run.status == "running"
    assert run.cancel()
    driver.wait(130)
    assert run.wait(10).status == "cancelled"
    assert not run.cancel(), "nobody runs it any more"
    assert [line.text for line in run.steps["polite"].logs()] == ["polite runs", "polite left"]


def test_another_process_asks_for_the_end_now(lab: Any) -> None:
    driver = lab.write("cancel.py", CANCEL).start("cancel.py", "hard", ENDLESS)
    driver.until_written("stubborn runs")
    assert lab["hard"].cancel(now=True)
    driver.wait(130)
    assert lab["hard"].steps["stubborn"].status == "cancelled"
