"""`sweep(train, space={…})`: a step of a pipeline that is called with different parameters, in search of the best."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING, Any, Final, Literal, Mapping, Sequence, TypedDict

from stoker.core.costs import Budget
from stoker.core.errors import MissingPackage, ParameterError, StokerError, UsageError, nearest
from stoker.core.sweep import (
    ASHA,
    OPEN_ENDED,
    PARAMS,
    RESULTS,
    TRIALS,
    VALUE,
    Domain,
    Goal,
    SweepPlan,
)
from stoker.core.usercode import caller
from stoker.core.values import frozen
from stoker.pipelines.functional import Step
from stoker.pipelines.params import check, describe
from stoker.pipelines.tracing import ACTIVE

if TYPE_CHECKING:
    from typing import Unpack

PARALLEL: Final = 8
"""Trials at one time, unless somebody says otherwise: as many as the devices of one machine."""
METHODS: Final[Mapping[str, str]] = {"random": "", "grid": "", "tpe": "optuna"}
"""Ways to choose parameters → the package that each needs."""
_SPACE_FIX: Final = 'write space={"rate": between(1e-5, 1e-1, log=True), "optimizer": ["adam", "sgd"]}, for example'


@frozen(kw_only=True, eq=False)
class SweepOutputs:
    """What comes out of a sweep, for the steps after it; in a dynamic pipeline futures, whose `.result()` waits."""

    best: Any
    """What the best trial returned; None where the step returns nothing."""
    params: Any
    """The parameters of the best trial, a dict."""
    value: Any
    """The metric of the best trial."""
    trials: Any
    """A list with a dict for each trial: `trial`, `key`, `status`, `value`, `params`."""


class SweepOptions(TypedDict, total=False):
    """Keywords of `sweep`: how trials are chosen and compared, and what ends them."""

    given: Mapping[str, Any]
    method: Literal["random", "grid", "tpe"]
    metric: str | None
    goal: Goal
    trials: int | None
    parallel: int
    seed: int
    early_stop: ASHA | None
    budget: str | None
    max_failures: int | None


_LEAST: Final[Mapping[str, int]] = {"trials": 1, "parallel": 1, "seed": 0, "max_failures": 0}
"""Options that are whole numbers → the least that each may be."""


def sweep(
    step: Step[..., Any], *, space: Mapping[str, Domain | Sequence[Any]], **options: Unpack[SweepOptions]
) -> SweepOutputs:
    """Call a step with different parameters, each time as an element of a fan-out, and find the best.

    `space` says what parameters may be, `given` has values and other steps' outputs for the rest. `metric` is what
    trials log under that name, or an output that is a number.
    """
    where = caller()
    if not isinstance(step, Step):
        raise UsageError(f"sweep({describe(step)}, …) is not of a step", where=where, fix="give a function with @step")
    trace = ACTIVE.get()
    owner = f"sweep of step '{step.name}'"
    if trace is None:
        raise UsageError(f"{owner} outside a pipeline", where=where, fix="call sweep(…) in a function with @pipeline")
    try:
        plan = _plan(step, space, options, owner)
    except StokerError as error:
        error.where = error.where or where
        raise
    found = trace.sweep(step.as_call(), plan, options.get("given", {}), where)
    return SweepOutputs(best=found[""], params=found[PARAMS], value=found[VALUE], trials=found[TRIALS])


def _plan(step: Step[..., Any], space: Any, options: SweepOptions, owner: str) -> SweepPlan:
    """What the arguments of a sweep say."""
    for name in options:
        if name not in SweepOptions.__optional_keys__:
            raise UsageError(f"{owner} has no option '{name}'{nearest(name, SweepOptions.__optional_keys__)}")
    for name, least in _LEAST.items():
        number = options.get(name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < least):
            fix = f"write {name}={least}, for example"
            raise UsageError(f"{owner}: {name}={number!r} is not a whole number from {least}", fix=fix)
    domains = _domains(step, space, owner)
    method: Any = options.get("method", "random")
    goal: Any = options.get("goal", "minimize")
    _check_method(method, owner)
    if goal not in ("minimize", "maximize"):
        raise UsageError(f"{owner}: goal={goal!r}", fix='write goal="minimize" or goal="maximize"')
    text = options.get("budget")
    budget = None if text is None else Budget.parse(text)
    metric = _metric(step, options.get("metric"), owner)
    return SweepPlan(
        space=domains,
        method=method,
        metric=metric,
        goal=goal,
        trials=_trial_count(domains, method, options.get("trials"), has_budget=budget is not None, owner=owner),
        parallel=options.get("parallel") or PARALLEL,
        seed=options.get("seed") or 0,
        early_stop=_early_stop(step, options.get("early_stop"), metric, owner),
        budget=budget,
        max_failures=options.get("max_failures"),
    )


def _check_method(method: str, owner: str) -> None:
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise UsageError(f"{owner}: method={method!r} is none of {known}{nearest(str(method), METHODS)}")
    package = METHODS[method]
    if package and importlib.util.find_spec(package) is None:
        raise MissingPackage(
            f'{owner}: method="{method}" needs {package}, which is not installed', fix='pip install "stoker[sweep]"'
        )


def _metric(step: Step[..., Any], metric: str | None, owner: str) -> str:
    outputs = [output.name for output in step.spec.outputs]
    wrong = next((name for name in outputs if name in RESULTS), "")
    if wrong:
        fix = "give that output another name"
        raise UsageError(f"{owner}: the step has an output '{wrong}', and so has a sweep", fix=fix)
    if metric is None and len(outputs) != 1:
        fix = 'write metric="loss", for example: the name of what trials log'
        raise UsageError(f"{owner}: nothing says what is compared", fix=fix)
    return outputs[0] if metric is None else metric


def _early_stop(step: Step[..., Any], early_stop: Any, metric: str, owner: str) -> ASHA | None:
    is_output = metric in {output.name for output in step.spec.outputs}
    if early_stop is None or (isinstance(early_stop, ASHA) and not is_output):
        return early_stop
    what = f"'{metric}' is an output, which is there at the end" if is_output else f"early_stop={early_stop!r}"
    fix = 'log the metric with log_metrics(…, step=…), and write early_stop=ASHA(), metric="loss"'
    raise UsageError(f"{owner}: trials are compared while they run: {what}", fix=fix)


def _domains(step: Step[..., Any], space: Any, owner: str) -> dict[str, Domain]:
    """What each parameter may be, all of it of the parameter's type."""
    if not isinstance(space, Mapping) or not space:
        raise UsageError(f"{owner}: space={space!r} has no parameters", fix=_SPACE_FIX)
    known = step.signature.parameters
    domains: dict[str, Domain] = {}
    for name, values in space.items():
        if name not in known:
            raise ParameterError(f"{owner}: the step has no parameter '{name}'{nearest(str(name), known)}")
        if isinstance(values, Domain):
            domain = values
        elif isinstance(values, (list, tuple)) and values:
            domain = Domain(values=tuple(values))
        else:
            raise UsageError(f"{owner}: {name} may be {values!r}, which is no list", fix=_SPACE_FIX)
        for value in domain.values or (domain.at(0.0), domain.at(1.0 - 2**-53)):
            if value is not None and not isinstance(value, (bool, int, float, str)):
                fix = "write names, and look up in the step what they stand for"
                raise UsageError(
                    f"{owner}: {name} may be {describe(value)}: only texts, numbers, booleans and None can be tried",
                    fix=fix,
                )
            problem = check(value, step.signature.annotation(name))
            if problem is not None:
                raise ParameterError(f"{owner}: {name} {problem}")
        domains[name] = domain
    return domains


def _trial_count(
    domains: Mapping[str, Domain], method: str, trials: int | None, *, has_budget: bool, owner: str
) -> int:
    """How many trials there are at most."""
    if method != "grid":
        if trials is None and not has_budget:
            raise UsageError(f"{owner}: nothing ends it", fix="write trials=50, for example, or a budget")
        return OPEN_ENDED if trials is None else trials
    for name, domain in domains.items():
        if domain.grid() is None:
            fix = f"write a list, or step=… in the between(…) of {name}"
            raise UsageError(f"{owner}: a grid needs to know which values {name} may have", fix=fix)
    combinations = math.prod(len(domain.grid() or ()) for domain in domains.values())
    return combinations if trials is None else min(trials, combinations)
