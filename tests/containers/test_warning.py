"""A platform's warning before the limit of a job's time: who looks sees it, who does not is left in peace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.config import Torchrun
from stoker.core.settings import plain
from stoker.launchers.options import parse_launch, resolve_launch
from stoker.store.blobs import Blobs

CODE = """
import sys, time
from stoker import context

def patient():
    print("ready", flush=True)
    while not context.should_stop:
        time.sleep(0.01)
    print("left", 0 < context.grace_left <= 600, flush=True)
    sys.exit()

def returns():
    print("ready", flush=True)
    while not context.should_stop:
        time.sleep(0.01)

def deaf():
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        print("undisturbed", flush=True)
        time.sleep(600)
    finally:
        print("interrupted", flush=True)
"""


class Program:
    """`worker.boot` as a process, with a step that waits for a warning."""

    def __init__(self, folder: Path, function: str, **launch: Any) -> None:
        code = folder / "steps.py"
        code.write_text(CODE)
        source = {"kind": "script", "module": "steps", "qualname": function, "digest": ""}
        source |= {"path": str(code), "root": str(folder)}
        step = {"name": function, "source": source, "outputs": [], "unpack": False, "split": [], "environment": {}}
        job: dict[str, Any] = {"job": "r/step/1", "step": 0, "inputs": {}, "timed": True, **launch}
        document = {"job": job, "step": step, "blobs": Blobs(str(folder / "artifacts")).uri, "package": "", "root": ""}
        document |= {"folder": str(folder), "path": [], "checkpoints": "", "environment": {}, "simulate": ""}
        document |= {"grace": 5.0, "warning": 600.0}
        self.folder = folder / "job"
        self.folder.mkdir()
        spec = self.folder / "job.json"
        spec.write_text(json.dumps(document))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stoker.worker.boot", str(spec)],
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, word: str, times: int = 1) -> None:
        assert self.process.stdout is not None
        seen = 0
        while seen < times:
            line = self.process.stdout.readline()
            assert line, f"it ended before it said {word!r} {times} times"
            seen += line.count(word)

    def over(self) -> tuple[dict[str, Any], str]:
        said, _ = self.process.communicate(timeout=120)
        return json.loads((self.folder / "result.json").read_text()), said


@pytest.mark.parametrize("by_file", [False, True])
def test_a_step_that_looks_leaves_in_time(tmp_path: Path, by_file: bool) -> None:
    program = Program(tmp_path, "patient")
    program.wait_for("ready")
    if by_file:
        (program.folder / "warned").touch()
    else:
        program.process.send_signal(signal.SIGUSR1)
    result, said = program.over()
    assert "left True" in said
    assert result["cause"] == "timed-out"
    assert "limit" in result["error"]["message"]
    assert not list(tmp_path.glob("stoker-limit-*")), "the file of the limit was left behind"


def test_a_step_that_returns_has_succeeded(tmp_path: Path) -> None:
    program = Program(tmp_path, "returns")
    program.wait_for("ready")
    program.process.send_signal(signal.SIGUSR1)
    assert program.over()[0]["ok"]


def test_a_step_that_never_looks_is_interrupted_by_the_limit_alone(tmp_path: Path) -> None:
    program = Program(tmp_path, "deaf")
    program.wait_for("ready")
    program.process.send_signal(signal.SIGUSR1)
    assert program.process.stdin is not None
    program.process.stdin.write("go on\n")
    program.process.stdin.flush()
    program.wait_for("undisturbed")
    program.process.send_signal(signal.SIGTERM)
    result, said = program.over()
    assert "interrupted" in said
    assert result["cause"] == "cancelled"


def test_all_ranks_see_the_warning(tmp_path: Path) -> None:
    launch = plain(resolve_launch(parse_launch(Torchrun(processes_per_node=2))))
    program = Program(tmp_path, "patient", launch=launch)
    program.wait_for("ready", times=2)
    program.process.send_signal(signal.SIGUSR1)
    result, said = program.over()
    assert said.count("left True") == 2
    assert result["cause"] == "timed-out"
