"""The program of a job that runs elsewhere, in a container or on a cluster's node: fetches the user's code, runs the
job beside its monitor, and leaves the result.

    python -m stoker.worker.boot SPEC

SPEC is a file, or a URI that fsspec knows, with the `core.bootspec.BootSpec` that the sender wrote. A lease in
it that names no devices is filled in with those that the platform gave (`worker.granted`). The job's time is nearly
over when the platform sends SIGUSR1, or somebody makes the file `warned` beside SPEC: the step sees that it should stop
(`worker.notice`).

`result.json` appears beside SPEC when the job is over, whole or not at all: a `core.protocol.StepResult`, the worker's
own, or one with `exited` where the worker died. Of the further nodes of a gang it is `result-1.json`, and so on, so
that all may share one SPEC.

Standard output and error are the step's, line by line. What is no output of its own stands between them on standard
output: a `core.protocol.WorkerEvent` in a line that begins with `MARK`; "up" comes before anything else.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, Final, Iterator

import attrs

from stoker.core import wire
from stoker.core.bootspec import BootSpec
from stoker.core.codec import from_json, to_json
from stoker.core.plan import LogLine
from stoker.core.protocol import (
    CREDENTIALS,
    MARK,
    RESULT,
    ServerHello,
    StepError,
    StepResult,
    WorkerEvent,
    WorkerExit,
    WorkerJob,
)
from stoker.core.source import FunctionSource
from stoker.core.status import CAUSES, INPUT_ERROR
from stoker.store import notes
from stoker.store.blobs import Blobs
from stoker.vendors.table import NO_DEVICES
from stoker.worker import cluster, forkserver
from stoker.worker.forked import ServerHandle, WorkerHandle
from stoker.worker.memory_pressure import OomKills
from stoker.worker.notice import limit_file, warned

GRACE: Final = 9.0
"""Seconds between SIGTERM and SIGKILL that a step gets where SPEC does not say: engines kill all after 10."""
_LINE: Final = 1 << 14
"""Bytes of a message with lines of ranks: an engine keeps what is longer in several pieces."""
_WORKER: Final = 1
_LOOK: Final = 1.0
"""Seconds between two looks for the file of a warning."""
WARNED: Final = "warned"
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
_WARNS: Final = signal.SIGUSR1


def main(arguments: list[str] | None = None) -> int:
    """Run the job that SPEC tells; the exit code is 0 where it went well."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        sys.stderr.write("usage: python -m stoker.worker.boot SPEC\n")
        return 2
    place = given[0]
    signals = Signals(beside(place, WARNED))
    _emit(WorkerEvent(kind="up"))
    text = notes.get(place)
    if text is None:
        sys.stderr.write(f"there is no {place} here: the folder that holds it is not mounted, or another one\n")
        return 2
    spec = from_json(BootSpec, json.loads(text), strict=False)
    result = _result(spec, signals)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a pipe, which has nothing to be written out
            os.fsync(descriptor)  # on a shared disk the last lines are there before the result is
    notes.put(beside(place, of_node(RESULT, node_of(spec))), json.dumps(to_json(result)).encode())
    return _code(result)


def node_of(spec: BootSpec) -> int:
    """Which node of its gang this is; 0 for a job of one node."""
    gang = spec.job.gang
    return 0 if gang is None else cluster.member_of(cluster.topology_of(gang), os.environ).node


def of_node(name: str, node: int) -> str:
    """A file's name for one node of a gang; the first one's is as it stands."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def beside(place: str, name: str) -> str:
    """The place of another file in SPEC's folder."""
    return place.rpartition("/")[0] + "/" + name


class Signals:
    """The end and the warning that this program is sent, heard from the first moment on: as the first process of a
    container it has no defaults. `mark` is a file that stands for the warning where a signal would reach the step's own
    processes too."""

    def __init__(self, mark: str) -> None:
        self.end = False
        self.wakeup = wire.Wakeup()
        self._mark = mark
        self._warned = False
        for number in _ENDS:
            signal.signal(number, self._on_end)
        signal.signal(_WARNS, self._on_warning)

    def _on_end(self, number: int, frame: Any) -> None:
        self.end = True
        self.wakeup.set()

    def _on_warning(self, number: int, frame: Any) -> None:
        self._warned = True
        self.wakeup.set()

    def warned(self) -> bool:
        """Whether the job's time is nearly over."""
        return self._warned or os.path.exists(self._mark)

    def forget(self) -> None:
        """In a child: its signals are its own again. SIGTERM is passed over, which Slurm sends to all processes of a
        job: what the child serves must not end with it before it has been told to."""
        for number in (*_ENDS, _WARNS):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
        self.wakeup.close()


def _result(spec: BootSpec, signals: Signals) -> StepResult:
    """The job's result, or what is known of its worker's end."""
    here = ""
    try:
        _set_up_user(spec)
        here = unpacked(spec)
        local = moved(spec, here)
        local = attrs.evolve(local, job=_with_devices(local))
    except Exception as error:  # the top of a process: whatever it is, the driver must be told
        cause = getattr(error, "cause", "")
        message = str(error)
        if cause not in CAUSES:
            traceback.print_exc()
            cause, message = INPUT_ERROR, f"the place could not be made ready: {type(error).__name__}: {error}"
        _remove(here)
        now = time.time()
        failure = StepError(type=type(error).__name__, message=message)
        return StepResult(job=spec.job.job, ok=False, cause=cause, error=failure, start=now, end=now)
    kills = OomKills()
    before = kills.now()
    result = _Job(local, signals).run()
    _remove(here)
    if result.exited is not None:
        result = attrs.evolve(result, exited=attrs.evolve(result.exited, oom=kills.since(before)))
    return _named_as_there(result, here, spec.root) if here else result


def _with_devices(spec: BootSpec) -> WorkerJob:
    """The job with the devices that the platform gave it, if those are to be found out here."""
    job, lease = spec.job, spec.job.accelerators
    if lease is None:
        os.environ.update(NO_DEVICES)  # it asked for none: it sees none, whatever the platform left open
        return job
    if lease.devices is not None:
        return job
    from stoker.worker import granted

    samples = of_node(lease.samples, node_of(spec))
    lease = granted.taken(attrs.evolve(lease, samples=samples), spec.simulate)
    _emit(WorkerEvent(kind="lease", job=job.job, lease=lease))
    return attrs.evolve(job, accelerators=lease)


def _set_up_user(spec: BootSpec) -> None:
    """What a process needs that runs as a user whom the image does not know."""
    os.umask(0o022)
    with contextlib.suppress(FileNotFoundError), open(CREDENTIALS, encoding="utf-8") as file:
        os.environ.update(json.load(file))
    os.environ.update(spec.environment)
    place = os.environ.get("STOKER_NODE_ADDR", "")
    if place:
        # A container knows its own name; others may not, on engines whose networks have no name service.
        with contextlib.suppress(OSError):
            os.environ["STOKER_NODE_ADDR"] = socket.gethostbyname(place)
    home = os.environ.get("HOME", "/")
    if not os.access(home, os.W_OK):
        # Caches of frameworks (torch, Hugging Face, matplotlib) are below it, and fail where nothing can be written.
        os.environ["HOME"] = os.path.join(tempfile.gettempdir(), f"home-{os.getuid()}")
        os.makedirs(os.environ["HOME"], mode=0o700, exist_ok=True)
    # `getpass.getuser`, which torch asks for the name of its cache, fails for a uid that /etc/passwd lacks.
    os.environ.setdefault("USER", f"user-{os.getuid()}")
    os.environ.setdefault("LOGNAME", os.environ["USER"])


# The user's code


def unpacked(spec: BootSpec) -> str:
    """The folder with the user's code, unpacked for this job alone; empty where there is no package.

    Not one folder for all jobs of a machine: others may not be able to read there, and nobody would know when to remove
    it.
    """
    if not spec.package:
        return ""
    from stoker.images import context

    folder = os.path.join(tempfile.mkdtemp(prefix="stoker-code-"), spec.package[:16])
    context.unpack(Path(Blobs(spec.blobs).path(spec.package)), Path(folder))
    return folder


def _remove(here: str) -> None:
    """Remove what `unpacked` made."""
    if here:
        shutil.rmtree(os.path.dirname(here), ignore_errors=True)


def moved(spec: BootSpec, here: str) -> BootSpec:
    """The document with the driver's folders as they are called here, and all of `sys.path`."""
    if not here:
        return attrs.evolve(spec, path=tuple(dict.fromkeys([*spec.path, *sys.path])))
    job, step = spec.job, attrs.evolve(spec.step, source=_moved_source(spec.step.source, spec.root, here))
    if job.hook is not None:
        job = attrs.evolve(job, hook=_moved_source(job.hook, spec.root, here))
    path = [place for place in (_moved_path(entry, spec.root, here) for entry in spec.path) if place]
    folder = _moved_path(spec.folder, spec.root, here) or here
    return attrs.evolve(
        spec,
        job=job,
        step=step,
        path=tuple(dict.fromkeys([*path, here, *sys.path])),
        folder=folder if os.path.isdir(folder) else here,
    )


def _moved_source(source: FunctionSource, root: str, here: str) -> FunctionSource:
    path, folder = (_moved_path(place, root, here) for place in (source.path, source.root))
    return attrs.evolve(source, path=path or source.path, root=folder or source.root)


def _moved_path(path: str, root: str, here: str) -> str:
    """A path below the driver's root as it is here; empty for one that lies elsewhere."""
    if path == root:
        return here
    return here + path[len(root.rstrip("/")) :] if path.startswith(root.rstrip("/") + "/") else ""


def _named_as_there(result: StepResult, here: str, root: str) -> StepResult:
    """The error with the person's own file names, so that an editor finds the line."""
    error = result.error
    if error is None:
        return result
    renamed = {name: getattr(error, name).replace(here, root) for name in ("message", "traceback", "place")}
    return attrs.evolve(result, error=attrs.evolve(error, **renamed))


# The worker


class _ForkedServer:
    """A fork server as a child of this process, which has imported what it needs already."""

    def __init__(self, signals: Signals) -> None:
        self.control, there = wire.packet_pair()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.control.close()
                signals.forget()
                there.setblocking(True)
                forkserver.ForkServer(there).run()
                code = 0
            except BaseException:  # the top of a process
                traceback.print_exc()
            finally:
                os._exit(code)
        there.close()

    def words(self) -> str:
        """Nothing more: its stderr is this process's."""
        return ""

    def close(self, patience: float) -> None:
        """Hang up; it ends with what it started, and nobody need wait for it."""
        self.control.close()


class _Job:
    """One job in a process forked for it."""

    def __init__(self, spec: BootSpec, signals: Signals) -> None:
        self._spec = spec
        self._signals = signals
        self._result: StepResult | None = None
        self._exited: WorkerExit | None = None
        self._end_sent = False
        self._limit = ""
        if spec.warning:
            descriptor, self._limit = tempfile.mkstemp(prefix="stoker-limit-")
            os.close(descriptor)
            limit_file(self._limit)
        self._message = attrs.evolve(spec.job, limit=self._limit, steps={str(spec.job.step): spec.step})
        self._lines: dict[str, list[LogLine]] = {}
        hello = ServerHello(path=spec.path, folder=spec.folder, blobs=spec.blobs, checkpoints=spec.checkpoints)
        self._server = ServerHandle(_ForkedServer(signals), hello, scratch=tempfile.gettempdir())

    def run(self) -> StepResult:
        """Until the worker is gone, and its monitor with it."""
        lease = self._message.accelerators
        watched = lease if lease is not None and lease.held else None
        self._worker = worker = WorkerHandle(_WORKER, self._server, once=True, lease=watched)
        self._server.fork(worker, {})
        worker.send(self._message)
        with selectors.DefaultSelector() as selector:
            for source in (self._server, worker.results, self._signals.wakeup.descriptor):
                selector.register(source, selectors.EVENT_READ)
            for output in worker.outputs:
                selector.register(output.descriptor, selectors.EVENT_READ)
            there = True
            while self._exited is None and there:
                ready = {key.fd for key, _ in selector.select(_LOOK if self._limit else None)}
                for output in worker.outputs:
                    if output.descriptor in ready and not output.read(self._lines, all=False):
                        selector.unregister(output.descriptor)
                self._write()
                if worker.results.fileno() in ready and not self._read():
                    selector.unregister(worker.results)
                if self._limit and self._signals.warned():
                    warned(self._limit, self._spec.warning)
                    self._limit = ""
                if self._signals.wakeup.descriptor in ready:
                    self._signals.wakeup.clear()
                if self._signals.end and not self._end_sent:
                    self._end_sent = True
                    self._server.end(_WORKER, grace=self._spec.grace or GRACE)
                if self._server.fileno() in ready:
                    there = self._hear()
        self._read()
        for output in worker.outputs:
            output.read(self._lines, all=True)
            output.end(self._lines)
        self._write()
        worker.close()
        self._server.close()
        if self._message.limit:
            os.unlink(self._message.limit)
        if self._result is not None:
            return self._result
        return StepResult(job=self._message.job, ok=False, exited=self._exited or WorkerExit())

    def _read(self) -> bool:
        """Take in what the worker says; False once there is nothing more."""
        messages, there = self._worker.receive()
        for message in messages:
            if isinstance(message, StepResult):
                self._result = message
            else:
                for part in _parts(message):
                    _emit(part)
        return there

    def _hear(self) -> bool:
        messages, there = self._server.receive()
        for message in messages:
            if message.exited is not None:
                self._exited = message.exited
        return there

    def _write(self) -> None:
        for lines in self._lines.values():
            for line in lines:
                _put(1 if line.stream == "stdout" else 2, line.text + "\n")
        self._lines.clear()


def _parts(event: WorkerEvent) -> Iterator[WorkerEvent]:
    """An event in pieces that an engine keeps as one line each, if it is one with many lines of ranks."""
    if not event.lines:
        yield event
        return
    part: list[tuple[float, str, int | None, str]] = []
    size = 0
    for row in event.lines:
        length = len(row[3].encode("utf-8", "surrogatepass"))
        if part and size + length > _LINE:
            yield attrs.evolve(event, lines=tuple(part))
            part, size = [], 0
        part.append(row)
        size += length + 64
    yield attrs.evolve(event, lines=tuple(part))


def _emit(event: WorkerEvent) -> None:
    _put(1, MARK + json.dumps(to_json(event), separators=(",", ":")) + "\n")


def _put(descriptor: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "replace"))
    while data.nbytes:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return  # nobody reads it any more: the step goes on all the same


def _code(result: StepResult) -> int:
    """What the container leaves with: as a shell says it where the worker was ended by a signal."""
    if result.exited is None:
        return 0 if result.ok else 1
    if result.exited.signal:
        return 128 + result.exited.signal
    return result.exited.code or 1


if __name__ == "__main__":
    sys.exit(main())
