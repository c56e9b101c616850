"""What the page of a step shows: its attempts, lines, metrics, accelerators, results, settings, and why it ran."""

from __future__ import annotations

import logging
from typing import Any, Final, Mapping, Sequence

from stoker.client import Run, Step
from stoker.client.document import step_status
from stoker.client.why import StepReason
from stoker.core.errors import StokerError
from stoker.core.plan import Plan, StepPlan
from stoker.core.status import STEP_DONE
from stoker.core.words import memory_text, time_text
from stoker.plan.settingtexts import given_settings
from stoker.report.badges import badge
from stoker.report.markup import NOTHING, Content, Html
from stoker.report.runreport import accelerator_part
from stoker.report.stepcards import components
from stoker.report.stepreceipts import StepReceipt, attempt_receipt, newest_receipt
from stoker.store.store import Store

log = logging.getLogger(__name__)

ELEMENTS: Final = 200
"""Elements of a fan-out on a page."""


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


def settings_of(planned: StepPlan | None) -> list[tuple[str, str, str]]:
    """(setting, value, where it comes from) of the settings that somebody gave."""
    return given_settings(planned) if planned is not None else []


def reason_of(step: Step) -> tuple[StepReason | None, str]:
    """Why a step ran or was cached; else why that is not known."""
    if step.status not in STEP_DONE:
        return None, "It is not over yet."
    try:
        return step.why(), ""
    except StokerError as error:
        return None, error.message


def element_rows(step: Step, run: Run, *, status: str, start: int) -> tuple[list[Step], int]:
    """The elements of a fan-out from one on, of one status or all, and how many there are of these."""
    placements = run.placements
    chosen = [one for one in step if not status or step_status(one, placements) == status]
    return chosen[start : start + ELEMENTS], len(chosen)
