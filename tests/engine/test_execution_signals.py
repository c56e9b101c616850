"""A signal from outside is no cancel: nobody of the run asked for it, and it may be tried again."""

from __future__ import annotations

from typing import Any

PROGRAM = """
import os, signal, time
from pathlib import Path
from stoker import pipeline, step

@step(retry=1)
def preempted() -> int:
    if not Path("once").exists():
        Path("once").touch()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    return 7

@pipeline
def once_more():
    preempted()

if __name__ == "__main__":
    found = once_more().steps["preempted"]
    assert found.load() == 7
    failure = found.attempts[0].failure
    assert failure.cause == "killed", failure
    assert failure.message == "the step's process was ended by SIGTERM from outside"
"""


def test_sigterm_from_outside(project: Any) -> None:
    project.write({"preempted.py": PROGRAM}).run("preempted.py")
