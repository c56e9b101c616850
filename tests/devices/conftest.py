"""A machine with NVIDIA GPUs that it does not have: a fake libnvidia-ml.so.1, which the real nvidia-ml-py loads."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests import forks

SOURCE = Path(__file__).with_name("fake_nvml.c")

PROGRAM = """
import ctypes, json, os, sys
from pathlib import Path

import pynvml

library = os.environ["FAKE_NVML_LIBRARY"]
if os.path.getsize(library):
    ctypes.CDLL(library)  # which is found by its name from now on
else:
    def missing(name):
        raise OSError(name)

    pynvml.CDLL = missing  # also on a machine that has the driver's

import attrs

from stoker.devices.probe import probe, processes

inventory = probe(root=Path(sys.argv[1]))
found = attrs.asdict(inventory)
found["processes"] = [attrs.asdict(process) for process in processes(inventory)]
found["frameworks"] = sorted({"torch", "jax", "tensorflow"} & set(sys.modules))
print(json.dumps(found))
"""


def compiled(folder: Path, *flags: str) -> Path:
    """Compile the fake library into a folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler, and NVIDIA's library is faked in C")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    argv = [compiler, "-shared", "-fPIC", "-O1", *flags]
    argv += ["-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`library("-DWITHOUT_MIG")`: the folder of a fake libnvidia-ml.so.1, compiled once for each set of flags."""

    @functools.cache
    def build(*flags: str) -> Path:
        return compiled(tmp_path_factory.mktemp("nvml"), *flags)

    return build


class Machine:
    """A machine as the probe sees it: a folder of /dev, /proc and /sys, an environment, commands, and a driver."""

    def __init__(self, folder: Path, library: Callable[..., Path]) -> None:
        self.root = folder / "root"
        self.commands = folder / "bin"
        self.root.mkdir()
        self.commands.mkdir()
        self.library = library
        self.scenario = folder / "scenario"
        # An unreadable library, so that the tests find no GPU on a machine that has one.
        self.folder = folder / "no-library"
        self.folder.mkdir()
        (self.folder / "libnvidia-ml.so.1").write_text("")
        self.environment = {"PATH": str(self.commands), "HOME": str(folder)}

    def nvml(self, scenario: str, *flags: str) -> Machine:
        """Give it a driver that answers from a scenario; see fake_nvml.c."""
        self.scenario.write_text(scenario)
        self.folder = self.library(*flags)
        return self

    def file(self, path: str, text: str = "") -> Machine:
        """A file of its /dev, /proc or /sys."""
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self

    def command(self, name: str, script: str) -> Machine:
        """A command on its PATH, in shell."""
        path = self.commands / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return self

    def variables(self) -> dict[str, str]:
        """The environment in which a process finds all this."""
        driver = {"LD_LIBRARY_PATH": str(self.folder), "FAKE_NVML_SCENARIO": str(self.scenario)}
        return {**self.environment, **driver}

    def probe(self, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What `probe` and `processes` find, in a process of its own, which is forked from one that has Stoker."""
        program = self.commands.parent / "look.py"
        program.write_text(PROGRAM)
        finished = forks.run(
            [sys.executable, str(program), str(self.root)],
            cwd=program.parent,
            env={
                **{name: value for name, value in os.environ.items() if forks.STARTS.match(name)},
                **self.environment,
                "FAKE_NVML_SCENARIO": str(self.scenario),
                "FAKE_NVML_LIBRARY": str(self.folder / "libnvidia-ml.so.1"),
                **(environment or {}),
            },
            input="",
            timeout=120,
        )
        assert finished is not None
        assert finished.returncode == 0, finished.stderr
        assert not finished.stderr
        found: dict[str, Any] = json.loads(finished.stdout)
        assert not found["frameworks"]
        return found


@pytest.fixture
def machine(tmp_path: Path, library: Callable[..., Path]) -> Machine:
    """A machine with nothing in it yet."""
    folder = tmp_path / "machine"
    folder.mkdir()
    return Machine(folder, library)
