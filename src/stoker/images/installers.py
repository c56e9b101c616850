"""What makes a Python environment on this machine: which program, and what it is told, word for word.

Nothing is made here; `environments` runs the commands.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final, Iterator, Sequence

from packaging.version import InvalidVersion, Version

from stoker.core.packages import CHANNELS, PackageSettings
from stoker.core.units import given

CONDA: Final = ("micromamba", "mamba", "conda")
"""Programs that make an environment of conda's packages, the quickest first; all take the same words."""
UV: Final = "uv"
VERSION: Final = ".".join(map(str, sys.version_info[:3]))
"""This process's Python."""


def python_of(place: Path) -> Path:
    """An environment's Python."""
    return place / "bin" / "python"


def maker(packages: PackageSettings) -> str:
    """The program that makes an environment of these packages; empty where there is none."""
    if packages.specifications:
        return next((path for name in CONDA if (path := shutil.which(name))), "")
    found = shutil.which(UV)
    return found or ("" if packages.environment == "uv" else interpreter(packages))


def interpreter(packages: PackageSettings) -> str:
    """A Python here of the version that is asked for; empty where there is none."""
    wanted = given(packages.python, "")
    if is_this(wanted):
        return sys.executable
    found = shutil.which(f"python{'.'.join(wanted.split('.')[:2])}")
    return found if found and is_of(_version_of(found), wanted) else ""


def is_this(python: str) -> bool:
    """Whether this process's Python is of a version such as "3.11" or "3.11.7"; of any, where it is empty."""
    return is_of(VERSION, python)


def is_of(version: str, wanted: str) -> bool:
    """Whether a version such as "3.11.7" is one of "3.11"."""
    parts = wanted.split(".") if wanted else []
    return version.split(".")[: len(parts)] == parts


@functools.cache
def _version_of(program: str) -> str:
    """The version that a Python says it has; empty where it does not run, as a launcher that finds none."""
    code = "import platform; print(platform.python_version())"
    try:
        argv = [program, "-I", "-c", code]
        finished = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return "" if finished.returncode else finished.stdout.strip()


def commands(place: Path, packages: PackageSettings, more: Sequence[str] = ()) -> Iterator[list[str]]:
    """What is run to make an environment, one after the other; `_run` puts the file of requirements behind "-r"."""
    program, inside = maker(packages), str(python_of(place))
    python = given(packages.python, "")
    lines = [*more, *packages.requirements]
    pip = [inside, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *packages.indexes, "-r"]
    if packages.specifications:
        channels = [word for name in given(packages.channels, CHANNELS) for word in ("-c", name)]
        wanted = f"python={python or '.'.join(VERSION.split('.')[:2])}"
        yield [
            program,
            "create",
            "-y",
            "-p",
            str(place),
            *channels,
            "--override-channels",
            wanted,
            "pip",
            *packages.specifications,
        ]
        if lines:
            yield pip
        return
    if os.path.basename(program) == UV:
        yield [program, "venv", "--quiet", "--python", python or sys.executable, str(place)]
        if lines:
            yield [program, "pip", "install", "--python", inside, *packages.indexes, "-r"]
        return
    if _has_pip():
        yield [program, "-m", "venv", "--without-pip", str(place)]
        pip = [sys.executable, "-m", "pip", "--python", inside, *pip[3:]]
    else:
        yield [program, "-m", "venv", str(place)]
    if lines:
        yield pip


def _has_pip() -> bool:
    """Whether this Python's pip installs into another: from 22.3 on, https://pip.pypa.io/en/stable/news/."""
    try:
        return Version(metadata.version("pip")) >= Version("22.3")
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False
