"""What the page of a step shows: its attempts, lines, metrics, accelerators, results, settings, and why it ran."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, Mapping, Sequence

from stoker.client import Run, Step
from stoker.client.why import StepReason
from stoker.core.errors import NotFound, StokerError
from stoker.core.plan import Plan, StepPlan, source_outputs, without_secrets
from stoker.core.status import STEP_DONE
from stoker.core.words import memory_text, time_text
from stoker.plan.settingtexts import given_settings
from stoker.report.cards import components
from stoker.report.design import badge
from stoker.report.markup import NOTHING, Content, Html
from stoker.report.runreport import accelerator_part
from stoker.report.stepreceipts import StepReceipt, attempt_receipt, newest_receipt
from stoker.store.store import Store
from stoker.ui.rendering import url

if TYPE_CHECKING:
    from stoker.run.rendering import RenderedStep

log = logging.getLogger(__name__)

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
    for name, digest in step.inputs.items():
        tree = planned.inputs.get(name, {}) if planned is not None else {}
        origins = []
        for key, output in source_outputs(tree)[:_SOURCES]:
            about = {"key": key, "name": output}
            page = "artifact" if key in run.steps and output in run.steps[key].outputs else "step"
            origins.append((f"{key}.{output}", url(f"/runs/{run.id}/{page}", about)))
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
