"""A script ends as `stoker run` ends: a mistake is a message and exit code 2, Ctrl-C one word and 130."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("decorators", "message"),
    [
        ("@step(timeuot='2h')", "did you mean 'timeout'"),
        ("@step(timeout='soon')", "mistake.py:4 @step"),
        ("@step(settings={'resources': {'gpu_cuont': 1}})", "did you mean 'gpu_count'"),
        ("@step\n@step", "remove one @step"),
        ("@pipeline(failure_mod='continue')", "did you mean 'failure_mode'"),
        ("@pipeline\n@step", "remove one of the two decorators"),
    ],
)
def test_a_mistake_in_a_decorator(project: Any, decorators: str, message: str) -> None:
    project.write({"mistake.py": f"from stoker import pipeline, step\n\n\n{decorators}\ndef train() -> None: ...\n"})
    finished = project.run("mistake.py", code=2)
    assert finished.stderr.startswith("error: ")
    assert message in finished.stderr
    assert "Traceback" not in finished.stderr
    shown = project.run("mistake.py", code=2, env={"STOKER_TRACEBACK": "1"})
    assert "Traceback" in shown.stderr


INTERRUPTED = """
import sys, time
from stoker import pipeline, step

@step
def train() -> None: ...

@pipeline
def planned() -> None:
    print("planning", flush=True)
    time.sleep(600)

if sys.argv[1] == "ours":
    planned()
print("own", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("whose", "word"), [("ours", "planning"), ("own", "own")])
def test_ctrl_c_while_a_run_is_planned(tmp_path: Path, whose: str, word: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    process = subprocess.Popen(
        [sys.executable, str(script), whose], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == f"{word}\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if whose == "ours":
        assert (process.returncode, errors) == (130, "interrupted\n")
    else:
        assert process.returncode == -signal.SIGINT and "Traceback" in errors, "a script's own lines end as Python ends"
