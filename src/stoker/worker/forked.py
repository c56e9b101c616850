"""Handles of a fork server and of its workers: for the driver on this machine, and for the program of a job elsewhere.

They know sockets and processes, not what a job means; their owner decides which worker gets which job.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Iterator, Mapping, Protocol

from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.errors import BackendError, SettingsError, StokerError
from stoker.core.plan import LogLine
from stoker.core.protocol import (
    ServerEnd,
    ServerFork,
    ServerHello,
    ServerNews,
    ServerOrder,
    StepError,
    StepResult,
    WorkerEvent,
    WorkerJob,
)
from stoker.core.status import WORKER_LOST
from stoker.system import system

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.worker.secrets import Masker

_PIPE_SIZE: Final = 1 << 20
"""Bytes that a pipe for output holds (Linux), so that a step that writes much seldom waits for the driver."""
_CHUNK: Final = 1 << 20
_READ: Final = 1 << 16
"""Bytes of one read: most find less, and Python allocates all that it asks for, ten times as slowly above 128 KiB."""
_MARK_LINE: Final = 4096
"""Bytes behind a mark before its line must have ended; the line says nothing more than the mark."""


class WorkerOutput:
    """One output stream of a worker, split into lines, each assigned to the job that wrote it.

    `owners` are the jobs in the order in which the worker runs them. The output of a job sent with a mark ends at the
    mark; that of a job without one ends when its result has come, since no job was sent behind it.
    """

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        self.owners: deque[str] = deque()
        self.masker: Masker | None = None
        """Knows the secrets of the jobs: none of them is cut where a long line is."""
        self._rest = b""

    def read(self, lines: dict[str, list[LogLine]], *, all: bool) -> bool:
        """Read into `lines`, by job; returns False once the stream is closed.

        With `all`, as much as a full pipe can hold, which is what jobs that are over may have written; otherwise one
        piece, so that a step that writes faster than lines can be stored does not fill the driver's memory.
        """
        remaining = 2 * _PIPE_SIZE if all else _CHUNK
        while remaining > 0:
            try:
                data = os.read(self.descriptor, _READ)
            except BlockingIOError:
                return True
            if not data:
                return False
            remaining -= len(data)
            self._take(data, lines)
            if len(data) < _READ:
                return True
        return True

    def _take(self, data: bytes, lines: dict[str, list[LogLine]]) -> None:
        now = time.time()
        data = self._rest + data
        while wire.MARK in data:
            before, _, after = data.partition(wire.MARK)
            if b"\n" not in after:
                if len(after) > _MARK_LINE:
                    break  # somebody else's bytes that look like a mark
                self._rest = data
                return
            self._emit(before, now, lines)
            if self.owners:
                self.owners.popleft()
            data = after.partition(b"\n")[2]
        whole, newline, self._rest = data.rpartition(b"\n")
        if newline:
            self._emit(whole + newline, now, lines)
        if len(self._rest) > _CHUNK:
            # A line without an end must not fill the memory; the first bytes of a mark may have come already.
            end = len(self._rest) - len(wire.MARK)
            if self.masker is not None:
                end = self.masker.whole_end_of_bytes(self._rest[:end])
            self._emit(self._rest[:end], now, lines)
            self._rest = self._rest[end:]

    def _emit(self, data: bytes, now: float, lines: dict[str, list[LogLine]]) -> None:
        if not data or not self.owners:
            return
        texts = data.decode("utf-8", "replace").split("\n")
        if not texts[-1]:
            texts.pop()
        name = self.name
        lines.setdefault(self.owners[0], []).extend(LogLine(time=now, stream=name, text=text) for text in texts)

    def end(self, lines: dict[str, list[LogLine]]) -> None:
        """End the output of the first job, which has no mark: a rest without a newline is its last line."""
        self._emit(self._rest, time.time(), lines)
        self._rest = b""
        if self.owners:
            self.owners.popleft()


class ServerGone(BackendError):
    """A fork server went away."""

    def __init__(self, server: ServerHandle) -> None:
        super().__init__("the fork server is gone", fix=server.stderr_tail())
        self.server = server


class WorkerHandle:
    """A worker and its queue of jobs, of which the first runs.

    `lease` holds the devices of its only job, `node` is this worker's number in that job's gang. `contain`: it gets a
    cgroup of its own, where one can be made.
    """

    def __init__(
        self,
        number: int,
        server: ServerHandle,
        *,
        once: bool,
        contain: bool = False,
        lease: Lease | None = None,
        node: int = 0,
    ) -> None:
        self.number = number
        self.server = server
        self.once = once
        self.contain = contain
        self.lease = lease
        self.node = node
        self.jobs: deque[str] = deque()
        # Steps that the worker surely knows, since it has run them: a job that was sent may be taken back before the
        # worker reads it.
        self.steps: set[int] = set()
        self.retired = False
        self._frames = wire.Frames()
        self._sender, self._reader = system.packet_pair()
        self._reader.setblocking(True)
        self.results, self._results_there = socket.socketpair()
        self.results.setblocking(False)
        outputs = [os.pipe() for _ in range(2)]
        self._there = [write for _, write in outputs]
        self._secrets: Mapping[str, str] = {}
        self.outputs = (WorkerOutput("stdout", outputs[0][0]), WorkerOutput("stderr", outputs[1][0]))
        for output in self.outputs:
            os.set_blocking(output.descriptor, False)
            system.widen(output.descriptor, _PIPE_SIZE)

    def worker_descriptors(self) -> list[int]:
        """The descriptors that are passed to the worker: jobs, results, stdout, stderr."""
        return [self._reader.fileno(), self._results_there.fileno(), *self._there]

    def close_worker_ends(self) -> None:
        """Close what only the worker needs; the reading end of the jobs stays open for `take_back`."""
        self._results_there.close()
        for descriptor in self._there:
            os.close(descriptor)

    def send(self, job: WorkerJob) -> None:
        """Queue a job; a document that is too big for a message goes through a file."""
        if job.secrets:
            self._know_secrets(job.secrets)
        self._sender.send(wire.message(to_json(job), self.server.scratch))
        self.jobs.append(job.job)
        for output in self.outputs:
            output.owners.append(job.job)

    def _know_secrets(self, secrets: Mapping[str, str]) -> None:
        from stoker.worker.secrets import Masker  # only for jobs that have some

        self._secrets = {**self._secrets, **secrets}
        for output in self.outputs:
            output.masker = Masker(self._secrets)

    def receive(self) -> tuple[list[StepResult | WorkerEvent], bool]:
        """What the worker reported of its jobs, and whether more may come."""
        messages: list[StepResult | WorkerEvent] = []
        while True:
            try:
                data = self.results.recv(_READ)
            except BlockingIOError:
                return messages, True
            except ConnectionResetError:
                return messages, False
            if not data:
                return messages, False
            try:
                for document in self._frames.feed(data):
                    kind: type[StepResult | WorkerEvent] = StepResult if "ok" in document else WorkerEvent
                    messages.append(from_json(kind, document, strict=False))
            except (BackendError, SettingsError) as error:
                return [*messages, *self._give_up(error)], False
            if len(data) < _READ:
                return messages, True

    def _give_up(self, error: StokerError) -> Iterator[StepResult]:
        """End a worker whose messages cannot be read: a step wrote into the stream of its results."""
        if self.retired:
            return  # it was ended before, and has not exited yet
        self.retired = True
        self.server.end(self.number, grace=0.0)
        if self.jobs:
            words = f"{error.message}; the step may have closed or written to descriptors that are not its own"
            yield StepResult(
                job=self.jobs[0], ok=False, cause=WORKER_LOST, retired=True, error=StepError(message=words)
            )

    def take_back(self) -> list[str]:
        """Take back the jobs that the worker has not read yet; returns their names."""
        names: list[str] = []
        while len(self.jobs) > len(names):
            try:
                data = self._reader.recv(wire.DATAGRAM_LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            names.append(wire.received(data)["job"])
        for name in names:
            self.jobs.remove(name)
            for output in self.outputs:
                output.owners.remove(name)
        return names

    def close(self) -> None:
        """Close every descriptor."""
        self._sender.close()
        self._reader.close()
        self.results.close()
        for output in self.outputs:
            os.close(output.descriptor)


class ServerProcess(Protocol):
    """The process of a fork server, however it was started, and our end of its socket."""

    control: socket.socket
    pid: int

    def stderr_tail(self) -> str:
        """What it wrote to stderr, to find out why it ended."""

    def close(self, patience: float) -> tuple[int, ...]:
        """Hang up, and wait until it is gone; returns the pids of processes below it that do not end."""


class ServerHandle:
    """The process that forks workers; `scratch` is a folder for messages that are too big for its socket."""

    def __init__(self, process: ServerProcess, hello: ServerHello, *, scratch: str) -> None:
        self.scratch = scratch
        self._process = process
        self._control = process.control
        self._send(ServerOrder(hello=hello))

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when the fork server has sent something, or is gone."""
        return self._control.fileno()

    def fork(self, worker: WorkerHandle, environment: Mapping[str, str], preload: tuple[str, ...] = ()) -> None:
        """Fork a worker for a handle, and a monitor beside it where it holds devices; import `preload` before."""
        watch = None if worker.lease is None else to_json(worker.lease)
        order = ServerFork(
            worker=worker.number,
            once=worker.once,
            contain=worker.contain,
            environment=dict(environment),
            watch=watch,
            preload=preload,
        )
        data = wire.message(to_json(ServerOrder(fork=order)), self.scratch)
        try:
            socket.send_fds(self._control, [data], worker.worker_descriptors())
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ServerGone(self) from error
        worker.close_worker_ends()

    def end(self, worker: int, *, grace: float) -> None:
        """End a worker and all that it started: SIGTERM, and SIGKILL after the grace, both sent by the fork server."""
        self._send(ServerOrder(end=ServerEnd(worker=worker, grace=grace)))

    def _send(self, order: ServerOrder) -> None:
        try:
            self._control.send(wire.message(to_json(order), self.scratch))
        except (BrokenPipeError, ConnectionResetError):
            return  # `receive` reports that it is gone

    def receive(self) -> tuple[list[ServerNews], bool]:
        """What the fork server sent since the last call, and whether it is alive."""
        messages: list[ServerNews] = []
        while True:
            try:
                data = self._control.recv(wire.DATAGRAM_LIMIT, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages, True
            except ConnectionResetError:
                return messages, False
            if not data:
                return messages, False
            messages.append(from_json(ServerNews, wire.received(data), strict=False))

    def stderr_tail(self) -> str:
        """What the fork server wrote to stderr, to find out why it ended."""
        return self._process.stderr_tail()

    def close(self, *, patience: float = 10.0) -> tuple[int, ...]:
        """Hang up: it ends its workers with all they started, and then itself; returns pids that do not end."""
        return self._process.close(patience)
