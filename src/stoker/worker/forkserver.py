"""The fork server: a small process that has imported the user's module and forks a worker in a millisecond.

Started by the driver with one end of a socket on a descriptor named in its arguments, and modules of Stoker's that the
workers will need, which it imports while the driver still plans. It is sent
`core.protocol.ServerOrder`, with the descriptors for jobs, results, stdout and stderr beside "fork", and answers with
`ServerNews`. With "watch" in "fork" a monitor (`devices.monitor`) is forked beside the worker, and the worker's exit is
reported when the monitor has written its last sample. When the driver is gone, for whatever reason, every worker is
ended with all that it started. Imports are the only user code that runs in this process.
"""

from __future__ import annotations

import contextlib
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

import attrs

from stoker.core import values, wire
from stoker.core.codec import from_json, to_json
from stoker.core.protocol import ServerFork, ServerHello, ServerNews, ServerOrder, WorkerExit
from stoker.system import system
from stoker.worker import imports, modules, processes, serving, survivors, treememory
from stoker.worker.containment import V1_COUNTER, Containment
from stoker.worker.kernel import kills_in, text_of
from stoker.worker.notice import Notice

_MONITOR_GRACE: Final = 5.0
"""Seconds that a monitor gets to write its last sample; a driver that hangs would hold it for ever."""
_KILL_PATIENCE: Final = 10.0
"""Seconds in which what a worker left must have died of SIGKILL. What has not is reported: the kernel holds it."""
_READS: Final = 3
_TURN: Final = 0.005
"""Seconds between two looks at processes that were killed."""
_MANY: Final = 3
"""Workers behind which more are likely: what attrs would compile in each is compiled here, while the server waits."""


class ForkServer:
    """The loop and its children; `group` is the cgroup of all of them, if there is one."""

    def __init__(self, control: socket.socket, group: Containment | None = None) -> None:
        self._control = control
        self._group = group
        self._libc = system.libc()
        self._places = ServerHello(path=(), folder="", blobs="")
        self._pids: dict[int, int] = {}
        self._workers: dict[int, int] = {}
        self._notices: dict[int, Notice] = {}
        self._last_calls: dict[int, float] = {}
        self._kills: dict[int, float] = {}
        self._monitors: dict[int, int] = {}
        self._exits: dict[int, tuple[WorkerExit, float]] = {}
        self._groups: dict[int, Containment] = {}
        self._ending: dict[int, tuple[WorkerExit, float]] = {}
        self._given_up: set[int] = set()
        self._preloaded: set[str] = set()
        self._forks = 0
        self._orphaned = False
        self._closing = False
        self._memory = treememory.Samplers(lambda server: self._leave(server, signal.SIGKILL))
        self._wakeup = wire.Wakeup()

    def run(self) -> None:
        """Serve until the driver is gone."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(survivors.ORPHANED, self._on_orphaned)
        signal.set_wakeup_fd(self._wakeup.writer(), warn_on_full_buffer=False)
        processes.become_subreaper(self._libc)
        while not self._orphaned:
            late = [*self._last_calls.values(), *self._kills.values(), *(until for _, until in self._exits.values())]
            if self._ending:
                late.append(time.monotonic() + _TURN)
            if (due := self._memory.due()) is not None:
                late.append(due)
            if self._forks >= _MANY and values.complete_next():
                late.append(0.0)
            pause = max(0.0, min(late) - time.monotonic()) if late else None
            ready, _, _ = select.select([self._control.fileno(), self._wakeup.descriptor], [], [], pause)
            if self._wakeup.descriptor in ready:
                self._wakeup.clear()
            self._reap()
            self._end_remains()
            self._last_call()
            self._kill_the_late()
            self._memory.look(self._workers)
            if self._control.fileno() in ready and not self._receive_order():
                break
        self._end_all()

    def _on_orphaned(self, number: int, frame: Any) -> None:
        if not self._pids:
            os._exit(1)  # it may be importing for long, and has nothing to clean up
        self._orphaned = True

    def _receive_order(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, wire.DATAGRAM_LIMIT, 8)
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
        for name in hello.gone:
            os.environ.pop(name, None)
        self._places = hello
        imports.load(hello.preload)
        for source in hello.sources:
            try:
                modules.module_of(source)
            except BaseException:  # the user's module is imported
                # The worker will meet the same error, where it is reported as the step's.
                continue
        _freeze()

    def _fork(self, order: ServerFork, descriptors: list[int]) -> None:
        worker = order.worker
        if loaded := imports.load(order.preload):
            self._preloaded.update(loaded)
            _freeze()
        notice = Notice()
        group = Containment.open(f"worker-{worker}", below=self._group) if order.contain and self._group else None
        server = os.getpid()
        self._memory.open(worker)
        pid = os.fork()
        if pid == 0:
            self._become_worker(order, descriptors, notice, server=server, group=group)
        for descriptor in descriptors:
            os.close(descriptor)
        self._forks += 1
        self._pids[pid] = worker
        self._workers[worker] = pid
        self._notices[worker] = notice
        if group is not None:
            self._groups[worker] = group
        if order.watch is not None:
            self._watch(order.watch, pid)
        self._send(ServerNews(forked=worker, pid=pid))

    def _watch(self, document: Mapping[str, Any], worker: int) -> None:
        """Fork the process that samples a worker's devices; all that it may do to the worker is to signal it."""
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self._leave(server, signal.SIGTERM)
                from stoker.devices import monitor

                monitor.watch(document, worker)
                code = 0
            except BaseException:  # the top of a process; the server's stderr is kept for diagnosis
                traceback.print_exc()
            finally:
                os._exit(code)
        self._monitors[pid] = self._pids[worker]

    def _leave(self, server: int, when_orphaned: int) -> None:
        """In a child: drop the server's handlers and sockets, and end when the server does."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(survivors.ORPHANED, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        processes.die_with(server, when_orphaned, self._libc)
        os.setsid()
        self._control.close()
        self._wakeup.close()

    def _become_worker(
        self,
        order: ServerFork,
        descriptors: list[int],
        notice: Notice,
        *,
        server: int,
        group: Containment | None,
    ) -> None:
        """In the child: take the descriptors, serve, and exit without the parent's clean-up."""
        code = 1
        try:
            self._leave(server, signal.SIGKILL)
            processes.become_subreaper(self._libc)
            if group is not None:
                with contextlib.suppress(OSError):
                    group.add(0)
            jobs, results, out, err = descriptors
            os.dup2(out, 1)
            os.dup2(err, 2)
            os.close(out)
            os.close(err)
            processes.reopen_streams()
            os.environ.update(order.environment)
            serving.serve(
                system.packets(jobs),
                socket.socket(fileno=results),
                self._places,
                notice=notice,
                peak=self._memory.page(order.worker),
                imports=imports.ImportWatch(self._preloaded) if order.once else None,
                libc=self._libc,
            )
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:  # the top of a process
            traceback.print_exc()
        finally:
            processes.leave(code)

    def _send(self, news: ServerNews) -> None:
        if self._closing:
            return
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
            self._memory.reaped(pid)
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
            largest = usage.ru_maxrss * system.PEAK_UNIT
            signalled = os.WIFSIGNALED(status)
            exited = WorkerExit(
                worker=worker,
                code=None if signalled else os.waitstatus_to_exitcode(status),
                signal=os.WTERMSIG(status) if signalled else None,
                cpu=usage.ru_utime + usage.ru_stime,
                peak=self._memory.close(worker, largest),
            )
            self._ending[worker] = (exited, time.monotonic() + _KILL_PATIENCE)

    def _end_remains(self) -> None:
        """Kill what ended workers left, and report each of these workers when nothing is left of it.

        This process is the subreaper of all, so that what a dead worker's steps started is below it, whatever its
        session: a child that is neither a worker nor watches one. What forks while it is killed is killed in the next
        turn.
        """
        if not self._ending:
            return
        remaining = self._kill_orphans()
        now = time.monotonic()
        for worker, (exited, late) in list(self._ending.items()):
            group = self._groups.get(worker)
            contained = () if group is None else group.processes()
            if group is not None and contained:
                group.kill()
            survivors = tuple(sorted({*remaining, *contained}))
            if survivors and now < late:
                continue
            self._given_up.update(survivors)
            del self._ending[worker]
            if group is not None:
                del self._groups[worker]
                # The driver has not asked yet what the kernel killed; the supervisor removes what is left.
                killed = kills_in(text_of(os.path.join(group.memory, V1_COUNTER)))
                group.close(with_memory=not killed)
            report = attrs.evolve(exited, survivors=survivors)
            if worker in self._monitors.values():
                self._exits[worker] = (report, now + _MONITOR_GRACE)
            else:
                self._send(ServerNews(exited=report))

    def _kill_orphans(self) -> list[int]:
        """Kill the children that are neither workers nor watch one, with all below them; returns their pids."""
        others = {*self._pids, *self._monitors, *self._memory.pids()}
        # The list may miss a child where another one ends meanwhile: it is read more than once.
        orphans = [
            child
            for child in {child for _ in range(_READS) for child in system.children_of(os.getpid())}
            if child not in others and processes.runs(child)
        ]
        remaining = {pid for orphan in orphans for pid in (orphan, *processes.descendants(orphan))}
        for pid in remaining:
            _signal_group(pid, signal.SIGKILL, alone=True)
        return sorted(remaining - self._given_up)

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
            self._kill(worker)

    def _kill(self, worker: int) -> None:
        """Send SIGKILL to a worker and its group; what escaped is ended when the worker has."""
        if worker in self._groups:
            self._groups[worker].kill()
        _signal_group(self._workers[worker], signal.SIGKILL)

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
                    self._kill(worker)
        for pid, worker in list(self._monitors.items()):
            if worker in self._exits and self._exits[worker][1] <= now:
                # One that hangs in the driver may not even die of this: it is not waited for.
                _signal_group(pid, signal.SIGKILL)
                self._send(ServerNews(exited=self._exits.pop(worker)[0]))

    def _end_all(self) -> None:
        """End everything without a report: a driver that lives sees that this process went away."""
        self._closing = True
        for worker in self._workers:
            self._kill(worker)
        deadline = time.monotonic() + 5.0
        while (self._pids or self._ending) and time.monotonic() < deadline:
            self._reap()
            self._end_remains()
            if self._pids or self._ending:
                select.select([self._wakeup.descriptor], [], [], _TURN)
                self._wakeup.clear()


def _freeze() -> None:
    """Everything alive now is shared with the workers: the collector must not touch, and so copy, its pages."""
    gc.collect()
    gc.freeze()


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


def main() -> None:
    """`python -m stoker.worker.forkserver DESCRIPTOR [MODULE …]`."""
    control = system.packets(int(sys.argv[1]))
    control.setblocking(True)

    def serve(group: Containment | None) -> None:
        for module in sys.argv[2:]:
            importlib.import_module(module)
        serving.rehearse()
        gc.freeze()
        gc.enable()
        ForkServer(control, group).run()

    survivors.supervise(control, serve)


if __name__ == "__main__":
    main()
