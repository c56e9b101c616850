"""What a backend is: one value that registers it, and the protocols of what it does once it is opened.

A `Backend` says everything that must be known of a platform before a run: its settings, its words in flows, its checks
for `stoker doctor`, what `stoker gc` removes. Opening it for one run gives a `RunningBackend`, whose methods every
backend has. What only some of them can do are capabilities, each a protocol of its own; ask for one with `capability`.
"""

from __future__ import annotations

import functools
import os
import shlex
import sys
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Collection,
    Final,
    Iterable,
    Literal,
    Mapping,
    Protocol,
    Sequence,
    TypeVar,
    runtime_checkable,
)

import attrs

from stoker.core.errors import UsageError
from stoker.core.findings import Check
from stoker.core.plugins import resolve
from stoker.core.secret import Secret
from stoker.core.values import IdentityKey, frozen
from stoker.worker.secrets import read

if TYPE_CHECKING:
    from stoker.backends.base.leasing import Leasing
    from stoker.backends.base.pulling import Puller
    from stoker.core.cron import Cron
    from stoker.core.devices import Lease
    from stoker.core.findings import Finding
    from stoker.core.packages import Interpreter
    from stoker.core.plan import Capacity, Code, Job, JobStatus, Site, StepPlan
    from stoker.core.protocol import StepResult, StepTask, WorkerJob


NOT_HERE: Final = "STK345"
"""The platform gives no way to its jobs, or none from this machine."""


@frozen(kw_only=True)
class RunningAttempt:
    """An attempt of a step that runs."""

    run: str
    key: str
    attempt: int
    host: str
    """The machine of the run's driver."""
    placement: Mapping[str, Any] = attrs.field(factory=dict)
    """Where it is on a platform with a queue, by the names of `client.placements.Placement`."""
    identity: Mapping[str, Any] = attrs.field(factory=dict)
    """What its backend recorded of its job, as `Backend.end_recorded` takes it, and where the job runs."""
    devices: Mapping[str, str] = attrs.field(factory=dict)
    """The variables by which a process of this machine sees its devices."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """The variables that the step's settings name, without secrets."""


@frozen(kw_only=True)
class Beside:
    """A place where commands run beside an attempt."""

    where: str
    """The place in words, such as "this machine"."""
    argv: tuple[str, ...] = ()
    """The command of this machine that runs there what is appended to it."""
    terminal: tuple[str, ...] = ()
    """The same for a command that gets a terminal."""
    inner: tuple[str, ...] | None = None
    """Where `argv` is a login to another machine: the command there, before what is appended, which both are one word
    of the login, for its shell to read."""
    inner_terminal: tuple[str, ...] = ()
    """The same for a command that gets a terminal."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables that the process was given when it was there already."""
    only_prints: str = ""
    """Why commands get no standard input and no terminal there, and what to do about it; empty where they get both."""

    def words(self, command: Sequence[str], *, terminal: bool) -> list[str]:
        """The command of this machine that runs a command there."""
        terminal = terminal and not self.only_prints
        outer, inner = (self.terminal, self.inner_terminal) if terminal else (self.argv, self.inner or ())
        return [*outer, *command] if self.inner is None else [*outer, shlex.join([*inner, *command])]


def no_way(attempt: RunningAttempt, why: str, *, fix: str) -> UsageError:
    """The refusal of a platform that gives no way to its jobs."""
    job = str(attempt.identity.get("job") or attempt.placement.get("job") or "")
    where = f" is {job}" if job else " runs there"
    return UsageError(f"step '{attempt.key}'{where}, which cannot be entered: {why} ({NOT_HERE})", fix=fix)


@frozen(kw_only=True)
class NodeDevices:
    """Accelerators of one kind on a node."""

    model: str
    """The platform's name for them, or the catalog's where a label tells the model."""
    count: float
    free: float | None = None
    """How many nothing asked for; None where the platform does not tell."""


@frozen(kw_only=True)
class PlatformNode:
    """A node of a platform, or several that are alike; amounts are those of each."""

    name: str
    """Its name; of several as the platform lists them, such as "gpu[01-08]"."""
    count: int = 1
    state: str = ""
    """The platform's word, such as "idle" or "not ready"."""
    group: str = ""
    """Partitions of Slurm that it is in."""
    cpus: float | None = None
    memory: int | None = None
    """Bytes; None where the platform does not tell."""
    devices: tuple[NodeDevices, ...] = attrs.field(factory=tuple)


T = TypeVar("T")
Settings = TypeVar("Settings", bound=attrs.AttrsInstance)

BY_ITSELF: Final = "STK369"
"""The code of the finding about a setting for which a step gets a job or a pod of its own."""
RESOURCES: Final = ("cpu", "gpu", "memory", "disk", "shared_memory", "gpu_vendor")
"""What Metaflow's decorators of platforms call a step's resources."""
ACCELERATORS: Final = ("trainium", "inferentia")
"""Further resources that some of those decorators take: AWS's accelerators, counted."""


@frozen(kw_only=True)
class Services:
    """What a session hands to a backend that it opens. A backend takes what it has a use for."""

    leasing: Leasing | None = None
    """Leases this machine's devices to jobs."""
    environments: Callable[[str], Interpreter] | None = None
    """The interpreter of a Python environment by its name, for steps that have one of their own."""
    execute: Callable[[WorkerJob, StepTask], StepResult] | None = None
    """Runs a job in this process: the worker's own function."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of every process on this machine that runs steps: the name of the run's stack."""


NO_SERVICES: Final = Services()


class RunningBackend(Protocol):
    """A backend that was opened for one run: turns a job into a platform's own request, submits, watches, cancels."""

    name: str

    def capacity(self) -> Capacity | None:
        """What may run at once; None where the platform itself keeps a queue."""

    def check(self, step: StepPlan) -> Iterable[Finding]:
        """Field by field: honoured (silent), translated (how), refused (why, what instead). No network."""

    def render(self, job: Job) -> Mapping[str, Any]:
        """Exactly what `submit` sends, as JSON; pure."""

    def submit(self, job: Job) -> str:
        """Start the job and return its id; submitting a job of the same name twice starts it once."""

    def poll(self, ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """The state of many jobs in one call. An id that is not mentioned is unknown, never a success.

        A backend with `wakeups` mentions only the jobs of which there is news."""

    def wakeups(self) -> Iterable[int]:
        """File descriptors that turn readable when `poll` has news; empty for a platform that must be asked."""

    def cancel(self, id: str, *, grace: float) -> None:
        """End the job: ask, and after `grace` seconds force. A job that is already gone is fine."""

    def close(self) -> None:
        """Let go of everything that this process started."""


# Capabilities of a running backend


@runtime_checkable
class ProvesPlacement(Protocol):
    """Its platform can be asked whether it will ever be able to run a step."""

    def prove(self, steps: Sequence[StepPlan]) -> Iterable[Finding]:
        """What the platform can never give these steps; asks it."""


RESTARTED_BY: Final = "STOKER_RESTARTED_BY"
"""The variable by which a driver knows the job, in words, whose script starts it again when it ends with `LEFT`, is
killed, or is started elsewhere by the platform."""
SENDS_LOGS: Final = "STOKER_SENDS_LOGS"
"""The variable by which a driver knows that nobody else sees its home: it keeps copies of its run's logs in the
database, for readers on other machines."""
LEFT: Final = 75
"""A driver's exit code when it left its run for the next start of its job: sysexits.h's EX_TEMPFAIL."""


@runtime_checkable
class GathersJobs(Protocol):
    """It waits for further jobs before it sends those submitted, in order to send them together."""

    def complete(self) -> None:
        """Nothing more is submitted before a job has ended: what was submitted may be sent."""


@frozen(kw_only=True)
class DetachedRun:
    """What a platform must know of a run before it can say whether it can run its driver."""

    home: str
    """The folder of logs, and by default of everything else."""
    database: str = attrs.field(repr=False)
    """Its URI, which may have a password."""
    artifacts: str
    """The URI of the artifact store."""
    dynamic: bool = False
    """Whether the driver itself runs code of the user's."""
    elsewhere: Mapping[str, str] = attrs.field(factory=dict)
    """Steps that another part of the stack runs than its orchestrator → that part's flavor."""
    secrets: Collection[str] = ()
    """References of secrets that the driver reads for steps; of a dynamic run, those that are known before."""


@frozen(kw_only=True)
class DriverStart:
    """The driver of a detached run, as it is to be started on a platform."""

    run: str
    """The run's id."""
    name: str
    """The name of the job."""
    words: tuple[str, ...]
    """The command line behind a Python interpreter."""
    environment: Mapping[str, str]
    """Variables that the driver needs on top of its platform's own."""
    folder: str
    """This machine's working folder."""
    output: str
    """The file beside the run's logs that takes what the driver writes."""
    facts: DetachedRun
    code: Code
    """The user's code as it was sent along, and Stoker itself."""
    stack: str = attrs.field(repr=False)
    """A stoker.toml with the run's stack, complete but for the `variables` in it."""
    variables: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    """Values of the variables of the environment that it names."""
    read_secret: Callable[[Secret], str] = read
    """Reads the values of secrets on this machine."""

    @property
    def argv(self) -> list[str]:
        """The command line for a place that has this machine's folders."""
        settings = (f"{name}={text}" for name, text in self.environment.items())
        return ["env", *settings, sys.executable, *self.words]


@frozen(kw_only=True)
class DriverJob:
    """A job that was submitted to run a driver."""

    place: str
    """Which one, in words; `Backend.has_driver` finds it by them."""
    output: str = ""
    """The file of this machine that the driver writes to; empty where it writes elsewhere."""


@frozen(kw_only=True)
class TimerJob:
    """A command and when it is to be started."""

    mark: str
    """The object's name on the platform: "stoker-", the schedule's name, and the store that it is of."""
    title: str
    """What it is, in words."""
    cron: Cron
    zone: str
    words: tuple[str, ...]
    """The command line, the interpreter first."""
    folder: str
    environment: Mapping[str, str] = attrs.field(factory=dict)
    output: str
    """The file that takes what the command writes."""
    paused: bool = False
    start: Callable[[], DriverStart] | None = None
    """The same for a platform that has nothing of this machine's."""


class Timer(Protocol):
    """Starts commands at the times of schedules."""

    def check(self, job: TimerJob) -> None:
        """Raise `SettingsError` for what the platform cannot do; asks nobody."""

    def put(self, job: TimerJob) -> str:
        """Write the job's object in place of an earlier one; returns which it is, in words."""

    def remove(self, mark: str) -> None:
        """Remove an object; one that is gone is fine."""

    def marks(self) -> Sequence[str]:
        """The marks of the objects that are there."""


@runtime_checkable
class Detaches(Protocol):
    """Its platform can run the driver of a detached run.

    The script of that job says by `RESTARTED_BY` that it starts the driver again. It sends SIGUSR1 when the driver is
    to leave the run to a later start, and SIGINT when it is to end the run; the driver ignores SIGTERM, which a
    platform may send in both cases.
    """

    def may_detach(self, run: DetachedRun) -> None:
        """Raise `UsageError` where the driver could not work on the platform; asks nobody."""

    def detach(self, start: DriverStart) -> DriverJob:
        """Submit a job that runs the driver."""


@runtime_checkable
class BringsDriver(Protocol):
    """Its platform has nothing of this machine's: Stoker itself and its driver's packages are sent along."""

    brings_driver: Literal[True]


@runtime_checkable
class LeavesJobs(Protocol):
    """Its jobs go on without their driver, and a later driver adopts them."""

    def leave(self) -> None:
        """Send, poll and end nothing more; jobs go on. Nothing else is called afterwards."""


@runtime_checkable
class LeasesDevices(Protocol):
    """Its requests name devices of this machine, which are leased to a job before it starts."""

    def render_leased(self, job: Job, leases: Sequence[Lease]) -> Mapping[str, Any]:
        """What `submit` sends for a job that holds the devices of these leases, one lease a node."""


@runtime_checkable
class RunsByHand(Protocol):
    """Its jobs can be run without Stoker's driver, by a script for a shell."""

    def by_hand(self, job: Job, request: Mapping[str, Any]) -> str:
        """A script that does what `submit` would, from what `render` returned for the job; pure.

        Values are those of `request`, in which secrets are masked. It says what is missing where a run would make it.
        """


@runtime_checkable
class ProvidesPackages(Protocol):
    """A step gets the packages that it asks for."""

    packages_in: Literal["image", "environment"]
    """Where: in the image that the step runs in, or in a Python environment of its own on this machine."""


@runtime_checkable
class SharesKernel(Protocol):
    """Its jobs are processes beside the driver, so that this machine's kernel knows how they ended."""

    shares_kernel: Literal[True]


@runtime_checkable
class RunsInDriver(Protocol):
    """Its jobs are run by the driver's own process, in which the program's main block has run."""

    runs_in_driver: Literal[True]


@runtime_checkable
class LeavesOut(Protocol):
    """A backend that keeps a job away from what `Job.avoid` names."""

    leaves_out: Literal["node", "device"]
    """What it names: nodes as the platform calls them, or devices of this machine by UUID."""

    def has_other_place(self, step: StepPlan, avoid: Sequence[str]) -> bool:
        """Whether a step may find a place beside those to avoid; true where only the platform knows."""


@runtime_checkable
class ExpectsSteps(Protocol):
    """A backend whose platform is told of all steps of a run at once, and of those that end without a job."""

    def expect(self, steps: Sequence[StepPlan]) -> None:
        """Steps of the run that may be submitted from now on; before the first of them is."""

    def settle(self, key: str, *, success: bool) -> None:
        """No job of a step comes any more; `success`: it has succeeded, or its result was there already."""


@runtime_checkable
class KeepsSecrets(Protocol):
    """A backend that brings the values of a job's secrets to its worker without showing them to anybody else."""

    keeps_secrets: Literal[True]


@frozen(kw_only=True)
class PlatformNotice:
    """What happened to a backend's platform as a whole."""

    kind: Literal["platform-away", "platform-back", "left"]
    """It does not answer; it answers again; jobs that may still run were left there. The kind of the run's event."""
    text: str
    """The same in words."""
    data: Mapping[str, Any] = attrs.field(factory=dict)
    """For the record, as JSON; of "left" the identities of the `jobs`, as `Backend.end_recorded` takes them."""


@runtime_checkable
class ReportsPlatform(Protocol):
    """Its platform may stop answering: it reports that, and leaves its jobs there when it is to end at once."""

    def notices(self) -> Sequence[PlatformNotice]:
        """What is new of the platform since the last call."""

    def silence(self) -> str:
        """Which platform has not answered, since when, and what was tried; empty for one that answers."""


def capability(backend: RunningBackend, kind: type[T]) -> T | None:
    """The backend as one that has a capability; None where it has not."""
    return backend if isinstance(backend, kind) else None


# The registration


@frozen(kw_only=True)
class FlowDecorator:
    """The decorator by which a step of a flow says that it runs on a platform, as `@slurm(partition="gpu")`.

    Its words are those for resources and the fields of the platform's settings that may be given for one step.
    """

    name: str
    """The decorator's name; of a backend, the backend's own."""
    title: str
    """What the platform is called in texts."""
    settings: type[attrs.AttrsInstance]
    """The class that checks the words which are no resources."""
    help: str
    """The decorator's docstring."""
    resources: tuple[str, ...] = (*RESOURCES, *ACCELERATORS)
    """The words for resources."""


@frozen(kw_only=True)
class Sweep:
    """What `stoker gc` knows when it asks a backend for its leftovers."""

    scratch: str
    """The folder of scratch files, in which this machine's backends keep theirs."""
    artifacts: str
    """The URI of the artifact store."""
    running: Collection[str]
    """Ids of runs that go on."""
    interrupted: Collection[str] = ()
    """Ids of runs whose driver died: nothing of them goes without `force`."""
    resumable: Collection[str] = ()
    """Ids of runs that `stoker resume` can continue, those among them: what is done of them stays without `force`."""
    force: bool = False
    """End and remove what belongs to these runs, too; results that wait to be adopted are kept all the same."""
    known: Collection[str]
    """Ids of runs that are in the database."""
    ours: Collection[str]
    """The same, and those that this very sweep has deleted: what belongs to others' runs is left."""
    needed: Callable[[], Collection[str]]
    """Digests that any plan names."""
    now: float
    """Seconds since the epoch."""
    dry_run: bool
    """Count, and remove nothing."""
    say: Callable[[str], None]
    """Takes a line for the person, such as the name of a platform that does not answer."""

    @property
    def kept(self) -> frozenset[str]:
        """Ids of runs of which nothing goes that may still be needed."""
        return frozenset((*self.running, *(() if self.force else (*self.interrupted, *self.resumable))))


@frozen(kw_only=True)
class ProbeRequest:
    """What `stoker doctor --stack` tells a backend that it probes."""

    scratch: str
    """The folder of scratch files, in which this machine's backends keep theirs."""
    store: str
    """The URI of the stack's artifact store."""
    patience: float
    """Seconds to wait until a platform with a queue starts a job."""


@frozen(kw_only=True)
class Preparation:
    """What must be made on a platform before a stack works there."""

    text: str
    """All of it, as the platform's own tools take it."""
    what: str
    """The same in a few words."""
    apply: Callable[[], None] | None
    """Makes it, or raises `BackendError`; None where this account may not, so that somebody else must."""


@frozen(kw_only=True)
class StackSetup:
    """How `stoker stacks setup` makes a stack of a backend."""

    questions: Mapping[str, str]
    """Field of the settings → what is asked of a person; the first one must be answered."""
    complete: Callable[[str], str]
    """The first answer as the settings take it."""
    suggest: Callable[[Mapping[str, str]], Mapping[str, str]]
    """What the other fields usually are, by the first one's answer; asks the platform. `BackendError` where it does not
    answer, `SettingsError` for an answer that is none."""
    usual: Callable[[], str] | None = None
    """The first answer where nobody gives one; None where a person must."""
    name: Callable[[str], str] | None = None
    """A name for the stack by the first answer; None: that of a host."""
    store: str = ""
    """What is asked for the artifact store, which must be given then; empty where the stack needs none of its own."""
    usual_store: str = ""
    """The store where nobody gives one; empty where a person must."""
    store_details: Callable[[str], Mapping[str, str]] = lambda store: {}
    """What else is asked for a store that is to be made → what it usually is; empty for a store that must be there."""
    store_questions: Mapping[str, str] = attrs.field(factory=dict)
    """What `store_details` may name → the words of its question."""
    with_store: Callable[[Mapping[str, str], str], Mapping[str, str]] = lambda settings, store: settings
    """The settings of a stack with this artifact store."""
    prepare: Callable[[Mapping[str, Any], str, Mapping[str, str]], Preparation | None] | None = None
    """What must be made before a stack with these settings, this artifact store and these answers to `store_details`
    works; None if nothing. Asks the platform."""
    device_step: Callable[[Mapping[str, Any]], Mapping[str, Any] | None] = lambda settings: None
    """The options of a step that gets one accelerator of a stack with these settings, as JSON; None where the platform
    has none, or does not tell. Asks the platform."""


@frozen(kw_only=True)
class LeftJob:
    """A job of a run without a driver that goes on, or whose result waits until `stoker resume` adopts it."""

    run: str
    name: str
    """What the platform calls it, such as a container's name."""
    running: bool
    result: str = ""
    """The result's text, which names artifacts; empty while it runs."""


@frozen(kw_only=True)
class Leftover:
    """What of one kind was removed, or would be; what several backends tell of one kind is added up."""

    kind: str
    """The key of the count in `--json`, such as "job_folders"."""
    noun: str
    """What one is called after a number, such as "folder"."""
    rest: str
    """What is said after that, such as "of runs on clusters"."""
    count: int
    size: int | None = None
    """Bytes that are free then; None where that is not known."""


def settings_of(step: StepPlan, kind: type[Settings], options: Mapping[str, Any]) -> Settings:
    """A backend's settings for one step: `options`, with which the backend was opened, and over them the step's own."""
    own = next(iter(step.settings.backend.values()), None)  # a step runs on one part of the stack
    settings: Settings = _settings_of(IdentityKey(own), kind, IdentityKey(options))
    return settings


@functools.lru_cache(maxsize=64)
def _settings_of(own: IdentityKey[Any], kind: type[Any], options: IdentityKey[Mapping[str, Any]]) -> Any:
    return kind(**{**options.value, **(own.value or {})})


def later(target: str, *, takes: int | None = None) -> Callable[..., Any]:
    """The function at `"module:function"`, for a field of `Backend`: imported when it is first called.

    takes: how many of the field's arguments the function has; all of them by default.
    """
    return lambda *arguments: resolve(target)(*arguments[:takes])


def of_parts(target: str, *, folder: str = "") -> Callable[..., Any]:
    """The same for `left_jobs`, `end_left` and `leftovers`. Where no part of a stack is of the backend, and no run has
    left this folder of the scratch folder, nothing is imported, and nothing found."""

    def found(parts: Sequence[Mapping[str, Any]], where: Sweep | str, *others: Any) -> Any:
        scratch = where.scratch if isinstance(where, Sweep) else where
        there = parts or (folder and os.path.isdir(f"{scratch}/{folder}"))
        return resolve(target)(parts, where, *others) if there else ()

    return found


def reach(
    name: str, *, commands: Iterable[str] = (), files: Iterable[str] = (), variables: Iterable[str] = ()
) -> Sequence[Check]:
    """A line of `stoker doctor`: which commands on the PATH, files and folders (with "~") and variables are there to
    reach a platform with. No file is read, and no platform asked."""
    import shutil

    there = [path for command in commands if (path := shutil.which(command)) is not None]
    there += [path for file in files if os.path.exists(path := os.path.expanduser(file))]
    there += [variable for variable in variables if os.environ.get(variable)]
    return [Check(name=name, found=", ".join(there) or "nothing to reach it with (optional)")]


@frozen
class NoSettings:
    """The settings of a backend that has none."""


@frozen(kw_only=True, eq=False)
class Backend:
    """One backend, complete: whatever else names it does so by looking here."""

    name: str
    """The flavor: what `orchestrator = "…"` in stoker.toml names."""
    title: str
    """What it is called in texts and tables."""
    open: Callable[[Site, Mapping[str, Any], Services], RunningBackend]
    """Makes the backend that runs the jobs of one run, from its settings as a mapping."""
    settings: type[attrs.AttrsInstance] = NoSettings
    """The attrs class of its settings, in the stack and of steps; each field has a default. One with the metadata
    `core.units.WHOLE_RUN` is refused for one step."""
    resources: Callable[[Mapping[str, Any]], Mapping[str, tuple[str, Any]]] | None = None
    """What its settings of a step ask for in the words of `ResourceSettings`: a field there → the field of the settings
    and the value. A step that asks in both ways for different things is refused; None where no field is such a word."""
    room: Callable[[Mapping[str, Any]], Capacity] | None = None
    """What this machine gives to steps under these settings; None where steps are no processes of this machine."""
    image_engine: Callable[[Mapping[str, Any]], str] | None = None
    """The address of the engine on which images of steps are built, under these settings ("" for the usual one); None
    where steps run in no images that Stoker builds."""
    timer: Callable[[Mapping[str, Any]], Timer] | None = None
    """What starts schedules on the platform itself, by settings of the stack; None where this machine does it."""
    unasked: tuple[str, ...] = ()
    """Codes of the findings that say no more than that the platform could not be asked: who only builds images for it
    is not refused for them."""
    puller: Callable[[Mapping[str, Any]], Puller | None] | None = None
    """Who pulls the images of steps where they run, under these settings (None where nothing runs images there). A
    backend that names one runs its steps on other machines: images that are built for it are pushed to the stack's
    container registry, and its jobs name them by digest. None for a backend whose steps run on the engine that builds
    their images, or in none."""
    parent_image: Callable[[Mapping[str, Any]], str] | None = None
    """The image from which a step's own is built where its `docker` settings name none, under these settings ("" for
    that of Stoker's choice). A backend with this function runs every step in an image, so that a step's packages become
    part of it; None for one that may run steps in none."""
    default_store: Callable[[Mapping[str, Any]], str] | None = None
    """The URI of the artifact store of a stack that names none, under these settings of its orchestrator; "" for the
    folder of this machine, as without this function."""
    complete_store: Callable[[Mapping[str, Any], str], str] | None = None
    """The URI of a stack's artifact store with what it takes to reach it, by these settings of the orchestrator, so
    that it alone suffices. None for a backend that has no stores of its own kind."""
    sends_code: bool = False
    """The user's code is sent along as a package, as it was when the run began."""
    decorator: FlowDecorator | None = None
    """Its decorator in flows; None where there is none."""
    doctor: Callable[[], Iterable[Check]] = tuple
    """Its lines in `stoker doctor`; no secret is read."""
    probe: Callable[[Mapping[str, Any], ProbeRequest], Iterable[Check]] | None = None
    """What `stoker doctor --stack` finds of a part of a stack with these settings: asks the platform, and may run
    something small there. What does not answer is a problem of a check, no error."""
    nodes: Callable[[Mapping[str, Any]], Sequence[PlatformNode]] | None = None
    """The platform's nodes, by settings of the stack, for `stoker top`: asks the platform. A `BackendError` where it
    does not answer; None for one that has no nodes, or none that an account may see."""
    setup: StackSetup | None = None
    """How a person makes a stack of it; None where nothing need be asked."""
    left_jobs: Callable[[Sequence[Mapping[str, Any]], str, Collection[str]], Iterable[LeftJob]] | None = None
    """The jobs that runs without a driver left: is given settings as `leftovers` is, the folder of scratch files, and
    the runs' ids. A `BackendError` where a platform does not answer."""
    end_left: Callable[[Sequence[Mapping[str, Any]], str, str, float], Iterable[LeftJob]] | None = None
    """Ends such jobs of one run, with so many seconds to leave, and returns those that ran. What was done is kept."""
    leftovers: Callable[[Sequence[Mapping[str, Any]], Sweep], Iterable[Leftover]] | None = None
    """Removes what earlier runs left behind, for `stoker gc`; is given the settings of every part of a stack that is of
    this backend."""
    has_driver: Callable[[Mapping[str, Any], str], bool] | None = None
    """Whether the job of a detached driver still waits or runs, by settings of the stack and the words of `detach`.
    Raises `Away` where the platform does not answer."""
    why_no_driver: Callable[[Mapping[str, Any], str], str] | None = None
    """Why the job of a detached driver is over that never began its run, by the same; empty where nothing says why.
    None where the platform does not tell."""
    beside: Callable[[Mapping[str, Any], RunningAttempt], Iterable[Beside]] | None = None
    """The places of a running attempt in which `stoker exec`, `dump` and `forward` run commands, by settings of the
    stack: one a node. A `UsageError` where they cannot; None where the platform gives no way to its jobs."""
    end_recorded: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], Sequence[str]] | None = None
    """Ends jobs that a driver left on the platform, by settings of the stack and the identities that it recorded;
    returns their names. Raises `Away` where the platform does not answer, and may then be repeated."""
