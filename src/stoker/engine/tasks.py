"""The machine's task of a planned step or of an element."""

from __future__ import annotations

from typing import Any, Collection, Sequence

import attrs

from stoker.core.ladder import climbed_after
from stoker.core.plan import StepPlan, source_keys
from stoker.core.settings import demand
from stoker.engine.events import TaskSpec


def step_task(step: StepPlan, fanouts: Collection[str], tried: int) -> TaskSpec:
    """The task of one step; one that maps over another fan-out only waits until its elements are known."""
    if not step.mapped:
        return _task(step, key=step.key, requires=step.needs, tried=tried)
    requires: list[str] = list(step.after)
    for name, tree in step.inputs.items():
        for key in source_keys(tree):
            requires.append(f"{key}[]" if name in step.mapped and key in fanouts and "step" in tree else key)
    return _task(step, key=step.key, requires=tuple(dict.fromkeys(requires)), fanout=True, tried=tried)


def element_task(step: StepPlan, key: str, requires: Sequence[str], tried: int) -> TaskSpec:
    """The task of one element of a fan-out."""
    return _task(step, key=key, requires=tuple(requires), parent=step.key, tried=tried)


def escalated_task(step: StepPlan, key: str, parent: str) -> TaskSpec:
    """The task of a step or an element whose request was changed; in a worker's line it would get the old request."""
    return attrs.evolve(_task(step, key=key, parent=parent), ahead=False)


def lines_up(step: StepPlan) -> bool:
    """Whether elements of this fan-out may wait at a busy worker: nothing may depend on when one starts."""
    settings = step.settings
    return (
        settings.timeout is None
        and settings.isolation == "warm"
        and not step.hooks
        and not settings.resources.gpus_per_node
        and settings.launch is None
    )


def _task(step: StepPlan, **fields: Any) -> TaskSpec:
    settings = step.settings
    retry, counts = settings.retry, demand(settings)
    element = bool(fields.get("parent"))
    fanout = bool(fields.get("fanout"))
    return TaskSpec(
        pool=step.backend,
        cpus=counts.cpus,
        memory=counts.memory,
        gang=settings.resources.node_count,
        devices=counts.devices,
        retries=retry.times,
        retry_on=frozenset(retry.on),
        climbs=climbed_after(retry.on_oom),
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
