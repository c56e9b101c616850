"""The program that makes a Python environment on this machine, and its commands; `environments` runs them."""

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
from stoker.core.units import value_or

CONDA: Final = ("micromamba", "mamba", "conda")
"""Programs that make an environment of conda's packages, the fastest first; all take the same arguments."""
UV: Final = "uv"
VERSION: Final = ".".join(map(str, sys.version_info[:3]))
"""The version of this process's Python."""


def python_of(folder: Path) -> Path:
    """The path of an environment's Python."""
    return folder / "bin" / "python"


def maker(packages: PackageSettings) -> str:
    """The program that makes an environment of these packages; empty if none is installed."""
    if packages.specifications:
        return next((path for name in CONDA if (path := shutil.which(name))), "")
    uv = shutil.which(UV)
    return uv or ("" if packages.environment == "uv" else interpreter(packages))


def interpreter(packages: PackageSettings) -> str:
    """A Python on this machine of the version that is asked for; empty if there is none."""
    version = value_or(packages.python, "")
    if is_this(version):
        return sys.executable
    program = shutil.which(f"python{'.'.join(version.split('.')[:2])}")
    return program if program and is_of(_version_of(program), version) else ""


def is_this(python: str) -> bool:
    """Whether this process's Python is of a version such as "3.11" or "3.11.7"; of any, where it is empty."""
    return is_of(VERSION, python)


def is_of(version: str, prefix: str) -> bool:
    """Whether a version such as "3.11.7" is one of "3.11"."""
    parts = prefix.split(".") if prefix else []
    return version.split(".")[: len(parts)] == parts


@functools.cache
def _version_of(program: str) -> str:
    """The version of a Python; empty if it does not run, as a launcher script without one."""
    code = "import platform; print(platform.python_version())"
    try:
        argv = [program, "-I", "-c", code]
        finished = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return "" if finished.returncode else finished.stdout.strip()


def commands(folder: Path, packages: PackageSettings, more: Sequence[str] = ()) -> Iterator[list[str]]:
    """The commands that make an environment, in order; the requirement file follows a last word "-r"."""
    program, environment_python = maker(packages), str(python_of(folder))
    python = value_or(packages.python, "")
    lines = [*more, *packages.requirements]
    pip = [
        environment_python,
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        *packages.indexes,
        "-r",
    ]
    if packages.specifications:
        channels = [word for name in value_or(packages.channels, CHANNELS) for word in ("-c", name)]
        python_spec = f"python={python or '.'.join(VERSION.split('.')[:2])}"
        yield [
            program,
            "create",
            "-y",
            "-p",
            str(folder),
            *channels,
            "--override-channels",
            python_spec,
            "pip",
            *packages.specifications,
        ]
        if lines:
            yield pip
        return
    if os.path.basename(program) == UV:
        yield [program, "venv", "--quiet", "--python", python or sys.executable, str(folder)]
        if lines:
            yield [program, "pip", "install", "--python", environment_python, *packages.indexes, "-r"]
        return
    if _has_pip():
        yield [program, "-m", "venv", "--without-pip", str(folder)]
        pip = [sys.executable, "-m", "pip", "--python", environment_python, *pip[3:]]
    else:
        yield [program, "-m", "venv", str(folder)]
    if lines:
        yield pip


def _has_pip() -> bool:
    """Whether this Python's pip installs into another: from 22.3 on, https://pip.pypa.io/en/stable/news/."""
    try:
        return Version(metadata.version("pip")) >= Version("22.3")
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False
