"""A whole run as one HTML file without network and scripts, and the profile of one step's accelerators.

It reads the run through the client and what was stored of it, and leaves out as much as a page for reading demands: a
report has at most `LARGEST` bytes beside the pictures that users made.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from datetime import datetime
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.client import Run, Step
from stoker.client.keys import element_of
from stoker.client.logs import last_attempt
from stoker.client.metrics import Metrics
from stoker.client.placements import Placement
from stoker.client.variants import Variant, element_variants, metric_names
from stoker.core.errors import StokerError
from stoker.core.findings import merged
from stoker.core.plan import LogLine, Plan, StepPlan, source_keys
from stoker.core.receipt import Receipt, energy_text, summary_of, totals
from stoker.core.secret import MASK, looks_secret
from stoker.core.values import frozen
from stoker.core.words import attempts_text, bounded, count_text, time_text, took_text
from stoker.plan import plandoc
from stoker.plan.plandoc import given_settings
from stoker.report import stepparts
from stoker.report.figures import View, elements_part, metrics_part, receipt_part
from stoker.report.graphs import GraphStep, PhaseSpan, TimelineRow, graph, timeline
from stoker.report.markup import (
    NOTHING,
    Content,
    Html,
    badge,
    document,
    element,
    facts,
    folded,
    joined,
    link,
    notice,
    section,
    table,
)
from stoker.report.receipts import StepReceipt, newest_receipt, run_receipts
from stoker.report.stepparts import preview_part
from stoker.store.previews import preview
from stoker.store.store import Store

log = logging.getLogger(__name__)

LARGEST: Final = 300_000
"""Bytes of a report beside users' pictures: what a mail program shows, and a person reads."""
FAILURES: Final = 5
"""Failed steps that are explained at the top."""
DRAWN_ELEMENTS: Final = 24
"""Elements up to which each has its own row of the timeline."""


@frozen(kw_only=True)
class Detail:
    """How much a report shows."""

    steps: int
    """Steps that have a section of their own; failed ones first."""
    lines: int
    """Last lines of each log."""
    columns: int
    """Parts of a chart's axis."""
    charts: int
    """Metrics of a step that are drawn."""
    outputs: int
    """Results of a step with a preview."""
    elements: int
    """Elements of a fan-out in its table."""


DETAILS: Final = (
    Detail(steps=60, lines=60, columns=300, charts=12, outputs=12, elements=200),
    Detail(steps=40, lines=30, columns=120, charts=8, outputs=8, elements=100),
    Detail(steps=16, lines=15, columns=60, charts=4, outputs=4, elements=50),
    Detail(steps=6, lines=8, columns=40, charts=2, outputs=2, elements=25),
    Detail(steps=1, lines=5, columns=24, charts=1, outputs=1, elements=10),
)
"""From all that a page for reading holds to the least: the first that fits is taken."""


def run_report(store: Store, run: Run, *, now: float | None = None) -> str:
    """The report of a run as a page of at most `LARGEST` bytes beside pictures; `now` is the end of what still runs."""
    reading = _Reading(store, run, now=time.time() if now is None else now)
    text = ""
    for detail in reading.details():
        body = reading.body(detail)
        text = document(f"{run.pipeline} {run.status} · {run.id}", body, state=run.status)
        if len(text.encode("utf-8")) - reading.picture_bytes <= LARGEST:
            break
    return text


def gpu_profile(store: Store, run: Run, key: str) -> str | None:
    """The page of what one step did with its accelerators; None for a step without a receipt."""
    step = run.steps[key]
    found = newest_receipt(store, step)
    if found is None:
        return None
    body = element(
        "main",
        None,
        element("h1", None, f"{run.pipeline} / {key} ", badge(step.status)),
        facts({"run": run.id, "attempt": str(found.number), "started": _started_words(found.receipt)}),
        accelerator_part(found, step),
        _footer(),
    )
    return document(f"{key} of {run.pipeline}: accelerators", body, state=found.receipt.verdict)


def accelerator_part(found: StepReceipt, step: Step, *, columns: int = 400) -> Html:
    """What a receipt says, with the peaks of the step's ranks."""
    return receipt_part(
        found.receipt,
        found.tracks,
        running=found.running,
        usage=step.usage,
        span=code_span(step, found.number),
        columns=columns,
    )


def code_span(step: Step, number: int) -> tuple[float | None, float | None]:
    """When the step's own code began and ended in an attempt."""
    attempt = next((one for one in step.attempts if one.number == number), None)
    began = attempt.started if attempt is not None else step.started
    ended = attempt.ended if attempt is not None else None
    return (None if began is None else began.timestamp(), None if ended is None else ended.timestamp())


def output_parts(store: Store, step: Step, *, most: int, anchor: str = "") -> tuple[Html, int]:
    """The results of a step with previews, and the bytes of the pictures among them.

    Of a fan-out those of its first element stand for all, whose list may be long.
    """
    shown = step
    if step.count is not None:
        if not step.count or step.status not in ("succeeded", "cached"):
            return NOTHING, 0
        shown = step[0]
    outputs = list(shown.outputs.values())
    rows = {row.name: row for row in store.records.outputs(shown.run_id, shown.key)}
    parts = []
    pictures = 0
    for output in outputs[:most]:
        made = preview(rows[output.name].artifact, store.blobs) if output.name in rows else None
        label = f"{shown.key}.{output.name}"
        content = preview_part(made, label=label) if made is not None else NOTHING
        if made is not None and made.picture is not None:
            pictures += len(made.picture.data) * 4 // 3 + 4
        words = element("p", {"class": "muted small"}, stepparts.output_words(output.as_dict()))
        parts.append(element("div", {"class": "card"}, element("h4", None, label), words, content))
    left = outputs[most:]
    rest = [(f"{shown.key}.{output.name}", stepparts.output_words(output.as_dict())) for output in left[:50]]
    return joined([*parts, table(("more results", ""), rest, caption="more results")]), pictures


class _Reading:
    """A run as it is read once for all tries at a page that is small enough."""

    def __init__(self, store: Store, run: Run, *, now: float) -> None:
        self.store = store
        self.run = run
        # What an interrupted run's steps did after their driver's end is not known.
        last = run.heartbeat.timestamp() if run.status == "interrupted" and run.heartbeat is not None else now
        self.now = min(now, last)
        self.picture_bytes = 0
        self._logged: dict[str, Metrics] = {}
        self._variants: dict[str, list[Variant]] = {}
        self.steps = dict(run.steps.items())
        self.plan = plan_of(store, run)
        self.plans = {step.key: step for step in self.plan.steps} if self.plan is not None else {}
        self.placements = run.placements
        self.receipts = {found.key: found for found in run_receipts(store, run)}
        failed = [key for key, step in self.steps.items() if step.failure is not None]
        self.explained = failed[:FAILURES]
        """Failed steps that stand at the top of the page."""
        self.unexplained = len(failed) - len(self.explained)
        self.anchors = {key: f"step-{number}" for number, key in enumerate(self.steps, 1)}

    def details(self) -> Sequence[Detail]:
        """What is to be tried: without details that would be far too large, whose pages would be made for nothing."""
        likely = [place for place, detail in enumerate(DETAILS) if self._expected(detail) <= 2 * LARGEST]
        return DETAILS[likely[0] :] if likely else DETAILS[-1:]

    def _expected(self, detail: Detail) -> int:
        """About the bytes of a page: a point of a curve has some 15, of which a part of the axis has two or more."""
        size = 0
        for key in self._detailed(detail.steps):
            if self.steps[key].count:
                size += 2_000 + 400 * min(detail.elements, self.steps[key].count or 0)
                points = len(metric_names(self._variants_of(key))[: detail.charts]) * _points(detail) // 2
            else:
                metrics = [*self._metrics_of(key).values()][: detail.charts]
                points = sum(min(2 * detail.columns, metric.count) for metric in metrics)
            size += 2_000 + 50 * detail.lines + 15 * points
        return size

    def _metrics_of(self, key: str) -> Metrics:
        """What a step logged; read once for all tries."""
        if key not in self._logged:
            self._logged[key] = self.steps[key].metrics
        return self._logged[key]

    def _variants_of(self, key: str) -> list[Variant]:
        """The elements of a fan-out; read once for all tries."""
        if key not in self._variants:
            self._variants[key] = element_variants(self.store, self.steps[key])
        return self._variants[key]

    def body(self, detail: Detail) -> Html:
        """The whole page."""
        run = self.run
        self.picture_bytes = 0
        detailed = self._detailed(detail.steps)
        sections = [self._step(key, detail) for key in detailed]
        left = len(self.steps) - len(detailed)
        if left:
            sections.append(
                element("p", {"class": "empty"}, f"{count_text(left, 'more step')}: stoker report RUN STEP shows one.")
            )
        return element(
            "main",
            None,
            element("h1", None, f"{run.pipeline} ", badge(run.status)),
            self._facts(),
            self._failures(),
            section("Graph", self._graph()),
            section("Timeline", self._timeline()),
            section("Steps", self._table()),
            section("Parameters", _parameters(run.parameters, self.plan)),
            section("Findings", self._findings()),
            joined(sections),
            _footer(),
        )

    def _detailed(self, most: int) -> list[str]:
        """The steps with sections of their own, in the pipeline's order: those that failed are always among them."""
        keys = list(self.steps)
        ranked = sorted(keys, key=lambda key: (_RANKS.get(self.steps[key].status, 1), keys.index(key)))
        chosen = set(ranked[:most])
        return [key for key in keys if key in chosen]

    def _facts(self) -> Html:
        run = self.run
        receipts = [found.receipt for found in self.receipts.values()]
        hours = sum(receipt.seconds * len(receipt.devices) for receipt in receipts)
        return facts(
            {
                "run": run.id,
                "created": run.created.isoformat(" ", "seconds"),
                "took": took_text(run.active_seconds, run.queue_seconds) if run.active_seconds is not None else "",
                "stack": run.stack,
                "accelerator time": time_text(hours) if hours else "",
                "energy": energy_text(totals(receipts).energy) if receipts else "",
                "defined": run.source,
                "tags": ", ".join(run.tags),
                "started by": run.cause,
                "author": run.author,
                "commit": run.commit_words,
                "repeats": run.origin or "",
                "sessions": str(run.sessions) if run.sessions > 1 else "",
                "unreadable": run.damage,
            }
        )

    def _failures(self) -> Html:
        parts: list[Content] = []
        if self.run.error:
            parts.append(notice("bad", element("p", None, bounded(self.run.error, 2_000))))
        if self.run.status == "interrupted":
            gone = "The process that drove the run is gone: it was killed, or its machine went away."
            parts.append(notice("bad", element("p", None, gone)))
        for number, key in enumerate(self.explained):
            step = self.steps[key]
            failure = step.failure
            if failure is not None:
                element_key = next((one.key for one in step if one.status == "failed"), key) if step.count else key
                parts.append(element("h3", None, link(f"#{self.anchors[key]}", element_key)))
                parts.append(stepparts.failure_part(failure.as_dict(), unfolded=number == 0))
        if self.unexplained:
            parts.append(element("p", {"class": "muted"}, f"… and {self.unexplained:,} more failed"))
        if self.run.status in ("failed", "cancelled", "interrupted"):
            command = element("code", None, f"stoker resume {self.run.id}")
            parts.append(element("p", None, command, " goes on with what is missing."))
        return section("What went wrong", *parts) if parts else NOTHING

    def _graph(self) -> Html:
        return graph(
            [
                GraphStep(
                    key=key,
                    state=step.status,
                    sources=_sources(self.plans.get(key)),
                    words=self._words(step),
                    address=f"#{self.anchors[key]}",
                )
                for key, step in self.steps.items()
            ]
        )

    def _words(self, step: Step) -> str:
        parts = ["" if step.count is None else f"×{step.count:,}", step.cause]
        if step.status != "cached":
            parts.append(stepparts.took(step.seconds))
        return ", ".join(filter(None, parts))

    def _timeline(self) -> Html:
        rows: list[TimelineRow] = []
        for step in self.steps.values():
            if step.count is not None and step.count <= DRAWN_ELEMENTS:
                rows += [row for one in step for row in self._attempts(one)]
            else:
                rows += self._attempts(step)
        begin = self.run.started.timestamp() if self.run.started is not None else None
        end = self.run.ended.timestamp() if self.run.ended is not None else self.now
        return timeline(rows, begin=begin, end=end)

    def _attempts(self, step: Step) -> Iterator[TimelineRow]:
        attempts = step.attempts
        anchor = self.anchors.get(step.key) or self.anchors.get(element_of(step.key)[0], "")
        address = f"#{anchor}" if anchor else ""
        placements = {one.attempt: one for one in self.placements.get(step.key, ())}
        numbers = dict.fromkeys([*(one.number for one in attempts), *placements])
        several = len(numbers) > 1
        ended = {one.number: one for one in attempts}
        for number in sorted(numbers):
            attempt, placement = ended.get(number), placements.get(number)
            start = attempt.started.timestamp() if attempt is not None and attempt.started is not None else None
            end = attempt.ended.timestamp() if attempt is not None and attempt.ended is not None else None
            called = attempt.called.timestamp() if attempt is not None and attempt.called is not None else None
            returned = attempt.returned.timestamp() if attempt is not None and attempt.returned is not None else None
            spans = phases(placement, start=start, end=end, now=self.now, called=called, returned=returned)
            yield TimelineRow(
                name=f"{step.key} #{number}" if several else step.key,
                state=attempt.status if attempt is not None else step.status,
                spans=spans,
                took=time_text(sum(span.end - span.start for span in spans if span.phase == "run")),
                address=address,
            )
        current = step.started.timestamp() if step.started is not None else None
        runs = step.status == "running" and not any(number not in ended for number in numbers)
        if current is not None and (runs or not numbers):
            end = step.ended.timestamp() if step.ended is not None else self.now
            if step.status != "cached":
                yield TimelineRow(
                    name=f"{step.key} #{len(attempts) + 1}" if attempts else step.key,
                    state=step.status,
                    spans=[PhaseSpan(phase="run", start=current, end=max(current, end))],
                    took=time_text(max(0.0, end - current)),
                    address=address,
                )
                return
        if not numbers:
            yield TimelineRow(name=step.key, state=step.status, took=step.status, address=address)

    def _table(self) -> Html:
        rows = []
        for key, step in self.steps.items():
            receipts = self._receipts_of(key)
            rows.append(
                (
                    link(f"#{self.anchors[key]}", key if step.count is None else f"{key} ×{step.count:,}"),
                    badge(step.status),
                    stepparts.took(step.seconds) if step.status != "cached" else "",
                    *stepparts.usage_cells(step.usage),
                    attempts_text(step.attempt_count, of_elements=step.count is not None),
                    summary_of(receipts) if receipts else "",
                    self._remark(step),
                )
            )
            if len(rows) >= _ROWS:
                break
        left = len(self.steps) - len(rows)
        more = element("p", {"class": "muted"}, f"… and {count_text(left, 'more step')}") if left else NOTHING
        headers = ("step", "status", "took", "cpu", "peak", "attempts", "accelerators", "")
        return joined([table(headers, rows, right={2, 3, 4, 5}, caption="steps", folds=True), more])

    def _remark(self, step: Step) -> str:
        words = []
        if step.count:
            tally = Counter(one.status for one in step)
            if set(tally) != {step.status}:
                words.append(", ".join(f"{number:,} {status}" for status, number in tally.items()))
        if step.cached_from:
            words.append(f"from {step.cached_from}")
        if step.cause:
            words.append(f"{step.cause}: {bounded(step.message, 200)}".rstrip(": "))
        elif step.status == "pending" and step.message:
            words.append(f"waits: {bounded(step.message, 200)}")
        return "; ".join(words)

    def _receipts_of(self, key: str) -> list[Receipt]:
        return [one.receipt for name, one in self.receipts.items() if key in (name, element_of(name)[0])]

    def _findings(self) -> Html:
        if self.plan is None:
            return NOTHING
        rows = [
            (badge(_LEVELS.get(one.level, "note"), one.level), one.code, one.where, one.what, one.why, one.fix)
            for one in merged(self.plan.findings)
        ]
        return table(("", "code", "where", "what", "why", "what to do"), rows[:_ROWS], caption="findings")

    def _step(self, key: str, detail: Detail) -> Html:
        step = self.steps[key]
        shown = step.as_dict()
        outputs, pictures = output_parts(self.store, step, most=detail.outputs)
        self.picture_bytes += pictures
        failure = step.failure
        plan = self.plans.get(key)
        settings = stepparts.setting_table(given_settings(plan)) if plan is not None else NOTHING
        return section(
            key,
            stepparts.step_facts(shown),
            stepparts.failure_part(failure.as_dict()) if failure is not None and key not in self.explained else NOTHING,
            _part("Attempts", stepparts.attempt_table(shown) if len(shown["attempts"]) > 1 else NOTHING),
            _part("Metrics", self._metrics(step, detail)),
            _part("Accelerators", self._accelerators(step, detail)),
            _part("Results", outputs),
            _part("Elements", self._elements(step, detail) if step.count else NOTHING),
            folded("Settings and where they are given", settings),
            self._log(step, detail),
            anchor=self.anchors[key],
        )

    def _metrics(self, step: Step, detail: Detail) -> Html:
        return metrics_part(self._metrics_of(step.key), columns=detail.columns, most=detail.charts)

    def _elements(self, step: Step, detail: Detail) -> Html:
        view = View(title=f"elements of {step.key}", charts=detail.charts, rows=detail.elements, points=_points(detail))
        return elements_part(self._variants_of(step.key), view)

    def _accelerators(self, step: Step, detail: Detail) -> Html:
        if step.count is not None:
            receipts = self._receipts_of(step.key)
            return element("p", None, summary_of(receipts)) if receipts else NOTHING
        if step.key not in self.receipts:
            return NOTHING
        found = newest_receipt(self.store, step)
        return NOTHING if found is None else accelerator_part(found, step, columns=detail.columns)

    def _log(self, step: Step, detail: Detail) -> Html:
        failed = next((one for one in step if one.status == "failed"), None) if step.count else None
        shown = failed or step
        lines = last_lines(self.store, shown, detail.lines)
        last = "the last " if len(lines) >= detail.lines else ""
        title = f"Log of {shown.key}: {last}{count_text(len(lines), 'line')}"
        return folded(title, stepparts.log_part(lines, label=f"log of {shown.key}"), unfolded=step.status == "failed")


def _points(detail: Detail) -> int:
    """Points of a chart with many curves."""
    return 20 * detail.columns


_ROWS: Final = 300
_RANKS: Final[Mapping[str, int]] = {"failed": 0, "interrupted": 0, "cancelled": 0, "cached": 2, "skipped": 3}
_LEVELS: Final[Mapping[str, str]] = {"error": "error", "warning": "warning"}


def phases(
    placement: Placement | None,
    *,
    start: float | None,
    end: float | None,
    now: float,
    called: float | None = None,
    returned: float | None = None,
) -> list[PhaseSpan]:
    """What an attempt did when: waited in its platform's queue, was started, ran, and saved its results.

    `start` and `end` are those of the worker, `called` and `returned` those of the step's function; None while they are
    not known.
    """
    spans = []
    if placement is not None and placement.sent is not None:
        sent = placement.sent.timestamp()
        began = placement.started.timestamp() if placement.started is not None else None
        left = began or start or end or now
        spans.append(PhaseSpan(phase="queue", start=sent, end=max(sent, left)))
        if began is not None:
            first = start if start is not None and start >= began else None
            if first is not None and first > began:
                spans.append(PhaseSpan(phase="start", start=began, end=first))
            start = first or began
        elif start is not None:
            start = max(start, left)
        over = placement.ended.timestamp() if placement.ended is not None else None
        end = end if end is not None else over
    if start is None:
        return spans
    end = max(start, now if end is None else end)
    called = min(max(start, called if called is not None else start), end)
    returned = min(max(called, returned if returned is not None else end), end)
    if called > start:
        spans.append(PhaseSpan(phase="start", start=start, end=called))
    spans.append(PhaseSpan(phase="run", start=called, end=returned))
    if end > returned:
        spans.append(PhaseSpan(phase="save", start=returned, end=end))
    return spans


def last_lines(store: Store, step: Step, most: int) -> list[LogLine]:
    """The last lines of a step's newest attempt; empty for a fan-out, whose elements have their own."""
    if step.count is not None or not store.logs.attempts(step.run_id, step.key):
        return []
    attempt = last_attempt(store, step.run_id, step.key)
    return list(store.logs.lines(step.run_id, step.key, attempt, rank=None, tail=most))


def _part(title: str, content: Html) -> Html:
    return joined([element("h3", None, title), content]) if content else NOTHING


def plan_of(store: Store, run: Run) -> Plan | None:
    """The plan of a run; None where it cannot be read."""
    text = store.records.plan(run.id)
    if not text:
        return None
    try:
        return plandoc.load(text)
    except StokerError as error:
        log.debug("the plan of run %s cannot be read: %s", run.id, error)
        return None


def _sources(plan: StepPlan | None) -> Sequence[str]:
    if plan is None:
        return ()
    named = [key for tree in plan.inputs.values() for key in source_keys(tree)]
    return [*dict.fromkeys([*named, *plan.after])]


def _parameters(parameters: Mapping[str, Any], plan: Plan | None) -> Html:
    """The arguments, and which of them the command line set (`--set parameters.NAME=…`)."""
    assignments = plan.request.get("assignments") if plan is not None else None
    names = [str(one).partition("=")[0] for one in assignments] if isinstance(assignments, list) else []
    rows = [
        (
            element("code", None, name),
            element("code", None, MASK if looks_secret(name, value) else bounded(_value(value), 500)),
            f"--set {_PREFIX}{name}" if f"{_PREFIX}{name}" in names else "the call",
        )
        for name, value in parameters.items()
    ]
    return table(("parameter", "value", "given in"), rows, caption="parameters")


_PREFIX: Final = "parameters."


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _started_words(receipt: Receipt) -> str:
    return datetime.fromtimestamp(receipt.started).astimezone().isoformat(" ", "seconds") if receipt.started else ""


def _footer() -> Html:
    return element("footer", None, "made by Stoker")
