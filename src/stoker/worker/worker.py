"""Runs one job: loads its inputs, calls the step, saves its outputs, and returns the result. The same in every backend.

A job is a `core.protocol.WorkerJob`, the result a `StepResult`; of a step that holds devices it has what the gate
proved. This module knows neither the backend nor the database.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Protocol, Sequence

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import DamagedArtifact, DiskFull, SerializationError, StokerError
from stoker.core.plugins import resolve
from stoker.core.protocol import (
    EXTRA_TIME,
    FunctionSource,
    StepError,
    StepResult,
    StepTask,
    WorkerEvent,
    WorkerJob,
)
from stoker.core.status import (
    CANCELLED,
    CAUSES,
    DISK_FULL,
    EXITED,
    IMPORT_ERROR,
    INPUT_ERROR,
    TIMED_OUT,
    UNSERIALIZABLE,
    USER_ERROR,
    WORKER_LOST,
)
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.previewing import with_preview
from stoker.worker import beside, failure, modules
from stoker.worker.context import document_of, enter
from stoker.worker.notice import Notice, Terminated
from stoker.worker.secrets import Masker, StepSecrets, revealed

if TYPE_CHECKING:
    from stoker.core.devices import Lease


class TaskRunner(Protocol):
    """Runs a task whose plan names a `runner`: made of the job, the step and the blobs, then called."""

    @property
    def extra_time(self) -> float:
        """Seconds that saving may take beyond what the step's timeout has left."""

    def __call__(self) -> Any:
        """Run the task."""

    def save_outputs(self) -> dict[str, Any]:
        """Save the artifacts that the task has made; returns them by name, as wires."""

    def save_what_is_left(self) -> dict[str, Any]:
        """The same of a task that failed, as far as what follows needs it."""


_PHASE: Final = 0.01
"""Seconds of loading or saving from which on a result says when the function was called and returned: messages of the
many short steps stay as small as they are."""


class Distribute(Protocol):
    """Runs a step in the ranks of a launcher (`agent.run`)."""

    def __call__(
        self,
        job: WorkerJob,
        step: StepTask,
        blobs: str,
        /,
        *,
        emit: Callable[[WorkerEvent], None],
        notice: Notice | None,
    ) -> StepResult:
        """The result of all ranks of this node."""


class Worker:
    """Runs jobs one after the other; keeps the steps' functions and the store of artifacts between them.

    `checkpoints` is the folder below which steps keep theirs, `metrics` that of what they log of themselves, `notice`
    shows them that they should stop. `distribute` runs the steps that have a launcher; a rank's worker needs none.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        checkpoints: str = "",
        metrics: str = "",
        notice: Notice | None = None,
        distribute: Distribute | None = None,
    ) -> None:
        self.blobs = blobs
        self._checkpoints = checkpoints
        self._metrics = metrics
        self._notice = notice
        self._distribute = distribute
        self.emit: Callable[[WorkerEvent], None] = _drop_event
        """Sends on the events of a distributed step's ranks while they run; set by the process with the connection."""
        self._functions: dict[tuple[str, ...], Callable[..., Any]] = {}

    def function(self, source: FunctionSource) -> Callable[..., Any]:
        """The function of a source, looked up once."""
        name = (source.module, source.qualname, source.path, source.digest)
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = modules.function_of(source, self.blobs.read)
        return function

    def run(self, job: WorkerJob, step: StepTask) -> StepResult:
        """Run a job of a step and return its result; what user code raises becomes a result, too."""
        started = time.time()
        before = _cpu()
        beside.take_name(job.job, job.context.get("rank"))
        if job.limit and self._notice is not None:
            self._notice.watch_limit(job.limit)
        if job.secrets:
            variables = {name: job.secrets.get(text) for name, text in step.environment.items()}
            os.environ.update({name: value for name, value in variables.items() if value is not None})
        try:
            if job.kind == "hook":
                result = self._run_hook(job)
            elif job.accelerators is not None:
                result = self._run_with_devices(job, step, job.accelerators)
            else:
                result = self._run_step(job, step)
        except Terminated as error:
            result = failure_result(CANCELLED, error)
        except KeyboardInterrupt as error:
            if self._notice is None:
                raise  # under --debug a person ends the program itself
            result = self._failure(job, EXITED, error, message="KeyboardInterrupt ended the step: its own, or SIGINT")
        except Exception as error:  # the code of Stoker's around the step's, which is no exit of the step's
            what = f"Stoker's worker failed, not the step's code: {type(error).__name__}: {error}"
            result = self._failure(job, WORKER_LOST, error, message=what)
        return attrs.evolve(result, job=job.job, start=started, end=time.time(), cpu=_cpu() - before)

    def _run_with_devices(self, job: WorkerJob, step: StepTask, lease: Lease) -> StepResult:
        """Run a step that holds devices, once the gate has proved them."""
        from stoker.worker import gate

        try:
            proof = gate.prove(lease, run=str(document_of(job, "").get("run", "")))
            unwatch = gate.watch_imports(lease, proof)
        except gate.GateError as error:
            refusal = failure_result(error.cause, error)
            document = attrs.evolve(refusal.error or StepError(), machine=lease.node or lease.host)
            return _declined(job, attrs.evolve(refusal, error=document))
        if proof.fallback:
            from stoker.vendors.table import NO_DEVICES

            os.environ.update(NO_DEVICES)
            job = attrs.evolve(job, context={**job.context, "devices": ()})
        try:
            result = self._run_step(attrs.evolve(job, accelerators=proof.with_driver(lease)), step)
        finally:
            unwatch()  # under --debug the process goes on
        if proof.refused is not None and result.ok:
            # The user's code caught it; the proof failed all the same.
            result = failure_result(proof.refused.cause, proof.refused)
        return attrs.evolve(result, proved=proof.facts, fallback=proof.fallback or result.fallback)

    def _run_step(self, job: WorkerJob, step: StepTask) -> StepResult:
        """Run the step with its data in this process, or in the ranks of a launcher."""
        if step.data and job.context.get("data") is None:
            return self._run_with_data(job, step)
        if job.launch is None:
            return self._run_in_process(job, step)
        if self._distribute is None:
            raise ValueError(f"job {job.job} is distributed, and this worker runs single processes")
        document = document_of(job, self._checkpoints, self._metrics, self.blobs.uri)
        job = attrs.evolve(job, context=document)
        return self._distribute(job, step, self.blobs.uri, emit=self.emit, notice=self._notice)

    def _run_with_data(self, job: WorkerJob, step: StepTask) -> StepResult:
        from stoker.worker import data

        with contextlib.ExitStack() as held:
            try:
                job = data.bring(job, step, self.emit, held)
            except (StokerError, OSError) as error:
                cause = DISK_FULL if isinstance(error, DiskFull) else INPUT_ERROR
                return _declined(job, self._failure(job, cause, error))
            return self._run_step(job, step)

    def _run_in_process(self, job: WorkerJob, step: StepTask) -> StepResult:
        try:
            function = self.function(step.source)
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's module runs here
            return self._failure(job, IMPORT_ERROR, error)
        with (
            enter(document_of(job, self._checkpoints, self._metrics, self.blobs.uri), notice=self._notice),
            _tracking(step.track),
        ):
            try:
                result = self._call(function, job, step)
            finally:
                read, StepSecrets.current = StepSecrets.current, None
                if read is not None:
                    read.close()
        return result if read is None else Masker(read.values).result(result)

    def _call(self, function: Callable[..., Any], job: WorkerJob, step: StepTask) -> StepResult:
        """Call the function; what it computed from inputs that turn out to be damaged is discarded."""
        with self.blobs.checking() as checks:
            result = self._call_unchecked(function, job, step)
            try:
                checks.join()
            except StokerError as error:
                return self._failure(job, INPUT_ERROR, error)
        return result

    def _call_unchecked(self, function: Callable[..., Any], job: WorkerJob, step: StepTask) -> StepResult:
        task: TaskRunner | None = None
        began = time.time()
        try:
            if step.runner:
                start: Callable[..., TaskRunner] = resolve(step.runner)
                task = start(job, step, self.blobs)
            # A task with a runner of its own loads what it reads, when it reads it.
            arguments = {} if task else {name: self._value(tree, job.secrets) for name, tree in job.inputs.items()}
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # unpickling runs the user's code
            return self._failure(job, INPUT_ERROR, error)
        called = time.time()
        try:
            returned = (task or function)(**arguments)
        except KeyboardInterrupt:
            raise
        except Terminated as error:
            return attrs.evolve(failure_result(CANCELLED, error), outputs=_outputs_left(task))
        except SystemExit as error:
            if self._notice is not None and self._notice.stop_requested:
                return self._failure(job, CANCELLED, error, message="the step left when it was asked to end")
            if self._notice is not None and self._notice.limit:
                return self._failure(
                    job, TIMED_OUT, error, message="the step left before the platform's limit of its time"
                )
            return self._failure(job, EXITED, error, message=f"the step called sys.exit({error.code!r})")
        except BaseException as error:  # the user's code
            return attrs.evolve(self._failure(job, USER_ERROR, error), outputs=_outputs_left(task))
        del arguments
        over = time.time()
        if task is not None and job.timed and task.extra_time:
            data = {"seconds": task.extra_time}
            self.emit(WorkerEvent(kind="noted", job=job.job, note=EXTRA_TIME, time=over, data=data))
        try:
            outputs = task.save_outputs() if task else self._save_outputs(returned, step)
            if called - began < _PHASE and time.time() - over < _PHASE:
                return StepResult(ok=True, outputs=outputs)
            return StepResult(ok=True, outputs=outputs, called=called, returned=over)
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # pickling runs the user's code
            return self._failure(job, UNSERIALIZABLE if isinstance(error, SerializationError) else USER_ERROR, error)

    def _failure(self, job: WorkerJob, cause: str, error: BaseException, *, message: str = "") -> StepResult:
        """The result of a job that an exception ended; what is too long for the result is stored as a blob."""

        def keep(text: str) -> str:
            known = {**job.secrets, **(StepSecrets.current.values if StepSecrets.current else {})}
            text = Masker(known).text(text) if known else text
            try:
                return self.blobs.put(text.encode("utf-8", "backslashreplace"))
            except (StokerError, OSError):
                return ""  # on a full disk the beginning and the end have to do

        return failure_result(cause, error, message=message, keep=keep)

    def _value(self, tree: Mapping[str, Any], secrets: Mapping[str, str]) -> Any:
        if "value" in tree:
            value = artifacts.load(from_wire(tree["value"]), self.blobs)
            return revealed(value, secrets) if secrets else value
        if "list" in tree:
            return [self._value(item, secrets) for item in tree["list"]]
        return {name: self._value(item, secrets) for name, item in tree["dict"].items()}

    def _save_outputs(self, returned: Any, step: StepTask) -> dict[str, Any]:
        names = step.outputs
        if step.discards:
            return {}
        if not names:
            if returned is not None:
                raise SerializationError(
                    f"step '{step.name}' says that it returns nothing, but returned {type(returned).__name__}",
                    fix="change the return annotation",
                )
            return {}
        if not step.unpack:
            return {names[0]: self._artifact(names[0], returned, step).wire()}
        if not isinstance(returned, (tuple, list)) or len(returned) != len(names):
            text = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
            raise SerializationError(
                f"step '{step.name}' says that it returns {len(names)} values ({', '.join(names)}), got {text}",
                fix="return a tuple with one value for each output, or change the return annotation",
            )
        return {name: self._artifact(name, value, step).wire() for name, value in zip(names, returned)}

    def _artifact(self, name: str, value: Any, step: StepTask) -> StoredArtifact:
        try:
            if name in step.split:
                return artifacts.save_split(value, self.blobs)
            artifact = artifacts.save(value, self.blobs)
            return with_preview(artifact, value, self.blobs) if step.previews else artifact
        except StokerError as error:
            error.where = error.where or f"step '{step.name}', output '{name}'"
            raise

    def _run_hook(self, job: WorkerJob) -> StepResult:
        assert job.hook is not None  # a job of this kind has one
        try:
            hook = self.function(job.hook)
            if job.hook.caller:
                resolve(job.hook.caller)(hook, job.told)
            else:
                takes = getattr(getattr(hook, "__code__", None), "co_argcount", 1)
                hook(*([job.told] if takes else []))
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's code
            return self._failure(job, USER_ERROR, error)
        return StepResult(ok=True)


def _outputs_left(task: TaskRunner | None) -> dict[str, Any]:
    """The artifacts of a task that failed."""
    return {} if task is None else task.save_what_is_left()


def _tracking(words: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Log what the step tells these libraries as metrics, too."""
    if not words:
        return contextlib.nullcontext()
    from stoker.worker.tracking import tracking

    return tracking(words)


def _declined(job: WorkerJob, refusal: StepResult) -> StepResult:
    """The result of a job that cannot begin; other nodes of its gang hear of it."""
    if job.gang is not None:
        from stoker.worker import cluster

        cluster.gang_of(job.gang).decline(refusal, lambda: False)  # SIGTERM ends it by an exception
    return refusal


def _drop_event(event: WorkerEvent) -> None:
    """Discard an event."""


def failure_result(
    cause: str, error: BaseException, *, message: str = "", keep: Callable[[str], str] | None = None
) -> StepResult:
    """The result of a job that an exception ended; `keep` is that of `failure.describe_exception`."""
    document = failure.describe_exception(error, keep=keep)
    if isinstance(error, DamagedArtifact):
        document = attrs.evolve(document, digest=error.digest)
    if isinstance(error, StokerError) and (own_cause := getattr(error, "cause", "")) in CAUSES:
        cause = own_cause  # the gate's errors carry theirs
    if message:
        document = attrs.evolve(document, message=message)
    return StepResult(ok=False, cause=cause, error=document)


def _cpu() -> float:
    """Seconds of CPU used so far by this process and its children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + children.ru_utime + children.ru_stime


def prepare() -> None:
    """Set up Python in a process that runs steps: random numbers and logging."""
    _reseed()
    _capture_logging()


def _reseed() -> None:
    """Seed the generators anew, since forked processes would all draw the same numbers."""
    random.seed()
    # By the submodules' names: numpy imports numpy.random lazily, and importing it here would cost every fork 10 ms; a
    # user's own torch.py has none.
    for name in ("numpy.random", "torch.random"):
        generator = sys.modules.get(name)
        if generator is not None:
            generator.seed()


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at the time of the record."""

    def __init__(self) -> None:
        super().__init__(stream=sys.stderr)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _capture_logging() -> None:
    """Send records of INFO and above to the step's log unless the user's own handlers take them.

    `lastResort` is asked only while no handler is set, so that a step's `logging.basicConfig` keeps its meaning.
    """
    logging.lastResort = _Stderr()
    logging.lastResort.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers and root.level == logging.WARNING:
        root.setLevel(logging.INFO)
