"""Finds and ends what is left of a fork server when it, its supervisor and its driver are gone.

Processes are found by the mark in their environment as it was when they started (`processes.MARK`), which a fork
inherits, and by the name of their cgroup, which everybody may read and which they cannot leave. As long as a
supervisor of the driver lives, ending them is its work.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final, Iterator

from stoker.worker import containment, processes, supervisor

_SUPERVISOR_PATIENCE: Final = 20.0
"""Seconds that a dead driver's supervisor gets: it takes 15 at most. One that is stopped is killed then."""
_KILL_PATIENCE: Final = 5.0
"""Seconds in which processes must have died of SIGKILL."""
_TURN: Final = 0.005
_ROUND: Final = 0.2
"""Seconds that one look may take while what it finds is ended: the ledger is locked meanwhile."""
_LISTS: Final = 50
"""Lists of a machine's processes, where new ones always appear."""


class Survivors:
    """What is left of drivers that are gone. Remembers since when it waits for their supervisors."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def __call__(self, pid: int, ticks: str) -> tuple[int, ...]:
        """Kill what a driver left and return the pids that live; () proves that nothing is left.

        `pid` and `ticks` are the driver's, as `processes.mark_of` writes them. Takes `_ROUND` seconds at most.
        """
        mark = f"{pid}-{ticks}"
        deadline = time.monotonic() + _ROUND
        while True:
            late = self._since.get(mark, time.monotonic()) + _SUPERVISOR_PATIENCE <= time.monotonic()
            supervised = not late and supervisor.name_of(pid) in map(_name, find(mark))
            living = find(mark, kill=not supervised)
            if not living:
                break
            self._since.setdefault(mark, time.monotonic())
            if supervised or time.monotonic() > deadline:
                return living
            time.sleep(_TURN)
        self._since.pop(mark, None)
        for group in containment.named(mark):
            group.close()
        return ()


def find(mark: str, *, kill: bool = False) -> tuple[int, ...]:
    """The living processes of a fork server, or of all fork servers of a driver, by the beginning of their mark.

    With `kill` each gets SIGKILL as soon as it is found. () proves that there are none: a process may fork and end
    while others are looked at, so that the look goes on until a list of all processes has none that was not read.
    """
    variable = f"\0{processes.MARK}={mark}".encode()
    group = f"/{containment.PREFIX}{mark}".encode()
    # Another user's environment cannot be read, and he may have no cgroups; a supervisor's name can be.
    supervised = supervisor.name_of(int(mark.partition("-")[0])) if mark.count("-") == 1 else None
    groups = containment.named(mark)
    living: set[int] = set()
    for one in groups:
        living.update(one.processes())
        if kill and living:
            one.kill()
    for name in _each_process():
        marked = (
            _names(variable, b"\0" + _read(f"/proc/{name}/environ"))
            or _names(group, _read(f"/proc/{name}/cgroup"))
            or (supervised is not None and _name(int(name)) == supervised)
        )
        if marked and _is_here(name) and processes.runs(int(name)):
            living.add(int(name))
            if kill:
                _kill(int(name))
    return tuple(sorted(living))


def end(mark: str, patience: float) -> tuple[int, ...]:
    """Kill a fork server's processes until none is left or `patience` seconds are over; returns those that are left."""
    deadline = time.monotonic() + patience
    while (living := find(mark, kill=True)) and time.monotonic() < deadline:
        time.sleep(_TURN)
    return living


def sweep() -> int:
    """End what dead drivers of any run left, where no supervisor does; returns how many processes there were.

    Needs no look at a run, and finds what was killed with all that would have cleaned up.
    """
    variable = f"\0{processes.MARK}=".encode()
    dead: set[str] = set()
    for name in _each_process():
        text = b"\0" + _read(f"/proc/{name}/environ")
        _, found, rest = text.partition(variable)
        words = rest.partition(b"\0")[0].decode("ascii", "replace").split("-")
        if found and len(words) == 3 and words[0].isdecimal() and _is_here(name):
            mark = f"{words[0]}-{words[1]}"
            if processes.mark_of(int(words[0])) != mark or not processes.runs(int(words[0])):
                dead.add(mark)
    ended = 0
    for mark in dead:
        living = find(mark)
        name = supervisor.name_of(int(mark.partition("-")[0]))
        if living and not any(_name(pid) == name for pid in living):
            ended += len(living) - len(end(mark, _KILL_PATIENCE))
    return ended


def process_text(pid: int) -> str:
    """A process for a person: its pid, its command line, and its state by the letter of proc(5), such as "D"."""
    words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip() or _name(pid)
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1]
    return f"pid {pid}" + (f" ({words[:80]}, state {state[0].decode()})" if state else " (gone by now)")


def _names(beginning: bytes, text: bytes) -> bool:
    """Whether a text has a mark: followed by the fork server's number, or whole."""
    at = text.find(beginning)
    return at >= 0 and not text[at + len(beginning) : at + len(beginning) + 1].isdigit()


def _is_here(name: str) -> bool:
    """Whether a process is of this pid namespace: the marks of a container's processes have its own pids."""
    try:
        return os.readlink(f"/proc/{name}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return True  # another user's, which may not be looked at


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _name(pid: int) -> str:
    return _read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _each_process() -> Iterator[str]:
    """The pids of all processes but this one, until a list of them has none that was not there before.

    A list is not made at one moment, and a process may end before it is looked at: its children are in the next list.
    """
    seen = {str(os.getpid())}
    for _ in range(_LISTS):
        try:
            fresh = [name for name in os.listdir("/proc") if name.isdecimal() and name not in seen]
        except OSError:
            return
        if not fresh:
            return
        yield from fresh
        seen.update(fresh)
