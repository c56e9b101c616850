"""The process of a job's program (`worker.boot`), forked before the job is known.

What takes jobs one after another forks the next one's process while it waits: half of the time between a job's order
and its step is that of processes that begin. Such a process runs one job, as one that is forked for it; it ends when
its parent does, and when it is told that no job comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import traceback
from typing import Any, Callable, ClassVar, Final, Sequence

import attrs

from stoker.core import values, wire
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.errors import SettingsError
from stoker.core.orders import BootSpec
from stoker.core.protocol import ServerFork, ServerHello, ServerNews, ServerOrder, WorkerEvent, WorkerExit
from stoker.system import system
from stoker.worker import boot, processes
from stoker.worker.codecopy import CodeCopy

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""What the process that forks passes on to a job's program."""
_LONGEST: Final = 1 << 20
"""Bytes of a `JobProgram` at most: an environment has less than that."""


@attrs.frozen(kw_only=True)
class JobProgram:
    """What a forked process is told of its job."""

    COMPACT: ClassVar = True
    spec: str
    """The path or URI of the job's SPEC, as `worker.boot` gets it."""
    out: str = ""
    """The file to which standard output is appended; empty: a descriptor that is passed, or the parent's own."""
    err: str = ""
    environment: dict[str, str] | None = None
    """The process's whole environment; None: its parent's."""
    sync: bool = True
    merged: bool = False
    """As `boot.main` takes them."""


def rehearse() -> None:
    """Work out, once for all processes forked from this one, how their messages are written and read."""
    values.complete()
    out = WorkerExit(worker=1, code=0, cpu=1.0, peak=1)
    fork = ServerFork(worker=1, once=True, environment={"A": "a"})
    hello = ServerHello(
        path=("a",), folder="a", blobs="a", checkpoints="a", metrics="a", environment={"A": "a"}, gone=("B",)
    )
    for message in (
        ServerOrder(hello=hello),
        ServerOrder(fork=fork),
        ServerNews(forked=1, pid=1),
        ServerNews(exited=out),
        WorkerEvent(kind="up", time=1.0, data={"host": "a"}),
        JobProgram(spec="a", out="a", err="a", environment={"A": "a"}, sync=False, merged=True),
    ):
        from_json(type(message), to_json(message), strict=False)


class NextProgram:
    """Forks processes of jobs' programs, each for one job. `release` closes, in such a process, what its parent has."""

    def __init__(self, libc: Any, release: Callable[[], None]) -> None:
        self._libc = libc
        self._release = release
        self._pid = 0
        self._control: socket.socket | None = None
        self._code = CodeCopy()
        self._example = b""
        """The SPEC of the last job; empty where its code has been seen to."""
        self._package = ("", "")
        """The last job's package, and the blobs that have it."""

    @property
    def place(self) -> str:
        """The folder that holds the copy of the jobs' code; empty where there is none."""
        return self._code.place

    def fork(self) -> None:
        """Fork the process of the next job, if there is none. The job is probably like the last one, so that there is a
        copy of that one's code."""
        if self._control is not None:
            return
        if self._example:
            with contextlib.suppress(SettingsError):  # the job has said so
                spec = from_json(BootSpec, parse_json(self._example), strict=False)
                self._package = (spec.package, spec.blobs)
                self._code.prepare(*self._package)
            self._example = b""
        self._control, other_end = system.packet_pair()
        parent = os.getpid()
        # A signal between the fork and the child's own handlers would run the parent's in the child.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                self._become_boot(other_end, parent)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            other_end.close()

    def start(self, program: JobProgram, descriptors: Sequence[int] = ()) -> int:
        """Run a job in the process that was forked, or in a new one; returns its pid. `descriptors` become its standard
        output and error."""
        data = [wire.packed(to_json(program))]
        for _ in range(2):
            self.fork()
            control, pid = self._control, self._pid
            assert control is not None
            self._control, self._pid = None, 0
            with control, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed while it waited
                socket.send_fds(control, data, descriptors)
                with contextlib.suppress(OSError), open(program.spec, "rb") as file:
                    self._example = file.read()
                return pid
        raise ChildProcessError("the process of a job ends before it begins")

    def over(self, *, remains: bool) -> None:
        """Note the end of the job that was started: the next one finds the code as it was. `remains`: processes of the
        job could not be ended, and may still change its copy."""
        if remains:
            self._code.close()
        else:
            self._code.restore()

    def close(self) -> None:
        """End the process that waits for a job, and remove the copy of the code."""
        self._code.close()
        if self._control is not None:
            self._control.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._control, self._pid = None, 0

    def _become_boot(self, control: socket.socket, parent: int) -> None:
        """In the child: run the job that comes, and exit without the parent's clean-up."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            processes.die_with(parent, signal.SIGKILL, self._libc)
            os.setsid()
            assert self._control is not None
            self._control.close()
            self._release()
            package, blobs = self._package
            ready = boot.Ready(self._code, package=package, blobs=blobs)
            control.setblocking(True)
            data, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 2)
            control.close()
            code = _run(ready, from_json(JobProgram, wire.received(data), strict=False), descriptors) if data else 0
            ready.close()
        except BaseException:  # the top of a process
            traceback.print_exc()
        finally:
            processes.leave(code)


def _run(ready: boot.Ready, program: JobProgram, descriptors: Sequence[int]) -> int:
    """Take the job's streams and its environment, and run it."""
    if program.environment is not None:
        os.environ.clear()
        os.environ.update(program.environment)
    streams = list(zip(descriptors, (1, 2)))
    for path, standard in ((program.out, 1), (program.err, 2)):
        if path:
            streams.append((os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), standard))
    for descriptor, standard in streams:
        os.dup2(descriptor, standard)
        os.close(descriptor)
    processes.reopen_streams()
    return boot.main([program.spec], sync=program.sync, merged=program.merged, ready=ready)
