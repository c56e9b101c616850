"""What `stoker plan --where` shows: for each step, what each stack could give it, and at what price an hour."""

from __future__ import annotations

from typing import Any, Callable, Final, Iterator, Sequence

import attrs

from stoker import stacks
from stoker.backends.registry import BACKENDS
from stoker.cli.output import paint
from stoker.core.errors import StokerError
from stoker.core.plan import Plan, StepPlan, reporter_of
from stoker.core.resources import describe

PRICED: Final = "STK323"
"""The finding that has the choice of a platform and its price."""
NO_PRICE: Final = "no price is known"


@attrs.frozen(kw_only=True)
class StackAnswer:
    """What one stack could give a step."""

    stack: str
    fits: bool
    backend: str
    """The flavor that the step would run on; empty where the stack has no plan."""
    text: str
    """The machine and its price, why there is no price, or why the step cannot run there."""
    fix: str = ""
    """What makes the step fit there, or lets the platform be asked."""


def ask_stacks(plan_on: Callable[[str], Plan]) -> dict[str, list[StackAnswer]]:
    """The answers of all stacks by step; `plan_on` plans on a stack of this name."""
    answers: dict[str, list[StackAnswer]] = {}
    failures: list[StackAnswer] = []
    for stack in stacks.stacks():
        try:
            plan = plan_on(stack.name)
        except StokerError as error:
            failures.append(StackAnswer(stack=stack.name, fits=False, backend="", text=error.message, fix=error.fix))
            continue
        for step in plan.steps:
            flavor = stack.part(step.backend).flavor
            answers.setdefault(step.key, []).append(_answer(plan, step, stack.name, flavor))
    for rows in answers.values():
        rows.extend(failures)
    return answers


def _answer(plan: Plan, step: StepPlan, stack: str, flavor: str) -> StackAnswer:
    where = reporter_of(step).where
    mine = [finding for finding in plan.findings if where in finding.where]
    errors = [finding for finding in mine if finding.level == "error"]
    if errors:
        text = "; ".join(f"{finding.what} ({finding.code})" for finding in errors)
        fix = "; ".join(dict.fromkeys(finding.fix for finding in errors if finding.fix))
        return StackAnswer(stack=stack, fits=False, backend=flavor, text=text, fix=fix)
    priced = next((finding.what for finding in mine if finding.code == PRICED), NO_PRICE)
    unasked = BACKENDS.load(flavor).unasked
    silent = next((finding for finding in mine if finding.code in unasked), None)
    if silent is None:
        return StackAnswer(stack=stack, fits=True, backend=flavor, text=priced)
    text = f"{priced}; {silent.what}: {silent.why} ({silent.code})"
    return StackAnswer(stack=stack, fits=True, backend=flavor, text=text, fix=silent.fix)


def lines(steps: Sequence[StepPlan], answers: dict[str, list[StackAnswer]]) -> Iterator[str]:
    """The answers as text."""
    for step in steps:
        yield ""
        yield f"{paint(step.key, '1')} where: needs {describe(step.settings.resources)}"
        rows = answers.get(step.key, [])
        width = max((len(row.stack) for row in rows), default=0)
        for row in rows:
            answer = f"{row.backend}: {row.text}" if row.fits else paint(f"no: {row.text}", "31")
            yield f"  {row.stack:<{width}}  {answer}"
            if row.fix:
                yield f"  {'':<{width}}  fix: {row.fix}"


def document(answers: dict[str, list[StackAnswer]]) -> dict[str, Any]:
    """The answers as JSON."""
    return {key: [attrs.asdict(row) for row in rows] for key, rows in answers.items()}
