"""The policy of a run, a step's execution on its way to its end, and the machine's task of a step or an element."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Collection, Mapping, Sequence

import attrs

from stoker.core.ladder import climbed_after
from stoker.core.plan import StepPlan, source_keys
from stoker.core.protocol import FunctionSource
from stoker.core.settings import demand
from stoker.core.values import frozen
from stoker.engine.events import TaskSpec
from stoker.engine.inputs import StepBindings
from stoker.plan.cachekey import Environment, KeyParts
from stoker.worker.secrets import SecretReader

if TYPE_CHECKING:
    from stoker.engine.limits import RunLimits


@frozen(kw_only=True)
class Policy:
    """How a run is executed."""

    pipeline: str
    """The pipeline's name."""
    environment: Environment
    """The environment of every step without an image or environment of its own, for cache keys."""
    fail_fast: bool = True
    """Whether the first failed step ends the run."""
    use_cache: bool = True
    """Whether results of the cache are taken; they are written in any case."""
    anew: Callable[[StepPlan], bool] | None = None
    """Whether a step runs although the cache has its result; None: no step does."""
    max_parallel: int | None = None
    """How many steps run at once on each backend; None is as many as fit."""
    limits: RunLimits | None = None
    """The run's deadline and budget."""
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    """The pipeline's own hooks, by "on_success" and "on_failure"."""
    secrets: SecretReader = attrs.field(factory=SecretReader)
    """Reads the values of secrets, and masks them."""


class StepExecution:
    """A step on its way: what it was bound to, its cache key, and the facts of its latest attempt."""

    __slots__ = ("cache_key", "digests", "ending", "facts", "inputs", "recipe", "step")

    def __init__(self, step: StepPlan, inputs: Mapping[str, Any], parts: KeyParts | None = None) -> None:
        self.step = step
        # Trees by parameter; emptied when the step is settled.
        self.inputs = inputs
        # Parameter → the digests of its values, emptied likewise, and the key; empty where there is nothing to look up:
        # a fan-out, or a result of an earlier session.
        self.digests = parts.inputs if parts is not None else {}
        self.cache_key = parts.key if parts is not None else ""
        # The name of what the cache key is made of beside the inputs; empty with the key.
        self.recipe = ""
        # The cause for which we are ending the attempt; empty while we are not.
        self.ending = ""
        self.facts: dict[str, Any] = {}


def step_task(step: StepPlan, fanouts: Collection[str], tried: int) -> TaskSpec:
    """The task of one step; one that maps over another fan-out only waits until its elements are known."""
    if not step.mapped or step.sweep is not None:
        return _task(step, key=step.key, requires=step.needs, tried=tried, fanout=bool(step.mapped))
    requires: list[str] = list(step.after)
    for name, tree in step.inputs.items():
        for key in source_keys(tree):
            requires.append(f"{key}[]" if name in step.mapped and key in fanouts and "step" in tree else key)
    return _task(step, key=step.key, requires=tuple(dict.fromkeys(requires)), fanout=True, tried=tried)


class ElementTasks(Sequence[TaskSpec]):
    """The tasks of a fan-out's elements, each made when it is asked for: there may be a million of them.

    `tried` tells of an element's key how often it was tried.
    """

    def __init__(self, step: StepPlan, count: int, inputs: StepBindings, tried: Callable[[str], int]) -> None:
        self._step = step
        self._count = count
        self._inputs = inputs
        self._tried = tried
        self._make = element_task(step, step.key)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        key = f"{self._step.key}[{index}]"
        return self._make(key, self._inputs.elements_of(self._step, index), self._tried(key))


def element_task(step: StepPlan, parent: str) -> Callable[[str, Sequence[str], int], TaskSpec]:
    """What makes the task of an element of a fan-out, of its key, what it requires, and how often it was tried.

    `parent` is the fan-out's key, or empty where it does not end with the last element that is known.
    """
    common = {**_common(step), "parent": parent, "ahead": lines_up(step)}

    def make(key: str, requires: Sequence[str], tried: int) -> TaskSpec:
        return TaskSpec(key=key, requires=tuple(requires), tried=tried, **common)

    return make


def escalated_task(step: StepPlan, key: str, parent: str) -> TaskSpec:
    """The task of a step or an element whose request was changed; in a worker's line it would get the old request."""
    return _task(step, key=key, parent=parent)


def lines_up(step: StepPlan) -> bool:
    """Whether elements of this fan-out may wait at a busy worker: nothing may depend on when one starts."""
    settings = step.settings
    return (
        settings.timeout is None
        and settings.isolation == "warm"
        and not step.hooks
        and not settings.resources.gpus_per_node
        and settings.launch is None
        and step.sweep is None  # one that ends early takes its line along
    )


def _task(step: StepPlan, *, fanout: bool = False, **fields: Any) -> TaskSpec:
    return TaskSpec(fanout=fanout, **_common(step, calls_hooks=not fanout), **fields)


def _common(step: StepPlan, *, calls_hooks: bool = True) -> dict[str, Any]:
    """What the tasks of a step and of its elements have in common."""
    settings = step.settings
    retry, counts = settings.retry, demand(settings)
    return {
        "pool": step.backend,
        "cpus": counts.cpus,
        "memory": counts.memory,
        "gang": settings.resources.node_count,
        "devices": counts.devices,
        "retries": retry.times,
        "retry_on": frozenset(retry.on),
        "climbs": climbed_after(retry.on_oom),
        "delay": retry.delay,
        "backoff": retry.backoff,
        "max_delay": retry.max_delay,
        "jitter": retry.jitter,
        "timeout": settings.timeout,
        "on_success": calls_hooks and "on_success" in step.hooks,
        "on_failure": calls_hooks and "on_failure" in step.hooks,
        "trial": step.sweep is not None,
    }
