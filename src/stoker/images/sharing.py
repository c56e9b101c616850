"""A folder that one process makes and many use, also at the same time: who makes it holds an exclusive lock on a file
beside it, who uses it a shared one. The kernel lets go of a lock when its process is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO, Callable, Iterator

from stoker.core.errors import BackendError


def lock_path(folder: Path) -> Path:
    """The file that is locked for a folder."""
    return folder.with_name(f".{folder.name}.lock")


@contextlib.contextmanager
def try_lock(folder: Path, fix: str) -> Iterator[bool]:
    """Hold the exclusive lock of a folder; yields whether it was free."""
    file = _open_lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, fix)
    try:
        yield file is not None
    finally:
        if file is not None:
            file.close()


@contextlib.contextmanager
def hold(folder: Path, waiting: Callable[[], None], *, fix: str) -> Iterator[None]:
    """Hold the exclusive lock of a folder, whose file goes with it; `waiting` is called once where another has it."""
    file = _open_lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB, fix)
    if file is None:
        waiting()
        file = _open_lock(folder, fcntl.LOCK_EX, fix)
    assert file is not None, "a lock that is waited for is had"
    with file:
        try:
            yield
        finally:
            os.unlink(file.name)


def share(
    folder: Path,
    *,
    made: Callable[[], bool],
    make: Callable[[IO[str]], None],
    waiting: Callable[[], None],
    fix: str,
) -> IO[str]:
    """A shared lock of a folder that is `made`: `make`, which gets the locked file, makes it if no other process was
    first. `waiting` is called once where another process makes it; `fix` says what to do where nothing can be locked.
    """
    while True:
        for operation in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            file = _open_lock(folder, operation | fcntl.LOCK_NB, fix)
            if file is None:
                waiting()
                file = _open_lock(folder, operation, fix)
            assert file is not None, "a lock that is waited for is had"
            try:
                if operation == fcntl.LOCK_EX and not made():
                    make(file)
                # Changing the kind of a lock releases it for a moment, so the state is checked again.
                fcntl.flock(file, fcntl.LOCK_SH)
                if made() and _is_same_file(file, lock_path(folder)):
                    return file
            except BaseException:  # raised again
                file.close()
                raise
            file.close()


def _open_lock(folder: Path, operation: int, fix: str) -> IO[str] | None:
    """The lock file, locked, or None if another process has it; a file that was removed meanwhile is opened again."""
    path = lock_path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = open(path, "a", encoding="utf-8")  # noqa: SIM115 the lock is held as long as it is open
        try:
            fcntl.flock(file, operation)
            if _is_same_file(file, path):
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise BackendError(f"{path} cannot be locked: {error}", fix=fix) from error
        except BaseException:  # raised again
            file.close()
            raise
        file.close()


def _is_same_file(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
