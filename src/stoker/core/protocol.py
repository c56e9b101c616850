"""What Stoker's processes say to each other: the driver, fork servers, workers, ranks' agents, and programs elsewhere.

Each document is a frozen value, written and read by `core.codec`: compact, so that a field at its default is left out,
and tolerant, so that a field or a kind of event that a newer version added is passed over. A document without a version
is of the first one. Workers import this module when they start: it is light, and knows none of the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Mapping

import attrs

from stoker.core.source import FunctionSource

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.core.launch import Launch

VERSION: Final = 1
MARK: Final = "\x1estoker "
"""Begins a line of standard output that is a message of Stoker's, as JSON."""
RESULT: Final = "result.json"
"""The file beside a job's document that says how the job ended."""
CREDENTIALS: Final = "/run/stoker/environment.json"
"""Inside a container: variables that neither the engine nor the image may show."""


# What a worker gets


@attrs.frozen(kw_only=True)
class StepTask:
    """What a worker gets of a step, once. `runner` names what runs a task of the function, as "module:attribute";
    empty where it is called with its inputs. `discards`: what the function returns is kept by another rank."""

    COMPACT: ClassVar = True
    name: str
    source: FunctionSource
    outputs: tuple[str, ...]
    unpack: bool
    split: tuple[str, ...]
    environment: Mapping[str, str]
    runner: str = ""
    discards: bool = False


@attrs.frozen(kw_only=True)
class Topology:
    """The variables by which a platform tells a node its place in a gang: its number, how many there are, where the
    first one and this one are reached, or all of them in their order. Empty where it does not say."""

    COMPACT: ClassVar = True
    node: str
    nodes: str
    head: str = ""
    address: str = ""
    hosts: str = ""


@attrs.frozen(kw_only=True)
class GangTask:
    """How the nodes of an attempt find each other (`worker.cluster`): the same for all of them.

    `topology` names a platform of `worker.cluster.TOPOLOGIES`; of another one, `variables` are those by which it tells
    a node its place.
    """

    COMPACT: ClassVar = True
    topology: str
    note: str
    token: str
    timeout: float | None
    variables: Topology | None = None


@attrs.frozen(kw_only=True)
class HookFacts:
    """What a hook gets of a step that is over, or, without a step, of a run."""

    run: str
    pipeline: str
    step: str
    status: str
    cause: str = ""
    message: str = ""
    traceback: str = ""
    advice: str = ""


@attrs.frozen(kw_only=True)
class WorkerJob:
    """What a worker gets of a job.

    `step` is the number of a step that it knows, or that is among `steps`. `inputs` are trees as in
    `core.plan.StepPlan`, with values only. `mark`: others may stand in line behind it, so that the worker marks where
    its output ends. `timed`: the worker says when it begins. `context` says of `run`, `key` and `attempt` what the
    job's name does not say. `accelerators` is the lease of its devices. `limit` is the file in which
    the worker reads that the job's time is nearly over. A job of the kind "hook" calls `hook` with `told`.
    """

    COMPACT: ClassVar = True
    LATE: ClassVar = {"Lease": "stoker.core.devices", "Launch": "stoker.core.launch"}
    job: str
    step: int
    inputs: Mapping[str, Any]
    kind: Literal["step", "hook"] = "step"
    mark: bool = False
    timed: bool = False
    context: Mapping[str, Any] = attrs.field(factory=dict)
    launch: Launch | None = None
    accelerators: Lease | None = None
    gang: GangTask | None = None
    limit: str = ""
    hook: FunctionSource | None = None
    told: HookFacts | None = None
    steps: Mapping[str, StepTask] = attrs.field(factory=dict)
    version: int = VERSION


# What a worker says


@attrs.frozen(kw_only=True)
class StepError:
    """What was raised, or went wrong. `place` is the user's line; `because` are the exceptions below it, as Python
    prints them.

    Of a distributed step: `rank` of `world_size` failed first, and `failed_ranks` before they were ended; `node` went
    away; `stacks` by rank are where ranks stood when they hung, `flight_recorder` what NCCL had recorded.
    """

    COMPACT: ClassVar = True
    type: str = ""
    message: str = ""
    traceback: str = ""
    place: str = ""
    because: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    failed_ranks: tuple[int, ...] = ()
    node: int | None = None
    sentence: str = ""
    stacks: Mapping[str, str] = attrs.field(factory=dict)
    flight_recorder: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class WorkerExit:
    """How a worker's process ended: its exit code or the signal, neither where nobody knows. `cpu` in seconds, `peak`
    in bytes of memory; `oom` is the evidence that the kernel killed for want of memory meanwhile."""

    COMPACT: ClassVar = True
    worker: int = 0
    code: int | None = None
    signal: int | None = None
    cpu: float = 0.0
    peak: int = 0
    oom: str = ""

    @property
    def known(self) -> bool:
        """Whether it is known how it ended."""
        return self.code is not None or self.signal is not None


@attrs.frozen(kw_only=True)
class StepResult:
    """How a job went. `outputs` are artifacts by name, as `core.artifact.StoredArtifact.wire` has them; `cpu` in
    seconds, `peak` in bytes, 0 where it is not known of this job alone.

    Of a step that holds devices: what the gate `proved` of them, and why it ran on the CPU (`fallback`). `left` counts
    the processes that the step left behind; a worker that is `retired` takes no further job. `exited`: the worker died,
    and another process says so. Of one node of a gang: `failed_at` in seconds since the epoch, and whether its failure
    is only the `echo` of another's.
    """

    COMPACT: ClassVar = True
    job: str = ""
    ok: bool
    outputs: Mapping[str, Any] = attrs.field(factory=dict)
    start: float = 0.0
    end: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    cause: str = ""
    exit_code: int | None = None
    error: StepError | None = None
    proved: Mapping[str, str] = attrs.field(factory=dict)
    fallback: str = ""
    left: int = 0
    retired: bool = False
    exited: WorkerExit | None = None
    failed_at: float | None = None
    echo: bool = False
    version: int = VERSION


@attrs.frozen(kw_only=True)
class WorkerEvent:
    """One thing that a worker says of a job while it runs, or a platform of it.

    `kind` says what it is: "up", the program of a job elsewhere runs; "began", the step does, at `time` in seconds
    since the epoch; "lease", the devices that the platform gave, in `lease`; "lines" of ranks, each its time, stream,
    rank and text; "noted", something for the run's record: `note` is the record's kind and `data` its facts. A receiver
    passes over kinds that it does not know.
    """

    COMPACT: ClassVar = True
    LATE: ClassVar = {"Lease": "stoker.core.devices"}
    kind: str
    job: str = ""
    time: float = 0.0
    lines: tuple[tuple[float, str, int | None, str], ...] = ()
    lease: Lease | None = None
    note: str = ""
    data: Mapping[str, Any] = attrs.field(factory=dict)
    version: int = VERSION


# A fork server


@attrs.frozen(kw_only=True)
class ServerHello:
    """The first thing that a fork server is told: what it takes over and imports, and where workers find artifacts."""

    COMPACT: ClassVar = True
    path: tuple[str, ...]
    folder: str
    blobs: str
    checkpoints: str = ""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    preload: tuple[str, ...] = ()
    sources: tuple[FunctionSource, ...] = ()


@attrs.frozen(kw_only=True)
class ServerFork:
    """Fork a worker, for one job alone (`once`) or many, and beside it a monitor of a lease's devices: `watch` is the
    lease as JSON, which the server does not look into."""

    COMPACT: ClassVar = True
    worker: int
    once: bool
    environment: Mapping[str, str] = attrs.field(factory=dict)
    watch: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class ServerEnd:
    """End a worker: SIGTERM now, SIGKILL after `grace` seconds."""

    COMPACT: ClassVar = True
    worker: int
    grace: float


@attrs.frozen(kw_only=True)
class ServerOrder:
    """One message to a fork server: one of its fields is given."""

    COMPACT: ClassVar = True
    hello: ServerHello | None = None
    fork: ServerFork | None = None
    end: ServerEnd | None = None
    version: int = VERSION


@attrs.frozen(kw_only=True)
class ServerNews:
    """One message of a fork server: a worker runs as process `pid`, or a worker has ended."""

    COMPACT: ClassVar = True
    forked: int | None = None
    pid: int = 0
    exited: WorkerExit | None = None
    version: int = VERSION
