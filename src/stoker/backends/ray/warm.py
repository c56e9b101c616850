"""A process beside one of Ray's workers that forks the program of each step, so that nothing is imported twice.

    python -m stoker.backends.ray.warm DESCRIPTOR PARENT STORE

DESCRIPTOR is a socket that keeps messages apart, PARENT the worker's process, STORE the URI of the artifact store: its
library is imported once. `backends.ray.node` sends, in JSON,
{"start": file} with the descriptors for standard output and error beside it, and {"signal": number}; it hears
{"over": exit code}, once nothing is left of the program. The file holds "spec", as `worker.boot` gets it, and the
program's "environment". Each program is a fresh process: it shares nothing with the one before but imported modules of
Stoker's, and dies with this process, which dies with Ray's worker.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Final

from stoker.core import wire
from stoker.store import remote
from stoker.system import system
from stoker.worker import processes
from stoker.worker.ahead import JobProgram, NextProgram, rehearse
from stoker.worker.pool import LATE_IMPORTS, end_remains

_MESSAGE: Final = 1 << 16


class StepStarter:
    """Runs one program at a time for the process at the other end of the socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = system.libc()
        self._pid = 0
        self._ran = False
        self._next = NextProgram(self._libc, self._release)
        self._wakeup = wire.Wakeup()

    def run(self) -> None:
        """Serve until the other end is closed."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup.writer(), warn_on_full_buffer=False)
        processes.become_subreaper(self._libc)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._wakeup.descriptor], [], [])
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
                self._reap()
            if self._control.fileno() in ready and not self._receive():
                break
            if self._ran and not self._pid:
                self._next.fork()
        self._next.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        end_remains()

    def _receive(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE, 2)
        if not data:
            return False
        message = json.loads(data)
        if "start" in message:
            self._start(message["start"], descriptors)
        elif self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, message["signal"])
        return True

    def _start(self, path: str, descriptors: list[int]) -> None:
        with open(path, encoding="utf-8") as file:
            order = json.load(file)
        program = JobProgram(spec=order["spec"], environment=order["environment"])
        self._pid, self._ran = self._next.start(program, descriptors), True
        for descriptor in descriptors:
            os.close(descriptor)

    def _release(self) -> None:
        """In a process forked for a program: close what is this process's."""
        self._wakeup.close()
        self._control.close()

    def _reap(self) -> None:
        """Report the end of the program, once nothing is left of it."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._pid = 0
                    self._next.over(remains=not end_remains())
                    with contextlib.suppress(OSError):  # nobody hears it: the next read ends this process
                        self._control.send(json.dumps({"over": os.waitstatus_to_exitcode(status)}).encode())


def main() -> int:
    """Serve the worker that started this process, and end with it."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    processes.die_with(parent, signal.SIGKILL, system.libc())
    # Ray blocks SIGINT in all of its processes.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for module in LATE_IMPORTS:
        importlib.import_module(module)
    remote.preload(sys.argv[3])
    rehearse()
    gc.collect()
    gc.freeze()
    StepStarter(system.packets(descriptor)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
