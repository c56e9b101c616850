"""How steps end, and what becomes of the step, its attempts, its run and its driver. Real processes, real signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

FATES = """
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time

from stoker import Client, pipeline, step
from stoker.config import LocalSettings, Retry
from stoker.core.errors import RunFailed

class Refuses:
    def __reduce__(self):
        raise TypeError("not for keeping")

class Odd(Exception):
    def __str__(self):
        raise ValueError("no words")

@step
def fine() -> int:
    return 1

@step
def segfault() -> int:
    print("before the fall", flush=True)
    ctypes.string_at(0)

@step
def kills_itself() -> int:
    os.kill(os.getpid(), signal.SIGKILL)

@step
def leaves() -> int:
    os._exit(3)

@step
def exits() -> int:
    raise SystemExit(4)

@step
def raises() -> int:
    return helper([])

def helper(items):
    return items[0]

@step
def wordless() -> int:
    raise Odd

@step
def locks() -> dict:
    return {"a": [1, {"b": threading.Lock()}]}

@step
def refuses():
    return [Refuses()]

@step
def too_few() -> tuple[int, str]:
    return (1,)

@step
def children() -> list[int]:
    plain = subprocess.Popen(["sleep", "300"])
    stray = subprocess.Popen(["sleep", "300"], start_new_session=True)
    forked = os.fork()
    if not forked:
        time.sleep(300)
        os._exit(0)
    return [plain.pid, stray.pid, forked]

@step
def child_and_death() -> int:
    stray = subprocess.Popen(["sleep", "300"], start_new_session=True)
    print(stray.pid, flush=True)
    os._exit(5)

@step(retry=2)
def third_time() -> int:
    with open("tries", "a") as file:
        file.write(f"{os.getpid()}" + chr(10))
    if len(open("tries").readlines()) < 3:
        os._exit(7)
    return 3

@step(retry=Retry(3, on="crashed"))
def another_cause() -> int:
    open("another", "a").write("x")
    raise ValueError("not a crash")

@step(timeout=0.5, retry=1)
def overtime() -> int:
    child = subprocess.Popen(["sh", "-c", "sleep 300 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
    print(child.pid, int(child.stdout.readline()), flush=True)
    try:
        time.sleep(300)
    finally:
        print("cleaned up", flush=True)

@step(timeout=0.5)
def deaf() -> int:
    "Blocked in C, with a signal handler that so never gets its turn."
    mutex = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

@step
def after(x: int) -> int:
    return x

@pipeline(failure_mode="continue", settings={"orchestrator.local": LocalSettings(cpus=8)})
def fates():
    deaf()
    overtime()
    fine()
    after(segfault())
    kills_itself()
    leaves()
    exits()
    raises()
    wordless()
    locks()
    refuses()
    too_few()
    children()
    child_and_death()
    third_time()
    another_cause()

if __name__ == "__main__":
    fates()
"""


@pytest.fixture(scope="module")
def fates(module_lab: Any) -> Any:
    module_lab.write("fates.py", FATES)
    module_lab.said = module_lab.run("fates.py", code=1)
    return module_lab


@pytest.mark.parametrize(
    ("key", "cause", "exit_code", "words"),
    [
        ("segfault", "crashed", -11, ["SIGSEGV"]),
        ("kills_itself", "killed", -9, ["SIGKILL", "memory"]),
        ("leaves", "exited", 3, ["exit code 3"]),
        ("exits", "exited", None, ["sys.exit(4)"]),
        ("raises", "user-error", None, ["list index out of range"]),
        ("wordless", "user-error", None, ["cannot be shown", "ValueError"]),
        ("locks", "unserializable", None, ["step 'locks'", "output 'output'", "['a'][1]['b']", "lock"]),
        ("refuses", "unserializable", None, ["step 'refuses'", "[0]", "Refuses", "not for keeping"]),
        ("too_few", "unserializable", None, ["2 values", "1 value"]),
        ("child_and_death", "exited", 5, ["exit code 5"]),
        ("another_cause", "user-error", None, ["not a crash"]),
        ("overtime", "timed-out", None, ["timeout", "500 ms"]),
        ("deaf", "timed-out", -9, ["timeout", "500 ms"]),
    ],
)
def test_a_step_that_ends_badly_says_how(
    fates: Any, key: str, cause: str, exit_code: int | None, words: list[str]
) -> None:
    step = fates["fates"].steps[key]
    assert (step.status, step.cause) == ("failed", cause)
    for word in words:
        assert word in step.message, step.message
    last = step.attempts[-1]
    assert (last.status, last.failure.cause) == ("failed", cause)
    assert last.failure.exit_code == exit_code
    assert last.failure.message == step.message == step.failure.message
    assert last.started <= last.ended
    assert f"{key} failed: {cause}" in fates.said


def test_the_others_go_on_and_the_run_has_failed(fates: Any) -> None:
    run = fates["fates"]
    assert run.status == "failed" and not run.error
    assert run.steps["fine"].status == "succeeded"
    assert run.steps["after"].status == "skipped" and not run.steps["after"].attempts
    assert "stoker resume" in fates.said


def test_the_traceback_is_the_users_with_the_place(fates: Any) -> None:
    failure = fates["fates"].steps["raises"].failure
    assert failure.type == "IndexError"
    assert "in helper" in failure.traceback and "return items[0]" in failure.traceback
    assert "stoker" not in failure.traceback.replace(str(fates.folder), "")
    assert failure.place.endswith(f"fates.py:{1 + FATES.strip().splitlines().index('    return items[0]')}")
    assert failure.traceback.rstrip() in fates.said


def test_what_a_step_wrote_before_it_died_is_kept(fates: Any) -> None:
    lines = [line.text for line in fates["fates"].steps["segfault"].logs()]
    assert lines[0] == "before the fall"


def test_children_that_outlive_their_step_are_ended(fates: Any, gone: Callable[[int], bool]) -> None:
    run = fates["fates"]
    assert run.steps["children"].status == "succeeded"
    assert all(gone(pid) for pid in run.steps["children"].load())
    left = [event.data["processes"] for event in run.events if (event.kind, event.key) == ("leftovers", "children")]
    assert left == [3]
    assert gone(int(next(run.steps["child_and_death"].logs()).text))


def test_retries_are_counted_and_recorded(fates: Any) -> None:
    run = fates["fates"]
    step = run.steps["third_time"]
    assert (step.status, step.load(), step.attempt_count) == ("succeeded", 3, 3)
    assert [attempt.number for attempt in step.attempts] == [1, 2, 3]
    assert [attempt.failure and attempt.failure.exit_code for attempt in step.attempts] == [7, 7, None]
    assert len(set(fates.read("tries"))) == 3
    retries = [event for event in run.events if event.kind == "retry" and event.key == "third_time"]
    assert [(event.data["attempt"], event.data["cause"]) for event in retries] == [(1, "exited"), (2, "exited")]


def test_a_cause_that_was_not_named_is_not_retried(fates: Any) -> None:
    assert fates.read("another") == ["x"]
    assert fates["fates"].steps["another_cause"].attempt_count == 1


def test_a_timeout_ends_the_whole_process_group(fates: Any, gone: Callable[[int], bool]) -> None:
    step = fates["fates"].steps["overtime"]
    assert [attempt.failure.cause for attempt in step.attempts] == ["timed-out", "timed-out"]
    for attempt in step.attempts:
        assert 0.4 < attempt.seconds < 9, "it listened, so there was no need to wait for the end of the grace"
        lines = [line.text for line in step.logs(attempt.number)]
        assert lines[1:] == ["cleaned up"]
        assert all(gone(int(pid)) for pid in lines[0].split())


LOUD = """
import os
from stoker import pipeline, step

@step
def loud(lines: int) -> int:
    for first in range(0, lines, 1000):
        print(*(f"{number} {'x' * 90}" for number in range(first, first + 1000)), sep=chr(10))
    return lines

@pipeline
def noise():
    loud(int(os.environ["COUNT"]))

if __name__ == "__main__":
    run = noise()
    # Not getrusage: its maximum is inherited over fork and exec from whoever started this program.
    with open("/proc/self/status") as status:
        print("peak", next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024)
"""


def test_megabytes_of_log_are_kept_and_not_held_in_memory(lab: Any, long_form: bool) -> None:
    lines, most = (1_000_000, 150) if long_form else (300_000, 60)
    lab.write("loud.py", LOUD)
    said = lab.run("loud.py", "--quiet", env={"COUNT": str(lines)})
    run = lab["noise"]
    count = 0
    for number, line in enumerate(run.steps["loud"].logs()):
        count += line.text.startswith(f"{number} x")
    assert count == lines
    peak = int(said.rpartition("peak ")[2])
    assert peak < most, f"the driver held {peak} MB"


def test_a_timeout_counts_from_where_the_step_begins(lab: Any) -> None:
    """The time in which its process comes up and imports the module is not the step's."""
    lab.write(
        "slow.py",
        """
        import os
        import time
        from stoker import pipeline, step

        if __name__ != "__main__":
            time.sleep(0.7)

        @step(timeout=0.5)
        def quick() -> int:
            return 1

        @step(timeout=0.5)
        def dies() -> int:
            os._exit(3)

        @pipeline
        def slow():
            quick()

        @pipeline
        def deadly():
            dies()

        if __name__ == "__main__":
            slow()
            deadly()
        """,
    )
    lab.run("slow.py", code=1)
    assert lab["slow"].steps["quick"].status == "succeeded"
    dead = lab["deadly"].steps["dies"]
    assert dead.cause == "exited" and dead.seconds is not None
    assert dead.seconds < 0.5, "of a step that left no result, the worker's own word is its start"
