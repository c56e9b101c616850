"""The fork server: a small process that has imported the user's module and forks a worker in a millisecond.

Started by the driver with one end of a socket on a descriptor named in its arguments. It is sent
`core.protocol.ServerOrder`, with the descriptors for jobs, results, stdout and stderr beside "fork", and answers with
`ServerNews`. With "watch" in "fork" a monitor (`devices.monitor`) is forked beside the worker, and the worker's exit is
reported when the monitor has written its last sample. When the driver is gone, for whatever reason, every worker is
ended with all that it started. Imports are the only user code that runs in this process.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, Final, Mapping

from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.protocol import ServerFork, ServerHello, ServerNews, ServerOrder, WorkerExit
from stoker.worker import modules, serving
from stoker.worker.notice import Notice

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_MONITOR_GRACE: Final = 5.0
"""Seconds that a monitor gets to write its last sample; a driver that hangs would hold it for ever."""


def _libc() -> Any:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


class ForkServer:
    """The loop and its children."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._libc = _libc()
        self._blobs = ""
        self._checkpoints = ""
        self._pids: dict[int, int] = {}
        self._workers: dict[int, int] = {}
        self._notices: dict[int, Notice] = {}
        self._last_calls: dict[int, float] = {}
        self._kills: dict[int, float] = {}
        self._monitors: dict[int, int] = {}
        self._exits: dict[int, tuple[WorkerExit, float]] = {}
        self._wakeup = wire.Wakeup()

    def run(self) -> None:
        """Serve until the driver is gone."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakeup.writer(), warn_on_full_buffer=False)
        _prctl(self._libc, _PR_SET_CHILD_SUBREAPER, 1)
        while True:
            late = [*self._last_calls.values(), *self._kills.values(), *(until for _, until in self._exits.values())]
            pause = max(0.0, min(late) - time.monotonic()) if late else None
            ready, _, _ = select.select([self._control.fileno(), self._wakeup.descriptor], [], [], pause)
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
            self._reap()
            self._last_call()
            self._kill_the_late()
            if self._control.fileno() in ready and not self._receive_order():
                break
        self._end_all()

    def _receive_order(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 2 * wire.DATAGRAM_LIMIT, 8)
        except ConnectionResetError:
            return False
        if not data:
            return False
        order = from_json(ServerOrder, wire.received(data), strict=False)
        if order.hello is not None:
            self._hello(order.hello)
        if order.fork is not None:
            self._fork(order.fork, descriptors)
        if order.end is not None:
            self._end(order.end.worker, order.end.grace)
        return True

    def _hello(self, hello: ServerHello) -> None:
        sys.path[:] = hello.path
        os.chdir(hello.folder)
        os.environ.update(hello.environment)
        self._blobs = hello.blobs
        self._checkpoints = hello.checkpoints
        for name in hello.preload:
            try:
                importlib.import_module(name)
            except Exception:  # a package's own code; the step that needs it will meet the same error
                continue
        for source in hello.sources:
            try:
                modules.module_of(source)
            except BaseException:  # the user's module is imported
                # The worker will meet the same error, where it is reported as the step's.
                continue
        # Everything alive now is shared with the workers: the collector must not touch, and so copy, its pages.
        gc.collect()
        gc.freeze()

    def _fork(self, order: ServerFork, descriptors: list[int]) -> None:
        worker = order.worker
        notice = Notice()
        pid = os.fork()
        if pid == 0:
            self._become_worker(order, descriptors, notice)
        for descriptor in descriptors:
            os.close(descriptor)
        self._pids[pid] = worker
        self._workers[worker] = pid
        self._notices[worker] = notice
        if order.watch is not None:
            self._watch(order.watch, pid)
        self._send(ServerNews(forked=worker, pid=pid))

    def _watch(self, document: Mapping[str, Any], worker: int) -> None:
        """Fork the process that samples a worker's devices; all that it may do to the worker is to signal it."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._leave(signal.SIGTERM)
                from stoker.devices import monitor

                monitor.watch(document, worker)
                code = 0
            except BaseException:  # the top of a process; the server's stderr is kept for diagnosis
                traceback.print_exc()
            finally:
                os._exit(code)
        self._monitors[pid] = self._pids[worker]

    def _leave(self, when_orphaned: int) -> None:
        """In a child: drop the server's handlers and sockets, and end when the server does."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _prctl(self._libc, _PR_SET_PDEATHSIG, when_orphaned)
        os.setsid()
        self._control.close()
        self._wakeup.close()

    def _become_worker(self, order: ServerFork, descriptors: list[int], notice: Notice) -> None:
        """In the child: take the descriptors, serve, and exit without the parent's clean-up."""
        code = 1
        try:
            self._leave(signal.SIGKILL)
            _prctl(self._libc, _PR_SET_CHILD_SUBREAPER, 1)
            jobs, results, out, err = descriptors
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
            sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
            os.environ.update(order.environment)
            serving.serve(
                socket.socket(fileno=jobs),
                socket.socket(fileno=results),
                self._blobs,
                checkpoints=self._checkpoints,
                notice=notice,
                once=order.once,
                libc=self._libc,
            )
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # the top of a process
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (ValueError, OSError):
                    continue
            os._exit(code)

    def _send(self, news: ServerNews) -> None:
        try:
            self._control.send(wire.packed(to_json(news)))
        except (BrokenPipeError, ConnectionResetError):
            return  # the driver is gone; the next read ends the loop

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            watched = self._monitors.pop(pid, None)
            if watched in self._exits:
                self._send(ServerNews(exited=self._exits.pop(watched)[0]))
            worker = self._pids.pop(pid, None)
            if worker is None:
                continue
            del self._workers[worker]
            self._kills.pop(worker, None)
            self._last_calls.pop(worker, None)
            self._notices.pop(worker).close()
            _signal_group(pid, signal.SIGKILL)
            self._kill_orphans()
            signalled = os.WIFSIGNALED(status)
            exited = WorkerExit(
                worker=worker,
                code=None if signalled else os.waitstatus_to_exitcode(status),
                signal=os.WTERMSIG(status) if signalled else None,
                cpu=usage.ru_utime + usage.ru_stime,
                peak=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            )
            if worker in self._monitors.values():
                self._exits[worker] = (exited, time.monotonic() + _MONITOR_GRACE)
            else:
                self._send(ServerNews(exited=exited))

    def _kill_orphans(self) -> None:
        """End processes that a dead worker's steps started outside its group; this process is their subreaper."""
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                children = [int(child) for child in file.read().split()]
        except OSError:
            return
        for child in children:
            if child not in self._pids and child not in self._monitors:
                _signal_group(child, signal.SIGKILL, alone=True)

    def _end(self, worker: int, grace: float) -> None:
        pid = self._workers.get(worker)
        if pid is None:
            return
        if grace > 0:
            notice = self._notices[worker]
            left_alone = notice.tell(grace)
            if left_alone:
                self._last_calls[worker] = notice.last_call()
            _signal_group(pid, signal.SIGTERM, alone=left_alone)
            self._kills[worker] = min(self._kills.get(worker, float("inf")), time.monotonic() + grace)
        else:
            _signal_group(pid, signal.SIGKILL)

    def _last_call(self) -> None:
        """Interrupt steps that may end by themselves and have hardly any time left."""
        now = time.monotonic()
        for worker, late in list(self._last_calls.items()):
            if late <= now:
                del self._last_calls[worker]
                self._notices[worker].insist()
                _signal_group(self._workers[worker], signal.SIGTERM)

    def _kill_the_late(self) -> None:
        now = time.monotonic()
        for worker, late in list(self._kills.items()):
            if late <= now:
                del self._kills[worker]
                if worker in self._workers:
                    _signal_group(self._workers[worker], signal.SIGKILL)
        for pid, worker in list(self._monitors.items()):
            if worker in self._exits and self._exits[worker][1] <= now:
                # One that hangs in the driver may not even die of this: it is not waited for.
                _signal_group(pid, signal.SIGKILL)
                self._send(ServerNews(exited=self._exits.pop(worker)[0]))

    def _end_all(self) -> None:
        for pid in self._pids:
            _signal_group(pid, signal.SIGKILL)
        deadline = time.monotonic() + 5.0
        while self._pids and time.monotonic() < deadline:
            self._reap()
            time.sleep(0.005)
        self._kill_orphans()


def _signal_group(pid: int, number: int, *, alone: bool = False) -> None:
    """Signal a process's group, or the process alone where it has no group of its own."""
    try:
        if alone or os.getpgid(pid) != pid:
            os.kill(pid, number)
        else:
            os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        # Gone, or its leader is: a group outlives its leader.
        if not alone:
            try:
                os.killpg(pid, number)
            except (ProcessLookupError, PermissionError):
                return


def _prctl(libc: Any, option: int, value: int) -> None:
    if sys.platform == "linux" and libc is not None:
        libc.prctl(option, value, 0, 0, 0)


def main() -> None:
    """`python -m stoker.worker.forkserver DESCRIPTOR`."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.setblocking(True)
    ForkServer(control).run()


if __name__ == "__main__":
    main()
