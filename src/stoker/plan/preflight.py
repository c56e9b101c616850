"""The proof before a run: image, wheels, driver and chip of each step held against each other. Nothing is started.

A rule is a generator over `PlanFacts`. One whose fact is missing says nothing, or says that it is missing. Each code
has its section in docs/findings.md, which `stoker explain CODE` prints.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable, Iterator, Mapping, Sequence

from stoker.core.devices import Inventory
from stoker.core.docker import DockerSettings
from stoker.core.findings import Finding
from stoker.core.imagefacts import ImageFacts
from stoker.core.plan import Plan, StepPlan
from stoker.plan import rules_device, rules_image, rules_packages
from stoker.plan.planfacts import Client, Listed, PlanFacts, gathered, here, listed

Rule = Callable[[PlanFacts], Iterator[Finding]]

RULES: Final[Sequence[Rule]] = (
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
"""in the order in which their findings are shown"""

_SAID_BY_BACKENDS: Final = frozenset({"STK103", "STK111"})
"""Codes by which a backend says itself that there are no such devices"""


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
    """What is to be said of the plan's steps that run in images; of all of them, where `steps` is not given.

    `inventory` is the machine that they will run on, None where it is not known. `image_facts` reads an image, or
    answers None; each is asked for once. `lines` finds what would be installed, `parent` the image to build upon where
    the settings name none. `seen` has the digests that references had when they were last used.
    """
    client = client or here()
    asked: dict[str, ImageFacts | None] = {}

    def known(reference: str) -> ImageFacts | None:
        if reference not in asked:
            asked[reference] = image_facts(reference)
        return asked[reference]

    judged: set[tuple[str, str, int]] = set()
    told = {finding.where for finding in plan.findings if finding.code in _SAID_BY_BACKENDS}
    for step in plan.steps if steps is None else steps:
        alike = (step.name, step.backend, id(step.settings))
        if alike in judged:
            continue
        judged.add(alike)
        facts = gathered(
            step,
            inventory=inventory,
            image_facts=known,
            lines=lines,
            parent=parent,
            client=client,
            seen=seen,
        )
        for rule in RULES:
            if rule is rules_image.nowhere and facts.where in told:
                continue
            yield from rule(facts)
