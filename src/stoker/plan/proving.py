"""The proof of a step's accelerators, from its facts, its components and the findings of its rules. Pure.

A step is proved only if every component that decides about its devices is known and fits. What is not known is named,
and never taken for a fit; what is known not to fit is a finding that refuses the plan.

Components are Stoker's own, by a table, and those of other distributions by entry points.
"""

from __future__ import annotations

from typing import Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.core.findings import Finding
from stoker.core.packages import canonical
from stoker.core.plan import StepPlan, reporter_of
from stoker.core.plugins import Registry
from stoker.core.receipt import Fact, Proof, ProofVerdict, Refusal, UnknownFact, proof_text
from stoker.plan.components.base import CHIP, DRIVER, USES_DEVICES, USES_NO_DEVICES, ProofComponent
from stoker.plan.rules import PlanFacts, StepDistribution, distributions
from stoker.plan.rules_device import CPU_BUILD

_OWN: Final[Mapping[str, str]] = {
    "torch": "stoker.plan.components.torch:TORCH",
    "torch-parts": "stoker.plan.components.torchparts:TORCH_PARTS",
    "extensions": "stoker.plan.components.torchparts:EXTENSIONS",
    "companions": "stoker.plan.components.torchparts:VISION_AND_AUDIO",
    "triton": "stoker.plan.components.torchparts:TRITON_COMPONENT",
    "deepspeed": "stoker.plan.components.torchparts:DEEPSPEED",
    "torch-xla": "stoker.plan.components.torchparts:XLA",
    "tensorflow": "stoker.plan.components.jaxtensorflow:TENSORFLOW",
    "jax": "stoker.plan.components.jaxtensorflow:JAX",
    "inference": "stoker.plan.components.wheels:INFERENCE",
    "cupy": "stoker.plan.components.wheels:CUPY",
    "rapids": "stoker.plan.components.wheels:RAPIDS",
    "numba-cuda": "stoker.plan.components.wheels:NUMBA",
    "trees": "stoker.plan.components.wheels:TREES",
    "cuda": "stoker.plan.components.machine:CUDA",
    "gate": "stoker.plan.components.machine:GATE",
    "chip": "stoker.plan.components.machine:CHIP_AND_DRIVER",
    "image": "stoker.plan.components.machine:IMAGE",
    "processor": "stoker.plan.components.machine:PROCESSOR",
    "python": "stoker.plan.components.machine:PYTHON",
}
"""Component → "module:attribute", in the order in which their facts are shown."""

COMPONENTS: Final[Registry[ProofComponent]] = Registry(
    group="stoker.components",
    noun="component",
    kind=ProofComponent,
    builtin={name: (target, "") for name, target in _OWN.items()},
)


def components() -> Iterator[ProofComponent]:
    """Every component, each loaded."""
    return (component for _, component in COMPONENTS.parts())


NOT_PROVED: Final = "STK219"

_ONE_REASON: Final = frozenset({CHIP, DRIVER})
"""Components that every package asks about: the first reason stands for all."""


@attrs.frozen(kw_only=True)
class Judgement:
    """A step's proof, and what its components found that does not fit."""

    proof: Proof
    findings: tuple[Finding, ...] = ()
    """The components' own; errors among them refuse the plan."""


def prove(facts: PlanFacts, findings: Iterable[Finding], parts: Iterable[ProofComponent] | None = None) -> Judgement:
    """Prove that a step can use its accelerators, as far as that is known.

    `findings` are those of the rules about this step: an error among them refuses it. `parts` are the components that
    are asked; None asks all that are registered. The step must ask for accelerators.
    """
    there = distributions(facts)
    of_rules = tuple(findings)
    by_rules = [one.what.replace("_", "-") for one in of_rules if one.level == "error"]
    known: dict[Fact, None] = {}
    unknown: dict[UnknownFact, None] = {}
    own_findings: list[Finding] = []
    named: set[str] = set()
    used = False
    for part in components() if parts is None else parts:
        items = tuple(item for item in there if not part.distributions or item.name in part.distributions)
        named |= part.distributions
        if part.distributions and not items:
            continue
        for evidence in part.check(facts, items):
            if isinstance(evidence, Finding):
                if not _refuses(facts, items, evidence):
                    unknown[UnknownFact(component=part.name, reason=evidence.what)] = None
                # What a rule refuses for the same distribution is not refused again in other words.
                elif not any(item.name in what for item in items if part.distributions for what in by_rules):
                    own_findings.append(evidence)
            elif isinstance(evidence, Fact):
                known[evidence] = None
            else:
                unknown[evidence] = None
            used = used or bool(part.distributions)
    unknown.update(dict.fromkeys(_without_component(facts, there, named)))
    if not used and not unknown:
        reason = "no package that computes on a device is known in it"
        unknown[UnknownFact(component="packages", reason=reason)] = None
    refused = tuple(
        dict.fromkeys(
            Refusal(code=one.code, what=one.what, fix=one.fix)
            for one in (*of_rules, *own_findings)
            if one.level == "error"
        )
    )
    verdict: ProofVerdict = "refused" if refused else "not-proved" if unknown else "proved"
    proof = Proof(verdict=verdict, facts=tuple(known), unknown=tuple(_shortened(unknown)), refused=refused)
    return Judgement(proof=proof, findings=tuple(own_findings))


def _refuses(facts: PlanFacts, items: Sequence[StepDistribution], finding: Finding) -> bool:
    """Whether what a component found refuses the step.

    In this Python much is installed that a step does not import: there only a package that its code names refuses it.
    The gate in the job sees the others. On simulated devices a build for the CPU runs.
    """
    if facts.installed is None or finding.level != "error":
        return True
    if facts.simulated and finding.code == CPU_BUILD:
        return False
    roots = {canonical(name) for name in facts.step.packages}
    return any(item.name == root or item.name.startswith(f"{root}-") for item in items for root in roots)


def required_finding(step: StepPlan) -> Finding | None:
    """The finding about a step that must be proved and is not; None for one that is, or that is refused anyway."""
    proof = step.proof
    if proof is None or proof.verdict != "not-proved":
        return None
    return reporter_of(step).error(
        NOT_PROVED,
        f"must be proved to fit its accelerators, and is {proof_text(proof)}",
        "require_proof (--require-proof) lets only steps run whose image, packages, driver and chips are all known",
        "`stoker plan --explain` lists what is known: pin the packages it names, name an image that can be read, or "
        "run without --require-proof",
    )


def _without_component(
    facts: PlanFacts, there: Sequence[StepDistribution], named: Iterable[str]
) -> Iterable[UnknownFact]:
    """What is not known of distributions that no component has, and of requirements that could not be read."""
    for item in there:
        if item.name in named or item.name in USES_NO_DEVICES:
            continue
        if item.name in USES_DEVICES:
            yield UnknownFact(component=item.name, reason=f"no facts for {item.title}")
        elif item.origin == "requirement" and not facts.locked:
            reason = f"whether {item.title} uses or requires a framework is not known without a lock"
            yield UnknownFact(component=item.name, reason=reason)
    if facts.resolution.reason:
        yield UnknownFact(component="requirements", reason=facts.resolution.reason)
    for text in facts.requirements.unread:
        yield UnknownFact(component="packages", reason=f"what {text} installs is not known")


def _shortened(unknown: Iterable[UnknownFact]) -> Iterable[UnknownFact]:
    reported: set[str] = set()
    for one in unknown:
        if one.component not in _ONE_REASON or one.component not in reported:
            yield one
        reported.add(one.component)
