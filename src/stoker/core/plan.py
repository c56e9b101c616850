"""Everything decided before anything runs, and the job that a backend receives: JSON all through.

A `Plan` is kept with its run, so that `stoker resume` needs no second tracing. `Job` is one attempt of one step.
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
    """One node with every setting resolved.

    `inputs` maps each parameter to a tree whose leaves are `{"value": <artifact>}` or `{"step": key, "output": name}`,
    and whose branches are `{"list": [...]}` and `{"dict": {...}}`. `split` names the outputs that a later fan-out
    iterates over: they are kept element by element. `origins` says for each setting which layer it came from. `image`
    is the reference of the image in which the step runs, by digest where that is known; empty without a container.
    `environment` names the Python environment of its own that it gets on this machine; empty for the driver's.
    `runner` names what runs a task of the function, as "module:attribute"; empty where it is called with its inputs.
    """

    key: str
    name: str
    source: FunctionSource
    outputs: tuple[StepOutput, ...]
    unpack: bool
    inputs: Mapping[str, Any]
    settings: StepSettings
    backend: str
    code: str
    mapped: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    position: int = 0
    where: str = ""
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    origins: Mapping[str, str] = attrs.field(factory=dict)
    image: str = ""
    environment: str = ""
    runner: str = ""


def reporter_of(step: StepPlan) -> Reporter:
    """What makes the findings about a step."""
    return Reporter(where=f"{step.where} step '{step.name}'", step=step.name)


@attrs.frozen(kw_only=True)
class Plan:
    """A pipeline ready to run. `parameters` are the artifacts of the arguments that it was called with.

    `package` is the digest of the user's code in the artifact store, where steps run in images.
    `settings` are those of the run as a whole, so that it goes on with them when it is resumed. `program` is what a
    later session needs beside `source` to make the program again: what the first one's command line said of it.
    """

    pipeline: str
    steps: tuple[StepPlan, ...]
    parameters: Mapping[str, Any]
    failure_mode: Literal["fail_fast", "continue"]
    stack: str
    settings: PipelineSettings = attrs.field(factory=PipelineSettings)
    where: str = ""
    source: FunctionSource | None = None
    dynamic: bool = False
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    findings: tuple[Finding, ...] = ()
    package: str = ""
    program: Mapping[str, Any] = attrs.field(factory=dict)
    version: int = PLAN_VERSION


@attrs.frozen(kw_only=True, slots=True)
class Job:
    """One attempt of one step, in the form a backend receives; `inputs` are trees as in `StepPlan`, with values only.

    `kind` is "step", or "hook": then `hook` is the function to call and `told` what it is told. `marked`:
    others may stand in line behind it, so that the worker marks where its output ends. `behind`: it is to stand in
    line behind a marked one.
    """

    name: str
    run: str
    key: str
    attempt: int
    step: StepPlan
    inputs: Mapping[str, Any]
    kind: Literal["step", "hook"] = "step"
    hook: FunctionSource | None = None
    told: HookFacts | None = None
    marked: bool = False
    behind: bool = False


@attrs.frozen(kw_only=True)
class Code:
    """What travels beside images: the digest of a package of the user's code, the folder that it was made of, and a
    folder with Stoker's worker for images that lack it."""

    package: str = ""
    root: str = ""
    bundle: str = ""


@attrs.frozen(kw_only=True)
class Site:
    """Where a run's workers find things: the artifact store, a folder for scratch files, and the user's modules.

    `preload` are packages that the user's modules import and that no device needs to be chosen for. Below `checkpoints`
    each step has its folder (`store.checkpoints`); empty where nobody keeps any. `package` is the digest of the user's
    code in the artifact store (`images.context`), empty where workers share the driver's file system; `code_root` is
    the folder that it was made of. `bundle` is a folder with Stoker's worker, for images that lack it. `simulate`
    describes the accelerators to be pretended, empty for real ones.
    """

    artifacts: str
    scratch: str
    path: tuple[str, ...] = ()
    folder: str = "."
    sources: tuple[FunctionSource, ...] = ()
    preload: tuple[str, ...] = ()
    checkpoints: str = ""
    package: str = ""
    code_root: str = ""
    bundle: str = ""
    simulate: str = ""


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
    """What a job took: `cpu` in seconds, `peak` in bytes of memory; None where nobody measured it."""

    COMPACT: ClassVar = True
    cpu: float | None = None
    peak: int | None = None


@attrs.frozen(kw_only=True, slots=True)
class JobStatus:
    """What a platform knows of a job now, with the news since it was last asked.

    `result` is the worker's own document (`worker.worker`) where it got through; `cause` and `message` are the
    platform's explanation where it did not; of a job that is "queued", `message` says why. `lost` means that the job
    never began and may be sent again for free.
    `started` comes as soon as it is known, at the latest with the end: a step's timeout counts from there. `lease` is
    what the job holds or held of devices, from the news in which it got them. `events` are worth remembering: those
    that are "noted".
    """

    state: JobState
    result: StepResult | None = None
    cause: str = ""
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    lost: bool = False
    lines: tuple[LogLine, ...] = ()
    usage: JobUsage = JobUsage()
    lease: Lease | None = None
    events: tuple[WorkerEvent, ...] = ()


@attrs.frozen(kw_only=True, slots=True)
class Capacity:
    """What a backend can run at once, for admission; cpus in cores, memory in bytes.

    `devices`: accelerators that it hands out whole, None where their number does not limit what may be sent.
    """

    cpus: float
    memory: int
    slots: int
    devices: int | None = None
