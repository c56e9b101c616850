"""The process above a fork server, so that somebody is left to clean up whoever is killed.

    driver → supervisor → fork server → workers and their monitors

The driver starts the supervisor, which forks the fork server and does nothing but wait. When the fork server ends,
however it ends, what is left below it becomes the supervisor's by the kernel's rule for subreapers, and is ended. When
the driver ends, the fork server ends its workers; a fork server that hangs is killed. When the supervisor itself is
killed, the fork server hears of it (SIGHUP) and ends everything in its place.

All of them, and all that a step starts, share the cgroup that the supervisor makes where it may
(`worker.containment`), and the variable `MARK` in their environment, by which `worker.survivors` finds what is left
when all of them were killed at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Callable, Final

from stoker.worker import containment, prctl, processes
from stoker.worker.containment import Containment

ORPHANED: Final = signal.SIGHUP
"""The signal that a fork server gets when its supervisor ends. Slurm sends SIGTERM to all processes of a job."""
_SERVER_GRACE: Final = 7.0
"""Seconds that a fork server gets to end its workers when the driver is gone: it takes 5 at most."""
_GRACE: Final = 1.0
"""Seconds between SIGTERM and SIGKILL for what a fork server left: a monitor writes its last sample."""
_PATIENCE: Final = 8.0
"""Seconds after which what does not die is left: the kernel holds it, and the ledger of devices finds it there."""
_TURN: Final = 0.005
_LOOK: Final = 0.2
"""Seconds between two looks where the kernel has no descriptors of processes (Linux before 5.3, macOS)."""


def supervise(control: socket.socket, serve: Callable[[Containment | None], None]) -> None:
    """Fork the process that serves the driver on `control`, wait for its end, and clean up; does not return.

    The exit code is 0 where nothing is left.
    """
    driver, supervisor = os.getppid(), os.getpid()
    library = prctl.libc()
    prctl.become_subreaper(library)
    group = Containment.open(os.environ.get(processes.MARK) or f"{processes.mark_of(driver)}-{supervisor}")
    server = os.fork()
    if server == 0:
        code = 1
        try:
            prctl.die_with(supervisor, ORPHANED, library)
            if group is not None:
                with contextlib.suppress(OSError):
                    group.add(0)
            serve(group)
            code = 0
        except BaseException:  # the top of a process
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    signal.signal(signal.SIGTERM, lambda number, frame: _signal({server}, signal.SIGKILL))
    control.close()  # the driver sees the end of the fork server at its socket
    prctl.set_name(name_of(driver), library)
    _remove_empty_groups()
    _wait(driver, server)
    os._exit(0 if _end_all(group) else 1)


def name_of(driver: int) -> str:
    """What /proc/PID/comm says of a driver's supervisors; everybody may read it."""
    return f"stoker {driver}"


def _wait(driver: int, server: int) -> None:
    """Wait until the server has ended; kill it where it outlives the driver."""
    poll = select.poll()
    descriptors = []
    for pid in (driver, server):
        with contextlib.suppress(OSError, AttributeError):
            descriptors.append(os.pidfd_open(pid))
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
        time.sleep(_TURN)
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
