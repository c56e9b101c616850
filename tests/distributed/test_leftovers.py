"""Processes that the ranks of a step leave behind when all ranks have returned."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from tests.engine.conftest import Lab

SCRIPT = """
import subprocess

def forks():
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    return pid

def starts():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True).pid

@step(cache=False, launch=plain(2, outputs="all"))
def leaves_forks() -> int:
    return forks()

@step(cache=False, launch=plain(2, outputs="all"))
def leaves_sessions() -> int:
    return starts()

@step(cache=False)
def leaves_one_itself() -> int:
    return forks()

@pipeline
def leaving():
    leaves_forks()
    leaves_sessions()
    leaves_one_itself()

leaving()
"""


def test_a_child_that_a_rank_leaves_is_ended_and_the_step_succeeds(script: Callable[[str], Lab]) -> None:
    """A forked child has the rank's own code before it: it must not report a result of its own."""
    lab = script(SCRIPT)
    words = lab.start("script.py").wait(0, 120.0)
    run = lab["leaving"]
    for key, count in (("leaves_forks", 2), ("leaves_sessions", 2), ("leaves_one_itself", 1)):
        step = run.steps[key]
        pids = step.output.load() if count == 2 else [step.output.load()]
        assert len(pids) == count and not any(map(psutil.pid_exists, pids)), key
        left = [event.data["processes"] for event in run.events if (event.kind, event.key) == ("leftovers", key)]
        assert left == [count], key
        processes = "1 process" if count == 1 else f"{count} processes"
        assert f"{key}: {processes} that it had left running when it was over" in words
