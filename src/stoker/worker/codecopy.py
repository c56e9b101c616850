"""One copy of the user's code for the jobs that a process takes one after another.

A package has as many files as the user's project: unpacked for each job, they are most of what a short job costs, and
file systems are slow to make and remove many of them. `CodeCopy` unpacks the package once and, after each job, makes
sure that the next one finds it as it was: what a job added is removed, and a copy in which it changed anything is
thrown away. A job changes a file without being seen only where it sets the file system's clock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import Final

from stoker.core.errors import StokerError
from stoker.store.blobs import Blobs

PREFIX: Final = "stoker-code-"
"""Begins the names of the folders into which code is unpacked."""
MASK: Final = 0o022
"""The mask of the modes of what is unpacked, and of what a job makes."""
IN_USE: Final = "in-use"
"""The file beside a copy that its process has locked, so that a copy whose process was killed is known by it."""
_TICK: Final = 0.05
"""Seconds in which the clock of a file system moves on; where it does not, no copy is kept for another job."""
_TURN: Final = 0.001


class CodeCopy:
    """The copy of one package. After a fork it is the parent's: a job's process uses `folder_for` and removes
    nothing."""

    def __init__(self) -> None:
        self._package = ""
        self._folder = ""
        self._entries: dict[str, tuple[int, ...]] = {}

    @property
    def place(self) -> str:
        """The folder that holds the copy; empty where there is none."""
        return os.path.dirname(self._folder)

    def prepare(self, package: str, blobs: str) -> None:
        """Make sure that there is a copy of a package, and none of another one; none of one that cannot be unpacked, or
        that must be fetched: that may take long, and need what only the job's environment has."""
        if not package or "://" in blobs or (package == self._package and self._is_in_temporary_folder()):
            return
        self.close()
        # What cannot be done for a job that may never come is done for the job, which says what is wrong.
        with contextlib.suppress(OSError, StokerError):
            mask = os.umask(MASK)
            try:
                folder = unpack_code(package, blobs)
            finally:
                os.umask(mask)
            entries = _entries(folder)
            if not _clock_moves_on(os.path.dirname(folder), max(entry[-1] for entry in entries.values())):
                remove(folder)
                return
            self._package, self._folder, self._entries = package, folder, entries

    def folder_for(self, package: str) -> str:
        """The folder with the package's code; empty where there is no copy of it among this job's temporary files."""
        return self._folder if package == self._package and self._is_in_temporary_folder() else ""

    def restore(self) -> None:
        """After a job, once nothing of it runs: remove what it added to the copy, and a copy that it changed."""
        if not self._folder:
            return
        try:
            unchanged = self._restore()
        except OSError:
            unchanged = False
        if not unchanged:
            self.close()

    def _restore(self) -> bool:
        """Remove what was added; whether all else is as it was."""
        entries = _entries(self._folder, within=self._entries)
        for path in entries.keys() - self._entries.keys():
            if stat.S_ISDIR(entries[path][0]):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        return all(_same(entry, entries.get(path)) for path, entry in self._entries.items())

    def close(self) -> None:
        """Remove the copy."""
        remove(self._folder)
        self._package, self._folder, self._entries = "", "", {}

    def _is_in_temporary_folder(self) -> bool:
        return os.path.dirname(self.place) == tempfile.gettempdir()


def unpack_code(package: str, blobs: str) -> str:
    """A new folder among the temporary files with the code of a package; empty where there is no package.

    Copies whose processes were killed are removed first.
    Processes do not share a folder: other users may not be able to read it, and nobody would know when to remove it.
    """
    if not package:
        return ""
    from stoker.images import context

    remove_abandoned()
    place = tempfile.mkdtemp(prefix=PREFIX)
    folder = os.path.join(place, package[:16])
    _lock(place)
    try:
        context.unpack(Path(Blobs(blobs).path(package)), Path(folder))
    except BaseException:  # an interruption, too: nobody else knows the folder
        remove(folder)
        raise
    return folder


def remove(folder: str) -> None:
    """Remove what `unpack_code` made."""
    if folder:
        place = os.path.dirname(folder)
        shutil.rmtree(place, ignore_errors=True)
        if place in _locks:
            os.close(_locks.pop(place))


def remove_abandoned() -> None:
    """Remove this user's copies that no process has any more; one that is being made has no lock to be found by."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as listing:
        places = [entry.path for entry in listing if entry.name.startswith(PREFIX) and entry.path not in _locks]
        for place in places:
            with contextlib.suppress(OSError):  # another user's, one that is in use, or one without a lock
                descriptor = os.open(os.path.join(place, IN_USE), os.O_RDWR)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(place, ignore_errors=True)
                finally:
                    os.close(descriptor)


_locks: dict[str, int] = {}
"""The descriptors of locked files, by the folders that hold the copies; a forked process has them, too."""


def _lock(place: str) -> None:
    """Lock a folder until this process and those that it forks are gone; nothing where the file system has no locks."""
    with contextlib.suppress(OSError):
        name = os.path.join(place, f".{IN_USE}")
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(name, os.path.join(place, IN_USE))
        except OSError:
            os.close(descriptor)
            raise
        _locks[place] = descriptor


def _entries(folder: str, *, within: dict[str, tuple[int, ...]] | None = None) -> dict[str, tuple[int, ...]]:
    """What identifies the state of all that is in a folder, and of the folder, by path; the last number is the time of
    the last change. With `within`, folders that are not in it are named and not read."""
    entries = {folder: _state(os.lstat(folder))}
    folders = [folder]
    while folders:
        with os.scandir(folders.pop()) as listing:
            for entry in listing:
                entries[entry.path] = _state(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False) and (within is None or entry.path in within):
                    folders.append(entry.path)
    return entries


def _state(status: os.stat_result) -> tuple[int, ...]:
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return status.st_mode, status.st_ino, status.st_uid, status.st_gid, size, status.st_mtime_ns, status.st_ctime_ns


def _same(before: tuple[int, ...], after: tuple[int, ...] | None) -> bool:
    """Whether nothing was changed; the times of a folder change with what is added, and are not compared."""
    return after is not None and (before[:-2] == after[:-2] if stat.S_ISDIR(before[0]) else before == after)


def _clock_moves_on(folder: str, moment: int) -> bool:
    """Wait until what is written in a folder's file system gets a later time than `moment`, in nanoseconds: only then
    does each change show in the times. Whether it does so soon."""
    until = time.monotonic() + _TICK
    descriptor, probe = tempfile.mkstemp(dir=folder)
    try:
        while True:
            os.utime(descriptor)
            if os.fstat(descriptor).st_ctime_ns > moment:
                return True
            if time.monotonic() > until:
                return False
            time.sleep(_TURN)
    finally:
        os.close(descriptor)
        os.unlink(probe)
