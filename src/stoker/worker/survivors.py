"""The process above a fork server, which cleans up whoever is killed; and what is done where it was killed, too.

    driver → supervisor → fork server → workers and their monitors

The driver starts the supervisor, which forks the fork server and does nothing but wait. When the fork server ends,
however it ends, what is left below it becomes the supervisor's by the kernel's rule for subreapers, and is ended. When
the driver ends, the fork server ends its workers; a fork server that hangs is killed. When the supervisor itself is
killed, the fork server hears of it (SIGHUP) and ends everything in its place.

All of them, and all that a step starts, share the cgroup that the supervisor makes where it may
(`worker.containment`), and the variable `MARK` in their environment, by which what is left is found when all of them
were killed at once.

When the fork server, its supervisor and its driver are gone, what is left of them is found by whoever looks next, and
ended. Processes are found by the mark in their environment as it was when they started (`processes.MARK`), which a fork
inherits, and by the name of their cgroup, which everybody may read and which they cannot leave. As long as a
supervisor of the driver lives, ending them is its work.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from typing import Callable, Final, Iterator

from stoker.system import system
from stoker.worker import containment, processes
from stoker.worker.containment import Containment

ORPHANED: Final = signal.SIGHUP
"""The signal that a fork server gets when its supervisor ends. Slurm sends SIGTERM to all processes of a job."""
_SERVER_GRACE: Final = 7.0
"""Seconds that a fork server gets to end its workers when the driver is gone: it takes 5 at most."""
_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for what a fork server left: a monitor writes its last sample."""
_PATIENCE: Final = 8.0
"""Seconds after which what does not die is left: the kernel holds it, and the ledger of devices finds it there."""
_PAUSE: Final = 0.005
_LOOK: Final = 0.2
"""Seconds between two looks where the kernel has no descriptors of processes (Linux before 5.3, macOS)."""


def supervise(control: socket.socket, serve: Callable[[Containment | None], None]) -> None:
    """Fork the process that serves the driver on `control`, wait for its end, and clean up; does not return.

    The exit code is 0 where nothing is left.
    """
    driver, supervisor = os.getppid(), os.getpid()
    library = system.libc()
    processes.become_subreaper(library)
    group = Containment.open(os.environ.get(processes.MARK) or f"{processes.mark_of(driver)}-{supervisor}")
    server = os.fork()
    if server == 0:
        code = 1
        try:
            processes.die_with(supervisor, ORPHANED, library)
            if group is not None:
                with contextlib.suppress(OSError):
                    group.add(0)
            serve(group)
            code = 0
        except BaseException:  # the top of a process
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    signal.signal(signal.SIGTERM, lambda number, frame: _signal({server}, signal.SIGKILL))
    control.close()  # the driver sees the end of the fork server at its socket
    processes.set_name(name_of(driver), library)
    _remove_empty_groups()
    _wait(driver, server)
    os._exit(0 if _end_all(group) else 1)


def name_of(driver: int) -> str:
    """The name of a driver's supervisors; everybody may read it."""
    return f"stoker {driver}"


def _wait(driver: int, server: int) -> None:
    """Wait until the server has ended; kill it where it outlives the driver."""
    poll = select.poll()
    descriptors = []
    for pid in (driver, server):
        with contextlib.suppress(OSError):
            descriptors.append(system.end_of(pid))
            poll.register(descriptors[-1], select.POLLIN)
    watched = len(descriptors) == 2
    late = 0.0
    while True:
        if os.waitpid(server, os.WNOHANG)[0]:
            return
        now = time.monotonic()
        if os.getppid() != driver and not late:
            late = now + _SERVER_GRACE
            for descriptor in descriptors[:1]:
                poll.unregister(descriptor)  # it stays readable
        if late and now >= late:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)
            if now >= late + _PATIENCE:
                return
        poll.poll(None if watched and not late else _LOOK * 1000)


def _end_all(group: Containment | None) -> bool:
    """End everything below this process and in its group; returns whether nothing is left."""
    began = time.monotonic()
    asked: set[int] = set()
    while True:
        alone = _reap()
        below = () if alone else processes.descendants(os.getpid())
        remaining = {*below, *(() if group is None else group.processes())}
        now = time.monotonic()
        if (alone and not remaining) or now >= began + _PATIENCE:
            break
        if now < began + _GRACE:
            _signal(remaining - asked, signal.SIGTERM)
            asked |= remaining
        else:
            _signal(remaining, signal.SIGKILL)
            if group is not None:
                group.kill()
        time.sleep(_PAUSE)
    if group is not None:
        group.close()
    return alone and not remaining


def _reap() -> bool:
    """Reap what has ended. Whether no child is left: of a subreaper, that is nothing below it at all.

    A list of children may miss one where another ends meanwhile; this cannot.
    """
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return True
    return False


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _remove_empty_groups() -> None:
    """Remove the groups of drivers that are gone, whose supervisors were killed before they could."""
    for folder in containment.siblings():
        mark = os.path.basename(folder)[len(containment.PREFIX) :]
        pid = mark.partition("-")[0]
        if pid.isdecimal() and not mark.startswith(processes.mark_of(int(pid)) + "-"):
            containment.remove_empty(folder)


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
            supervised = not late and name_of(pid) in map(system.name_of, find(mark))
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
    supervised = name_of(int(mark.partition("-")[0])) if mark.count("-") == 1 else None
    groups = containment.named(mark)
    living: set[int] = set()
    for one in groups:
        living.update(one.processes())
        if kill and living:
            one.kill()
    for pid in _each_process():
        marked = (
            _names(variable, b"\0" + system.environment_of(pid))
            or _names(group, system.kernel_file(f"{pid}/cgroup"))
            or (supervised is not None and system.name_of(pid) == supervised)
        )
        if marked and _is_here(pid) and processes.runs(pid):
            living.add(pid)
            if kill:
                _kill(pid)
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
    for pid in _each_process():
        text = b"\0" + system.environment_of(pid)
        _, found, rest = text.partition(variable)
        words = rest.partition(b"\0")[0].decode("ascii", "replace").split("-")
        if found and len(words) == 3 and words[0].isdecimal() and _is_here(pid):
            mark = f"{words[0]}-{words[1]}"
            if processes.mark_of(int(words[0])) != mark or not processes.runs(int(words[0])):
                dead.add(mark)
    ended = 0
    for mark in dead:
        living = find(mark)
        name = name_of(int(mark.partition("-")[0]))
        if living and not any(system.name_of(pid) == name for pid in living):
            ended += len(living) - len(end(mark, _KILL_PATIENCE))
    return ended


def process_text(pid: int) -> str:
    """A process for a person: its pid, its command line, and its state by the letter of proc(5), such as "D"."""
    words, stat = system.command_of(pid) or system.name_of(pid), system.stat_of(pid)
    return f"pid {pid}" + (" (gone by now)" if stat is None else f" ({words[:80]}, state {stat.state})")


def _names(beginning: bytes, text: bytes) -> bool:
    """Whether a text has a mark: followed by the fork server's number, or whole."""
    at = text.find(beginning)
    return at >= 0 and not text[at + len(beginning) : at + len(beginning) + 1].isdigit()


def _is_here(pid: int) -> bool:
    """Whether a process is of this pid namespace: the marks of a container's processes have its own pids. So does
    another user's, which may not be looked at."""
    return system.namespace_of(pid) in ("", system.namespace_of(os.getpid()))


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _each_process() -> Iterator[int]:
    """The pids of all processes but this one, until a list of them has none that was not there before.

    A list is not made at one moment, and a process may end before it is looked at: its children are in the next list.
    """
    seen = {os.getpid()}
    for _ in range(_LISTS):
        fresh = system.pids() - seen
        if not fresh:
            return
        yield from fresh
        seen.update(fresh)
