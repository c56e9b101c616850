"""What the ranks of distributed steps do on this machine now: read from beside them, by the trail that each one keeps.

Nobody is asked, and nothing is sent: a rank's process is known by its name, and its trail (`worker.evidence`) by its
mapping in /proc. A share of time is that since the look before, and since the rank's start at the first look.
"""

from __future__ import annotations

import os
import time
from typing import Final, Iterable, Mapping, Sequence

from stoker.client.metrics import Usage
from stoker.core.values import frozen
from stoker.devices.processtree import Tree
from stoker.system import system
from stoker.worker.evidence import FORWARD, read_trail
from stoker.worker.processes import process_of

_TRAIL: Final = ".trail"
_WAITED: Final = 0.5
"""Seconds in an operation from which on it is named."""


@frozen(kw_only=True)
class RankUse:
    """A rank that runs, and what it does; None for what is not known."""

    rank: int
    pid: int
    cpus: float | None = None
    """Cores in use, by it and what it started."""
    memory: int | None = None
    """Bytes."""
    waits: float | None = None
    """The share of its time, from 0 to 1, that it spends in collective operations and in waiting for others in backward
    passes."""
    batches: int = 0
    """Forward passes of DistributedDataParallel so far."""
    operation: str = ""
    """The collective operation in which it is, and the user's line."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that its processes use."""


def slowest_text(ranks: Sequence[RankUse]) -> str:
    """The slowest rank and the imbalance, in the words of a step that is over; empty where there is none."""
    return Usage(rank_waits={one.rank: one.waits for one in ranks if one.waits is not None}).imbalance_text


class RankWatch:
    """Looks at ranks again and again."""

    def __init__(self) -> None:
        self._trees: dict[int, Tree] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._waited: dict[int, tuple[float, float]] = {}

    def look(self, ranks: Mapping[int, int], users: Mapping[str, Iterable[int]]) -> tuple[RankUse, ...]:
        """The ranks (number → pid) now; `users` are the pids on each device."""
        return tuple(self._look(rank, pid, users) for rank, pid in sorted(ranks.items()))

    def forget(self, living: Iterable[int]) -> None:
        """Forget what is known of processes that are not among these."""
        kept = set(living)
        for known in (self._trees, self._cpu, self._waited):
            for pid in known.keys() - kept:
                del known[pid]

    def _look(self, rank: int, pid: int, users: Mapping[str, Iterable[int]]) -> RankUse:
        tree = self._trees.setdefault(pid, Tree(pid))
        reading, now = tree.read(), time.time()
        operations, waited = read_trail(trail_of(pid))
        running = next((one for one in operations[-1:] if not one.ended), None)
        if running is not None and running.name != FORWARD:
            waited += max(0.0, now - running.began)
        since, before = self._waited.get(pid, (process_of(pid)["started"], 0.0))
        self._waited[pid] = now, waited
        last, spent = self._cpu.get(pid, (0.0, 0.0))
        if reading.cpu is not None:
            self._cpu[pid] = now, reading.cpu
        named = running is not None and running.name != FORWARD and now - running.began >= _WAITED
        return RankUse(
            rank=rank,
            pid=pid,
            cpus=max(0.0, reading.cpu - spent) / (now - last) if reading.cpu is not None and 0 < last < now else None,
            memory=reading.memory,
            waits=min(1.0, max(0.0, waited - before) / max(0.001, now - since)) if operations else None,
            batches=max((one.number for one in operations if one.name == FORWARD), default=0),
            operation=f"{running.name} ({running.place})" if named and running is not None else "",
            devices=tuple(uuid for uuid, pids in users.items() if not tree.members.isdisjoint(pids)),
        )


def trail_of(pid: int) -> str:
    """The file of a rank's trail, as this process can open it; empty where it has none, or may not be looked at."""
    lines = system.kernel_file(f"{pid}/maps").decode("utf-8", "replace").splitlines()
    path = next((line.split(maxsplit=5)[-1] for line in lines if line.endswith(_TRAIL)), "")
    return f"/proc/{pid}/root{path}" if os.path.isabs(path) else ""
