"""Python environments of steps on this machine: one folder for each request, made once, below the home.

By conda's program where conda's packages are asked for, else by uv where it is installed, else by venv and pip. Whoever
makes one holds the lock beside it, and whoever uses one shares that lock; a folder counts once its note is written, so
that a half-made one is never used. Which step needs one is decided above.

Stoker is not installed there: its worker comes from a folder beside (`images.wheel`), the one that the driver runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import IO, Callable, Final, Iterator, Mapping, Sequence

from stoker.core.errors import BackendError
from stoker.core.packages import Interpreter, PackageSettings
from stoker.core.words import time_text
from stoker.images.installed import is_installed, own_code
from stoker.images.installers import commands, python_of
from stoker.images.wheel import VENDORED, worker_bundle

FOLDER: Final = "environments"
"""Below the home."""
MADE: Final = "made.json"
"""The note that is written last; its time is when the environment was used last."""
_LEFT_OUT: Final = frozenset(
    # What would lead an installer, or the Python that it starts, to another environment.
    {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX", "__PYVENV_LAUNCHER__"}
    | {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "UV_SYSTEM_PYTHON", "UV_PROJECT_ENVIRONMENT"}
)
_PROOF: Final = (
    "import json, sys; path = list(sys.path); "
    "import stoker.worker.forkserver, stoker.worker.serving, stoker.worker.worker; print(json.dumps(path))"
)
"""What must be importable there; it prints `sys.path` as the interpreter begins."""


class Environments:
    """The environments below one home. `said` is told how the making goes."""

    def __init__(self, home: Path, *, said: Callable[[str], None] = lambda text: None) -> None:
        self._folder = home / FOLDER
        self._wheels = home / "wheels"
        self.said = said
        self._bundle: Path | None = None
        self._held: dict[str, IO[str]] = {}
        self._interpreters: dict[str, Interpreter] = {}

    def ready(self, name: str, packages: PackageSettings, *, step: str, more: Sequence[str] = ()) -> Interpreter:
        """The interpreter of an environment, which is there then and stays while this object lives.

        `more` are lines beside those of the settings. A `BackendError` has all that the failing program said.
        """
        if name not in self._interpreters:
            place = self._folder / name
            self._held[name] = _shared(place, lambda: self._make(place, packages, step, more), self.said)
            os.utime(place / MADE)
            self._interpreters[name] = self._proved(place, step)
        return self._interpreters[name]

    def interpreter(self, name: str) -> Interpreter:
        """The interpreter of an environment that was made ready."""
        try:
            return self._interpreters[name]
        except KeyError:
            raise BackendError(f"environment {name} was not made ready", fix="start the run again") from None

    def _make(self, place: Path, packages: PackageSettings, step: str, more: Sequence[str]) -> None:
        """Make an environment in its own folder, since none can be moved; the caller holds its lock."""
        began = time.monotonic()
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        lines = [*more, *packages.requirements]
        asked = ", ".join([packages.text, *more]) or "nothing"
        self.said(f"making the environment of step '{step}': {asked}")
        try:
            made = []
            for argv in commands(place, packages, more):
                made.append(argv)
                _run(argv, step, lines)
            note = {"asked": [*lines, *packages.specifications], "commands": made}
            beside = place / f".{MADE}"
            beside.write_text(json.dumps(note), encoding="utf-8")
            beside.replace(place / MADE)
        except BaseException:  # raised again: half of an environment is of no use to anybody
            shutil.rmtree(place, ignore_errors=True)
            raise
        self.said(f"made the environment of step '{step}' in {time_text(time.monotonic() - began)}: {place.name}")

    def _proved(self, place: Path, step: str) -> Interpreter:
        """That this Stoker's worker can be imported there, and with which `sys.path`."""
        if self._bundle is None:
            self._bundle = worker_bundle(self._wheels)
        bundle = str(self._bundle)
        variables = {
            "PYTHONPATH": bundle,
            "PYTHONHOME": "",
            "VIRTUAL_ENV": str(place),
            "PATH": os.pathsep.join([str(place / "bin"), os.environ.get("PATH", os.defpath)]),
        }
        proof = place / f"{self._bundle.name}.json"
        if not proof.is_file():
            argv = [str(python_of(place)), "-s", "-c", _PROOF]
            said = _run(
                argv,
                step,
                (),
                environ={**variables, "PYTHONDONTWRITEBYTECODE": "1"},
                what="Stoker's worker does not start",
            )
            beside = place / f".{proof.name}.{os.getpid()}"
            beside.write_text(said.splitlines()[-1], encoding="utf-8")
            beside.replace(proof)
        named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        own = [entry for entry in named if not is_installed(entry)]
        path = [entry for entry in json.loads(proof.read_text(encoding="utf-8")) if entry and entry != bundle]
        return Interpreter(
            executable=str(python_of(place)),
            path=(*own_code(), bundle, *path, os.path.join(bundle, VENDORED)),
            environment={**variables, "PYTHONPATH": os.pathsep.join([bundle, *own])},
        )


def sweep(home: Path, *, before: float | None, dry_run: bool) -> tuple[list[str], int]:
    """The environments that nobody used since a time, and those that were left half made; and their bytes.

    They are removed, unless it is to be only said. One in use is left, however old its note is.
    """
    folder = home / FOLDER
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    names: list[str] = []
    size = 0
    for name in dict.fromkeys(path.name.removeprefix(".").removesuffix(".lock") for path in found):
        place = folder / name
        with _locked(place) as mine:
            if not mine or not _is_old(place, before):
                continue
            if place.is_dir():
                names.append(name)
                size += _size(place)
            if not dry_run:
                # Its note first: what is interrupted here leaves half an environment, which the next one removes.
                (place / MADE).unlink(missing_ok=True)
                shutil.rmtree(place, ignore_errors=True)
                _lock_of(place).unlink(missing_ok=True)
    return names, size


def _is_old(place: Path, before: float | None) -> bool:
    try:
        used = (place / MADE).stat().st_mtime
    except FileNotFoundError:
        return True
    return before is not None and used < before


def _size(place: Path) -> int:
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(place) for name in names)


def _is_made(place: Path) -> bool:
    return (place / MADE).is_file() and os.access(python_of(place), os.X_OK)


def _lock_of(place: Path) -> Path:
    return place.with_name(f".{place.name}.lock")


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[bool]:
    """The lock of an environment, if nobody has it, and whether it is had."""
    file = _open(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:
        yield file is not None
    finally:
        if file is not None:
            file.close()


def _open(place: Path, how: int) -> IO[str] | None:
    """The lock's file, locked; one that was removed meanwhile is nobody's lock any more."""
    path = _lock_of(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 the lock is held as long as it is open
        try:
            fcntl.flock(file, how)
            if _is_there(file, path):
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise BackendError(
                f"{path} cannot be locked: {error}", fix="put STOKER_HOME on a file system that knows locks"
            ) from error
        except BaseException:  # raised again
            file.close()
            raise
        file.close()


def _is_there(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _shared(place: Path, make: Callable[[], None], said: Callable[[str], None]) -> IO[str]:
    """A share of an environment's lock, and the environment is made: by `make`, unless somebody else was first."""
    while True:
        for how in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            file = _open(place, how | fcntl.LOCK_NB)
            if file is None:
                said(f"waiting for another process, which makes environment {place.name}")
                file = _open(place, how)
            assert file is not None, "a lock that is waited for is had"
            try:
                if how == fcntl.LOCK_EX and not _is_made(place):
                    make()
                # From one kind to the other there is a moment without any: hence the last look.
                fcntl.flock(file, fcntl.LOCK_SH)
                if _is_made(place) and _is_there(file, _lock_of(place)):
                    return file
            except BaseException:  # raised again
                file.close()
                raise
            file.close()


def _run(
    argv: Sequence[str],
    step: str,
    lines: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    what: str = "its environment cannot be made",
) -> str:
    """Run a command to its end; where it fails, all that it said is the error. Lines go into a file behind "-r"."""
    variables = {name: text for name, text in os.environ.items() if name not in _LEFT_OUT}
    with tempfile.TemporaryDirectory(prefix="stoker-") as folder:
        words = list(argv)
        if words[-1] == "-r":
            listed = Path(folder, "requirements.txt")
            listed.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            words.append(str(listed))
        try:
            finished = subprocess.run(
                words,
                env={**variables, "PYTHONNOUSERSITE": "1", **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise BackendError(f"step '{step}': {what}: {words[0]}: {error}") from error
    if finished.returncode:
        raise BackendError(
            f"step '{step}': {what}: {shlex.join(words)} ended with {finished.returncode}:\n{finished.stdout.rstrip()}",
            fix="see what it says, and what the step asks for: stoker plan FILE --explain",
        )
    return finished.stdout
