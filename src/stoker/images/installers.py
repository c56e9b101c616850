"""The program that makes a Python environment on this machine, and its commands; `environments` runs them.

Pip's configuration is read, too, and put in uv's words: its file, its variables and its flags
(https://pip.pypa.io/en/stable/topics/configuration/). Uv reads none of it, and has most of its options; what it lacks
is named, and pip resolves itself.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Final, Iterable, Iterator, Mapping, Sequence

import attrs
from packaging.version import InvalidVersion, Version

from stoker.core.errors import SettingsError
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


_SHORT: Final = {"i": "index-url", "f": "find-links", "c": "constraint", "constraints": "constraint"}
_SECTIONS: Final = ("global", "install")
"""The parts of the file that `pip install` reads; the later one wins."""
_ONE: Final = {"index-url": "--index-url"}
_SEVERAL: Final = {
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "constraint": "--constraint",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
    "config-settings": "--config-setting",
}
_SWITCHES: Final = {
    "no-index": "--no-index",
    "pre": "--prerelease=allow",
    "no-deps": "--no-deps",
    "no-build-isolation": "--no-build-isolation",
}
_VARIABLES: Final = {"cert": "SSL_CERT_FILE", "client-cert": "SSL_CLIENT_CERT", "proxy": "ALL_PROXY"}
"""https://docs.astral.sh/uv/reference/environment/"""
_COMMAS: Final = frozenset({"no-binary", "only-binary"})
_DECIDES: Final = frozenset(
    {"require-hashes", "use-deprecated", "use-pep517", "no-use-pep517", "platform", "python-version", "abi"}
    | {"implementation", "ignore-requires-python", "requirement", "editable", "uploaded-prior-to", "build-constraint"}
)
"""What decides, beside the options above, which versions pip chooses."""
_FALSE: Final = frozenset({"0", "false", "no", "off", "n", "f", ""})


@attrs.frozen(kw_only=True)
class UvWords:
    """What uv is given instead of pip's configuration."""

    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = attrs.field(factory=dict)
    lacking: tuple[str, ...] = ()
    """Pip's options that uv has nothing for."""


def uv_words(file: str, variables: Mapping[str, str], arguments: Iterable[str]) -> UvWords:
    """The words for a `pip.conf` (or none: ""), pip's variables and its flags, of which the later ones go first."""
    options: dict[str, list[str]] = {}
    for name, text in (*_of_file(file), *_of_variables(variables)):
        options[name] = [text]
    given: dict[str, list[str]] = {}
    for word in arguments:
        name, equals, text = word.lstrip("-").partition("=")
        given.setdefault(_SHORT.get(name, name), []).append(text if equals else "1")
    options |= given
    flags: list[str] = []
    ways: dict[str, str] = {}
    lacking = []
    for name, texts in options.items():
        if name in _ONE:
            flags.append(f"{_ONE[name]}={texts[-1]}")
        elif name in _SEVERAL:
            parts = [part for text in texts for part in re.split(r"[\s,]+" if name in _COMMAS else r"\s+", text)]
            flags += [f"{_SEVERAL[name]}={part}" for part in parts if part]
        elif name in _SWITCHES:
            flags += [_SWITCHES[name]] if texts[-1].lower() not in _FALSE else []
        elif name in _VARIABLES:
            # A certificate's file that only the image has is not this machine's way to the index.
            if name == "proxy" or os.path.exists(texts[-1]):
                ways[_VARIABLES[name]] = texts[-1]
        elif name == "keyring-provider" and texts[-1] == "subprocess":
            flags.append("--keyring-provider=subprocess")
        elif name in _DECIDES or (name == "keyring-provider" and texts[-1] == "import"):
            lacking.append(name)
    return UvWords(flags=tuple(flags), variables=ways, lacking=tuple(lacking))


def _of_file(path: str) -> Iterator[tuple[str, str]]:
    if not path:
        return
    import configparser  # only where pip has a file

    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is no configuration of pip: {' '.join(str(error).split())}") from None
    for section in _SECTIONS:
        if parser.has_section(section):
            for name, text in parser.items(section):
                plain = name.replace("_", "-").removeprefix("--")
                yield _SHORT.get(plain, plain), text


def _of_variables(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in variables.items():
        if name.startswith("PIP_") and text:
            plain = name[4:].lower().replace("_", "-")
            yield _SHORT.get(plain, plain), text
