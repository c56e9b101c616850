"""Elements of a fan-out, or runs, as variants of one thing: what each was given beside what it logged; and a sweep of
a run as it was recorded: its trials, the best of them, and how much each parameter matters.

Values are given as far as they are plain: numbers, texts, and what is in dicts under names such as "config.rate".
Nothing of a user's is unpickled. Who shows them asks here for the values of a column, for an order and for those that a
filter finds.
"""

from __future__ import annotations

import json
import math
import operator
import shlex
from typing import Any, Callable, Collection, Final, Iterable, Iterator, Mapping, Sequence, TypeGuard

import attrs

from stoker.client.metrics import Metric, Metrics, last_metrics
from stoker.client.runs import Run
from stoker.client.steps import Step
from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.errors import StokerError, UsageError, nearest
from stoker.core.graph import ELEMENTS, TRANSITION
from stoker.core.metrics import Point, Series
from stoker.core.protocol import MAPPED
from stoker.core.secret import MASK, looks_secret
from stoker.core.status import STOPPED
from stoker.core.sweep import SWEEP_EVENT, Goal
from stoker.core.values import frozen, lazy_pattern
from stoker.store import artifacts
from stoker.store.store import Store

_FEW: Final = 2
"""Trials below which nothing can be said of parameters."""


@frozen(kw_only=True)
class SweepTrial:
    """One trial."""

    key: str
    """The element's key."""
    params: Mapping[str, Plain | None]
    status: str = ""
    """How it ended; empty for one that has not."""
    value: float | None = None
    """Its metric; None for one that has not succeeded."""


@frozen(kw_only=True)
class SweepRecord:
    """A sweep with the trials that have begun, in their order."""

    metric: str
    goal: Goal
    method: str
    trials: Sequence[SweepTrial]

    @property
    def best(self) -> SweepTrial | None:
        """The trial with the best metric, the first of equal ones; None while none has succeeded."""
        sign = 1 if self.goal == "minimize" else -1
        known = [(sign * one.value, place) for place, one in enumerate(self.trials) if one.value is not None]
        return self.trials[min(known)[1]] if known else None

    def importance(self) -> dict[str, float]:
        """Parameter → the share of the metric's variance that it explains by itself, the largest first.

        An estimate from the trials as they are: they are put in groups, by choice or by equal parts of a parameter's
        order, and the variance between the groups is compared with that of all (the correlation ratio, as in Plischke,
        Borgonovo and Smith 2013, doi:10.1016/j.ejor.2012.11.047), less what groups of so few trials have by chance
        (Kelley 1935, doi:10.1073/pnas.21.9.554).
        """
        known = [(one.params, one.value) for one in self.trials if one.value is not None]
        shares = {name: _share([(params[name], value) for params, value in known]) for name in self.names}
        return dict(sorted(shares.items(), key=lambda pair: -pair[1]))

    @property
    def names(self) -> list[str]:
        """The parameters."""
        return list(self.trials[0].params) if self.trials else []


def sweep_of(store: Store, step: Step) -> SweepRecord | None:
    """The sweep whose trials the elements of a step are; None for another fan-out."""
    events = [one.data for one in store.records.step_events(step.run_id, step.key, SWEEP_EVENT)]
    if not events:
        return None
    asked: list[Mapping[str, Any]] = []
    ended: dict[int, Mapping[str, Any]] = {}
    for data in events:
        if "ask" in data:
            asked.append(data["params"])
        elif "tell" in data:
            ended[data["tell"]] = data
        for index in data.get("again", ()):
            ended.pop(index, None)
    trials = [
        SweepTrial(
            key=f"{step.key}[{index}]",
            params=params,
            status=ended[index]["status"] if index in ended else "",
            value=ended[index]["value"] if index in ended else None,
        )
        for index, params in enumerate(asked)
    ]
    first = events[0]
    return SweepRecord(metric=first["metric"], goal=first["goal"], method=first["method"], trials=trials)


def metric_of(name: str, value: float) -> Metric:
    """A trial's value as a metric that it logged once."""
    series = Series(name=name)
    series.add(Point(0.0, 0.0, value))
    return Metric({0: series}, 0)


def _share(pairs: Sequence[tuple[Plain | None, float]]) -> float:
    """The share of the variance of values that groups of what stands beside them explain."""
    count = len(pairs)
    groups = _groups(pairs)
    if count <= len(groups) or len(groups) < _FEW:
        return 0.0
    mean = math.fsum(value for _, value in pairs) / count
    whole = math.fsum((value - mean) ** 2 for _, value in pairs)
    within = 0.0
    for group in groups:
        middle = math.fsum(group) / len(group)
        within += math.fsum((value - middle) ** 2 for value in group)
    if not whole or not math.isfinite(whole):
        return 0.0
    return max(0.0, 1 - within / whole * (count - 1) / (count - len(groups)))


def _groups(pairs: Sequence[tuple[Plain | None, float]]) -> list[list[float]]:
    """The values by what stands beside them; numbers that are many in as many parts as have as many members."""
    parts = math.isqrt(len(pairs))
    given = {given for given, _ in pairs}
    if len(given) > parts and all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in given):
        values = [value for _, value in sorted(pairs)]
        return [values[len(values) * part // parts : len(values) * (part + 1) // parts] for part in range(parts)]
    groups: dict[str, list[float]] = {}
    for one, value in pairs:
        groups.setdefault(repr(one), []).append(value)
    return list(groups.values())


Plain = bool | int | float | str
WHICH: Final = ("last", "lowest", "highest")
"""Values of a metric."""
_MOST_NAMES: Final = 24
"""Names of what one variant was given."""
_LONGEST: Final = 200
"""Characters of a text that was given, and of a reason."""
_LARGEST: Final = 4 << 20
"""Bytes of a list of elements that is read for what they were given."""
_LIMIT: Final = lazy_pattern(r"([^<>=!]*)(<=|>=|!=|=|<|>)(.+)")


@frozen(kw_only=True)
class Variant:
    """An element of a fan-out, or a run."""

    key: str
    """The element's key, or the run's id."""
    index: int
    """Its place among all."""
    status: str
    given: Mapping[str, Plain]
    metrics: Mapping[str, Metric]
    seconds: float | None = None
    reason: str = ""
    """Why it failed."""

    def as_dict(self) -> dict[str, Any]:
        """What it was given and what it logged, as JSON without points."""
        metrics = {name: metric.as_dict() for name, metric in self.metrics.items()}
        return {"key": self.key, "status": self.status, "given": dict(self.given), "metrics": metrics}


@frozen(kw_only=True)
class Choice:
    """Which variants are shown, in which order and colours; an empty field leaves it to what there is."""

    filter: str = ""
    """Words that all have to be in a variant's texts, and limits such as `config.rate>=0.1` and `loss last<0.5`."""
    sort: str = ""
    """A column (`value_of`), with "-" before it downwards."""
    by: str = ""
    """The name of what gives a variant its colour."""
    start: int = 0

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Choice:
        """What an address asks for."""
        start = values.get("start", "")
        texts = {name: values.get(name, "").strip() for name in ("filter", "sort", "by")}
        return cls(**texts, start=int(start) if start.isdecimal() and len(start) < 10 else 0)

    def as_dict(self) -> dict[str, str | int]:
        """The fields that are not empty, for an address."""
        return {name: value for name, value in attrs.asdict(self).items() if value}


def element_variants(
    store: Store,
    step: Step,
    *,
    status_of: Callable[[Step], str] | None = None,
    logged: Mapping[str, Metrics] | None = None,
) -> list[Variant]:
    """The elements of a fan-out; `status_of` tells more of those that have not ended than they themselves.

    `logged` is what they logged, by key, where that has been read.
    """
    elements = list(step)
    if logged is None:
        logged = last_metrics(store.records, step.run_id, parent=step.key)
    given = given_to(store, step)
    sweep = sweep_of(store, step)
    values = {} if sweep is None else {one.key: one.value for one in sweep.trials if one.value is not None}

    def metrics_of(key: str) -> Mapping[str, Metric]:
        own: Mapping[str, Metric] = logged.get(key, {})
        if sweep is None or key not in values or sweep.metric in own:
            return own
        return {sweep.metric: metric_of(sweep.metric, values[key]), **own}

    return [
        Variant(
            key=one.key,
            index=place,
            status=one.status if status_of is None else status_of(one),
            given=given[place] if place < len(given) else {},
            metrics=metrics_of(one.key),
            seconds=one.seconds,
            reason="" if one.cause == STOPPED else f"{one.cause} {one.message[:_LONGEST]}".strip(),
        )
        for place, one in enumerate(elements)
    ]


def run_variants(runs: Iterable[Run]) -> list[Variant]:
    """Runs with their parameters; their metrics are those of steps, as "loss of train"."""
    return [
        Variant(
            key=run.id,
            index=place,
            status=run.status,
            given=plain_values(run.parameters),
            metrics={
                f"{name} of {key}": metric
                for key, logged in run.metrics.items()
                if not run.steps[key].parent
                for name, metric in logged.items()
            },
            seconds=run.active_seconds,
            reason=run.error[:_LONGEST],
        )
        for place, run in enumerate(runs)
    ]


# What a variant was given


def plain_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """The numbers and texts among values, those in dicts as "config.rate"; a list is its text, secrets are masked."""
    found: dict[str, Plain] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            found.update(plain_values(value, f"{key}."))
        elif value is not None and looks_secret(str(name), value):
            found[key] = MASK
        elif isinstance(value, (bool, int, float)):
            found[key] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            found[key] = text[:_LONGEST]
    return dict(list(found.items())[:_MOST_NAMES])


def given_to(store: Store, step: Step) -> list[dict[str, Plain]]:
    """What each element of a fan-out was given that another one was not; empty where the store does not say it.

    Of a flow's foreach it is `input`.
    """
    trials = [
        plain_values(one.data["params"])
        for one in store.records.step_events(step.run_id, step.key, SWEEP_EVENT)
        if "ask" in one.data
    ]
    if trials:
        return trials
    text = store.records.plan(step.run_id)
    plan = json.loads(text) if text else {}
    steps = {str(one["key"]): one for one in plan.get("steps", ())}
    mapped = store.records.step_events(step.run_id, step.key, MAPPED)
    try:
        if mapped:  # called by a dynamic pipeline, of which no plan has the calls
            columns = {name: _items(store, step, tree) for name, tree in mapped[-1].data.items()}
        elif plan.get("dynamic"):
            columns = {"input": _foreach_items(store, step, steps)}
        else:
            planned = steps.get(step.key, {})
            columns = {name: _items(store, step, planned["inputs"][name]) for name in planned.get("mapped") or ()}
    except (StokerError, KeyError, TypeError, ValueError):  # a plan of another version, or a lost list
        return []
    return [
        plain_values({name: column[index] for name, column in columns.items() if index < len(column)})
        for index in range(len(step))
    ]


def _items(store: Store, step: Step, tree: Mapping[str, Any]) -> list[Any]:
    """The elements of an input over which a fan-out goes; None for one that is not plain, or not there yet."""
    if "list" in tree:
        return [_leaf(one) for one in tree["list"]]
    if "value" in tree:
        return _values_of_list(from_wire(tree["value"]), store)
    key, name = str(tree["step"]), str(tree["output"])
    upstream = store.records.step(step.run_id, key)
    if upstream is None or upstream.count is None:
        return _values_of_list(_output(store, step.run_id, key, name), store)
    rows = {row.key: row.artifact for row in store.records.element_outputs(step.run_id, key, name)}
    found = [rows.get(f"{key}[{index}]") for index in range(upstream.count)]
    return [None if one is None else _value(one) for one in found]


def _leaf(tree: Mapping[str, Any]) -> Any:
    if "dict" in tree:
        return {name: _leaf(one) for name, one in tree["dict"].items()}
    return _value(from_wire(tree["value"])) if "value" in tree else None


def _foreach_items(store: Store, step: Step, templates: Collection[str]) -> list[Any]:
    """The items of the foreach in which a flow's elements are: of one with their indices and as many items as there
    are elements, that goes to their step, or that is the only one."""
    ended = store.records.steps(step.run_id, parent=step.key, limit=1)
    if any("elements" not in row.inputs for row in ended):
        return []
    indices = step.key[step.key.index("[") :] if "[" in step.key else ""
    candidates = []
    for name in templates:
        items = _values_of_list(_output(store, step.run_id, f"{name}{indices}", ELEMENTS), store)
        if len(items) == len(step) > 0:
            way = _output(store, step.run_id, f"{name}{indices}", TRANSITION)
            if way is not None and step.name in _value(way)["next"]:
                return items
            candidates.append(items)
    return candidates[0] if len(candidates) == 1 else []


def _output(store: Store, run_id: str, key: str, name: str) -> StoredArtifact | None:
    return next((row.artifact for row in store.records.outputs(run_id, key) if row.name == name), None)


def _values_of_list(artifact: StoredArtifact | None, store: Store) -> list[Any]:
    """The plain values of a list that is small enough; empty for any other."""
    if artifact is None or artifact.size > _LARGEST:
        return []
    if artifact.serializer == "list":
        return [_value(one) for one in artifacts.items(artifact, store.blobs)]
    value = artifacts.load(artifact, store.blobs) if artifact.serializer == "json" else None
    return value if isinstance(value, list) else []


def _value(artifact: StoredArtifact) -> Any:
    """A plain value that is small enough to be kept with its description; None for any other."""
    if artifact.inline is None or artifact.serializer not in ("json", "str"):
        return None
    text = artifact.inline.decode("utf-8", "replace")
    return text if artifact.serializer == "str" else json.loads(text)


# Columns


def given_names(variants: Iterable[Variant]) -> list[str]:
    """The names of what variants were given, in their order."""
    return list(dict.fromkeys(name for one in variants for name in one.given))


def metric_names(variants: Iterable[Variant]) -> list[str]:
    """The metrics that variants logged, in their order."""
    return list(dict.fromkeys(name for one in variants for name in one.metrics))


def colourings(variants: Sequence[Variant]) -> list[str]:
    """The names by which variants can be told apart, those with numbers first."""
    values = {name: {one.given[name] for one in variants if name in one.given} for name in given_names(variants)}
    differing = [name for name, found in values.items() if len(found) > 1]
    return sorted(differing, key=lambda name: not all(map(is_number, values[name])))


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a finite number, and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def metric_value(variant: Variant, name: str, which: str) -> float | None:
    """The last, lowest or highest value of a metric; None without it."""
    metric = variant.metrics.get(name)
    if metric is None:
        return None
    point = {"lowest": metric.low, "highest": metric.high}.get(which)
    return metric.last if which == "last" else None if point is None else point.value


Column = Callable[[Variant], Plain | None]


def column_of(variants: Sequence[Variant], name: str) -> Column:
    """The values of a column: element, status, took, the name of what was given, a metric, or "loss lowest".

    "rate" is "config.rate" too, if no other name ends so. `UsageError` for any other.
    """
    if name in _OWN:
        return _OWN[name]
    given = given_names(variants)
    ends = [one for one in given if one.endswith(f".{name}")]
    if name in given or len(ends) == 1:
        full = name if name in given else ends[0]
        return lambda one: one.given.get(full)
    metrics = metric_names(variants)
    metric, _, which = name.rpartition(" ")
    if which in WHICH and metric in metrics:
        return lambda one: metric_value(one, metric, which)
    if name in metrics:
        return lambda one: metric_value(one, name, "last")
    known = [*given, *metrics, *_OWN]
    raise UsageError(f"nothing is called '{name}' here{nearest(name, known)}", fix="write a name that the table has")


_OWN: Final[Mapping[str, Column]] = {
    "element": lambda one: one.index,
    "run": lambda one: one.index,
    "status": lambda one: one.status,
    "took": lambda one: one.seconds,
}


# An order and a filter


def chosen_variants(variants: Sequence[Variant], choice: Choice) -> list[Variant]:
    """The variants that the filter finds, in the order of the choice. `UsageError` for a name that there is not."""
    tests = list(_tests(variants, choice.filter))
    found = [one for one in variants if all(test(one) for test in tests)]
    if not choice.sort:
        return found
    downwards = choice.sort.startswith("-")
    column = column_of(variants, choice.sort.removeprefix("-"))
    known = [(value, one) for one in found if (value := column(one)) is not None and not _is_nan(value)]
    known.sort(key=lambda pair: _order(pair[0]), reverse=downwards)
    there = {one.index for _, one in known}
    return [one for _, one in known] + [one for one in found if one.index not in there]


def _is_nan(value: Plain) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _order(value: Plain) -> tuple[int, float, str]:
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value), "")


def _tests(variants: Sequence[Variant], text: str) -> Iterator[Callable[[Variant], bool]]:
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed yet
        words = text.split()
    for place, word in enumerate(words):
        limit = _LIMIT.fullmatch(word)
        if limit is not None:
            name, sign, bound = limit.groups()
            if name in WHICH and place:
                name = f"{words[place - 1]} {name}"
            yield _limit(column_of(variants, name), sign, bound)
            continue
        following = _LIMIT.fullmatch(words[place + 1]) if place + 1 < len(words) else None
        if following is None or following[1] not in WHICH:  # otherwise it is a metric's name
            yield _containing(word.casefold())


def _containing(word: str) -> Callable[[Variant], bool]:
    def test(one: Variant) -> bool:
        texts = (one.key, one.status, one.reason, *(f"{name}={value}" for name, value in one.given.items()))
        return any(word in text.casefold() for text in texts)

    return test


_SIGNS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "!=": operator.ne,
}


def _limit(column: Column, sign: str, bound: str) -> Callable[[Variant], bool]:
    compare = _SIGNS[sign]
    try:
        number: float | None = float(bound)
    except ValueError:
        number = None

    def test(one: Variant) -> bool:
        value = column(one)
        if value is None:
            return False
        if number is not None and is_number(value):
            return compare(value, number)
        return compare(str(value).casefold(), bound.casefold())

    return test
