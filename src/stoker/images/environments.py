"""Python environments of steps on this machine: one folder for each set of packages, made once, below Stoker's home.

Conda's packages need conda's program; otherwise uv makes the environment, or venv and pip if uv is not installed. The
process that makes an environment holds an exclusive lock on a file beside it, processes that use it a shared one. The
record is written last, and a folder without one is never used. `plan.environments` decides which step needs one.

Stoker is not installed into an environment: the worker comes from a folder beside it (`images.wheel`), built from the
code of the driver.

The program that makes one is uv or pip. Pip's configuration is read, too, and put in uv's words: its file, its
variables and its flags (https://pip.pypa.io/en/stable/topics/configuration/). Uv reads none of it, and has most of its
options; what it lacks is named, and pip resolves itself.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import IO, Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs
from packaging.version import InvalidVersion, Version

from stoker.core.errors import BackendError, SettingsError
from stoker.core.packages import CHANNELS, Interpreter, PackageSettings
from stoker.core.units import value_or
from stoker.core.usercode import is_installed, own_code
from stoker.core.words import time_text
from stoker.images.sharing import lock_path, share, try_lock
from stoker.images.wheel import VENDORED, worker_bundle

CONDA: Final = ("micromamba", "mamba", "conda")
"""Programs that make an environment of conda's packages, the fastest first; all take the same arguments."""
UV: Final = "uv"
VERSION: Final = ".".join(map(str, sys.version_info[:3]))
"""The version of this process's Python."""
FOLDER: Final = "environments"
"""The folder below Stoker's home."""
RECORD: Final = "made.json"
"""The file that is written last; its modification time is the environment's last use."""
_REMOVED_VARIABLES: Final = frozenset(
    # Variables that would lead an installer, or the Python that it starts, to another environment.
    {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__"}
    | {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT"}
)
_LOCKS: Final = "put STOKER_HOME on a file system that knows locks"
_WORKER_CHECK: Final = (
    "import json, sys; path = list(sys.path); "
    "import stoker.worker.forkserver, stoker.worker.serving, stoker.worker.worker; print(json.dumps(path))"
)
"""A program that imports the worker and prints the interpreter's initial `sys.path`."""


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


class Environments:
    """The environments below one home; `report` is called with progress messages."""

    def __init__(self, home: Path, *, report: Callable[[str], None] = lambda text: None) -> None:
        self._folder = home / FOLDER
        self._wheels = home / "wheels"
        self.report = report
        self._bundle: Path | None = None
        self._locks: dict[str, IO[str]] = {}
        self._interpreters: dict[str, Interpreter] = {}

    def ready(self, name: str, packages: PackageSettings, *, step: str, more: Sequence[str] = ()) -> Interpreter:
        """The interpreter of an environment, which is made if necessary and stays while this object lives.

        `more` are requirement lines beside those of the settings. A `BackendError` has the failed program's output.
        """
        if name not in self._interpreters:
            folder = self._folder / name
            self._locks[name] = share(
                folder,
                made=lambda: _is_made(folder),
                make=lambda lock: self._make(folder, packages, step, more),
                waiting=lambda: self.report(f"waiting for another process, which makes environment {name}"),
                fix=_LOCKS,
            )
            os.utime(folder / RECORD)
            self._interpreters[name] = self._check_worker(folder, step)
        return self._interpreters[name]

    def interpreter(self, name: str) -> Interpreter:
        """The interpreter of an environment that `ready` has returned before."""
        try:
            return self._interpreters[name]
        except KeyError:
            raise BackendError(f"environment {name} was not made ready", fix="start the run again") from None

    def _make(self, folder: Path, packages: PackageSettings, step: str, more: Sequence[str]) -> None:
        """Make an environment in its final folder, since it cannot be moved; the caller holds its lock."""
        started = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        lines = [*more, *packages.requirements]
        request = ", ".join([packages.text, *more]) or "nothing"
        self.report(f"making the environment of step '{step}': {request}")
        try:
            executed = []
            for argv in commands(folder, packages, more):
                executed.append(argv)
                _run(argv, step, lines)
            record = {"asked": [*lines, *packages.specifications], "commands": executed}
            partial = folder / f".{RECORD}"
            partial.write_text(json.dumps(record), encoding="utf-8")
            partial.replace(folder / RECORD)
        except BaseException:  # raised again; a partial environment is of no use
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.report(f"made the environment of step '{step}' in {time_text(time.monotonic() - started)}: {folder.name}")

    def _check_worker(self, folder: Path, step: str) -> Interpreter:
        """The interpreter of an environment, after a check that it can import this Stoker's worker."""
        if self._bundle is None:
            self._bundle = worker_bundle(self._wheels)
        bundle = str(self._bundle)
        variables = {
            "PYTHONPATH": bundle,
            "PYTHONHOME": "",
            "VIRTUAL_ENV": str(folder),
            "PATH": os.pathsep.join([str(folder / "bin"), os.environ.get("PATH", os.defpath)]),
        }
        proof = folder / f"{self._bundle.name}.json"
        kept = module_path(proof.read_text(encoding="utf-8", errors="replace")) if proof.is_file() else None
        if kept is None:
            argv = [str(python_of(folder)), "-s", "-c", _WORKER_CHECK]
            output = _run(
                argv,
                step,
                (),
                environ={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
                problem="Stoker's worker does not start",
            )
            kept = module_path(output)
            if kept is None:
                raise BackendError(
                    f"step '{step}': Stoker's worker does not start: its check does not tell the path of modules",
                    fix=f"see what {argv[0]} prints when it starts: {output.strip()[-200:]!r}",
                )
            partial = folder / f".{proof.name}.{os.getpid()}"
            partial.write_text(json.dumps(kept), encoding="utf-8")
            partial.replace(proof)
        entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        own_entries = [entry for entry in entries if not is_installed(entry)]
        path = [entry for entry in kept if entry and entry != bundle]
        return Interpreter(
            executable=str(python_of(folder)),
            path=(*own_code(), bundle, *path, os.path.join(bundle, VENDORED)),
            environment={**variables, "PYTHONPATH": os.pathsep.join([bundle, *own_entries])},
        )


def sweep(home: Path, *, before: float | None, dry_run: bool) -> tuple[list[str], int]:
    """Remove environments that were not used since a time, and incomplete ones; returns their names and their bytes.

    With `dry_run` nothing is removed. An environment in use is never removed.
    """
    folder = home / FOLDER
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    names: list[str] = []
    size = 0
    for name in dict.fromkeys(path.name.removeprefix(".").removesuffix(".lock") for path in paths):
        environment = folder / name
        with try_lock(environment, _LOCKS) as locked:
            if not locked or not _is_old(environment, before):
                continue
            if environment.is_dir():
                names.append(name)
                size += _size(environment)
            if not dry_run:
                # The record goes first: what an interruption leaves is incomplete, and the next sweep removes it.
                (environment / RECORD).unlink(missing_ok=True)
                shutil.rmtree(environment, ignore_errors=True)
                lock_path(environment).unlink(missing_ok=True)
    return names, size


def _is_old(folder: Path, before: float | None) -> bool:
    try:
        used = (folder / RECORD).stat().st_mtime
    except FileNotFoundError:
        return True
    return before is not None and used < before


def _size(environment: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(environment) for name in names
    )


def _is_made(folder: Path) -> bool:
    return (folder / RECORD).is_file() and os.access(python_of(folder), os.X_OK)


def module_path(text: str) -> list[str] | None:
    """The path that the worker's check printed, behind which packages may have printed something else."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            path = json.loads(line)
            if isinstance(path, list) and path and all(isinstance(entry, str) for entry in path):
                return path
    return None


def _run(
    argv: Sequence[str],
    step: str,
    lines: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    problem: str = "its environment cannot be made",
) -> str:
    """Run a command and return its output, which is the error if it fails. `lines` go into a file behind "-r"."""
    variables = {name: text for name, text in os.environ.items() if name not in _REMOVED_VARIABLES}
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        command = list(argv)
        if command[-1] == "-r":
            requirement_file = Path(folder, "requirements.txt")
            requirement_file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            command.append(str(requirement_file))
        try:
            finished = subprocess.run(
                command,
                env={**variables, "PYTHONNOUSERSITE": "1", **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise BackendError(f"step '{step}': {problem}: {command[0]}: {error}") from error
    if finished.returncode:
        raise BackendError(
            f"step '{step}': {problem}: {shlex.join(command)} ended with {finished.returncode}:\n"
            f"{finished.stdout.rstrip()}",
            fix="see what it says, and what the step asks for: stoker plan FILE --explain",
        )
    return finished.stdout
