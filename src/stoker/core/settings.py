"""What a person asks for besides resources, one layer at a time, and the resolved settings of one step: values only.

`settings.options` parses every option into a layer, `plan.layers` merges the layers.

How the ranks of a distributed step are started is a value, too: a layer holds `{"launcher": "accelerate",
"num_processes": 4, "arguments": {"mixed_precision": "bf16"}}` or a part of that. The launchers themselves, and what may
be written for each, are in `launchers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Iterable, Literal, Mapping

import attrs

from stoker.core import units
from stoker.core.accelerators import Accelerator
from stoker.core.data import DataCache
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError, nearest
from stoker.core.ladder import Alternative, Halve, Rung, Scale, parse_ladder
from stoker.core.packages import PackageSettings
from stoker.core.plugins import entry_points
from stoker.core.resources import WATCHED, AcceleratorPolicy, HealthCheck, Monitor, OnIdle, ResourceSettings
from stoker.core.status import CAUSES, NEVER_RETRIED
from stoker.core.units import UNSET, parse_texts, strict
from stoker.core.values import frozen

if TYPE_CHECKING:
    from datetime import timedelta

__all__ = [
    "COMPONENTS",
    "NO_RETRY",
    "UNSET",
    "DockerSettings",
    "FailureMode",
    "Isolation",
    "Layer",
    "Level",
    "Monitor",
    "OnHangup",
    "PackageSettings",
    "PipelineSettings",
    "ResourceSettings",
    "Retry",
    "StepSettings",
    "fields_given",
]

MAX_DELAY: Final = 3600.0
"""Seconds between two attempts beyond which a run looks hung."""
Outputs = Literal["main", "all"]
OUTPUTS: Final[tuple[Outputs, ...]] = ("main", "all")


def parse_times(value: int | str) -> int:
    """How often an attempt may be repeated."""
    raw: Any = value
    return raw if raw is UNSET else units.count(raw)


def parse_causes(value: str | Iterable[str]) -> tuple[str, ...]:
    """Causes after which an attempt is repeated; none is any."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    causes = parse_texts([raw] if isinstance(raw, str) else raw) or ()
    for cause in causes:
        if cause not in CAUSES:
            # A cause of another distribution is called as its entry point.
            others = [entry.name for entry in entry_points("stoker.causes")]
            if cause not in others:
                raise SettingsError(f"there is no cause '{cause}'{nearest(cause, [*CAUSES, *others])}")
        if cause in NEVER_RETRIED:
            raise SettingsError(f"'{cause}' is never tried again: trying again cannot help", fix="remove it")
    return causes


def parse_delay(value: float | str | timedelta) -> float:
    """Seconds."""
    raw: Any = value
    return raw if raw is UNSET else units.duration(raw)


def parse_backoff(value: float | str) -> float:
    """What each wait is multiplied with for the next; 1 keeps it."""
    raw: Any = value
    if raw is UNSET:
        return raw  # type: ignore[no-any-return]
    if units.number(raw) < 1:
        raise SettingsError(f"{value!r} would make each wait shorter than the last", fix="write 1 or more")
    return units.number(raw)


def parse_jitter(value: float) -> float:
    """The part of a wait by which it may be longer or shorter."""
    raw: Any = value
    if raw is UNSET or (isinstance(raw, (int, float)) and not isinstance(raw, bool) and 0 <= raw <= 1):
        return value
    raise SettingsError(f"{value!r} is not a part", fix="write a number from 0 to 1, such as 0.1")


@strict
@frozen
class Retry:
    """`Retry(3)`: up to 3 more attempts after a failure.

    What is not given is `UNSET` until the layers are merged; then it is what `NO_RETRY` has.
    """

    times: int = attrs.field(default=UNSET, converter=parse_times)
    """How many attempts may follow the first one. Not given, it is the number of rungs of `on_oom`."""
    on: tuple[str, ...] = attrs.field(default=UNSET, converter=parse_causes, kw_only=True)
    """The causes after which another attempt is made; none is any that another attempt may cure."""
    delay: float = attrs.field(default=UNSET, converter=parse_delay, kw_only=True)
    """Seconds of the first wait."""
    backoff: float = attrs.field(default=UNSET, converter=parse_backoff, kw_only=True)
    """The n-th wait is `delay * backoff ** (n - 1)`."""
    max_delay: float = attrs.field(default=UNSET, converter=parse_delay, kw_only=True)
    """Seconds of the longest wait."""
    jitter: float = attrs.field(default=UNSET, converter=parse_jitter, kw_only=True)
    """The part of a wait by which it may be longer or shorter, from 0 to 1."""
    on_oom: tuple[Rung, ...] = attrs.field(default=UNSET, converter=parse_ladder, kw_only=True)
    """A ladder: after an attempt that ran out of memory the next rung that can help is taken, and the request stays
    changed. Where none is left, another attempt is made only if `on` names the cause."""


# No delay by default: on one machine a failure is rarely cured by waiting, and who retries a network says how long.
NO_RETRY: Final = Retry(times=0, on=(), delay=0.0, backoff=2.0, max_delay=MAX_DELAY, jitter=0.1, on_oom=())


Level = Literal["pipeline", "step"]
FailureMode = Literal["fail_fast", "continue"]
OnHangup = Literal["stop", "detach"]
"""What a lost terminal (SIGHUP) means for a run: it is asked to stop, or goes on by itself."""
Isolation = Literal["warm", "fresh"]

COMPONENTS: Final = ("orchestrator", "step_operator")
"""Parts of a stack that have settings of their own, under the key `<part>` or `<part>.<flavor>`."""


@frozen(kw_only=True)
class Layer:
    """What one place asks for: only what was given there, as plain values."""

    origin: str
    """The place, such as a file and its line."""
    values: Mapping[str, Any] = attrs.field(factory=dict)
    """Option → value. Settings of a part of the stack stand under "orchestrator.local", or "orchestrator.*" where no
    flavor was named."""
    origins: Mapping[str, str] = attrs.field(factory=dict)
    """Dotted key → a finer place, such as a line of a file."""
    level: Level = "pipeline"
    """"step" where one step is addressed: what cannot hold for one step is refused there."""


ANYTHING: Final = ResourceSettings()
TRACKED: Final = ("tensorboard", "mlflow", "wandb")
"""Libraries whose own calls can be logged as metrics, too (`worker.tracking`)."""


@frozen(kw_only=True)
class StepSettings:
    """Everything asked for one step, all layers merged."""

    resources: ResourceSettings = ANYTHING
    docker: DockerSettings | None = None
    packages: PackageSettings | None = None
    retry: Retry = NO_RETRY
    timeout: float | None = None
    """Seconds of one attempt; None is no limit."""
    cache: bool | Literal["strict"] = True
    """"strict": unless the step's code looks up other code by a name that is known only when it runs."""
    cache_key: Any = None
    """A JSON value that is part of the cache key."""
    cache_expires: float | None = None
    """Seconds for which the result is taken from the cache; None is no limit."""
    isolation: Isolation = "warm"
    """"fresh" runs the step in a new process, "warm" in one that may have run others."""
    accelerator_policy: AcceleratorPolicy = "require"
    """"prefer" runs the step on the CPU where its accelerators are missing."""
    health_check: HealthCheck = "off"
    """"quick": devices do some seconds of work before a run's first step on them."""
    on_idle_gpu: OnIdle = "warn"
    """What happens to a step whose devices stay idle."""
    monitor: Monitor = WATCHED
    checkpoint_every: float | Literal["auto"] | None = None
    """Seconds of work between two checkpoints, for `context.checkpoint_due`; "auto": what costs the least."""
    track: tuple[str, ...] = ()
    """Those of `TRACKED` whose own calls are logged as metrics, too."""
    previews: bool = True
    """Whether the worker makes a preview of an output that is pickled."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of the step's process."""
    data: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """What is brought to the node before the step begins: name → `uri`, `include` and `exclude` (`core.data`)."""
    data_cache: DataCache | None = None
    """Where a node keeps it for later steps."""
    launch: Launch | None = None
    step_operator: str | None = None
    """The name of the backend that runs this step in place of the orchestrator."""
    backend: Mapping[str, Any] = attrs.field(factory=dict)
    """Settings of the part of the stack on which the step runs: `{"orchestrator": {"max_workers": 4}}`."""


@frozen(kw_only=True)
class PipelineSettings:
    """Everything asked for a run as a whole, all layers merged."""

    failure_mode: FailureMode = "fail_fast"
    """What a failed step means for the others: "continue" goes on with those that do not depend on it."""
    on_hangup: OnHangup = "stop"
    """What a lost terminal means: the run stops, or goes on by itself."""
    max_parallel: int | None = None
    """How many steps run at once on each backend; None is as many as fit."""
    require_proof: bool = False
    """Whether a step whose accelerators are not proved (`core.receipt`) refuses the plan."""
    deadline: float | str | None = None
    """When the run is over at the latest: seconds after its start, a time of the day, or a moment (ISO 8601)."""
    budget: str | None = None
    """What the run costs at most: "50 USD", "20 device hours"."""
    backend: Mapping[str, Any] = attrs.field(factory=dict)
    """The options of each of the run's backends, by the name under which steps call it: "orchestrator", or that of a
    step operator."""


def fields_given(value: Any) -> dict[str, Any]:
    """The fields that were given, as plain values: what a layer holds of a settings object."""
    return {
        name: _bare(content)
        for name in (field.name for field in attrs.fields(type(value)))
        if (content := getattr(value, name)) is not UNSET
    }


def _bare(value: Any) -> Any:
    if isinstance(value, (Accelerator, Halve, Scale, Alternative)):
        return str(value)
    if isinstance(value, (tuple, list)):
        return [_bare(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _bare(item) for key, item in value.items()}
    return value


DEFAULT_CPUS: Final = 1.0
"""Cores of a step that names none: a machine is then filled but not overrun. A step that must have accelerators takes
none: there are fewer of them than cores, so that they decide how many such steps run."""


@frozen(kw_only=True)
class Demand:
    """What each node of a step takes."""

    cpus: float
    """Cores."""
    memory: int
    """Bytes."""
    devices: int
    """Accelerators that it takes whole."""


def demand(settings: StepSettings) -> Demand:
    """What each node of a step takes of its backend's capacity."""
    resources = settings.resources
    devices = resources.gpus_per_node
    must_have = devices and settings.accelerator_policy == "require"
    return Demand(
        cpus=resources.get("cpu_count", 0.0 if must_have else DEFAULT_CPUS),
        memory=resources.get("memory", 0),
        devices=0 if devices and resources.get("share") else devices,
    )


@frozen(kw_only=True)
class Launch:
    """How a step's ranks are started. Made by `Accelerate(…)` and its like; a field not given is `UNSET`.

    Where neither number is given, each accelerator gets one rank, and a node without any runs one.
    """

    launcher: str = UNSET
    """The launcher's name."""
    num_processes: int | None = UNSET
    """Ranks on all nodes."""
    processes_per_node: int | None = UNSET
    """Ranks on each node."""
    outputs: Outputs = UNSET
    """"main": rank 0's return value is the step's; "all": a list of every rank's."""
    hang_after: float | None = UNSET
    """Seconds in which no rank does anything, after which the step is ended; None for no limit."""
    gang_timeout: float | None = UNSET
    """Seconds that nodes wait for each other; None for no limit."""
    start_timeout: float | None = UNSET
    """Seconds within which the launcher must have started all ranks of a node; None for no limit."""
    one_world: bool = UNSET
    """Whether all ranks form one world: a framework that counts another number of ranks fails the step."""
    command: tuple[str, ...] | None = UNSET
    """The words of a launcher of the user's own."""
    arguments: Mapping[str, Any] = attrs.field(default=UNSET)
    """The launcher's own arguments by their Python names."""


# 10 minutes is NCCL's own limit for one collective (torch.distributed's default timeout with NCCL,
# https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group); nodes of one gang may be
# minutes apart while images are pulled. A launcher imports torch before it starts ranks, which takes up to two minutes
# from a cold network disk; ranks report before they import any framework.
DEFAULTS: Final = Launch(
    launcher="single",
    num_processes=None,
    processes_per_node=None,
    outputs="main",
    hang_after=600.0,
    gang_timeout=600.0,
    start_timeout=300.0,
    one_world=True,
    command=None,
    arguments={},
)
"""What a step on several nodes is started by that names no launcher: itself, once on each."""
LIMITS: Final = ("hang_after", "gang_timeout", "start_timeout")
"""Durations of which None says that there is no limit."""
OWN: Final = tuple(field.name for field in attrs.fields(Launch) if field.name != "arguments")
"""Words of Stoker's own; all others are the launcher's."""


def plain(launch: Launch) -> dict[str, Any]:
    """The fields that were given, as a layer holds them."""
    fields = attrs.asdict(launch, recurse=False, filter=lambda _, value: value is not UNSET)
    if fields.get("command") is not None:
        fields["command"] = list(fields["command"])
    if "arguments" in fields:
        fields["arguments"] = dict(fields["arguments"])
    return fields
