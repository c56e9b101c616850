"""Which program of this machine listens on a port, as /proc shows it."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import Final, Iterator

_LISTEN: Final = "0A"
"""The state of a listening socket in /proc/net/tcp (include/net/tcp_states.h of the kernel)."""


def holder(port: int) -> str:
    """The program that listens on a port, such as "pid 4711, python train.py"; empty where nobody may see it.

    Other users' processes and those of other containers are not seen.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return ""
    for folder in glob.iglob("/proc/[0-9]*/fd"):
        if any(link in sockets for link in _descriptors(folder)):
            pid = folder.split("/")[2]
            return f"pid {pid}, {_command(pid)}".rstrip(", ")
    return ""


def _descriptors(folder: str) -> Iterator[str]:
    """What the descriptors of a process are; nothing of another user's, or of one that has just ended."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # closed since the list was made
            yield os.readlink(os.path.join(folder, name))


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on a port of any address."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/net/{name}") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        inodes.update(row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port)
    return inodes


def _command(pid: str) -> str:
    """The first words of a process's command line."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(4096).decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    text = " ".join(filter(None, words))
    return text if len(text) <= 80 else f"{text[:79]}…"
