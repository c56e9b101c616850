"""Sees which entries came into a folder by renaming: inotify(7) of Linux; elsewhere, none are seen."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from typing import Any, Final

from stoker.worker import prctl

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
        if sys.platform == "linux":
            self._libc = prctl.libc()
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
