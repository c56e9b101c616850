"""Two runs side by side, what is equal left out; and many variants of one thing, as an address chooses them."""

from __future__ import annotations

import difflib
import json
from typing import Any, Callable, Final, Iterator, Mapping, Sequence

import attrs
from attrs import evolve

from stoker.client import Run
from stoker.client.metrics import Metrics
from stoker.client.variants import Choice, SweepRecord, Variant, chosen_variants
from stoker.core.errors import UsageError
from stoker.core.plan import Plan
from stoker.core.receipt import model_text
from stoker.core.words import number_text, time_text
from stoker.plan.plandoc import given_settings
from stoker.report.figures import MOST, View, comparison, variants_part
from stoker.report.markup import NOTHING, Html, element, joined
from stoker.report.runreport import plan_of
from stoker.store.store import Store

Logged = Mapping[str, Metrics]
"""Step → what it logged."""
_MOST_CHARTS: Final = 24
_MOST_DIFF: Final = 2000
"""Lines of one file's differences."""


@attrs.frozen(kw_only=True)
class Comparison:
    """How two runs differ."""

    left: Run
    right: Run
    parameters: list[tuple[str, str, str]]
    settings: list[tuple[str, str, str]]
    steps: list[tuple[str, str, str, str, str, str]]
    """(step, status, status, took, took, change)"""
    metrics: list[tuple[str, str, str, str, str]]
    """(step, metric, last, last, change)"""
    charts: Html
    receipts: list[tuple[str, str, str]]
    code: list[tuple[str, Html]]
    """(file, its differences)"""
    code_known: bool
    """Whether both runs kept their code."""

    def as_dict(self) -> dict[str, Any]:
        """The differences as JSON."""
        return {
            "runs": [self.left.id, self.right.id],
            "parameters": [dict(zip(("name", "left", "right"), row)) for row in self.parameters],
            "settings": [dict(zip(("name", "left", "right"), row)) for row in self.settings],
            "steps": [
                dict(zip(("step", "left_status", "right_status", "left_took", "right_took", "change"), row))
                for row in self.steps
            ],
            "metrics": [dict(zip(("step", "metric", "left", "right", "change"), row)) for row in self.metrics],
            "files": [name for name, _ in self.code],
        }


def compare(store: Store, left: Run, right: Run) -> Comparison:
    """What differs between two runs."""
    plans = plan_of(store, left), plan_of(store, right)
    files = [dict(plan.files) if plan is not None else {} for plan in plans]
    logged = left.metrics, right.metrics  # read once: thousands of points
    return Comparison(
        left=left,
        right=right,
        parameters=_differences(_texts(left.parameters), _texts(right.parameters)),
        settings=setting_differences(*plans),
        steps=list(_steps(left, right)),
        metrics=list(_metrics(*logged)),
        charts=joined(_charts({f"A {left.id}": logged[0], f"B {right.id}": logged[1]})),
        receipts=_differences(_verdicts(left), _verdicts(right)),
        code=list(_code(store, files[0], files[1])),
        code_known=bool(files[0] and files[1]),
    )


def setting_differences(left: Plan | None, right: Plan | None) -> list[tuple[str, str, str]]:
    """(step and setting, value, value) of the settings that were given differently to two runs."""
    return _differences(_settings(left), _settings(right))


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in values.items()}


def _differences(left: Mapping[str, str], right: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*left, *right])
    return [(name, left.get(name, ""), right.get(name, "")) for name in names if left.get(name) != right.get(name)]


def _settings(plan: Plan | None) -> dict[str, str]:
    steps = plan.steps if plan is not None else ()
    return {f"{step.key}: {name}": value for step in steps for name, value, _ in given_settings(step)}


def _steps(left: Run, right: Run) -> Iterator[tuple[str, str, str, str, str, str]]:
    for key in dict.fromkeys([*left.steps, *right.steps]):
        here, there = (run.steps.get(key) for run in (left, right))
        took = [None if step is None or step.status == "cached" else step.seconds for step in (here, there)]
        words = [time_text(one) if one is not None else "" for one in took]
        change = ""
        if took[0] and took[1] is not None:
            change = f"{(took[1] - took[0]) / took[0]:+.0%}"
        yield key, here.status if here else "", there.status if there else "", words[0], words[1], change


def _metrics(here: Logged, there: Logged) -> Iterator[tuple[str, str, str, str, str]]:
    for key in dict.fromkeys([*here, *there]):
        for name in dict.fromkeys([*here.get(key, ()), *there.get(key, ())]):
            values = [
                logged[key][name].last if key in logged and name in logged[key] else None for logged in (here, there)
            ]
            words = [number_text(value) if value is not None else "" for value in values]
            change = (
                ("+" if values[1] > values[0] else "") + number_text(values[1] - values[0])
                if values[0] is not None and values[1] is not None
                else ""
            )
            yield key, name, words[0], words[1], change


def _charts(runs: Mapping[str, Logged]) -> Iterator[Html]:
    drawn = 0
    for key in dict.fromkeys(key for steps in runs.values() for key in steps):
        logged = {name: steps[key] for name, steps in runs.items() if key in steps}
        for name in dict.fromkeys(name for metrics in logged.values() for name in metrics):
            lengths = [len(metrics[name].points) for metrics in logged.values() if name in metrics]
            if drawn < _MOST_CHARTS and max(lengths) > 1:
                drawn += 1
                yield comparison(logged, name, label=f"{name} of {key}")


def _verdicts(run: Run) -> dict[str, str]:
    return {
        key: f"{receipt.verdict}, {', '.join(sorted(set(map(model_text, receipt.devices)))) or 'no device'}"
        for key, receipt in run.receipts.items()
    }


def _code(store: Store, left: Mapping[str, str], right: Mapping[str, str]) -> Iterator[tuple[str, Html]]:
    """The files that differ, each as a unified diff."""
    changed = [path for path in dict.fromkeys([*left, *right]) if left.get(path) != right.get(path)]
    texts = store.records.sources(
        [digest for path in changed for digest in (left.get(path), right.get(path)) if digest]
    )
    for path in changed:
        before, after = (
            texts.get(files.get(path, ""), b"").decode("utf-8", "replace").splitlines() for files in (left, right)
        )
        yield path, diff_of(list(difflib.unified_diff(before, after, lineterm="", n=3))[2:])


def diff_of(lines: Sequence[str]) -> Html:
    """A unified diff with its lines marked."""
    looks = {"+": "added", "-": "removed", "@": "place"}
    rows = [element("span", {"class": looks.get(line[:1])}, line + "\n") for line in lines[:_MOST_DIFF]]
    if len(lines) > _MOST_DIFF:
        rows.append(element("span", None, f"… and {len(lines) - _MOST_DIFF:,} more lines\n"))
    return element("pre", {"class": "diff", "tabindex": "0"}, *rows)


def variant_values(
    variants: Sequence[Variant],
    query: Mapping[str, str],
    *,
    noun: str,
    title: str,
    address: Callable[[Mapping[str, Any]], str],
    page_of: Callable[[Variant], str],
    sweep: SweepRecord | None = None,
) -> dict[str, Any]:
    """The values of the template variants_part.html; `address` makes that of the page with more in its query."""
    choice, problem = Choice.parse(query), ""
    try:
        found = chosen_variants(variants, choice)
    except UsageError as error:
        found, problem = list(variants), str(error)
    if choice.start >= len(found):
        choice = evolve(choice, start=0)

    def address_of(other: Choice) -> str:
        return address(other.as_dict())

    start, end = choice.start, choice.start + MOST
    view = View(choice=choice, noun=noun, title=title, address=address_of, page_of=page_of, sweep=sweep)
    return {
        "address": address({**choice.as_dict(), "variants": 1}),
        "choice": choice,
        "problem": problem,
        "noun": noun,
        "number": len(found),
        "total": len(variants),
        "sweep": NOTHING,
        "figures": variants_part(variants, found, view),
        "all": address(evolve(choice, filter="", start=0).as_dict()),
        "failed": address(evolve(choice, filter="status=failed", start=0).as_dict()),
        "running": address(evolve(choice, filter="status=running", start=0).as_dict()),
        "earlier": address(evolve(choice, start=max(0, start - MOST)).as_dict()) if start else "",
        "later": address(evolve(choice, start=end).as_dict()) if end < len(found) else "",
    }
