"""The keywords of `@step`, `@pipeline` and `.with_options`, taken apart: settings make a layer, the others do not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Final, Iterable, Literal, Mapping, Sequence, TypedDict

from stoker.core.errors import UsageError, nearest
from stoker.core.monitoring import AcceleratorPolicy, HealthCheck, OnIdle
from stoker.core.settings import FailureMode, Isolation, Layer, OnHangup
from stoker.core.units import UNSET
from stoker.core.values import frozen
from stoker.settings.options import OPTIONS, layer_of

if TYPE_CHECKING:
    from datetime import timedelta

    from stoker.core.launch import Launch
    from stoker.core.registry import Model
    from stoker.core.settings import DockerSettings, Monitor, PackageSettings, ResourceSettings, Retry

Hook = Callable[..., Any]
HOOKS: Final = ("on_success", "on_failure")
LAUNCH_MARK: Final = "__stoker_launch__"
"""What a decorator below `@step` leaves on the function: the step's `launch`."""


class Options(TypedDict, total=False):
    """What both a step and a pipeline may say; a pipeline says it for all of its steps."""

    settings: Mapping[str, Any]
    resources: ResourceSettings | Mapping[str, Any] | None
    docker: DockerSettings | Mapping[str, Any] | None
    packages: PackageSettings | Mapping[str, Any] | None
    retry: Retry | Mapping[str, Any] | int | None
    timeout: float | str | timedelta | None
    cache: bool | Literal["strict"]
    cache_key: Any
    cache_expires: float | str | timedelta | None
    isolation: Isolation
    accelerator_policy: AcceleratorPolicy
    health_check: HealthCheck
    on_idle_gpu: OnIdle
    monitor: Monitor | Mapping[str, Any] | float | str | None
    track: str | Sequence[str]
    previews: bool
    environment: Mapping[str, str] | None
    launch: Launch | Mapping[str, Any] | str | None
    step_operator: str | None
    on_success: Hook
    on_failure: Hook


class StepOptions(Options, total=False):
    """Keywords of `@step`."""

    name: str


class CallOptions(StepOptions, total=False):
    """Keywords of a step's `.with_options`: `id` is the step's key in the run, `after` what it waits for."""

    id: str
    after: Any


class PipelineOptions(Options, total=False):
    """Keywords of `@pipeline`: `max_parallel` steps may run at once, `on_hangup` says what a lost terminal means,
    `require_proof` refuses a run with accelerators that are not proved, and the named outputs of a run belong to a
    version of `model`."""

    name: str
    failure_mode: FailureMode
    on_hangup: OnHangup
    max_parallel: int | None
    require_proof: bool
    dynamic: bool
    tags: Iterable[str]
    model: Model | str | None
    stack: str | None


@frozen(kw_only=True, eq=False)
class SplitOptions:
    """The keywords of a decorator, split by what they mean."""

    layers: tuple[Layer, ...]
    """One layer of settings if any was given."""
    hooks: Mapping[str, Hook]
    """Functions by "on_success" and "on_failure"."""
    rest: Mapping[str, Any]
    """The other keywords, as they are."""


def split_options(options: Mapping[str, Any], keywords: Any, *, owner: str, origin: str, step: bool) -> SplitOptions:
    """The keywords of a decorator; `known` is the TypedDict that lists them, `owner` is who complains."""
    names = keywords.__optional_keys__
    for name in options:
        if name not in names:
            if step and name in PipelineOptions.__optional_keys__:
                raise UsageError(f"{owner} has no option '{name}'", where=origin, fix=f"give {name} to @pipeline")
            raise UsageError(f"{owner} has no option '{name}'{nearest(name, names)}", where=origin)
    settings = {name: value for name, value in options.items() if name in OPTIONS and value is not UNSET}
    layers: tuple[Layer, ...] = ()
    if settings or options.get("settings"):
        level: Any = "step" if step else "pipeline"
        layers = (layer_of(origin, options.get("settings"), level=level, **settings),)
    hooks = {name: options[name] for name in HOOKS if options.get(name, UNSET) is not UNSET}
    for name, hook in hooks.items():
        if not callable(hook):
            raise UsageError(f"{owner}: {name}={hook!r} is not a function", where=origin)
    others = {
        name: value for name, value in options.items() if name not in OPTIONS and name not in (*HOOKS, "settings")
    }
    return SplitOptions(layers=layers, hooks=hooks, rest=others)


def with_marks(options: Mapping[str, Any], function: Any, where: str) -> Mapping[str, Any]:
    """The keywords of `@step`, and what decorators below it left on the function."""
    launch = getattr(function, LAUNCH_MARK, None)
    if launch is None:
        return options
    settings = options.get("settings")
    if options.get("launch", UNSET) is not UNSET or (isinstance(settings, Mapping) and "launch" in settings):
        raise UsageError(
            "@step has launch=, and a decorator below it says how to launch, too",
            where=where,
            fix="keep one of the two",
        )
    return {**options, "launch": launch}


def tags_of(tags: Any, where: str) -> tuple[str, ...]:
    """Tags of a run: texts, not one text."""
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"tags={tags!r} is not a list of texts", where=where, fix='write tags=["nightly"]')
    return tuple(tags)
