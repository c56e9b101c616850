"""The plan of a run, and the jobs that its backends receive: values that have a JSON form.

A `Plan` is stored with its run, so that `stoker resume` does not trace again. `Job` is one attempt of one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Mapping

import attrs

from stoker.core.findings import Finding, Reporter
from stoker.core.graph import StepOutput
from stoker.core.protocol import HookFacts, StepResult, WorkerEvent
from stoker.core.settings import PipelineSettings, StepSettings
from stoker.core.source import FunctionSource
from stoker.core.status import JobState

if TYPE_CHECKING:
    from stoker.core.devices import Lease

PLAN_VERSION = 1


@attrs.frozen(kw_only=True)
class StepPlan:
    """One node with every setting resolved."""

    key: str
    name: str
    source: FunctionSource
    outputs: tuple[StepOutput, ...]
    unpack: bool
    """Whether the function returns a tuple with one element for each output, not one value."""
    inputs: Mapping[str, Any]
    """Parameter → a tree whose leaves are `{"value": <artifact>}` or `{"step": key, "output": name}`, and whose
    branches are `{"list": [...]}` and `{"dict": {...}}`."""
    settings: StepSettings
    backend: str
    """The name under which the run has its backend."""
    code: str
    """The digest of the step's code, for the cache."""
    mapped: tuple[str, ...] = ()
    """The inputs that are iterated over; with any, the step is a fan-out."""
    after: tuple[str, ...] = ()
    """Keys of steps that must succeed first, beside those in `inputs`."""
    split: tuple[str, ...] = ()
    """The outputs that a later fan-out iterates over: they are stored element by element."""
    position: int = 0
    """Its place in the pipeline's order."""
    where: str = ""
    """The file and line of its call."""
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    """Functions under "on_success" and "on_failure"."""
    origins: Mapping[str, str] = attrs.field(factory=dict)
    """Setting → the layer that it comes from."""
    image: str = ""
    """The reference of the image in which it runs, by digest where that is known; empty without a container."""
    environment: str = ""
    """The Python environment of its own that it gets on this machine; empty for the driver's."""
    runner: str = ""
    """What runs a task of the function, as "module:attribute"; empty where it is called with its inputs."""


def reporter_of(step: StepPlan) -> Reporter:
    """The reporter of findings about a step."""
    return Reporter(where=f"{step.where} step '{step.name}'", step=step.name)


@attrs.frozen(kw_only=True)
class Plan:
    """A pipeline ready to run."""

    pipeline: str
    steps: tuple[StepPlan, ...]
    parameters: Mapping[str, Any]
    """The artifacts of the arguments of its call."""
    failure_mode: Literal["fail_fast", "continue"]
    stack: str
    settings: PipelineSettings = attrs.field(factory=PipelineSettings)
    """Those of the run as a whole; a resumed run keeps them."""
    where: str = ""
    source: FunctionSource | None = None
    """Where a later session finds the pipeline."""
    dynamic: bool = False
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    """The pipeline's own, under "on_success" and "on_failure"."""
    findings: tuple[Finding, ...] = ()
    package: str = ""
    """The digest of the user's code in the artifact store, where steps run in images."""
    program: Mapping[str, Any] = attrs.field(factory=dict)
    """What a later session needs beside `source` to make the program again, from the first one's command line."""
    version: int = PLAN_VERSION


@attrs.frozen(kw_only=True, slots=True)
class Job:
    """One attempt of one step, or the call of a hook, in the form that a backend receives."""

    name: str
    run: str
    key: str
    attempt: int
    step: StepPlan
    inputs: Mapping[str, Any]
    """Trees as in `StepPlan`, with values for leaves."""
    kind: Literal["step", "hook"] = "step"
    hook: FunctionSource | None = None
    """Of a hook: the function to call."""
    told: HookFacts | None = None
    """Of a hook: what the function gets."""
    marked: bool = False
    """Whether others may wait behind it at its worker, which then marks where its output ends."""
    behind: bool = False
    """Whether it waits behind a marked one at a busy worker."""


@attrs.frozen(kw_only=True)
class Code:
    """The code that is sent along with images."""

    package: str = ""
    """The digest of a package of the user's code."""
    root: str = ""
    """The folder that the package was made of."""
    bundle: str = ""
    """A folder with Stoker's worker, for images that lack it."""


@attrs.frozen(kw_only=True)
class Site:
    """Where a run's workers find the artifact store, scratch space and the user's modules."""

    artifacts: str
    """The address of the artifact store."""
    scratch: str
    """A folder for files that only this run needs."""
    path: tuple[str, ...] = ()
    """`sys.path` of the user's modules."""
    folder: str = "."
    """The working directory."""
    sources: tuple[FunctionSource, ...] = ()
    preload: tuple[str, ...] = ()
    """Packages that the user's modules import and that need no device to be chosen."""
    checkpoints: str = ""
    """The folder below which each step has its own (`store.checkpoints`); empty without checkpoints."""
    package: str = ""
    """The digest of the user's code in the artifact store (`images.context`); empty where workers share the driver's
    file system."""
    code_root: str = ""
    """The folder that the package was made of."""
    bundle: str = ""
    """A folder with Stoker's worker, for images that lack it."""
    simulate: str = ""
    """The accelerators to simulate; empty for real ones."""


@attrs.frozen(kw_only=True, slots=True)
class LogLine:
    """One line that a step wrote: seconds since the epoch, "stdout" or "stderr", its text without the newline.

    `rank` is the process of a distributed step that wrote it, None for a step of one process, and for the launcher.
    """

    time: float
    stream: str
    text: str
    rank: int | None = None


@attrs.frozen(kw_only=True, slots=True)
class JobUsage:
    """What a job used; None where it was not measured."""

    COMPACT: ClassVar = True
    cpu: float | None = None
    """Seconds."""
    peak: int | None = None
    """Bytes of memory."""


@attrs.frozen(kw_only=True, slots=True)
class JobStatus:
    """A job's state, with what happened since the last poll."""

    state: JobState
    result: StepResult | None = None
    """The worker's own document, if it arrived."""
    cause: str = ""
    """The platform's explanation of a failure without a result."""
    message: str = ""
    """The same in words; of a job that is "queued", why it waits."""
    exit_code: int | None = None
    started: float | None = None
    """Seconds since the epoch, as soon as they are known, at the latest with the end: a step's timeout counts from
    there."""
    ended: float | None = None
    lost: bool = False
    """Whether the job never began, so that it may be submitted again without counting."""
    lines: tuple[LogLine, ...] = ()
    usage: JobUsage = JobUsage()
    lease: Lease | None = None
    """The devices that the job holds or held, once it has some."""
    events: tuple[WorkerEvent, ...] = ()
    """Events to record."""


@attrs.frozen(kw_only=True, slots=True)
class Capacity:
    """What a backend can run at once."""

    cpus: float
    """Cores."""
    memory: int
    """Bytes."""
    slots: int
    """Jobs."""
    devices: int | None = None
    """Accelerators that it hands out whole; None where their number does not limit what is submitted."""
