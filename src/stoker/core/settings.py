"""What a person asks for besides resources, one layer at a time, and the resolved settings of one step: values only.

`settings.options` parses every option into a layer, `plan.layers` merges the layers.
"""

from __future__ import annotations

from typing import Any, Final, Literal, Mapping

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.docker import DockerSettings
from stoker.core.ladder import Alternative, Halve, Scale
from stoker.core.launch import Launch
from stoker.core.monitoring import WATCHED, AcceleratorPolicy, HealthCheck, Monitor, OnIdle
from stoker.core.packages import PackageSettings
from stoker.core.resources import ResourceSettings
from stoker.core.retry import NO_RETRY, Retry
from stoker.core.units import UNSET
from stoker.core.values import frozen

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
    health_check: HealthCheck = "off"
    on_idle_gpu: OnIdle = "warn"
    monitor: Monitor = WATCHED
    track: tuple[str, ...] = ()
    """Those of `TRACKED` whose own calls are logged as metrics, too."""
    previews: bool = True
    """Whether the worker makes a preview of an output that is pickled."""
    environment: Mapping[str, str] = attrs.field(factory=dict)
    """Variables of the step's process."""
    launch: Launch | None = None
    step_operator: str | None = None
    """The name of the backend that runs this step in place of the orchestrator."""
    backend: Mapping[str, Any] = attrs.field(factory=dict)
    """Settings of the part of the stack on which the step runs: `{"orchestrator": {"max_workers": 4}}`."""


@frozen(kw_only=True)
class PipelineSettings:
    """Everything asked for a run as a whole, all layers merged."""

    failure_mode: FailureMode = "fail_fast"
    on_hangup: OnHangup = "stop"
    max_parallel: int | None = None
    """How many steps run at once on each backend; None is as many as fit."""
    require_proof: bool = False
    """Whether a step whose accelerators are not proved (`core.proof`) refuses the plan."""
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
