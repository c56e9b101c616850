"""A forked program of a test is what a started one is: `tests/forks.py` against `subprocess.run`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import forks

FACTS = """
import atexit, json, os, signal, sys, threading

import helper

def named():
    raise ValueError(helper.TEXT)

atexit.register(print, "at exit")
facts = {name: globals().get(name) for name in ("__name__", "__file__", "__package__", "__spec__", "__doc__")}
facts |= {"argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "env": dict(os.environ)}
facts |= {"main": sys.modules["__main__"].__dict__ is globals(), "loader": type(__loader__).__name__}
for stream in (sys.stdin, sys.stdout, sys.stderr):
    facts[stream.name] = [stream.fileno(), stream.isatty(), stream.encoding, stream.errors, stream.line_buffering]
facts |= {"given": sys.stdin.read(), "files": sorted(map(int, os.listdir("/proc/self/fd")))[:3]}
facts["signals"] = {name: str(signal.getsignal(getattr(signal, name))) for name in ("SIGINT", "SIGCHLD", "SIGTERM")}
facts |= {"group": os.getpgrp(), "threads": threading.active_count(), "warnings": len(sys.warnoptions)}
print(json.dumps(facts, sort_keys=True, default=str))
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(7)",
        "sys.exit('enough')",
        "named()",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os._exit(3)",
        "value = (",
    ],
)
def test_a_forked_program_is_what_a_started_one_is(end: str, tmp_path: Path) -> None:
    (tmp_path / "facts.py").write_text(FACTS + end + "\n", encoding="utf-8")
    (tmp_path / "helper.py").write_text("TEXT = 'é'\n", encoding="utf-8")
    argv = [sys.executable, "facts.py", "--rate", "ü", ""]
    env = {**os.environ, "OF_THIS_TEST": "1", "TZ": "Asia/Tokyo"}
    forked = forks.run(argv, cwd=tmp_path, env=env, input="typed", timeout=60)
    started: Any = subprocess.run(
        argv, cwd=tmp_path, env=env, input="typed", capture_output=True, text=True, check=False
    )
    assert forked is not None
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


def test_what_only_a_started_interpreter_shows_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("", encoding="utf-8")
    argv = [sys.executable, "a.py"]
    assert forks.run(argv, cwd=tmp_path, env=os.environ, input="", timeout=60) is not None
    seeded = {**os.environ, "PYTHONHASHSEED": "1"}
    assert forks.run(argv, cwd=tmp_path, env=seeded, input="", timeout=60) is None
    (tmp_path / "click.py").write_text("", encoding="utf-8")
    assert forks.run(argv, cwd=tmp_path, env=os.environ, input="", timeout=60) is None


def test_what_takes_too_long_is_killed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import time\ntime.sleep(600)\n", encoding="utf-8")
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run([sys.executable, "a.py"], cwd=tmp_path, env=os.environ, input="", timeout=0.5)
