"""The program of a job in a container or on a cluster's node: fetches the user's code, runs the job beside its monitor,
and writes the result.

    python -m stoker.worker.boot SPEC

SPEC is a file, or a URI that fsspec knows, with the `core.orders.BootSpec` that the sender wrote. A lease in
it that names no devices (`backends.base.leasing`) is filled in with those that are visible here: Slurm, Ray, a device
plugin or a container's runtime choose them, and state them by variables such as CUDA_VISIBLE_DEVICES, or hide all
others. The job's time is nearly over when the platform sends SIGUSR1, or the file `warned` appears beside SPEC: the
step sees that it should stop (`worker.notice`).

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
import signal
import socket
import sys
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any, Final, Iterator

import attrs

from stoker.core import wire
from stoker.core.codec import from_json, parse_json, to_json
from stoker.core.devices import Inventory, Lease
from stoker.core.errors import SettingsError, StokerError
from stoker.core.findings import errors
from stoker.core.orders import BootSpec
from stoker.core.plan import LogLine
from stoker.core.protocol import (
    CREDENTIALS,
    DIED,
    MARK,
    METRICS,
    NODE_ID,
    RESULT,
    SECRET_VALUES,
    FunctionSource,
    ServerHello,
    StepError,
    StepResult,
    WorkerEvent,
    WorkerExit,
    WorkerJob,
)
from stoker.core.status import CAUSES, INPUT_ERROR, NO_GPU
from stoker.devices.probe import parse_simulation, probe, visible
from stoker.store import notes
from stoker.system import system
from stoker.vendors.registry import environment_of, visibility_variables
from stoker.vendors.table import NO_DEVICES
from stoker.worker import cluster, forkserver
from stoker.worker.codecopy import MASK, PREFIX, CodeCopy, remove, unpack_code
from stoker.worker.copies import Copies, with_address
from stoker.worker.forked import ServerHandle, WorkerHandle
from stoker.worker.gate import GateError
from stoker.worker.kernel import OomKills
from stoker.worker.metrics import MetricFiles
from stoker.worker.notice import make_limit_file, write_warning
from stoker.worker.secrets import Masker

if TYPE_CHECKING:
    from stoker.core.metrics import Row

GRACE: Final = 9.0
"""Seconds between SIGTERM and SIGKILL that a step gets where SPEC does not say: engines kill all after 10."""
_LINE: Final = 1 << 14
"""Bytes of a message with lines of ranks: an engine keeps what is longer in several pieces."""
_WORKER: Final = 1
_LOOK: Final = 1.0
"""Seconds between two looks for the file of a warning, and for what the step logged."""
_LEAST: Final = 0.5
"""Seconds for the last copy of the checkpoints where the step took all of the grace."""
WARNED: Final = "warned"
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
_WARNS: Final = signal.SIGUSR1


def main(
    arguments: list[str] | None = None, *, sync: bool = True, merged: bool = False, ready: Ready | None = None
) -> int:
    """Run the job that SPEC describes; the exit code is 0 where it succeeds.

    Without `sync`, whoever reads the output has this kernel and sees it at once. `merged`: standard
    output and error are one file, in which the step's lines are events: their order and times are kept. `ready` is what
    was made before SPEC was known.
    """
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1:
        sys.stderr.write("usage: python -m stoker.worker.boot SPEC\n")
        return 2
    spec_uri = words[0]
    ready = ready or Ready()
    ready.signals.mark = beside(spec_uri, WARNED)
    _emit(WorkerEvent(kind="up", time=time.time(), data={"host": socket.gethostname()}))
    text = notes.get(spec_uri)
    if text is None:
        sys.stderr.write(f"there is no {spec_uri} here: the folder that holds it is not mounted, or another one\n")
        return 2
    try:
        spec = from_json(BootSpec, parse_json(text), strict=False)
    except SettingsError as error:
        sys.stderr.write(f"{spec_uri} cannot be read: {error}\n")
        return 2
    result = _result(spec, ready, merged=merged)
    for descriptor in (1, 2) if sync else ():
        with contextlib.suppress(OSError):  # the disk is full
            # On a shared disk the last lines are there before the result is: any close sends what was written to the
            # file server (nfs(5), "Close-to-open cache consistency"). Waiting for its disk is not needed.
            os.close(os.dup(descriptor))
    notes.put(beside(spec_uri, of_node(RESULT, node_of(spec))), json.dumps(to_json(result)).encode())
    ready.close()
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

    mark = ""

    def __init__(self) -> None:
        self.end = False
        self.ended_at = 0.0
        """When `end` turned true, on the monotonic clock."""
        self.wakeup = wire.Wakeup()
        self._warned = False
        for number in _ENDS:
            signal.signal(number, self._on_end)
        signal.signal(_WARNS, self._on_warning)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDS, _WARNS))  # the worker of a pool forks with them blocked

    def _on_end(self, number: int, frame: Any) -> None:
        self.ended_at = self.ended_at or time.monotonic()
        self.end = True
        self.wakeup.set()

    def _on_warning(self, number: int, frame: Any) -> None:
        self._warned = True
        self.wakeup.set()

    def limit_is_near(self) -> bool:
        """Whether the job's time is nearly over."""
        return self._warned or os.path.exists(self.mark)

    def forget(self) -> None:
        """In a child: reset the signals. SIGTERM is ignored, since Slurm sends it to all processes of a job, and the
        child must serve until it is told to end."""
        for number in (*_ENDS, _WARNS):
            signal.signal(number, signal.SIG_IGN if number == signal.SIGTERM else signal.SIG_DFL)
        self.wakeup.close()


class Ready:
    """What a process makes ready before it knows its job: the handlers of signals, and, where it is forked ahead
    (`worker.ahead`), the fork server and the code of `package` in `blobs`, which the last job had. `kept` is its
    parent's copy of code; what that lacks is unpacked.
    """

    def __init__(self, kept: CodeCopy | None = None, *, package: str = "", blobs: str = "") -> None:
        self.signals = Signals()
        self._server: _ForkedServer | None = None
        self._environment: dict[str, str] = {}
        self._kept = kept
        self._own = ("", "")
        if kept is None:
            return
        os.umask(MASK)
        self._environment = dict(os.environ)
        self._server = _ForkedServer(self.signals)
        if package and not kept.folder_for(package):
            # What cannot be done for a job that may never come is done for the job, which says what is wrong.
            with contextlib.suppress(OSError, StokerError):
                self._own = (package, unpack_code(package, blobs))
        tempfile.tempdir = None  # the job's environment may name another folder

    def server(self) -> tuple[_ForkedServer, dict[str, str], tuple[str, ...]]:
        """The fork server, the variables that have changed since it was forked, and those that are gone."""
        if self._server is None:
            return _ForkedServer(self.signals), {}, ()
        before, now = self._environment, os.environ
        changed = {name: value for name, value in now.items() if before.get(name) != value}
        return self._server, changed, tuple(name for name in before if name not in now)

    def code(self, spec: BootSpec) -> str:
        """The folder with the job's code: its parent's copy, or one for the job alone, as `unpack_code` makes it."""
        kept = self._kept.folder_for(spec.package) if self._kept is not None else ""
        if kept or not spec.package:
            return kept
        package, folder = self._own
        if package != spec.package or not folder.startswith(os.path.join(tempfile.gettempdir(), PREFIX)):
            self.close()
            self._own = (spec.package, unpack_code(spec.package, spec.blobs))
        return self._own[1]

    def close(self) -> None:
        """Remove what was unpacked here."""
        remove(self._own[1])
        self._own = ("", "")


def _result(spec: BootSpec, ready: Ready, *, merged: bool) -> StepResult:
    """Run the job; returns its result, or how its worker ended."""
    try:
        _set_up_user(spec)
        here = ready.code(spec)
        local = relocate(spec, here)
        local = attrs.evolve(local, job=_with_secrets(_fill_in_devices(local)))
    except Exception as error:  # the top of a process: every error must reach the driver
        cause = getattr(error, "cause", "")
        message = str(error)
        if cause not in CAUSES:
            traceback.print_exc()
            cause, message = INPUT_ERROR, f"the place could not be made ready: {type(error).__name__}: {error}"
        now = time.time()
        machine = _machine() if spec.job.accelerators is not None else ""
        failure = StepError(type=type(error).__name__, message=message, machine=machine)
        refusal = StepResult(job=spec.job.job, ok=False, cause=cause, error=failure, start=now, end=now)
        if spec.job.gang is not None:
            cluster.gang_of(spec.job.gang).decline(refusal, lambda: ready.signals.end)
        return refusal
    kills = OomKills()
    before = kills.now()
    result = _Job(local, ready, merged=merged).run()
    if result.exited is not None:
        result = attrs.evolve(result, exited=attrs.evolve(result.exited, oom=kills.since(before)))
    return _restore_paths(result, here, spec.root) if here else result


def _machine() -> str:

    return machine()


def _fill_in_devices(spec: BootSpec) -> WorkerJob:
    """The job with the devices that the platform gave it, where its lease names none."""
    job, lease = spec.job, spec.job.accelerators
    if lease is None:
        os.environ.update(NO_DEVICES)  # it asked for none, and sees none, whatever the platform shows
        return job
    if lease.devices is not None:
        return job

    samples = of_node(lease.samples, node_of(spec))
    lease = fill_lease(attrs.evolve(lease, samples=samples), spec.simulate)
    _emit(WorkerEvent(kind="lease", job=job.job, lease=lease))
    return attrs.evolve(job, accelerators=lease)


def _with_secrets(job: WorkerJob) -> WorkerJob:
    """The job with the secrets that a container has in a file of its own, or that were sealed."""
    if job.sealed is not None:
        from stoker.worker.secrets import unseal

        return attrs.evolve(job, secrets=unseal(job.sealed), sealed=None)
    with contextlib.suppress(FileNotFoundError), open(SECRET_VALUES, encoding="utf-8") as file:
        return attrs.evolve(job, secrets={**job.secrets, **json.load(file)})
    return job


def _set_up_user(spec: BootSpec) -> None:
    """Set up the environment of a process whose user the image does not know."""
    os.umask(MASK)
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
    program = _relocate_path(source.argv[0], root, here) if source.argv else ""
    argv = (program, *source.argv[1:]) if program else source.argv
    return attrs.evolve(source, path=path or source.path, root=folder or source.root, argv=argv)


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
        self.control, other_end = system.packet_pair()
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

    def close(self, patience: float) -> tuple[int, ...]:
        """Hang up; it ends with all that it started, and need not be waited for: the platform ends what is left."""
        self.control.close()
        return ()


class _Job:
    """Runs one job in a process forked for it."""

    def __init__(self, spec: BootSpec, ready: Ready, *, merged: bool) -> None:
        self._spec = spec
        self._merged = merged
        self._signals = ready.signals
        self._result: StepResult | None = None
        self._exited: WorkerExit | None = None
        self._end_sent = False
        self._limit = ""
        if spec.warning:
            descriptor, self._limit = tempfile.mkstemp(prefix="stoker-limit-")
            os.close(descriptor)
            make_limit_file(self._limit)
        self._limit_at = 0.0
        self._copies: Copies | None = None
        job = spec.job
        if spec.keep and spec.checkpoints and job.kind == "step":
            self._copies = Copies(spec, node_of(spec), self._tell)
            job = with_address(job, self._copies.address)
        self._message = attrs.evolve(job, limit=self._limit, steps={str(job.step): spec.step})
        self._masker = Masker(self._message.secrets)
        self._lines: dict[str, list[LogLine]] = {}
        self._metrics = MetricFiles(tempfile.mkdtemp(prefix="stoker-metrics-"))
        server, changed, gone = ready.server()
        hello = ServerHello(
            path=spec.path,
            folder=spec.folder,
            blobs=spec.blobs,
            checkpoints=spec.checkpoints,
            metrics=self._metrics.folder,
            environment=changed,
            gone=gone,
        )
        self._server = ServerHandle(server, hello, scratch=tempfile.gettempdir())

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
            copies = self._copies
            if copies is not None:
                selector.register(copies.listener, selectors.EVENT_READ)
            server_lives = True
            while self._exited is None and server_lives:
                ready = {key.fd for key, _ in selector.select(_LOOK)}
                if copies is not None:
                    self._serve_copies(copies, ready, selector)
                for output in worker.outputs:
                    if output.descriptor in ready and not output.read(self._lines, all=False):
                        selector.unregister(output.descriptor)
                self._write()
                self._send_metrics()
                if worker.results.fileno() in ready and not self._read():
                    selector.unregister(worker.results)
                if self._signals.wakeup.descriptor in ready:
                    self._signals.wakeup.clear()
                self._pass_on_signals()
                if self._server.fileno() in ready:
                    server_lives = self._hear()
        self._read()
        for output in worker.outputs:
            output.read(self._lines, all=True)
            output.end(self._lines)
        self._write()
        self._send_metrics(over=True)
        if self._copies is not None:
            self._copies.finish(self._result, self._seconds_left, self._signals.wakeup.descriptor)
        worker.close()
        self._server.close()
        if self._message.limit:
            os.unlink(self._message.limit)
        if self._result is not None:
            return self._result
        return StepResult(job=self._message.job, ok=False, exited=self._exited or WorkerExit())

    def _pass_on_signals(self) -> None:
        """Warn the step before the limit of its time, and ask it to end."""
        if self._limit and self._signals.limit_is_near():
            write_warning(self._limit, self._spec.warning)
            self._limit, self._limit_at = "", time.monotonic() + self._spec.warning
        if self._signals.end and not self._end_sent:
            self._end_sent = True
            self._server.end(_WORKER, grace=self._spec.grace or GRACE)

    def _serve_copies(self, copies: Copies, ready: set[int], selector: selectors.BaseSelector) -> None:
        """Start the copying of checkpoints when the step first asks for its folder; pass on what it says."""
        if copies.control is None:
            if copies.listener.fileno() in ready:
                selector.unregister(copies.listener)
                selector.register(copies.start(), selectors.EVENT_READ)
        elif copies.control.fileno() in ready and not copies.read():
            selector.unregister(copies.control)
            control = copies.restart()
            if control is not None:
                selector.register(control, selectors.EVENT_READ)

    def _tell(self, text: str, event: WorkerEvent) -> None:
        """Write a line of Stoker's own into the step's log, and an event for its record."""
        _write_text(2, self._masker.text(f"stoker: {text}") + "\n")
        _emit(attrs.evolve(event, data=self._masker.document(event.data)))

    def _seconds_left(self) -> float | None:
        """The seconds of grace that the job still has; None while nobody has asked it to end."""
        ends = [self._signals.ended_at + (self._spec.grace or GRACE)] if self._signals.end else []
        ends += [self._limit_at] if self._limit_at else []
        return max(_LEAST, min(ends) - time.monotonic()) if ends else None

    def _read(self) -> bool:
        """Receive the worker's messages; returns False once there are no more."""
        messages, more = self._worker.receive()
        for message in messages:
            if isinstance(message, StepResult):
                self._result = self._masker.result(message)
            elif message.kind == DIED:
                if self._copies is not None:
                    self._copies.doubt()
            else:
                masked = attrs.evolve(message, lines=self._masker.document(message.lines))
                for part in _parts(masked):
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
            if self._merged and lines:
                rows = tuple((line.time, line.stream, None, self._masker.text(line.text)) for line in lines)
                for part in _parts(WorkerEvent(kind="lines", lines=rows)):
                    _emit(part)
                continue
            for line in lines:
                _write_text(1 if line.stream == "stdout" else 2, self._masker.text(line.text) + "\n")
        self._lines.clear()

    def _send_metrics(self, *, over: bool = False) -> None:
        """Send what the step logged of itself since the last look, in lines that are short enough for an engine."""
        if not over and not self._metrics.are_due():
            return
        part: list[Row] = []
        size = 0
        for row in self._metrics.read(self._message.job, over=over):
            masked: Row = self._masker.document(row)
            length = len(json.dumps(masked))
            if part and size + length > _LINE:
                self._emit_metrics(part)
                part, size = [], 0
            part.append(masked)
            size += length
        if part:
            self._emit_metrics(part)
        if over:
            self._metrics.close()

    def _emit_metrics(self, rows: list[Row]) -> None:
        _emit(WorkerEvent(kind=METRICS, job=self._message.job, data={"rows": rows}))


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


def fill_lease(lease: Lease, simulate: str) -> Lease:
    """The lease with the devices that this process may use; the environment shows them to it and to its steps.

    With `simulate` they are those of the machine that it describes. Fewer than the step asked for are a `GateError`, or
    under the policy "prefer" the lease's fallback.
    """
    inventory = _inventory(simulate)
    devices = inventory.devices
    fallback = ""
    if len(devices) < lease.count:
        fallback = _too_few(inventory, lease.count)
        if lease.policy != "prefer":
            raise GateError(f"{fallback} (asked for: {lease.asked})", cause=NO_GPU, fix=_fix(inventory))
        devices = ()
    os.environ.update(environment_of(devices))
    return attrs.evolve(
        lease,
        ticket="",
        devices=devices,
        fallback=fallback,
        driver=inventory.driver,
        cuda=inventory.cuda,
        simulated=inventory.simulated,
        host=_host(),
        node=os.environ.get(NODE_ID, ""),
        started=time.time(),
    )


def machine() -> str:
    """What the platform calls this machine."""
    return os.environ.get(NODE_ID) or _host()


def _host() -> str:
    """Slurm's name for this node (https://slurm.schedmd.com/sbatch.html#OPT_SLURMD_NODENAME), else its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _inventory(simulate: str) -> Inventory:
    if not simulate.strip():
        return probe()
    whole = parse_simulation(simulate, node=machine())
    devices, _ = visible(whole.devices, os.environ)
    return Inventory(devices=devices, driver=whole.driver, cuda=whole.cuda, simulated=True)


def _too_few(inventory: Inventory, count: int) -> str:
    variables = [f"{name}={os.environ[name]!r}" for name in sorted(visibility_variables()) if name in os.environ]
    source = (
        f"; the platform set {', '.join(variables)}" if variables else ", and the platform set no variable for them"
    )
    return f"{socket.gethostname()} shows {len(inventory.devices)} of {count} devices{source}"


def _fix(inventory: Inventory) -> str:
    broken = errors(inventory.findings)
    if broken:
        return f"{broken[0].what} ({broken[0].code}): {broken[0].fix}"
    return "run `stoker devices` there; where the platform's nodes have no devices of their own, --simulate pretends"


if __name__ == "__main__":
    sys.exit(main())
