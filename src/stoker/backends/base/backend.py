"""What a backend is: one value that registers it, and the protocols of what it does once it is opened.

A `Backend` says everything that must be known of a platform before a run: its settings, its words in flows, its checks
for `stoker doctor`, what `stoker gc` removes. Opening it for one run gives a `RunningBackend`, whose methods every
backend has. What only some of them can do are capabilities, each a protocol of its own; ask for one with `capability`.
"""

from __future__ import annotations

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

from stoker.core.findings import Check

if TYPE_CHECKING:
    from stoker.backends.base.leasing import Leasing
    from stoker.core.devices import Lease
    from stoker.core.findings import Finding
    from stoker.core.packages import Interpreter
    from stoker.core.plan import Capacity, Job, JobStatus, Site, StepPlan
    from stoker.core.protocol import StepResult, StepTask, WorkerJob

T = TypeVar("T")
Settings = TypeVar("Settings", bound=attrs.AttrsInstance)

RESOURCES: Final = ("cpu", "gpu", "memory", "disk", "shared_memory", "gpu_vendor")
"""What Metaflow's decorators of platforms call a step's resources."""
ACCELERATORS: Final = ("trainium", "inferentia")
"""Further resources that some of those decorators take: AWS's accelerators, counted."""


@attrs.frozen(kw_only=True)
class Services:
    """What a session hands to a backend that it opens. A backend takes what it has a use for."""

    leasing: Leasing | None = None
    """Leases this machine's devices to jobs."""
    environments: Callable[[str], Interpreter] | None = None
    """The interpreter of a Python environment by its name, for steps that have one of their own."""
    execute: Callable[[WorkerJob, StepTask], StepResult] | None = None
    """Runs a job in this process: the worker's own function."""


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


@runtime_checkable
class Detaches(Protocol):
    """Its platform can run the driver of a detached run."""

    def may_detach(self) -> None:
        """Raise `UsageError` where the driver could not work on the platform; asks nobody."""

    def detach(self, argv: Sequence[str], folder: str, name: str, *, output: str) -> str:
        """Start a command in a folder, its output in a file; where it runs, in words."""


@runtime_checkable
class LeasesDevices(Protocol):
    """Its requests name devices of this machine, which are leased to a job before it starts."""

    def render_leased(self, job: Job, leases: Sequence[Lease]) -> Mapping[str, Any]:
        """What `submit` sends for a job that holds the devices of these leases, one lease a node."""


@runtime_checkable
class ProvidesPackages(Protocol):
    """A step gets the packages that it asks for."""

    packages_in: Literal["image", "environment"]
    """Where: in the image that the step runs in, or in a Python environment of its own on this machine."""


@runtime_checkable
class SharesKernel(Protocol):
    """Its jobs are processes beside the driver, so that this machine's kernel knows how they ended."""

    shares_kernel: Literal[True]


def capability(backend: RunningBackend, kind: type[T]) -> T | None:
    """The backend as one that has a capability; None where it has not."""
    return backend if isinstance(backend, kind) else None


# The registration


@attrs.frozen(kw_only=True)
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


@attrs.frozen(kw_only=True)
class Sweep:
    """What `stoker gc` knows when it asks a backend for its leftovers."""

    scratch: str
    """The folder of scratch files, in which this machine's backends keep theirs."""
    running: Collection[str]
    """Ids of runs that go on."""
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


@attrs.frozen(kw_only=True)
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
    return kind(**{**options, **(own or {})})


@attrs.frozen
class NoSettings:
    """The settings of a backend that has none."""


@attrs.frozen(kw_only=True, eq=False)
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
    room: Callable[[Mapping[str, Any]], Capacity] | None = None
    """What this machine gives to steps under these settings; None where steps are no processes of this machine."""
    image_engine: Callable[[Mapping[str, Any]], str] | None = None
    """The address of the engine on which images of steps are built, under these settings ("" for the usual one); None
    where steps run in no images that Stoker builds."""
    sends_code: bool = False
    """The user's code is sent along as a package, as it was when the run began."""
    decorator: FlowDecorator | None = None
    """Its decorator in flows; None where there is none."""
    doctor: Callable[[], Iterable[Check]] = tuple
    """Its lines in `stoker doctor`; no secret is read."""
    leftovers: Callable[[Sequence[Mapping[str, Any]], Sweep], Iterable[Leftover]] | None = None
    """Removes what earlier runs left behind, for `stoker gc`; is given the settings of every part of a stack that is of
    this backend."""
