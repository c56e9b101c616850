"""What the machine must know of a planned step."""

from __future__ import annotations

from typing import Any, Collection, Final, Mapping, Sequence

from stoker.core.events import Task
from stoker.core.plan import StepPlan
from stoker.core.units import UNSET

DEFAULT_CPUS: Final = 1.0
"""What a step counts for where it does not say: one core, so that a machine is filled but not overrun."""


def step_task(step: StepPlan, fanouts: Collection[str], tried: int) -> Task:
    """The task of one node; over another fan-out's elements it only waits until these are known."""
    requires: list[str] = list(step.after)
    for name, tree in step.inputs.items():
        for key in _sources(tree):
            requires.append(f"{key}[]" if name in step.mapped and key in fanouts and "step" in tree else key)
    return _task(step, key=step.key, requires=tuple(dict.fromkeys(requires)), fanout=bool(step.mapped), tried=tried)


def element_task(step: StepPlan, key: str, requires: Sequence[str], tried: int) -> Task:
    """The task of one element of a fan-out."""
    return _task(step, key=key, requires=tuple(requires), parent=step.key, tried=tried)


def lines_up(step: StepPlan) -> bool:
    """Whether elements of this fan-out may stand in line behind each other: nothing may hang on when one starts."""
    settings = step.settings
    return settings.timeout is None and settings.isolation == "warm" and not step.hooks


def _task(step: StepPlan, **fields: Any) -> Task:
    settings = step.settings
    resources, retry = settings.resources, settings.retry
    element = bool(fields.get("parent"))
    fanout = bool(fields.get("fanout"))
    return Task(
        pool=step.backend,
        cpus=_or(resources.cpu_count, DEFAULT_CPUS),
        memory=_or(resources.memory, 0),
        gang=_or(resources.nodes, 1),
        retries=retry.times,
        retry_on=frozenset(retry.on),
        delay=retry.delay,
        backoff=retry.backoff,
        max_delay=retry.max_delay,
        jitter=retry.jitter,
        timeout=settings.timeout,
        on_success="on_success" in step.hooks and not fanout,
        on_failure="on_failure" in step.hooks and not fanout,
        ahead=element and lines_up(step),
        **fields,
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is UNSET or value is None else value


def _sources(tree: Mapping[str, Any]) -> list[str]:
    if "step" in tree:
        return [tree["step"]]
    if "list" in tree:
        return [key for item in tree["list"] for key in _sources(item)]
    if "dict" in tree:
        return [key for item in tree["dict"].values() for key in _sources(item)]
    return []
