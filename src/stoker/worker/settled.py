"""Which entries of a checkpoint folder are complete, so that a copy of them can be relied on.

An *entry* is a file or a folder directly in the checkpoint folder, or in one of its `CONTAINERS`. It is complete

* when it came there by renaming, which is how a file or folder appears in one piece;
* when the step said so (`context.checkpoint_saved`), or left in order: it returned, or called `sys.exit`;
* else when nothing in it has changed for `QUIET` seconds, no process has a file of it open for writing, and the step
  goes on all that time. What was written shortly before a rank died, or the step failed, is left out: nobody knows
  whether it was finished.

An entry is not copied before all that changed earlier is complete, because it may refer to that: a file "latest" to the
folder that it names. Renaming is seen by inotify(7) of Linux; elsewhere, nobody sees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from typing import Any, Callable, Final, Iterable, Mapping

import attrs

from stoker.store.checkpoints import SAVED
from stoker.system import LINUX, system

QUIET: Final = 5.0
"""Seconds without a change. Trainers that write several files into one folder write them one right after the other; a
sharded state dict is gathered in between, which takes seconds for large models."""
LATE: Final = 1.0
"""Seconds within which the death of a rank becomes known."""
DOUBT: Final = 30.0
"""Seconds after the death of a rank in which the step may end of it. When it goes on for longer, a launcher has started
the rank again, and what is written then does not refer to what the dead one left."""
CONTAINERS: Final = (SAVED,)
"""Folders whose entries count each by itself."""


@attrs.frozen(kw_only=True)
class FileState:
    """A file of an entry, as it was seen."""

    path: str
    """Below the checkpoint folder."""
    inode: int
    size: int
    modified: int
    """Nanoseconds since the epoch."""
    mode: int


@attrs.frozen(kw_only=True)
class FolderEntry:
    """One entry of a checkpoint folder, as it was seen. Two equal ones have the same content."""

    name: str
    """Its path below the checkpoint folder."""
    files: tuple[FileState, ...]
    links: tuple[tuple[str, str], ...] = ()
    """Symbolic links: path and target."""
    folders: tuple[str, ...] = ()
    """Every folder of it, the entry itself first if it is one."""
    newest: float = attrs.field(default=0.0, eq=False)
    """When a file or folder of it last changed, in seconds since the epoch."""
    arrived: float = attrs.field(default=0.0, eq=False)
    """The time of the last change of the entry itself, its renaming included."""


def scan(folder: str) -> dict[str, FolderEntry]:
    """The entries of a folder by name."""
    entries: dict[str, FolderEntry] = {}
    for name in _names(folder):
        names = [f"{name}/{inner}" for inner in _names(os.path.join(folder, name))] if name in CONTAINERS else [name]
        for path in names:
            entry = _entry(folder, path)
            if entry is not None:
                entries[path] = entry
    return entries


class Completeness:
    """Follows the entries of a folder from one look to the next."""

    def __init__(self) -> None:
        self._entries: Mapping[str, FolderEntry] = {}
        self._changed: dict[str, float] = {}
        self._complete: dict[str, FolderEntry] = {}
        self._doubts: list[float] = []

    def look(self, entries: Mapping[str, FolderEntry], now: float) -> None:
        """Take the entries as they are now, in seconds since the epoch."""
        for name, entry in entries.items():
            if self._entries.get(name) != entry:
                self._changed[name] = now  # and not its own time, which a program that copies files sets as it likes
        for gone in self._entries.keys() - entries.keys():
            del self._changed[gone]
            self._complete.pop(gone, None)
        self._entries = entries

    def renamed(self, name: str) -> None:
        """Note that an entry came by renaming; a folder that changed after that counts as any other."""
        entry = self._entries.get(name)
        if entry is not None and entry.newest <= entry.arrived:
            self._complete[name] = entry

    def all_complete(self) -> None:
        """Note that the step says that all that is there is complete, or that it left in order."""
        self._complete = dict(self._entries)

    def doubt(self, moment: float) -> None:
        """Note that a process of the step died at this moment, in seconds since the epoch."""
        self._doubts.append(moment)

    def pending(self, now: float) -> bool:
        """Whether there are entries that may become complete by waiting."""
        return any(
            self._complete.get(name) != entry and now - self._changed[name] < QUIET + 1.0 and not self._doubtful(name)
            for name, entry in self._entries.items()
        )

    def complete(self, now: float, is_open: Callable[[FolderEntry], bool]) -> list[FolderEntry]:
        """The entries that can be copied now."""
        chosen = []
        for entry in sorted(self._entries.values(), key=lambda entry: (entry.newest, entry.name)):
            name = entry.name
            if self._complete.get(name) == entry:
                chosen.append(entry)
            elif self._doubtful(name):
                if now < self._doubts[-1] + DOUBT:
                    break
            elif now - self._changed[name] < QUIET:
                break
            elif not is_open(entry):
                self._complete[name] = entry
                chosen.append(entry)
        return chosen

    def _doubtful(self, name: str) -> bool:
        changed = self._changed[name]
        return any(moment - QUIET - LATE < changed <= moment for moment in self._doubts)


def open_files(folder: str) -> set[int]:
    """The inode of every file that a process of this user has open for writing below a folder.

    Where the system does not show them, as macOS, none are known: there the quiet alone decides.
    """
    below = os.path.realpath(folder) + os.sep
    inodes = set()
    for link, target in (found for pid in system.pids() for found in system.descriptors_of(pid)):
        with contextlib.suppress(OSError):  # the process, or its file, is gone, or somebody else's
            # The kernel gives the link's owner the right to write where the descriptor may be written to.
            if target.startswith(below) and os.lstat(link).st_mode & stat.S_IWUSR:
                inodes.add(os.stat(link).st_ino)
    return inodes


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _entry(folder: str, name: str) -> FolderEntry | None:
    """One entry; None for one that is gone, or is neither file, folder nor link."""
    files: list[FileState] = []
    links: list[tuple[str, str]] = []
    folders: list[str] = []
    newest = arrived = 0.0
    try:
        for path in _paths(folder, name):
            status = os.lstat(os.path.join(folder, path))
            newest = max(newest, status.st_mtime)
            arrived = arrived or status.st_ctime
            if stat.S_ISDIR(status.st_mode):
                folders.append(path)
            elif stat.S_ISLNK(status.st_mode):
                links.append((path, os.readlink(os.path.join(folder, path))))
            elif stat.S_ISREG(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
                files.append(
                    FileState(
                        path=path,
                        inode=status.st_ino,
                        size=status.st_size,
                        modified=status.st_mtime_ns,
                        mode=mode,
                    )
                )
    except FileNotFoundError:
        return None  # removed while it was looked at: the next look sees what is there then
    if not (files or links or folders):
        return None
    return FolderEntry(
        name=name, files=tuple(files), links=tuple(links), folders=tuple(folders), newest=newest, arrived=arrived
    )


def _paths(folder: str, name: str) -> Iterable[str]:
    """The path of an entry, and of all below it, an upper one first."""
    yield name
    whole = os.path.join(folder, name)
    if os.path.islink(whole) or not os.path.isdir(whole):
        return
    for entry in sorted(os.listdir(whole)):
        yield from _paths(folder, f"{name}/{entry}")


_EVENT: Final = struct.Struct("iIII")
# From <sys/inotify.h>.
_MODIFY: Final = 0x02
_MOVED_TO: Final = 0x80
_CREATE: Final = 0x100
_OVERFLOW: Final = 0x4000
_ONLY_FOLDERS: Final = 0x01000000


class Renames:
    """The entries of some folders that came by renaming and were not written to since, as (folder, name)."""

    def __init__(self) -> None:
        self.entries: set[tuple[str, str]] = set()
        self.descriptor = -1
        self._folders: dict[int, str] = {}
        self._libc: Any = None
        if LINUX:
            self._libc = system.libc()
            if self._libc is not None:
                self.descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)

    def watch(self, folder: str) -> None:
        """Watch a folder, if it is there; one that is watched stays so."""
        if self.descriptor < 0 or folder in self._folders.values():
            return
        mask = ctypes.c_uint32(_MODIFY | _MOVED_TO | _CREATE | _ONLY_FOLDERS)
        number = self._libc.inotify_add_watch(self.descriptor, os.fsencode(folder), mask)
        if number >= 0:
            self._folders[number] = folder

    def read(self) -> None:
        """Bring `entries` up to date."""
        if self.descriptor < 0:
            return
        while True:
            try:
                data = os.read(self.descriptor, 1 << 16)
            except BlockingIOError:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            if mask & _OVERFLOW:
                self.entries.clear()  # what was lost may have been a write
            elif mask & _MOVED_TO:
                self.entries.add((self._folders[number], name))
            elif name:
                self.entries.discard((self._folders[number], name))
