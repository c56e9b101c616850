"""Stoker's front door without the price of a new interpreter: a process that has imported Stoker forks for each call.

As a program it reads calls from stdin, one JSON line each, and answers each with one. A call is `stoker …` or
`python script …`; the fork that makes it ends as a process of its own would, with its exit code and its output.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

PRELOADED = (
    *(
        "stoker.cli.main",
        "stoker.cli.plan",
        "stoker.cli.rerun",
        "stoker.run.driver",
        "stoker.run.session",
        "stoker.flow",
    ),
    *("stoker.plan.planner", "stoker.plan.codereading", "stoker.backends.local.backend", "stoker.client.client"),
    *("stoker.flows.cli", "stoker.flows.cli_show", "stoker.flows.spin"),
)


class Said(NamedTuple):
    """How a call ended, and all that it wrote: stdout, then stderr."""

    code: int
    text: str


class Door:
    """A process that makes calls; `close` ends it."""

    def __init__(self) -> None:
        root = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.advice.door"],
            cwd=root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def call(self, argv: list[str], folder: Path, env: Mapping[str, str]) -> Said:
        """`stoker …` or `python …` in a folder, with these variables alone."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "folder": str(folder), "env": dict(env)}) + "\n")
        return Said(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _serve() -> None:
    for name in PRELOADED:
        importlib.import_module(name)
    config = importlib.import_module("stoker.config")
    for name in config.__all__:
        getattr(config, name)
    for line in sys.stdin:
        call = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            pid = os.fork()
            if pid == 0:
                _answer(call, out.fileno(), err.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            text = ""
            for file in (out, err):
                file.seek(0)
                text += file.read().decode("utf-8", "replace")
        print(json.dumps([code, text]), flush=True)


def _answer(call: dict[str, Any], out: int, err: int) -> None:
    code = 1
    try:
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(call["folder"])
        os.environ.clear()
        os.environ.update(call["env"])
        code = _run(call["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)


def _run(argv: list[str]) -> int:
    """What the interpreter does with a program: its folder is looked into first, and its end is an exit code."""
    try:
        if argv[0] == "stoker":
            sys.argv = list(argv)
            sys.modules["stoker.cli.main"].main()
        else:
            sys.argv = list(argv[1:])
            sys.path[0] = os.getcwd()
            runpy.run_path(argv[1], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


if __name__ == "__main__":
    _serve()
