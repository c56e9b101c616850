"""Whether the kernel's OOM killer was at work: the counters that it leaves behind, read before and after.

SIGKILL says nothing of its sender. The kernel counts each process that it killed for want of memory, in the process's
control group and for the whole machine; a counter that rose while a step ran, and the step's SIGKILL, are one event.
Only whoever runs on the same machine can read them.
"""

from __future__ import annotations

import os
import time
from typing import Final, Iterator

FRESH: Final = 1.0
"""Seconds for which a reading stands for "now": it costs 0.05 ms, and thousands of steps may start in a second."""
_MACHINE: Final = "/proc/vmstat"


def candidates(membership: str, mounts: str) -> Iterator[str]:
    """The files that may hold a process's counter, nearest first, from its /proc/self/cgroup and mountinfo.

    cgroup v1 has it in memory.oom_control since Linux 4.13 (memory.failcnt counts brushes with the limit, which end
    nobody); v2 in memory.events, with those of the groups below. A container sees its own group as the mount's root,
    or is told a path that only exists outside: then the mount itself is its group.
    """
    of: dict[str, str] = {}
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            of["v2"] = path
        elif "memory" in controllers.split(","):
            of["v1"] = path
    for line in mounts.splitlines():
        fields, mark, system = line.partition(" - ")
        parts, types = fields.split(), system.split()
        if not mark or len(parts) < 5 or len(types) < 3:
            continue
        if types[0] == "cgroup" and "memory" in types[2].split(",") and "v1" in of:
            yield from _below(parts[4], parts[3], of["v1"], "memory.oom_control")
        elif types[0] == "cgroup2" and "v2" in of:
            yield from _below(parts[4], parts[3], of["v2"], "memory.events")


def _below(mount: str, root: str, path: str, name: str) -> Iterator[str]:
    inside = path[len(root) :] if root != "/" and (path + "/").startswith(root + "/") else path
    yield os.path.join(mount, inside.strip("/"), name)
    yield os.path.join(mount, name)


def kills_in(text: str) -> int | None:
    """The number of kills that a counter's file tells, None if it tells none."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


def evidence(path: str, before: int, after: int) -> str:
    """What a counter that rose proves, in words; empty if it did not."""
    if after <= before:
        return ""
    whose = "of this machine (any process may be meant)" if path == _MACHINE else f"in {path}"
    return f"the kernel's oom_kill counter {whose} rose from {before} to {after} while the step ran"


class OomKills:
    """One counter, read sparingly: that of this process's control group, else the machine's."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._read_at = float("-inf")
        self._last: int | None = None
        self._explained = 0
        """Up to which count the kills are told: one kill must not explain the ends of two steps."""

    def now(self) -> int | None:
        """The count, at most a second old."""
        if time.monotonic() - self._read_at > FRESH:
            self._read()
        return self._last

    def since(self, before: int | None) -> str:
        """What kills since a reading prove that explained nothing yet; they count as told from now on."""
        after = self._read()
        if before is None or after is None:
            return ""
        start = max(before, self._explained)
        found = evidence(self._path or "", start, after)
        if found:
            self._explained = start + 1
        return found

    def _read(self) -> int | None:
        self._read_at = time.monotonic()
        if self._path is None:
            self._path = next((path for path in _paths() if kills_in(text_of(path)) is not None), "")
        self._last = kills_in(text_of(self._path)) if self._path else None
        return self._last


def _paths() -> Iterator[str]:
    yield from candidates(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo"))
    yield _MACHINE


def text_of(path: str) -> str:
    """What a file of the kernel's says, nothing where it is missing or not for us."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
