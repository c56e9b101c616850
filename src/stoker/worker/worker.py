"""Runs one job: loads its inputs, calls the step, keeps its outputs, and says how it went. The same everywhere.

A job comes as a `core.protocol.WorkerJob`, the result leaves as a `StepResult`. Of a step that holds devices the gate
says what it proved of them.

It must not know which backend it is in, nor talk to the database.
"""

from __future__ import annotations

import logging
import os
import random
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, Callable, Mapping, Protocol

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import SerializationError, StokerError
from stoker.core.plugins import resolve
from stoker.core.protocol import StepResult, StepTask, WorkerEvent, WorkerJob
from stoker.core.source import FunctionSource
from stoker.core.status import (
    CANCELLED,
    CAUSES,
    EXITED,
    IMPORT_ERROR,
    INPUT_ERROR,
    TIMED_OUT,
    UNSERIALIZABLE,
    USER_ERROR,
)
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker import failure, modules
from stoker.worker.context import document_of, entered
from stoker.worker.notice import Notice, Terminated

if TYPE_CHECKING:
    from stoker.core.devices import Lease


class TaskRunner(Protocol):
    """What runs a task whose plan names a `runner`: made of the job, the step and the blobs, then called."""

    def __call__(self) -> Any:
        """Run the task."""

    def kept(self) -> dict[str, Any]:
        """The artifacts that the task has made, by name."""


class Distribute(Protocol):
    """Runs a step in the ranks of a launcher: `agent.run`, which a rank itself has no use for."""

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
    """What stays warm between jobs: the steps' functions and the way to the artifacts.

    `checkpoints` is the folder below which steps keep theirs, `notice` where they see that they should stop.
    `distribute` runs the steps that have a launcher; a rank's worker gets none of those.
    """

    def __init__(
        self,
        blobs: Blobs,
        *,
        checkpoints: str = "",
        notice: Notice | None = None,
        distribute: Distribute | None = None,
    ) -> None:
        self.blobs = blobs
        self._checkpoints = checkpoints
        self._notice = notice
        self._distribute = distribute
        self.emit: Callable[[WorkerEvent], None] = _unheard
        """Sends on what the ranks of a distributed step say while they run; put in by whoever has the way."""
        self._functions: dict[tuple[str, ...], Callable[..., Any]] = {}

    def function(self, source: FunctionSource) -> Callable[..., Any]:
        """The function of a source, found once."""
        name = (source.module, source.qualname, source.path, source.digest)
        found = self._functions.get(name)
        if found is None:
            found = self._functions[name] = modules.function_of(source, self.blobs.read)
        return found

    def run(self, job: WorkerJob, step: StepTask) -> StepResult:
        """Run a job of a step and return its result; raises nothing of the user's."""
        started = time.time()
        before = _cpu()
        if job.limit and self._notice is not None:
            self._notice.heed(job.limit)
        try:
            if job.kind == "hook":
                result = self._hook(job)
            elif job.accelerators is not None:
                result = self._behind_the_gate(job, step, job.accelerators)
            else:
                result = self._ran(job, step)
        except Terminated as error:
            result = failed(CANCELLED, error)
        return attrs.evolve(result, job=job.job, start=started, end=time.time(), cpu=_cpu() - before)

    def _behind_the_gate(self, job: WorkerJob, step: StepTask, lease: Lease) -> StepResult:
        """A step that holds devices proves them before the first line of the user's code runs."""
        from stoker.worker import gate

        try:
            proof = gate.opened(lease)
            unwatch = gate.watch_imports(lease, proof)
        except gate.GateError as error:
            return failed(error.cause, error)
        if proof.fallback:
            from stoker.vendors.table import NO_DEVICES

            os.environ.update(NO_DEVICES)
            job = attrs.evolve(job, context={**job.context, "devices": ()})
        try:
            result = self._ran(job, step)
        finally:
            unwatch()  # under --debug the process goes on
        if proof.refused is not None and result.ok:
            # The user's code caught it; the proof failed all the same.
            result = failed(proof.refused.cause, proof.refused)
        return attrs.evolve(result, proved=proof.facts, fallback=proof.fallback or result.fallback)

    def _ran(self, job: WorkerJob, step: StepTask) -> StepResult:
        """The step in this process, or in the ranks of a launcher."""
        if job.launch is None:
            return self._step(job, step)
        if self._distribute is None:
            raise ValueError(f"job {job.job} is distributed, and this worker runs single processes")
        document = document_of(job, self._checkpoints)
        job = attrs.evolve(job, context=document)
        return self._distribute(job, step, self.blobs.uri, emit=self.emit, notice=self._notice)

    def _step(self, job: WorkerJob, step: StepTask) -> StepResult:
        try:
            function = self.function(step.source)
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's module runs here
            return failed(IMPORT_ERROR, error)
        with entered(document_of(job, self._checkpoints), notice=self._notice):
            return self._called(function, job, step)

    def _called(self, function: Callable[..., Any], job: WorkerJob, step: StepTask) -> StepResult:
        task: TaskRunner | None = None
        try:
            if step.runner:
                start: Callable[..., TaskRunner] = resolve(step.runner)
                task = start(job, step, self.blobs)
            # A task with a runner of its own loads what it reads, when it reads it.
            arguments = {} if task else {name: self._value(tree) for name, tree in job.inputs.items()}
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # unpickling runs the user's code
            return failed(INPUT_ERROR, error)
        try:
            returned = (task or function)(**arguments)
        except (Terminated, KeyboardInterrupt):
            raise
        except SystemExit as error:
            if self._notice is not None and self._notice.asked:
                return failed(CANCELLED, error, message="the step left when it was asked to end")
            if self._notice is not None and self._notice.limit:
                return failed(TIMED_OUT, error, message="the step left before the platform's limit of its time")
            return failed(EXITED, error, message=f"the step called sys.exit({error.code!r})")
        except BaseException as error:  # the user's code
            return failed(USER_ERROR, error)
        del arguments
        try:
            return StepResult(ok=True, outputs=task.kept() if task else self._kept(returned, step))
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # pickling runs the user's code
            return failed(UNSERIALIZABLE if isinstance(error, SerializationError) else USER_ERROR, error)

    def _value(self, tree: Mapping[str, Any]) -> Any:
        if "value" in tree:
            return artifacts.load(from_wire(tree["value"]), self.blobs)
        if "list" in tree:
            return [self._value(item) for item in tree["list"]]
        return {name: self._value(item) for name, item in tree["dict"].items()}

    def _kept(self, returned: Any, step: StepTask) -> dict[str, Any]:
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
            got = f"{len(returned)} values" if isinstance(returned, (tuple, list)) else type(returned).__name__
            raise SerializationError(
                f"step '{step.name}' says that it returns {len(names)} values ({', '.join(names)}), got {got}",
                fix="return a tuple with one value for each output, or change the return annotation",
            )
        return {name: self._artifact(name, value, step).wire() for name, value in zip(names, returned)}

    def _artifact(self, name: str, value: Any, step: StepTask) -> StoredArtifact:
        try:
            if name in step.split:
                return artifacts.save_split(value, self.blobs)
            return artifacts.save(value, self.blobs)
        except StokerError as error:
            error.where = error.where or f"step '{step.name}', output '{name}'"
            raise

    def _hook(self, job: WorkerJob) -> StepResult:
        assert job.hook is not None  # a job of this kind has one
        try:
            hook = self.function(job.hook)
            takes = getattr(getattr(hook, "__code__", None), "co_argcount", 1)
            hook(*([job.told] if takes else []))
        except (Terminated, KeyboardInterrupt):
            raise
        except BaseException as error:  # the user's code
            return failed(USER_ERROR, error)
        return StepResult(ok=True)


def _unheard(event: WorkerEvent) -> None:
    """Nobody listens."""


def failed(cause: str, error: BaseException, *, message: str = "") -> StepResult:
    """The result of a job that an exception ended."""
    document = failure.described(error)
    if isinstance(error, StokerError) and (own := getattr(error, "cause", "")) in CAUSES:
        cause = own  # the gate's errors know theirs, wherever they are raised
    if message:
        document = attrs.evolve(document, message=message)
    return StepResult(ok=False, cause=cause, error=document)


def _cpu() -> float:
    """Seconds of CPU used so far by this process and its children that have ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def prepare() -> None:
    """What a process that runs steps needs of Python itself."""
    _fresh_randomness()
    _logging_is_captured()


def _fresh_randomness() -> None:
    """Forked processes would all draw the same random numbers otherwise."""
    random.seed()
    # By the submodule's name: numpy imports numpy.random lazily, and importing it here would cost every fork 10 ms.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever `sys.stderr` is at the time of the record."""

    def __init__(self) -> None:
        super().__init__(stream=sys.stderr)
        self.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _logging_is_captured() -> None:
    """Records of INFO and above reach the step's log unless the user's own handlers take them.

    `lastResort` is asked only while no handler is set, so that a step's `logging.basicConfig` keeps its meaning.
    """
    logging.lastResort = _Stderr()
    logging.lastResort.setLevel(logging.INFO)
    root = logging.getLogger()
    if not root.handlers and root.level == logging.WARNING:
        root.setLevel(logging.INFO)
