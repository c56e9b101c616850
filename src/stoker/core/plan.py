"""The plan of a run, and the jobs that its backends receive: values that have a JSON form.

A `Plan` is stored with its run, so that `stoker resume` does not trace again. `Job` is one attempt of one step.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Iterator, Literal, Mapping, Sequence

import attrs

from stoker.core.data import StepData
from stoker.core.findings import Finding, Reporter
from stoker.core.graph import StepOutput
from stoker.core.protocol import FunctionSource, HookFacts, StepResult, WorkerEvent
from stoker.core.registry import Artifact, Model
from stoker.core.secret import mask_words
from stoker.core.settings import PipelineSettings, StepSettings
from stoker.core.status import JobState
from stoker.core.values import frozen

if TYPE_CHECKING:
    from stoker.core.cadence import LossRate
    from stoker.core.devices import Lease
    from stoker.core.receipt import Proof
    from stoker.core.sweep import SweepPlan

PLAN_VERSION = 1


@frozen(kw_only=True)
class StepPlan:
    """One node with every setting resolved."""

    LATE: ClassVar = {
        "LossRate": "stoker.core.cadence",
        "Proof": "stoker.core.receipt",
        "SweepPlan": "stoker.core.sweep",
    }
    key: str
    name: str
    source: FunctionSource
    outputs: tuple[StepOutput, ...]
    unpack: bool
    """Whether the function returns a tuple with one element for each output, not one value."""
    inputs: Mapping[str, Any]
    """Parameter → a tree whose leaves are `{"value": <artifact>}` or `{"step": key, "output": name}`, and whose
    branches are `{"list": [...]}` and `{"dict": {...}}`. A value that was given by name has it: `"named": [name,
    version]`."""
    settings: StepSettings
    backend: str
    """The name under which the run has its backend."""
    code: str
    """The digest of the step's code, for the cache."""
    packages: tuple[str, ...] = ()
    """The packages that its code names, whose versions are part of the cache key."""
    lookups: tuple[str, ...] = ()
    """`file:line` of each place where its code finds other code by a name that is known only when it runs."""
    of_main_block: tuple[str, ...] = ()
    """Names that its code reads and the script's main block sets, each with its place: where steps run, they are not
    set so."""
    mapped: tuple[str, ...] = ()
    """The inputs that are iterated over; with any, the step is a fan-out."""
    sweep: SweepPlan | None = None
    """How the `mapped` inputs, which are not in `inputs` then, come by their values."""
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
    """The reference of the image in which it runs, by digest where that is known, or the definition of which its node
    builds it (`images.dockerfile`); empty without a container."""
    lock: str = ""
    """The digest of the lock of what its image installs, in the plan's `locks`; empty without one."""
    environment: str = ""
    """The Python environment of its own that it gets on this machine; empty for the driver's."""
    runner: str = ""
    """What runs a task of the function, as "module:attribute"; empty where it is called with its inputs."""
    data: Mapping[str, StepData] = attrs.field(factory=dict)
    """What is brought to its node, by name, as it was when the run was planned."""
    proof: Proof | None = None
    """Whether it can use its accelerators, as far as that is known before the run; None for a step that asks for
    none."""
    losses: LossRate | None = None
    """How often it is lost, for its `checkpoint_every="auto"`; None where nothing asks for it."""
    price: float | None = None
    """US dollars an hour of the machines of one attempt; None where that is not known."""
    shares_checkpoints: bool = False
    """Whether it may load checkpoints of other runs' steps, as a flow's step with `@checkpoint`."""

    @functools.cached_property
    def named_outputs(self) -> Mapping[str, Artifact]:
        """The outputs that have names beyond the run."""
        return {output.name: output.artifact for output in self.outputs if output.artifact is not None}

    @functools.cached_property
    def needs(self) -> tuple[str, ...]:
        """The keys of the steps that must succeed first, each once."""
        sources = [key for tree in self.inputs.values() for key, _ in source_outputs(tree)]
        return tuple(dict.fromkeys([*self.after, *sources]))


def uses_cache(step: StepPlan) -> bool:
    """Whether the step's result is taken from the cache and kept in it.

    It is not if the step's code looks up other code by name, which no key can know but its own `cache_key`; unless it
    was given `cache=True`. Nor is it if nobody knows what its data is.
    """
    if step.data and not all(one.identity for one in step.data.values()):
        return False
    return step.settings.cache is not False and (not step.lookups or not lookup_text(step) or cached_anyway(step))


def named_inputs(step: StepPlan) -> Iterator[tuple[str, str, int]]:
    """The versions of artifacts that a step is given by name: (parameter, name, version)."""
    for parameter, tree in step.inputs.items():
        pending = [tree]
        while pending:
            branch = pending.pop()
            if "named" in branch:
                yield (parameter, *branch["named"])
            pending += branch.get("list", ())
            pending += branch.get("dict", {}).values()


def without_secrets(plan: Plan) -> Plan:
    """The plan as it is shown: what a script's command line says of secrets is masked."""
    masked: dict[int, FunctionSource] = {}
    steps = []
    for step in plan.steps:
        source = masked.get(id(step.source))
        if source is None:
            source = masked[id(step.source)] = attrs.evolve(step.source, argv=mask_words(step.source.argv))
        hooks = {name: attrs.evolve(hook, argv=mask_words(hook.argv)) for name, hook in step.hooks.items()}
        steps.append(attrs.evolve(step, source=source, hooks=hooks))
    own = plan.source and attrs.evolve(plan.source, argv=mask_words(plan.source.argv))
    hooks = {name: attrs.evolve(hook, argv=mask_words(hook.argv)) for name, hook in plan.hooks.items()}
    return attrs.evolve(plan, steps=tuple(steps), source=own, hooks=hooks)


def cached_anyway(step: StepPlan) -> bool:
    """Whether somebody asked for a step's cache, so that it counts although its code cannot be followed everywhere."""
    return step.settings.cache is True and "cache" in step.origins


def source_outputs(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The steps and their outputs that a tree of inputs (`StepPlan.inputs`) names, in its order."""
    if "step" in tree:
        return [(str(tree["step"]), str(tree["output"]))]
    branches = tree["list"] if "list" in tree else tree["dict"].values() if "dict" in tree else ()
    return [pair for branch in branches for pair in source_outputs(branch)]


def source_keys(tree: Mapping[str, Any]) -> list[str]:
    """The keys of the steps whose outputs a tree of inputs names, in its order."""
    return [key for key, _ in source_outputs(tree)]


def steps_of(backend: str, steps: Sequence[StepPlan]) -> list[StepPlan]:
    """The steps of one backend, from all in their order; each is also `after` those that it depends on through steps of
    other backends, which that backend does not know."""
    backends = {step.key: step.backend for step in steps}
    sources: dict[str, list[str]] = {}
    """Step → the steps of the backend on which it depends, directly or through others'."""
    own = []
    for step in steps:
        direct = [key for key in step.needs if backends.get(key) == backend]
        through = [key for other in step.needs if other not in direct for key in sources.get(other, ())]
        sources[step.key] = [*dict.fromkeys([*direct, *through])]
        if step.backend == backend:
            more = [key for key in dict.fromkeys(through) if key not in step.needs]
            own.append(attrs.evolve(step, after=(*step.after, *more)) if more else step)
    return own


def lookup_text(step: StepPlan) -> str:
    """Where the step's code looks up other code by a name that is known only when it runs; empty if that is nowhere."""
    if not step.lookups or step.settings.cache_key is not None:
        return ""
    return f"it looks up code by name at {places_text(step.lookups)}"


def places_text(places: Sequence[str]) -> str:
    """The first three of some places, and how many more there are."""
    return ", ".join(places[:3]) + (f" and {len(places) - 3} more" if len(places) > 3 else "")


def reporter_of(step: StepPlan) -> Reporter:
    """The reporter of findings about a step."""
    return Reporter(where=f"{step.where} step '{step.name}'", step=step.name)


@frozen(kw_only=True)
class RunOrigin:
    """The run that another run repeats."""

    run: str
    """Its id."""
    reuse: bool = False
    """Whether results of its finished steps are taken by reference."""
    start: str = ""
    """The step that runs again, with everything after it; empty where only what the origin did not finish runs."""


@frozen(kw_only=True)
class Plan:
    """A pipeline ready to run."""

    pipeline: str
    steps: tuple[StepPlan, ...]
    parameters: Mapping[str, Any]
    """The artifacts of the arguments of its call; those that cannot be saved are left out, unless it is dynamic."""
    failure_mode: Literal["fail_fast", "continue"]
    stack: str
    settings: PipelineSettings = attrs.field(factory=PipelineSettings)
    """Those of the run as a whole; a resumed run keeps them."""
    where: str = ""
    source: FunctionSource | None = None
    """Where a later session finds the pipeline; None where no file has it by a name."""
    dynamic: bool = False
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    """The pipeline's own, under "on_success" and "on_failure"."""
    findings: tuple[Finding, ...] = ()
    package: str = ""
    """The digest of the user's code in the artifact store, where steps run in images."""
    program: Mapping[str, Any] = attrs.field(factory=dict)
    """What a later session needs beside `source` to make the program again, from the first one's command line."""
    request: Mapping[str, Any] = attrs.field(factory=dict)
    """What the command line asked of the run (`core.request.RunRequest.document`)."""
    files: Mapping[str, str] = attrs.field(factory=dict)
    """The files of the user's own that the program had imported: path → digest of its text in the database."""
    origin: RunOrigin | None = None
    """The run that this one repeats; None for a run of its own."""
    locks: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """The packages of the steps' images: the documents of `core.packages.Lock` by the digest of what was resolved."""
    model: Model | None = None
    """The model that the run makes or uses a version of."""
    model_version: int | None = None
    """The version that it uses; None for the one that it makes."""
    version: int = PLAN_VERSION


@frozen(kw_only=True)
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
    secrets: Mapping[str, str] = attrs.field(factory=dict, repr=False, eq=False)
    """The values of the secrets that it refers to, by reference; never written down."""
    pipeline: str = ""
    """The name of the pipeline, for people who look at the platform."""
    avoid: tuple[str, ...] = ()
    """Nodes, or UUIDs of devices, where it must not run: attempts of this run found them faulty."""


@frozen(kw_only=True)
class Code:
    """The code that is sent along with images."""

    package: str = ""
    """The digest of a package of the user's code."""
    root: str = ""
    """The folder that the package was made of."""
    bundle: str = ""
    """A folder with Stoker's worker, for images that lack it."""


@frozen(kw_only=True)
class Site:
    """Where a run's workers find the artifact store, scratch space and the user's modules."""

    artifacts: str
    """The address of the artifact store."""
    scratch: str
    """A folder for files that only this run needs."""
    metrics: str = ""
    """The folder in which steps on this machine log of themselves."""
    path: tuple[str, ...] = ()
    """`sys.path` of the user's modules."""
    folder: str = "."
    """The working directory."""
    sources: tuple[FunctionSource, ...] = ()
    preload: tuple[str, ...] = ()
    """Packages that the user's modules import and that need no device to be chosen."""
    worker_imports: tuple[str, ...] = ()
    """Modules of Stoker's that the user's modules import."""
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
    registry: str = ""
    """The stack's container registry, such as "ghcr.io/team", for images that are built; empty without one."""
    imports: str = ""
    """The file that says what steps with a process of their own import; empty for none."""


@frozen(kw_only=True)
class LogLine:
    """One line that a step wrote: seconds since the epoch, "stdout" or "stderr", its text without the newline.

    `rank` is the process of a distributed step that wrote it, None for a step of one process, and for the launcher.
    `aside` lines are for the log alone: what a launcher, and ranks that are ended, write once a rank has failed.
    """

    time: float
    stream: str
    text: str
    rank: int | None = None
    aside: bool = False


@frozen(kw_only=True)
class JobUsage:
    """What a job used; None where it was not measured."""

    COMPACT: ClassVar = True
    cpu: float | None = None
    """Seconds."""
    peak: int | None = None
    """Bytes of memory: the peak of all processes of the job together; of several nodes, the sum of their peaks."""
    ranks: Mapping[str, int] = attrs.field(factory=dict)
    """Of a distributed step: the peak of each rank with what it started, in bytes, by the rank's number."""
    waits: Mapping[str, float] = attrs.field(factory=dict)
    """Of a distributed step: the share of its time that each rank spent in collective operations, by its number."""
    lost: float | None = None
    """Seconds of work after the last checkpoint that failures ended; None where none did, or it is not known."""
    restarting: float | None = None
    """Of a distributed step whose launcher started ranks again: seconds from their failures until they were there."""


@frozen(kw_only=True)
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


@frozen(kw_only=True)
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
