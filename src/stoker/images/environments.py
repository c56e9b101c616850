"""Python environments of steps on this machine: one folder for each set of packages, made once, below Stoker's home.

Conda's packages need conda's program; otherwise uv makes the environment, or venv and pip if uv is not installed. The
process that makes an environment holds an exclusive lock on a file beside it, processes that use it a shared one. The
record is written last, and a folder without one is never used. `plan.environments` decides which step needs one.

Stoker is not installed into an environment: the worker comes from a folder beside it (`images.wheel`), built from the
code of the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Callable, Final, Mapping, Sequence

from stoker.core.errors import BackendError
from stoker.core.packages import Interpreter, PackageSettings
from stoker.core.usercode import is_installed, own_code
from stoker.core.words import time_text
from stoker.images.installers import commands, python_of
from stoker.images.sharing import lock_path, share, try_lock
from stoker.images.wheel import VENDORED, worker_bundle

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
