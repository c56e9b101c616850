"""The program of a job in a container or on a cluster's node: fetches the user's code, runs the job beside its monitor,
and writes the result.

    python -m stoker.worker.boot SPEC

SPEC is a file, or a URI that fsspec knows, with the `core.bootspec.BootSpec` that the sender wrote. A lease in
it that names no devices is filled in with those that the platform gave (`worker.granted`). The job's time is nearly
over when the platform sends SIGUSR1, or the file `warned` appears beside SPEC: the step sees that it should stop
(`worker.notice`).

`result.json` is written beside SPEC, in one piece, when the job is over: a `core.protocol.StepResult`, the worker's
own, or one with `exited` where the worker died. Further nodes of a gang write `result-1.json`, and so on, so that all
may share one SPEC.

Standard output and error are the step's, line by line. Events stand between the lines of standard output: each is a
`core.protocol.WorkerEvent` in a line that begins with `MARK`; "up" comes first.
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
from stoker.worker.kernel import OomKills
from stoker.worker.notice import make_limit_file, write_warning

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
    """Run the job that SPEC describes; the exit code is 0 where it succeeds."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        sys.stderr.write("usage: python -m stoker.worker.boot SPEC\n")
        return 2
    spec_uri = words[0]
    signals = Signals(beside(spec_uri, WARNED))
    _emit(WorkerEvent(kind="up"))
    text = notes.get(spec_uri)
    if text is None:
        sys.stderr.write(f"there is no {spec_uri} here: the folder that holds it is not mounted, or another one\n")
        return 2
    spec = from_json(BootSpec, json.loads(text), strict=False)
    result = _result(spec, signals)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a pipe, which has nothing to be written out
            os.fsync(descriptor)  # on a shared disk the last lines are there before the result is
    notes.put(beside(spec_uri, of_node(RESULT, node_of(spec))), json.dumps(to_json(result)).encode())
    return _code(result)


def node_of(spec: BootSpec) -> int:
    """Which node of its gang this is; 0 for a job of one node."""
    gang = spec.job.gang
    return 0 if gang is None else cluster.member_of(cluster.topology_of(gang), os.environ).node


def of_node(name: str, node: int) -> str:
    """A file's name for one node of a gang; the first node's is unchanged."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def beside(spec_uri: str, name: str) -> str:
    """The path or URI of another file in SPEC's folder."""
    return spec_uri.rpartition("/")[0] + "/" + name


class Signals:
    """The signals to end and to warn, handled from the start, since the first process of a container has no defaults.

    `mark` is a file that stands for the warning where a signal would reach the step's own processes too.
    """

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

    def limit_is_near(self) -> bool:
        """Whether the job's time is nearly over."""
        return self._warned or os.path.exists(self._mark)

    def forget(self) -> None:
        """In a child: reset the signals. SIGTERM is ignored, since Slurm sends it to all processes of a job, and the
        child must serve until it is told to end."""
        for number in (*_ENDS, _WARNS):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
        self.wakeup.close()


def _result(spec: BootSpec, signals: Signals) -> StepResult:
    """Run the job; returns its result, or how its worker ended."""
    here = ""
    try:
        _set_up_user(spec)
        here = unpack_code(spec)
        local = relocate(spec, here)
        local = attrs.evolve(local, job=_fill_in_devices(local))
    except Exception as error:  # the top of a process: every error must reach the driver
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
    return _restore_paths(result, here, spec.root) if here else result


def _fill_in_devices(spec: BootSpec) -> WorkerJob:
    """The job with the devices that the platform gave it, where its lease names none."""
    job, lease = spec.job, spec.job.accelerators
    if lease is None:
        os.environ.update(NO_DEVICES)  # it asked for none, and sees none, whatever the platform shows
        return job
    if lease.devices is not None:
        return job
    from stoker.worker import granted

    samples = of_node(lease.samples, node_of(spec))
    lease = granted.fill_lease(attrs.evolve(lease, samples=samples), spec.simulate)
    _emit(WorkerEvent(kind="lease", job=job.job, lease=lease))
    return attrs.evolve(job, accelerators=lease)


def _set_up_user(spec: BootSpec) -> None:
    """Set up the environment of a process whose user the image does not know."""
    os.umask(0o022)
    with contextlib.suppress(FileNotFoundError), open(CREDENTIALS, encoding="utf-8") as file:
        os.environ.update(json.load(file))
    os.environ.update(spec.environment)
    node_name = os.environ.get("STOKER_NODE_ADDR", "")
    if node_name:
        # A container knows its own name; others may not, on engines whose networks have no name service.
        with contextlib.suppress(OSError):
            os.environ["STOKER_NODE_ADDR"] = socket.gethostbyname(node_name)
    home = os.environ.get("HOME", "/")
    if not os.access(home, os.W_OK):
        # Caches of frameworks (torch, Hugging Face, matplotlib) are below it, and fail where nothing can be written.
        os.environ["HOME"] = os.path.join(tempfile.gettempdir(), f"home-{os.getuid()}")
        os.makedirs(os.environ["HOME"], mode=0o700, exist_ok=True)
    # `getpass.getuser`, which torch asks for the name of its cache, fails for a uid that /etc/passwd lacks.
    os.environ.setdefault("USER", f"user-{os.getuid()}")
    os.environ.setdefault("LOGNAME", os.environ["USER"])


# The user's code


def unpack_code(spec: BootSpec) -> str:
    """The folder with the user's code, unpacked for this job alone; empty where there is no package.

    Jobs of a machine do not share a folder: other users may not be able to read it, and no job would know when to
    remove it.
    """
    if not spec.package:
        return ""
    from stoker.images import context

    folder = os.path.join(tempfile.mkdtemp(prefix="stoker-code-"), spec.package[:16])
    context.unpack(Path(Blobs(spec.blobs).path(spec.package)), Path(folder))
    return folder


def _remove(here: str) -> None:
    """Remove what `unpack_code` made."""
    if here:
        shutil.rmtree(os.path.dirname(here), ignore_errors=True)


def relocate(spec: BootSpec, here: str) -> BootSpec:
    """The document with the driver's folders replaced by those of this machine, and all of `sys.path`."""
    if not here:
        return attrs.evolve(spec, path=tuple(dict.fromkeys([*spec.path, *sys.path])))
    job, step = spec.job, attrs.evolve(spec.step, source=_relocate_source(spec.step.source, spec.root, here))
    if job.hook is not None:
        job = attrs.evolve(job, hook=_relocate_source(job.hook, spec.root, here))
    path = [mapped for mapped in (_relocate_path(entry, spec.root, here) for entry in spec.path) if mapped]
    folder = _relocate_path(spec.folder, spec.root, here) or here
    return attrs.evolve(
        spec,
        job=job,
        step=step,
        path=tuple(dict.fromkeys([*path, here, *sys.path])),
        folder=folder if os.path.isdir(folder) else here,
    )


def _relocate_source(source: FunctionSource, root: str, here: str) -> FunctionSource:
    path, folder = (_relocate_path(entry, root, here) for entry in (source.path, source.root))
    return attrs.evolve(source, path=path or source.path, root=folder or source.root)


def _relocate_path(path: str, root: str, here: str) -> str:
    """The path on this machine of one below the driver's root; empty for any other path."""
    if path == root:
        return here
    return here + path[len(root.rstrip("/")) :] if path.startswith(root.rstrip("/") + "/") else ""


def _restore_paths(result: StepResult, here: str, root: str) -> StepResult:
    """The result with the driver's file names in its error, so that an editor finds the line."""
    error = result.error
    if error is None:
        return result
    renamed = {name: getattr(error, name).replace(here, root) for name in ("message", "traceback", "place")}
    return attrs.evolve(result, error=attrs.evolve(error, **renamed))


# The worker


class _ForkedServer:
    """A fork server forked from this process, which has imported all that it needs."""

    def __init__(self, signals: Signals) -> None:
        self.control, other_end = wire.packet_pair()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.control.close()
                signals.forget()
                other_end.setblocking(True)
                forkserver.ForkServer(other_end).run()
                code = 0
            except BaseException:  # the top of a process
                traceback.print_exc()
            finally:
                os._exit(code)
        other_end.close()

    def stderr_tail(self) -> str:
        """Empty: its stderr is this process's."""
        return ""

    def close(self, patience: float) -> None:
        """Hang up; it ends with all that it started, and need not be waited for."""
        self.control.close()


class _Job:
    """Runs one job in a process forked for it."""

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
            make_limit_file(self._limit)
        self._message = attrs.evolve(spec.job, limit=self._limit, steps={str(spec.job.step): spec.step})
        self._lines: dict[str, list[LogLine]] = {}
        hello = ServerHello(path=spec.path, folder=spec.folder, blobs=spec.blobs, checkpoints=spec.checkpoints)
        self._server = ServerHandle(_ForkedServer(signals), hello, scratch=tempfile.gettempdir())

    def run(self) -> StepResult:
        """Run until the worker and its monitor are gone."""
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
            server_lives = True
            while self._exited is None and server_lives:
                ready = {key.fd for key, _ in selector.select(_LOOK if self._limit else None)}
                for output in worker.outputs:
                    if output.descriptor in ready and not output.read(self._lines, all=False):
                        selector.unregister(output.descriptor)
                self._write()
                if worker.results.fileno() in ready and not self._read():
                    selector.unregister(worker.results)
                if self._limit and self._signals.limit_is_near():
                    write_warning(self._limit, self._spec.warning)
                    self._limit = ""
                if self._signals.wakeup.descriptor in ready:
                    self._signals.wakeup.clear()
                if self._signals.end and not self._end_sent:
                    self._end_sent = True
                    self._server.end(_WORKER, grace=self._spec.grace or GRACE)
                if self._server.fileno() in ready:
                    server_lives = self._hear()
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
        """Receive the worker's messages; returns False once there are no more."""
        messages, more = self._worker.receive()
        for message in messages:
            if isinstance(message, StepResult):
                self._result = message
            else:
                for part in _parts(message):
                    _emit(part)
        return more

    def _hear(self) -> bool:
        messages, alive = self._server.receive()
        for message in messages:
            if message.exited is not None:
                self._exited = message.exited
        return alive

    def _write(self) -> None:
        for lines in self._lines.values():
            for line in lines:
                _write_text(1 if line.stream == "stdout" else 2, line.text + "\n")
        self._lines.clear()


def _parts(event: WorkerEvent) -> Iterator[WorkerEvent]:
    """An event with many lines of ranks in pieces, each short enough that an engine keeps it as one line."""
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
    _write_text(1, MARK + json.dumps(to_json(event), separators=(",", ":")) + "\n")


def _write_text(descriptor: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "replace"))
    while data.nbytes:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return  # it is no longer read; the step goes on


def _code(result: StepResult) -> int:
    """The container's exit code; that of a shell where a signal ended the worker."""
    if result.exited is None:
        return 0 if result.ok else 1
    if result.exited.signal:
        return 128 + result.exited.signal
    return result.exited.code or 1


if __name__ == "__main__":
    sys.exit(main())
