"""The proof of a step's accelerators before a run: proved, refused, or not proved, with the facts and their sources.

`plan.proving` makes it, the plan keeps it with the step, and the gate in the job finds what is really there. Each class
is written as JSON by its fields: `{"verdict", "facts", "unknown", "refused"}`.
"""

from __future__ import annotations

from typing import Literal

import attrs

ProofVerdict = Literal["proved", "refused", "not-proved"]
"""`proved`: every component of the step is known, and each fits. `refused`: one is known not to fit, and the plan is
refused. `not-proved`: none is known not to fit, and something about at least one is not known."""


@attrs.frozen(kw_only=True)
class Fact:
    """What is known of one component, and from where."""

    component: str
    """What it is about: "driver", "chip", "image", or the name of a distribution such as "torch"."""
    fact: str
    """A sentence, such as "torch 2.4.0+cu121 has code for sm_90"."""
    source: str
    """Where it is written: an address, a file of the package, "the driver", or "the image's configuration"."""


@attrs.frozen(kw_only=True)
class UnknownFact:
    """What is not known of one component, so that the step is not proved."""

    component: str
    reason: str
    """A sentence that names the component's version, and what is missing."""


@attrs.frozen(kw_only=True)
class Refusal:
    """Why the plan is refused: an error among the findings."""

    code: str
    """That of the finding: "STK203"."""
    what: str
    fix: str = ""
    """The nearest that works."""


@attrs.frozen(kw_only=True)
class Proof:
    """What is known, before a run, of whether a step can use its accelerators."""

    verdict: ProofVerdict
    facts: tuple[Fact, ...] = ()
    unknown: tuple[UnknownFact, ...] = ()
    """Empty if the verdict is "proved"."""
    refused: tuple[Refusal, ...] = ()
    """Empty unless the verdict is "refused"."""


SHOWN = 3
"""Facts in a line of text; the others are counted."""


def proof_text(proof: Proof) -> str:
    """The proof in one line: "proved: torch 2.4.0+cu121 has code for sm_90; driver 550.54.15 runs CUDA 12.1"."""
    if proof.verdict == "refused":
        return "refused: " + "; ".join(f"{one.code} {one.what}" for one in proof.refused[:1]) + _more(proof.refused, 1)
    if proof.verdict == "not-proved":
        return "not proved: " + _joined([one.reason for one in proof.unknown])
    return "proved: " + _joined([one.fact for one in proof.facts])


def _joined(texts: list[str]) -> str:
    return "; ".join(texts[:SHOWN]) + _more(texts, SHOWN)


def _more(items: list[str] | tuple[Refusal, ...], shown: int) -> str:
    return f"; and {len(items) - shown} more" if len(items) > shown else ""
