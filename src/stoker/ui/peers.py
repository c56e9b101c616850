"""Whose program is at the other end of a connection over loopback: the kernel's table of sockets says."""

from __future__ import annotations

import os
from typing import Final, Mapping

_TABLES: Final[Mapping[bool, str]] = {False: "/proc/net/tcp", True: "/proc/net/tcp6"}
"""Whether the address is one of IPv6 → the table. https://www.kernel.org/doc/Documentation/networking/proc_net_tcp.txt"""
_LOCAL: Final = 1
_REMOTE: Final = 2
_UID: Final = 7


def is_of_this_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether the program that connected from `client` to `server` runs as this process's user, or as root.

    False for a connection that is not in the table any more.
    """
    uid = _owner(_TABLES[":" in client[0]], client[1], server[1])
    return uid is not None and uid in (os.geteuid(), 0)


def _owner(table: str, client_port: int, server_port: int) -> int | None:
    try:
        with open(table, encoding="ascii") as file:
            next(file)
            for line in file:
                fields = line.split()
                if _port(fields[_LOCAL]) == client_port and _port(fields[_REMOTE]) == server_port:
                    return int(fields[_UID])
    except (OSError, StopIteration):
        return None
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)
