"""A rule of preflight: at Acme, a step that asks for a GPU says how long it may take."""

from __future__ import annotations

from typing import Iterator

from stoker.core.findings import Finding
from stoker.plan.rules import PlanFacts, Rule

CODE = "ACME101"


def check(facts: PlanFacts) -> Iterator[Finding]:
    """A finding for a step with GPUs and without a timeout."""
    if facts.gpus and facts.step.settings.timeout is None:
        yield Finding(
            code=CODE,
            level="error",
            where=facts.where,
            what=f"asks for {facts.gpus} GPUs and does not say how long it may take",
            why="a step that hangs would hold them until somebody looks",
            fix='add a limit, such as timeout="2h"',
        )


TIME_LIMIT = Rule(
    name="time-limit",
    check=check,
    explains={
        CODE: """**error: the step asks for GPUs and has no timeout.** At Acme every step with a GPU has a time limit,
so that one that hangs gives its devices back. Add `timeout="2h"` to the step.""",
    },
)
