"""What Stoker's processes say to each other: the driver, fork servers, workers, ranks' agents, and programs elsewhere.

Each document is a frozen value, written and read by `core.codec`: compact, so that a field at its default is left out,
and tolerant, so that a field or a kind of event that a newer version added is passed over. A document without a version
is of the first one. Workers import this module when they start: it is light, and knows none of the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Mapping

import attrs

from stoker.core.units import UNSET
from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.data import DataCache, StepData
    from stoker.core.devices import Lease
    from stoker.core.settings import Launch


@frozen(kw_only=True)
class FunctionSource:
    """How another process than the user's finds a function."""

    kind: Literal["script", "module", "pickled"]
    """`script` runs the file at `path` as `module`, never as `__main__`; `module` imports `module` with `root` on
    `sys.path`; `pickled` loads the artifact `digest`, for notebooks, which have no file."""
    module: str
    qualname: str
    path: str = ""
    root: str = ""
    digest: str = ""
    argv: tuple[str, ...] = ()
    """The driver's `sys.argv`, which the process gets: a script may read its command line when it is imported."""
    metaflow: bool = False
    """Whether `import metaflow` means `stoker.flow` in it (`core.standins`)."""
    zenml: bool = False
    """Whether `import zenml` means `stoker.integrations.zenml` in it."""
    caller: str = UNSET
    """Of a hook: the function (`module:name`) that calls it with a `HookFacts`, where it takes something else."""


VERSION: Final = 1
JOB: Final = "job"
"""The note of an event that tells of a job's state on its platform: `state` ("sent", "running" or "ended"), `time` in
seconds since the epoch, and what is known of where it is (`job`, `id`, `node`, `partition`, `task`, `url`)."""
STRAGGLER: Final = "straggler"
"""The note of an event that names a rank for which others wait: `rank`, the `share` of the time, and a `message`."""
RESIZED: Final = "resized"
"""The note of an event that says which nodes of a gang went away or came: its `message`."""
ASIDE: Final = "aside"
"""The note of lines that are for the log alone."""
EXTRA_TIME: Final = "extra time"
"""The note that says that what a step does from now on may take `seconds` more than its timeout."""
BROUGHT: Final = "brought"
"""The note that says how long a step waited for its `data`, and for each: what it is, its bytes, and those that came
from its place."""
DIED: Final = "died"
"""The kind of event by which an agent says that a rank ended otherwise than by its own code's will."""
MAPPED: Final = "mapped"
"""The kind of the event that has the inputs of a dynamic pipeline's fan-out, over whose elements it goes."""
METRICS: Final = "metrics"
"""The kind of event that has what a step logged of itself."""
LEFT_OUT: Final = "left-out"
"""The kind of the event by which a run leaves out faulty places: `places` of `backend`, which are nodes or devices
(`kind`) of the machine `host`, which is empty where a node's name says it, for `cause` and `message` of `attempt`."""
ADOPTED: Final = "adopted"
"""The note of an event that tells that a job is the one of an earlier driver: `attempt` is the number that it had."""
NODE_ID: Final = "STOKER_NODE_ID"
"""The variable by which a worker learns what its platform calls its machine, where that is not the host's name."""
MARK: Final = "\x1estoker "
"""Begins a line of standard output that is a message of Stoker's, as JSON."""
RESULT: Final = "result.json"
"""The file beside a job's document that says how the job ended."""
CREDENTIALS: Final = "/run/stoker/environment.json"
"""Inside a container: variables that neither the engine nor the image may show."""
SECRET_VALUES: Final = "/run/stoker/secrets.json"
"""Inside a container: the values of the job's secrets by reference."""


# What a worker gets


@frozen(kw_only=True)
class StepTask:
    """What a worker gets of a step, once. `runner` names what runs a task of the function, as "module:attribute";
    empty where it is called with its inputs. `discards`: what the function returns is kept by another rank. `track`
    names the libraries whose calls are logged as metrics. `previews`: an output that is pickled gets one. `data` is
    brought to the node before the step begins, into `data_cache`."""

    COMPACT: ClassVar = True
    LATE: ClassVar = {"StepData": "stoker.core.data", "DataCache": "stoker.core.data"}
    name: str
    source: FunctionSource
    outputs: tuple[str, ...]
    unpack: bool
    split: tuple[str, ...]
    environment: Mapping[str, str]
    runner: str = ""
    discards: bool = False
    track: tuple[str, ...] = ()
    previews: bool = True
    data: Mapping[str, StepData] = attrs.field(factory=dict)
    data_cache: DataCache | None = None


@frozen(kw_only=True)
class Topology:
    """The variables by which a platform tells a node its place in a gang: its number, how many there are, where the
    first one and this one are reached, or all of them in their order. Empty where it does not say."""

    COMPACT: ClassVar = True
    node: str
    nodes: str
    head: str = ""
    address: str = ""
    hosts: str = ""


@frozen(kw_only=True)
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
    least: int = 0
    """The nodes with which the step goes on where others are missing; 0 where it needs all."""


@frozen(kw_only=True)
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
    type: str = ""
    """The name of the exception's class, with its module unless that is `builtins`."""

    def __str__(self) -> str:
        return self.message


@frozen(kw_only=True)
class SealedSecrets:
    """Half of a job's secrets in base64, which says nothing without the other half in the file or object `place`."""

    half: str = attrs.field(repr=False)
    place: str


@frozen(kw_only=True)
class WorkerJob:
    """What a worker gets of a job.

    `step` is the number of a step that it knows, or that is among `steps`. `inputs` are trees as in
    `core.plan.StepPlan`, with values only. `mark`: others may stand in line behind it, so that the worker marks where
    its output ends. `timed`: the worker says when it begins. `context` says of `run`, `key` and `attempt` what the
    job's name does not say. `accelerators` is the lease of its devices. `limit` is the file in which
    the worker reads that the job's time is nearly over. A job of the kind "hook" calls `hook` with `told`.
    `secrets` are the values of the secrets that the job refers to, by reference; `sealed` stands for them where the
    document passes through what others can read (`worker.secrets`).
    """

    COMPACT: ClassVar = True
    LATE: ClassVar = {"Lease": "stoker.core.devices", "Launch": "stoker.core.settings"}
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
    secrets: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    sealed: SealedSecrets | None = None
    version: int = VERSION


# What a worker says


@frozen(kw_only=True)
class StepError:
    """What was raised, or went wrong. `place` is the user's line; `because` are the exceptions below it, as Python
    prints them.

    Of a distributed step: `rank` of `world_size` failed first, at the time `at` (of ranks that hung: since when they
    stood still), and `failed_ranks` before they were ended; `node` went away or could not take part; `stacks` by rank
    are where ranks stood when they hung, `flight_recorder` what NCCL had recorded.

    `earlier` says why its launcher started the ranks anew before, from the first start to the last.

    `machine` is what the platform calls the one whose devices the gate refuses.

    `digest` is the artifact whose bytes are lost or damaged. `whole` is the digest of the bytes of the whole traceback
    as text, where this one is cut; in the driver it is the path of the file that has them.
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
    machine: str = ""
    sentence: str = ""
    earlier: str = ""
    at: float = 0.0
    stacks: Mapping[str, str] = attrs.field(factory=dict)
    flight_recorder: Mapping[str, str] = attrs.field(factory=dict)
    digest: str = ""
    whole: str = ""


@frozen(kw_only=True)
class Operation:
    """A collective operation of a rank: the `number`th of its `group`, of `subject` (a tensor's shape and type, a
    root), called at `place` of the user's code. `ended` is 0 while it runs, and below 0 where it raised."""

    COMPACT: ClassVar = True
    number: int
    name: str
    subject: str = ""
    group: str = ""
    place: str = ""
    began: float = 0.0
    ended: float = 0.0


@frozen(kw_only=True)
class RankEvidence:
    """What is known of one rank when a step has failed. Times are in seconds since the epoch, of the agent's clock.

    `end` is "" while it runs, "returned", "raised", "died" (a signal that it got by itself, or an exit) or "asked": it
    was ended by SIGTERM. `error` is what it raised, or, `raising`, what was on its way through its `finally` blocks.
    `stands` is the user's line of its main thread and `text` that line; `lock` is what it waits for there. `threads`
    are what its other threads died of, by name. `said` is what it printed last, of one that died. `operations` are its
    last ones, `counts` the number of the last one in each group, and `waited` the seconds that all of them took.
    `recorded` are the last ones in torch's flight recorder, which has those that are called from C++, too, and not from
    where; only of ranks that gave an account.
    """

    COMPACT: ClassVar = True
    rank: int
    end: str = ""
    at: float = 0.0
    status: int | None = None
    cause: str = ""
    error: StepError | None = None
    raising: bool = False
    stands: str = ""
    text: str = ""
    lock: str = ""
    threads: Mapping[str, StepError] = attrs.field(factory=dict)
    said: str = ""
    operations: tuple[Operation, ...] = ()
    counts: Mapping[str, int] = attrs.field(factory=dict)
    waited: float = 0.0
    recorded: tuple[Operation, ...] = ()


@frozen(kw_only=True)
class WorkerExit:
    """How a worker's process ended: its exit code or the signal, neither where nobody knows. `cpu` in seconds, `peak`
    in bytes of memory; `oom` is the evidence that the kernel killed for want of memory meanwhile. `survivors` are pids
    of processes that it started and that SIGKILL does not end."""

    COMPACT: ClassVar = True
    worker: int = 0
    code: int | None = None
    signal: int | None = None
    cpu: float = 0.0
    peak: int = 0
    oom: str = ""
    survivors: tuple[int, ...] = ()

    @property
    def known(self) -> bool:
        """Whether it is known how it ended."""
        return self.code is not None or self.signal is not None


@frozen(kw_only=True)
class StepResult:
    """How a job went. `outputs` are artifacts by name, as `core.artifact.StoredArtifact.wire` has them; `cpu` in
    seconds, `peak` in bytes, 0 where it is not known of this job alone. `rank_peaks` are those of a distributed step's
    ranks, by number, and `rank_waits` the share of its time that each of them spent in collective operations.

    Of a step that holds devices: what the gate `proved` of them, and why it ran on the CPU (`fallback`). `left` counts
    the processes that the step left behind; a worker that is `retired` takes no further job. `exited`: the worker died,
    and another process says so. Of one node of a gang: `failed_at` in seconds since the epoch, whether its failure is
    only the `echo` of another's, and the `evidence` of its ranks. Of a process of its own: the `imports` that one for
    the same step may find there. Of a distributed step that failed, or whose launcher started ranks again: `lost` are
    the seconds of work after the last checkpoint, and `restarting` those without ranks. `called` and `returned` are
    when the step's function was, in seconds since the epoch; 0 where loading its inputs and saving its outputs took
    next to nothing.
    """

    COMPACT: ClassVar = True
    job: str = ""
    ok: bool
    outputs: Mapping[str, Any] = attrs.field(factory=dict)
    start: float = 0.0
    end: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    rank_peaks: Mapping[str, int] = attrs.field(factory=dict)
    rank_waits: Mapping[str, float] = attrs.field(factory=dict)
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
    evidence: tuple[RankEvidence, ...] = ()
    imports: tuple[str, ...] = ()
    called: float = 0.0
    returned: float = 0.0
    lost: float | None = None
    restarting: float | None = None
    version: int = VERSION


@frozen(kw_only=True)
class WorkerEvent:
    """One thing that a worker says of a job while it runs, or a platform of it.

    `kind` says what it is: "up", the program of a job elsewhere runs since `time` in seconds since the epoch, on the
    `host` in `data`; "began", the step does since `time`; "lease", the devices that the platform gave, in `lease`;
    "lines" of ranks, each its time, stream, rank and text; "died", a rank did, whatever it was doing; "metrics", what
    the step logged: the "rows" in `data` (`core.metrics`); "noted", something for the run's record: `note` is the
    record's kind and `data` its facts. A receiver passes over kinds that it does not know.
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


@frozen(kw_only=True)
class ServerHello:
    """The first thing that a fork server is told: what it takes over and imports, and where workers find artifacts."""

    COMPACT: ClassVar = True
    path: tuple[str, ...]
    folder: str
    blobs: str
    checkpoints: str = ""
    metrics: str = ""
    """The folder of what steps log of themselves."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables to set."""
    gone: tuple[str, ...] = ()
    """Variables to remove."""
    preload: tuple[str, ...] = ()
    sources: tuple[FunctionSource, ...] = ()


@frozen(kw_only=True)
class ServerFork:
    """Fork a worker, for one job alone (`once`) or many, and beside it a monitor of a lease's devices: `watch` is the
    lease as JSON, which the server does not look into. `contain`: in a cgroup of its own, where one can be made.
    `preload` are packages to import before (`worker.imports`)."""

    COMPACT: ClassVar = True
    worker: int
    once: bool
    preload: tuple[str, ...] = ()
    contain: bool = False
    environment: Mapping[str, str] = attrs.field(factory=dict)
    watch: Mapping[str, Any] | None = None


@frozen(kw_only=True)
class ServerEnd:
    """End a worker: SIGTERM now, SIGKILL after `grace` seconds."""

    COMPACT: ClassVar = True
    worker: int
    grace: float


@frozen(kw_only=True)
class ServerOrder:
    """One message to a fork server: one of its fields is given."""

    COMPACT: ClassVar = True
    hello: ServerHello | None = None
    fork: ServerFork | None = None
    end: ServerEnd | None = None
    version: int = VERSION


@frozen(kw_only=True)
class ServerNews:
    """One message of a fork server: a worker runs as process `pid`, or a worker has ended."""

    COMPACT: ClassVar = True
    forked: int | None = None
    pid: int = 0
    exited: WorkerExit | None = None
    version: int = VERSION
