"""The proof before a run: image, wheels, driver and chip of each step held against each other. Nothing is started.

Each code of Stoker's own rules has its section in docs/findings.md, which `stoker explain CODE` prints; a rule of
another distribution brings its own text.
"""

from __future__ import annotations

import functools
from typing import Callable, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.devices import Inventory
from stoker.core.docker import DockerSettings
from stoker.core.findings import Finding
from stoker.core.imagefacts import ImageFacts
from stoker.core.plan import Plan, StepPlan
from stoker.core.plugins import Registry
from stoker.plan import planfacts, rules_device, rules_image, rules_packages
from stoker.plan.planfacts import Client, Listed, PlanFacts, Rule, gathered, gathered_without_image, here, listed

RULES: Final[Registry[Rule]] = Registry(group=planfacts.RULES, noun="rule", kind=Rule, builtin={})
"""Rules of other distributions; Stoker's own are `OWN_RULES`."""

OWN_RULES: Final[Sequence[Rule]] = tuple(
    Rule(name=check.__name__, check=check, every_step=False)
    for check in (
        rules_image.nowhere,
        rules_image.unreadable,
        rules_image.processor,
        rules_device.no_cuda,
        rules_device.unfit_builds,
        rules_device.image_driver,
        rules_device.gate,
        rules_device.unknown_chip,
        rules_device.minor_compatibility,
        rules_device.rocm,
        rules_device.neuron,
        rules_device.other_runtime,
        rules_packages.companions,
        rules_packages.old_python,
        rules_packages.other_python,
        rules_packages.not_installable,
        rules_packages.other_versions,
        rules_image.launcher,
        rules_image.little_shm,
        rules_image.unpinned,
    )
)
"""in the order in which their findings are shown"""

_REFUSED_BY_BACKENDS: Final = frozenset({"STK103", "STK111"})
"""Codes by which a backend refuses devices that are not there"""


def findings(
    plan: Plan,
    *,
    inventory: Inventory | None,
    image_facts: Callable[[str], ImageFacts | None],
    steps: Iterable[StepPlan] | None = None,
    lines: Listed = listed,
    parent: Callable[[DockerSettings], str] | None = None,
    client: Client | None = None,
    seen: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """What the rules find in the plan's steps that run in images; in all of them, where `steps` is not given.

    `inventory` is the machine that they will run on, None where it is not known. `image_facts` reads an image, or
    answers None; each is asked for once. `lines` finds what would be installed, `parent` the image to build upon where
    the settings name none. `seen` has the digests that references had when they were last used.
    """
    client = client or here()
    known = functools.cache(image_facts)
    rules = (*OWN_RULES, *offered())
    for step in _different(plan.steps if steps is None else steps):
        facts = gathered(
            step,
            inventory=inventory,
            image_facts=known,
            lines=lines,
            parent=parent,
            client=client,
            seen=seen,
        )
        yield from _judged(rules, facts, plan)


def findings_without_images(
    plan: Plan, steps: Iterable[StepPlan], *, inventory: Callable[[], Inventory | None]
) -> Iterator[Finding]:
    """What the rules of other distributions find in steps that run without a container; `inventory` is asked only where
    there is such a rule."""
    rules = [rule for rule in offered() if rule.every_step]
    if not rules:
        return
    client, devices = here(), inventory()
    for step in _different(steps):
        yield from _judged(rules, gathered_without_image(step, inventory=devices, client=client), plan)


def offered() -> tuple[Rule, ...]:
    """The rules of other distributions."""
    return tuple(rule for _, rule in RULES.offered())


def _different(steps: Iterable[StepPlan]) -> Iterator[StepPlan]:
    """One step of each name, backend and settings: its like would be found to be the same."""
    judged: set[tuple[str, str, int]] = set()
    for step in steps:
        alike = (step.name, step.backend, id(step.settings))
        if alike not in judged:
            judged.add(alike)
            yield step


def _judged(rules: Iterable[Rule], facts: PlanFacts, plan: Plan) -> Iterator[Finding]:
    refused = any(finding.code in _REFUSED_BY_BACKENDS and finding.where == facts.where for finding in plan.findings)
    facts = attrs.evolve(facts, refused=refused)
    for rule in rules:
        yield from rule.check(facts)
