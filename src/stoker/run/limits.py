"""The deadline and the budget of a run, before it begins: what would pass them by what its steps took in earlier runs.

A step that is not known to run, because its result may be in the cache, is taken to take no time: nothing is refused
that may succeed.
"""

from __future__ import annotations

import statistics
import time
from typing import Collection, Final, Iterator, Mapping

import attrs

from stoker.client.keys import element_of
from stoker.core.costs import HOUR, Budget, deadline_of
from stoker.core.findings import Finding
from stoker.core.plan import Plan, StepPlan, reporter_of, uses_cache
from stoker.core.settings import PipelineSettings
from stoker.core.status import STEP_GOOD
from stoker.core.words import count_text, time_text
from stoker.engine.inputs import StepBindings, key_parts
from stoker.engine.limits import ENDING, RunLimits
from stoker.plan.cachekey import InputCode, InstalledEnvironment
from stoker.plan.planner import NO_PRICE, PRICE_FIX
from stoker.run.session import Session
from stoker.store.rows import RunRow
from stoker.store.store import Store

PASSED: Final = "STK117"
ESTIMATE: Final = "STK118"
_LOOK_BACK: Final = 20
"""Earlier runs that are looked at, of which the times of the newest five count."""
_COUNTED: Final = 5
_NAMED: Final = 3


@attrs.frozen(kw_only=True)
class Expected:
    """What a step will take, by earlier runs."""

    step: StepPlan
    seconds: float
    """The median."""
    of: int
    """How many runs it is the median of."""


def limits_of(store: Store, run: str, settings: PipelineSettings) -> RunLimits:
    """The limits of a run that a driver begins, or goes on with."""
    began = store.records.run(run).started or time.time()
    limits = RunLimits(
        deadline=None if settings.deadline is None else deadline_of(settings.deadline, began),
        budget=None if settings.budget is None else Budget.parse(settings.budget),
    )
    limits.load((element_of(key)[0], seconds) for key, seconds in store.records.attempt_seconds(run))
    return limits


def limit_findings(plan: Plan, session: Session, run: RunRow | None = None) -> Iterator[Finding]:
    """Errors about limits that cannot be kept, and what is expected where there is one. `run`: the one that goes on."""
    settings = plan.settings
    where, now = f"{plan.where} pipeline '{plan.pipeline}'", time.time()
    done = set() if run is None else _finished(session.store, run.id)
    expected = {one.step.key: one for one in _expected(plan, session, done)}
    if settings.deadline is not None:
        began = now if run is None else run.started or now
        yield _by_deadline(plan, expected, deadline_of(settings.deadline, began) - now, where)
    if settings.budget is not None:
        budget = Budget.parse(settings.budget)
        unknown = [step for step in plan.steps if budget.hourly(step.settings, step.price) is None]
        for step in {step.name: step for step in unknown}.values():
            yield reporter_of(step).error(PASSED, NO_PRICE, f"the run has budget='{budget}'", PRICE_FIX)
        rates = {step.key: budget.hourly(step.settings, step.price) or 0.0 for step in plan.steps}
        if not unknown and plan.steps and not any(rates.values()) and not plan.dynamic:
            what, fix = f"nothing counts against budget='{budget}'", "give a step gpu_count=1, or the run a deadline"
            yield Finding(code=PASSED, level="error", where=where, what=f"{what}: no step asks for a device", fix=fix)
        elif not unknown:
            spans = [] if run is None else session.store.records.attempt_seconds(run.id)
            spent = sum(rates.get(element_of(key)[0], 0.0) * seconds / HOUR for key, seconds in spans)
            yield _by_budget(expected, rates, budget, spent, where)


def _by_deadline(plan: Plan, expected: Mapping[str, Expected], left: float, where: str) -> Finding:
    ends: dict[str, float] = {}
    for step in plan.steps:
        own = expected[step.key].seconds if step.key in expected and expected[step.key].of else 0.0
        ends[step.key] = own + max((ends.get(key, 0.0) for key in step.needs), default=0.0)
    takes = max(ends.values(), default=0.0)
    what = f"takes {_known(expected, time_text(takes))}; its deadline is in {time_text(max(0.0, left))}"
    if left > max(takes, ENDING):
        return Finding(code=ESTIMATE, level="info", where=where, what=what)
    why = f"the steps that wait for each other, and {time_text(ENDING)} for a good end"
    return Finding(code=PASSED, level="error", where=where, what=what, why=why, fix="--set deadline=…, a later one")


def _by_budget(
    expected: Mapping[str, Expected], rates: Mapping[str, float], budget: Budget, spent: float, where: str
) -> Finding:
    takes = sum(rates[key] * one.seconds / HOUR for key, one in expected.items() if not one.step.mapped)
    used = f", beside {budget.text(spent)} that are used" if spent else ""
    what = f"costs {_known(expected, budget.text(takes))}{used}; its budget is {budget}"
    if spent + takes < budget.amount:
        return Finding(code=ESTIMATE, level="info", where=where, what=what)
    fix = "--set budget=…, a larger one; or ask for less"
    return Finding(code=PASSED, level="error", where=where, what=what, why="by what its steps took", fix=fix)


def _known(expected: Mapping[str, Expected], total: str) -> str:
    """A total with how it is known: "about 3 h 07 m (median: train 3 h 00 m of 5 runs)"."""
    known = sorted((one for one in expected.values() if one.of), key=lambda one: -one.seconds)
    words = [f"{one.step.key} {time_text(one.seconds)} of {count_text(one.of, 'run')}" for one in known[:_NAMED]]
    if len(known) > _NAMED:
        words.append(f"and {len(known) - _NAMED} more")
    unknown = sum(not one.of for one in expected.values())
    words += [f"of {count_text(unknown, 'step')} nothing is known"] if unknown else []
    return f"{'about' if known else 'at least'} {total}" + (f" (median: {', '.join(words)})" if words else "")


def _expected(plan: Plan, session: Session, done: Collection[str]) -> Iterator[Expected]:
    """What the steps take that are known to run."""
    before = time.time()
    for step in _that_run(plan, session, done):
        rows = session.store.records.earlier_steps(plan.pipeline, step.key, before=before, limit=_LOOK_BACK)
        ended = [row for row in rows if row.status == "succeeded"]
        times = [row.ended - row.started for row in ended if row.started is not None and row.ended is not None]
        times = times[:_COUNTED]
        yield Expected(step=step, seconds=statistics.median(times) if times else 0.0, of=len(times))


def _that_run(plan: Plan, session: Session, done: Collection[str]) -> Iterator[StepPlan]:
    """The steps of which it is known that they run: those that take nothing from the cache, those that it lacks, and
    those that need one."""
    bindings, environment = StepBindings(session.store.blobs), InstalledEnvironment()
    code = InputCode(lambda text: None)
    cached, running = set[str](), set[str]()
    for step in plan.steps:
        if step.key in done:
            continue
        packaged = step.settings.docker is not None or step.settings.packages is not None
        if session.request.cache is False or not uses_cache(step) or running.intersection(step.needs):
            running.add(step.key)
        elif not step.mapped and not packaged and cached.issuperset(step.needs):
            parts = key_parts(step, bindings.bind(step), environment, code)
            row = session.store.records.cached(parts.key, time.time())
            if row is None:
                running.add(step.key)
            else:
                cached.add(step.key)
                bindings.keep(step.key, row.outputs)
        if step.key in running:
            yield step


def _finished(store: Store, run: str) -> set[str]:
    return {row.key for row in store.records.steps(run) if row.status in STEP_GOOD}
