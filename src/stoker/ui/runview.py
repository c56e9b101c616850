"""What the pages of runs show. The list: what an address asks for. A run: its steps, their graph and times, what failed
and why, what it made. A step: its attempts, lines, metrics, accelerators, results, settings, and why it ran."""

from __future__ import annotations

import json
import logging
import os
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Collection, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.client import Client, Output, Run, Step
from stoker.client.attempts import Failure
from stoker.client.keys import element_of
from stoker.client.leftjobs import SHOWN_STATUSES
from stoker.client.metrics import Metrics
from stoker.client.placements import Placement
from stoker.client.runs import Placements, element_counts, fanout_status, running_keys, step_status, wait_reasons
from stoker.client.variants import element_variants
from stoker.client.why import StepReason
from stoker.core import receipt as receipt_words
from stoker.core.errors import NotFound, StokerError
from stoker.core.plan import Plan, StepPlan, named_inputs, source_keys, source_outputs, without_secrets
from stoker.core.receipt import Receipt
from stoker.core.status import STEP_DONE
from stoker.core.values import frozen
from stoker.core.words import EXPECTED_START, memory_text, number_text, time_text
from stoker.plan.plandoc import given_settings
from stoker.report import machine
from stoker.report.cards import components
from stoker.report.figures import View, variant_charts
from stoker.report.graphs import GraphStep, PhaseSpan, TimelineRow, graph, timeline
from stoker.report.live import pending_texts
from stoker.report.markup import NOTHING, Content, Html, badge
from stoker.report.receipts import StepReceipt, attempt_receipt, newest_receipt, run_receipts
from stoker.report.runreport import accelerator_part, phases
from stoker.report.svg import spark
from stoker.store.registry import ArtifactRow
from stoker.store.store import Store
from stoker.ui.rendering import named, url

if TYPE_CHECKING:
    from stoker.run.rendering import RenderedStep

UNKNOWN: Final = "unknown"
_HOUR: Final = 3600.0


def prices_of(plan: Plan | None) -> dict[str, float]:
    """Step → US dollars an hour of the machines of one attempt, for the steps whose price is known."""
    if plan is None:
        return {}
    return {step.key: step.price for step in plan.steps if step.price is not None}


def cost_text(
    prices: Mapping[str, float],
    placements: Mapping[str, Sequence[Placement]],
    held: Iterable[str],
    *,
    now: float | None = None,
) -> str:
    """The cost of attempts in words; empty where nothing was held that costs.

    `placements` are the attempts of each step and element on platforms, `held` the steps and elements that held
    accelerators: of those without a price, the cost is unknown.
    """
    moment = time.time() if now is None else now
    total, known = 0.0, False
    for key, attempts in placements.items():
        price = prices.get(element_of(key)[0])
        if price is None:
            continue
        for one in attempts:
            if one.started is not None:
                ended = moment if one.ended is None else one.ended.timestamp()
                total += price * max(0.0, ended - one.started.timestamp()) / _HOUR
                known = True
    others = {element_of(key)[0] for key in held} - set(prices)
    if not known:
        return UNKNOWN if others else ""
    return f"${total:,.2f}" + (f", of {', '.join(sorted(others)[:3])} {UNKNOWN}" if others else "")


log = logging.getLogger(__name__)

MOST_FAILURES: Final = 10
"""Failed steps that a run's page explains; the others are a number."""
MOST_METRICS: Final = 40
"""Metrics that it lists; each step's page has its own."""
MOST_CHARTS: Final = 6
"""Metrics of a fan-out that it draws."""
MOST_OUTPUTS: Final = 60
MOST_NAMES: Final = 60
"""Named versions that a run made or used that its page lists; users, runs and promotions that theirs do."""
MOST_GATHERED: Final = 1_000
"""Elements of a fan-out whose outputs are put together to be described."""
MOST_VARIANTS: Final = 20_000
"""Elements of a fan-out that its page lists and draws."""
_SECONDS_OF_AN_HOUR: Final = 3600.0


@attrs.frozen(kw_only=True)
class StepLine:
    """A step in a run's table."""

    key: str
    address: str
    status: str
    took: str
    began: datetime | None
    attempts: int
    count: int | None
    tally: str
    """Of a fan-out: how many elements have which status."""
    remark: str
    devices: str
    progress: int | None
    """Of a fan-out: percent of the elements that are over."""


@attrs.frozen(kw_only=True)
class FailureView:
    """Why a step failed."""

    key: str
    address: str
    failure: Failure
    others: str
    """The ranks that failed after the first one."""
    place: str
    """The file and line, from the server's folder on where it lies there."""


@attrs.frozen(kw_only=True)
class MetricLine:
    """A metric in a table."""

    step: str
    address: str
    name: str
    last: str
    low: str
    high: str
    count: int
    curve: Html


def step_address(run: str, key: str) -> str:
    """The page of a step."""
    return url(f"/runs/{run}/step", key=key)


def lines_of(store: Store, run: Run) -> list[StepLine]:
    """The steps of a run, each as a line."""
    placements = run.placements
    running, waits = running_keys(run, placements), waits_of(run, placements)
    receipts: dict[str, list[Receipt]] = {}
    for one in run_receipts(store, run):
        for key in {one.key, one.key.partition("[")[0]}:
            receipts.setdefault(key, []).append(one.receipt)
    return [
        _line(store, step, placements, running, receipts.get(step.key, ()), waits.get(step.key, ""))
        for step in run.steps.values()
    ]


def waits_of(run: Run, placements: Placements) -> Mapping[str, str]:
    """Why steps that have not begun wait where their platform does not say it: devices, a place, other steps."""
    if run.status != "running":
        return {}
    leases = {key: f"waits: {reason}" for key, reason in machine.waits_of(run.id).items()}
    return {**pending_texts(run, placements), **leases}


def _line(
    store: Store,
    step: Step,
    placements: Placements,
    running: Collection[str],
    receipts: Sequence[Receipt],
    waits: str,
) -> StepLine:
    status, tally, progress = step.status, "", None
    words = []
    if step.count:
        counts = element_counts(step, running)
        status = fanout_status(step, counts)
        tally = ", ".join(f"{number:,} {name}" for name, number in counts.items())
        progress = 100 * sum(counts[name] for name in STEP_DONE) // step.count
        words += [f"{number:,} wait: {reason}" for reason, number in wait_reasons(step, placements).items()]
    else:
        status = step_status(step, running)
    if step.cached_from:
        words.append(f"result of run {step.cached_from.partition('/')[0]}")
    if status == "pending" and (waits or step.message):
        words.append(waits or f"waits: {step.message.partition(EXPECTED_START)[0]}")
    if step.cause:
        words.append(f"{step.cause}: {step.message}".rstrip(": "))
    if step.damage:
        words.append(f"unreadable: {step.damage}")
    return StepLine(
        key=step.key,
        address=step_address(step.run_id, step.key),
        status=status,
        took=time_text(step.seconds) if step.seconds is not None and step.status != "cached" else "",
        began=step.started,
        attempts=step.attempt_count,
        count=step.count,
        tally=tally,
        remark="; ".join(words),
        devices=receipt_words.summary_of(receipts) if receipts else "",
        progress=progress,
    )


def failures_of(run: Run) -> tuple[list[FailureView], int]:
    """Why the failed steps of a run failed, the first of many, and how many more there are."""
    failed = [step for step in run.steps.values() if step.status == "failed"]
    return [view for step in failed[:MOST_FAILURES] for view in failure_of(step)], max(0, len(failed) - MOST_FAILURES)


def failure_of(step: Step) -> Iterator[FailureView]:
    """Why a step failed; nothing of one that did not."""
    failure = step.failure
    if failure is None:
        return
    key = step.failed_key
    others = [str(rank) for rank in failure.failed_ranks if rank != failure.rank]
    yield FailureView(
        key=key,
        address=step_address(step.run_id, key),
        failure=failure,
        others=", ".join(others),
        place=_near(failure.place),
    )


def _near(place: str) -> str:
    """A place of code without the server's own folder."""
    return place.removeprefix(os.getcwd() + os.sep)


def graph_of(run: Run, plan: Plan | None, lines: Sequence[StepLine]) -> Html:
    """The graph of a run's steps; without a plan, or for one that decides while it runs, its steps without edges."""
    sources: dict[str, list[str]] = {}
    for step in plan.steps if plan is not None else ():
        named = [*step.after, *(key for tree in step.inputs.values() for key in source_keys(tree))]
        sources[step.key] = list(dict.fromkeys(named))
    nodes = [
        GraphStep(
            key=line.key,
            state=line.status,
            sources=sources.get(line.key, ()),
            words=" · ".join(filter(None, (f"×{line.count}" if line.count is not None else "", line.took))),
            address=line.address,
        )
        for line in lines
    ]
    return graph(nodes, label=f"steps of run {run.id}")


def timeline_of(run: Run, lines: Sequence[StepLine]) -> Html:
    """When each attempt waited and ran."""
    placed, now = run.placements, time.time()
    rows: list[TimelineRow] = []
    for line in lines:
        step = run.steps[line.key]
        spans: list[PhaseSpan] = []
        if step.count is not None:
            spans = phases(None, start=_epoch(step.started), end=_epoch(step.ended), now=now)
        elif step.status != "cached":
            places = {one.attempt: one for one in placed.get(step.key, ())}
            over = {one.number: one for one in step.attempts}
            for number in sorted({*places, *over}):
                attempt = over.get(number)
                began, ended = (attempt.started, attempt.ended) if attempt is not None else (step.started, step.ended)
                spans += phases(places.get(number), start=_epoch(began), end=_epoch(ended), now=now)
            if step.ended is None and step.attempt_count > max({0, *places, *over}):
                spans += phases(None, start=_epoch(step.started), end=None, now=now)
        rows.append(TimelineRow(name=line.key, state=line.status, spans=spans, took=line.took, address=line.address))
    return timeline(rows)


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def device_hours(store: Store, run: Run) -> str:
    """Hours in which the run held accelerators, each counted by itself, over all attempts; empty for none."""
    held = [(row.receipt, row.key) for row in store.records.receipts(run.id)]
    held += [(one.receipt, one.key) for one in run_receipts(store, run) if one.running]
    seconds = sum(receipt.seconds * len(receipt.devices) for receipt, _ in held)
    if not seconds:
        return ""
    hours = seconds / _SECONDS_OF_AN_HOUR
    return f"{hours:,.2f} h" if hours >= 0.01 else f"{time_text(seconds)}"


def cost(store: Store, run: Run, plan: Plan | None, key: str = "") -> str:
    """What a run, or one step of it, cost so far in words; empty where it held nothing that costs."""

    def is_of(one: str) -> bool:
        return not key or one == key or element_of(one)[0] == key

    placements = {one: jobs for one, jobs in run.placements.items() if is_of(one)}
    held = [one.key for one in run_receipts(store, run) if is_of(one.key)]
    return cost_text(prices_of(plan), placements, held)


def metric_lines(run_id: str, metrics: Mapping[str, Metrics], *, most: int = MOST_METRICS) -> list[MetricLine]:
    """What steps logged, as rows of a table, the first of many."""
    lines: list[MetricLine] = []
    for key, logged in metrics.items():
        for metric in logged.values():
            if len(lines) == most:
                return lines
            low, high = metric.low, metric.high
            lines.append(
                MetricLine(
                    step=key,
                    address=step_address(run_id, key) + "#metrics",
                    name=metric.name,
                    last=number_text(metric.last),
                    low=number_text(low.value) if low is not None else "",
                    high=number_text(high.value) if high is not None else "",
                    count=metric.count,
                    curve=spark([point.value for point in metric.points], label=f"{metric.name} of {key}"),
                )
            )
    return lines


def fanout_charts(store: Store, run: Run, metrics: Mapping[str, Metrics]) -> Iterator[tuple[str, str, Html]]:
    """(fan-out, its page, charts of its elements) of those whose elements logged something."""
    for key in dict.fromkeys(element_of(one)[0] for one in metrics if run.steps[one].parent):
        variants = element_variants(store, run.steps[key], logged=metrics)
        charts = variant_charts(variants, variants, View(charts=MOST_CHARTS))
        yield key, step_address(run.id, key) + "#elements", charts


def outputs_of(step: Step) -> Mapping[str, Output]:
    """A step's outputs; of a large fan-out those of its first element: a list of all is put together in seconds."""
    return step[0].outputs if step.count and step.count > MOST_GATHERED else step.outputs


def output_rows(run: Run) -> list[tuple[str, str, str, str, str, str]]:
    """(step, output, type, shape, size, address) of the outputs of a run's steps, the first of many."""
    rows: list[tuple[str, str, str, str, str, str]] = []
    for step in run.steps.values():
        for output in outputs_of(step).values():
            if len(rows) == MOST_OUTPUTS:
                return rows
            shape = "×".join(map(str, output.shape)) if output.shape is not None else ""
            address = url(f"/runs/{run.id}/artifact", key=step.key, name=output.name)
            rows.append(
                (
                    step.key,
                    output.name if output.step == step.key else f"{output.name} of {output.step}",
                    output.type,
                    f"{shape} {output.dtype or ''}".strip(),
                    memory_text(output.size),
                    address,
                )
            )
    return rows


def names_of_run(store: Store, run: str) -> Mapping[str, Sequence[Any]]:
    """The versions of artifacts and models that a run made and used, the first of many; empty for none."""
    registry = store.registry
    found: dict[str, Sequence[Any]] = {
        "made": registry.named_in(run, limit=MOST_NAMES),
        "used": registry.uses_of_run(run, limit=MOST_NAMES),
        "models": registry.models_of_run(run),
    }
    return found if any(found.values()) else {}


def names_of_step(store: Store, step: Step) -> dict[str, list[ArtifactRow]]:
    """The versions that a step made, or the step whose result it took, by output.

    What it saved by a name is none of its outputs, and called as `naming.save_artifact` calls it.
    """
    origin, _, original = step.cached_from.partition("/")
    rows = store.registry.named_by(step.run_id, step.key, limit=MOST_NAMES)
    if not rows and origin:
        rows = store.registry.named_by(origin, original, limit=MOST_NAMES)
    found: dict[str, list[ArtifactRow]] = {}
    for row in rows:
        found.setdefault(row.output, []).append(row)
    return found


PAGE: Final = 50
"""Runs, names and versions of a page."""
STATUSES: Final = SHOWN_STATUSES


@frozen(kw_only=True)
class RunQuery:
    """What is looked for; an empty field looks for anything."""

    text: str = ""
    pipeline: str = ""
    status: str = ""
    tag: str = ""
    stack: str = ""
    since: str = ""
    before: str = ""
    """The id of a run: only older ones."""

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> RunQuery:
        """What an address asks for; names that it does not know are another page's."""
        names = [field.name for field in attrs.fields(cls)]
        return cls(**{name: values[name].strip() for name in names if name in values})

    def as_dict(self) -> dict[str, str]:
        """The fields that are not empty, for an address."""
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @property
    def filters(self) -> bool:
        """Whether it leaves runs out."""
        return any(value for name, value in self.as_dict().items() if name != "before")


@frozen(kw_only=True)
class RunPage:
    """Some runs, newest first."""

    runs: tuple[Run, ...]
    more: bool
    """Whether there are older ones."""


def run_page(client: Client, query: RunQuery, *, size: int = PAGE) -> RunPage:
    """The newest runs that a query finds. `UsageError` for a status or a time that is none."""
    before: Run | None = None
    if query.before:
        try:
            before = client.run(query.before)
        except NotFound as error:
            message = f"the run {query.before}, from which this page goes on, was removed"
            raise NotFound(message, fix="begin with the newest runs") from error
    runs = client.runs(
        query.pipeline or None,
        status=query.status or None,
        tag=query.tag or None,
        stack=query.stack or None,
        text=query.text or None,
        since=query.since or None,
        limit=size + 1,
        before=before,
    )
    return RunPage(runs=tuple(runs[:size]), more=len(runs) > size)


def last_good(client: Client, run: Run) -> Run | None:
    """The newest earlier run of the same pipeline that succeeded, or the newest at all; None without one."""
    earlier = client.runs(run.pipeline, status="succeeded", limit=1, before=run)
    found = earlier or client.runs(run.pipeline, status="succeeded", limit=2)
    return next((one for one in found if one.id != run.id), None)


_SOURCES: Final = 20
"""Outputs of which an input is made that are listed."""


def attempt_rows(step: Step) -> list[tuple[Content, ...]]:
    """The attempts that ended, as rows of a table."""
    rows: list[tuple[Content, ...]] = []
    for attempt in step.attempts:
        failure = attempt.failure
        usage = attempt.usage
        rows.append(
            (
                str(attempt.number),
                badge(attempt.status),
                attempt.started.strftime("%Y-%m-%d %H:%M:%S") if attempt.started is not None else "",
                time_text(attempt.seconds) if attempt.seconds is not None else "",
                time_text(usage.cpu) if usage.cpu is not None else "",
                memory_text(usage.peak_memory) if usage.peak_memory else "",
                attempt.backend,
                ", ".join(map(str, attempt.changes)),
                str(failure) if failure is not None else "",
            )
        )
    return rows


ATTEMPT_HEADS: Final = ("attempt", "status", "began", "took", "cpu", "peak memory", "on", "changed", "cause")


def receipt_part(store: Store, step: Step, attempt: int | None) -> Html:
    """What an attempt, by default the newest, did with its accelerators; empty for a step that asked for none."""
    found: StepReceipt | None
    found = newest_receipt(store, step) if attempt is None else attempt_receipt(store, step, attempt)
    return accelerator_part(found, step) if found is not None else NOTHING


def card_of(store: Store, step: Step) -> Sequence[Mapping[str, Any]]:
    """The components that the step's author put on its card; none where they cannot be read without running code."""
    if step.count is not None:
        return ()
    try:
        return components(store, step.run_id, step.key)
    except StokerError as error:
        log.debug("the card of %s is not shown: %s", step.key, error)
        return ()


def plan_step(plan: Plan | None, step: Step) -> StepPlan | None:
    """What the plan says of a step, or of the fan-out that it is an element of."""
    keys = (step.key, step.parent or step.key, step.name)
    steps = plan.steps if plan is not None else ()
    return next((one for key in keys for one in steps if one.key == key), None)


def request_of(plan: Plan | None, step: Step) -> RenderedStep:
    """What a step's platform is sent. `NotFound` for a step of which the plan knows nothing."""
    from stoker.run.rendering import render_step  # imports everything that images need

    plan = plan and without_secrets(plan)
    planned = plan_step(plan, step)
    if plan is None or planned is None:
        raise NotFound(f"the plan of run {step.run_id} does not have step '{step.key}'", fix="look at its settings")
    return render_step(plan, planned, run=step.run_id, element=step.key if step.parent else "")


def request_text(rendered: RenderedStep) -> str:
    """A request as text: the script that a person can paste, else its document."""
    return rendered.script.strip() or json.dumps(rendered.request, indent=2, ensure_ascii=False, default=str)


def settings_of(planned: StepPlan | None) -> list[tuple[str, str, str]]:
    """(setting, value, where it comes from) of the settings that somebody gave."""
    return given_settings(planned) if planned is not None else []


def source_rows(planned: StepPlan | None, step: Step, run: Run) -> list[tuple[str, list[tuple[str, str]], str]]:
    """(input, the outputs that it is made of with their pages, digest) of a step, the first outputs of many."""
    rows = []
    given: dict[str, list[tuple[str, int]]] = {}
    for parameter, one, version in named_inputs(planned) if planned is not None else ():
        given.setdefault(parameter, []).append((one, version))
    for name, digest in step.inputs.items():
        tree = planned.inputs.get(name, {}) if planned is not None else {}
        origins = []
        for key, output in source_outputs(tree)[:_SOURCES]:
            about = {"key": key, "name": output}
            page = "artifact" if key in run.steps and output in run.steps[key].outputs else "step"
            origins.append((f"{key}.{output}", url(f"/runs/{run.id}/{page}", about)))
        origins += [(f"{one} {version}", named("artifact", one, version)) for one, version in given.get(name, ())]
        rows.append((name, origins, str(digest)))
    return rows


def reason_of(step: Step) -> tuple[StepReason | None, str]:
    """Why a step ran or was cached; else why that is not known."""
    if step.status not in STEP_DONE:
        return None, "It is not over yet."
    try:
        return step.why(), ""
    except StokerError as error:
        return None, error.message
