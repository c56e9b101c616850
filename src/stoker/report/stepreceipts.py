"""Receipts of a run's steps: from the store, and for running steps from the samples that were written so far.

When a step gets its devices, an event `leased` records them and the file of their samples. The receipt itself is stored
when the attempt ends.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

import attrs

from stoker.client import Run, Step
from stoker.client.keys import element_of, sort_keys
from stoker.core.codec import from_json
from stoker.core.devices import Device, Lease, claim_of
from stoker.core.errors import NotFound, StokerError
from stoker.core.receipt import Receipt, Track, Use
from stoker.core.resources import ResourceSettings, describe
from stoker.core.status import STEP_DONE
from stoker.plan import plandoc
from stoker.store.rows import EventRow
from stoker.store.store import Store

log = logging.getLogger(__name__)

LEASED: Final = "leased"
"""The kind of the event; its data is a `Lease` with the number of the attempt as `attempt`."""
_ACCELERATOR_FIELDS: Final = ("gpu_count", "accelerators", "gpu_memory", "gpu_vendor", "share")


@attrs.frozen(kw_only=True)
class StepReceipt:
    """The receipt of one attempt at a step."""

    key: str
    """The step's key."""
    number: int
    """The attempt's number."""
    receipt: Receipt
    tracks: tuple[Track, ...] = ()
    """The samples over time."""
    running: bool = False
    """Whether the attempt still runs; the receipt covers the time until now."""


def run_receipts(store: Store, run: Run) -> list[StepReceipt]:
    """The receipt of each step's newest attempt, without tracks, in the pipeline's order."""
    rows = store.records.receipts(run.id)
    leases = {event.key: event for event in store.records.events(run.id) if event.kind == LEASED}
    # Nobody reads a hundred thousand rows of a run without accelerators.
    last = store.records.attempt_numbers(run.id) if rows or leases else {}
    receipts = {
        row.key: StepReceipt(key=row.key, number=row.number, receipt=row.receipt)
        for row in rows
        if last.get(row.key) == row.number
    }
    finished = {row.key for row in store.records.all_steps(run.id) if row.status in STEP_DONE} if leases else set()
    for key, event in leases.items():
        if key not in finished and _attempt_number(event) > last.get(key, 0):
            receipts[key] = running_receipt(event)
    return [receipts[key] for key in sort_keys(receipts, run.steps)]


def newest_receipt(store: Store, step: Step) -> StepReceipt | None:
    """The receipt of a step's newest attempt, which may still run; None if it has none."""
    current = _current_receipt(store, step)
    if current is not None:
        return current
    return attempt_receipt(store, step, step.attempts[-1].number) if step.attempts else None


def attempt_receipt(store: Store, step: Step, number: int) -> StepReceipt | None:
    """The receipt of one attempt at a step; None if it has none. An unknown attempt is an error."""
    for attempt in step.attempts:
        if attempt.number == number:
            receipt = attempt.receipt
            if receipt is None:
                return None
            return StepReceipt(key=step.key, number=number, receipt=receipt, tracks=attempt.tracks)
    current = _current_receipt(store, step)
    if current is not None and current.number == number:
        return current
    newest_number = step.attempts[-1].number if step.attempts else 0
    raise NotFound(f"step '{step.key}' has no attempt {number}: its last one is {newest_number}")


def accelerator_request(store: Store, step: Step) -> str | None:
    """The accelerators that a step asked for, in words; empty for none, None if the plan cannot be read."""
    text = store.records.plan(step.run_id)
    if not text:
        return None
    try:
        steps = plandoc.load(text).steps
    except StokerError as error:
        log.debug("the plan of run %s cannot be read: %s", step.run_id, error)
        return None
    parent = element_of(step.key)[0]
    for step_plan in steps:
        if step_plan.key in (step.key, parent):
            resources: ResourceSettings = step_plan.settings.resources
            if claim_of(resources) is None:
                return ""
            return describe(
                ResourceSettings(**{name: resources.get(name) for name in _ACCELERATOR_FIELDS if resources.get(name)})
            )
    return None


def running_receipt(event: EventRow, *, now: float | None = None) -> StepReceipt:
    """The receipt of a running attempt, from its samples if they are on this machine."""
    lease = from_json(Lease, event.data, strict=False)
    path, request, fallback = lease.samples, lease.asked, lease.fallback
    number = _attempt_number(event)
    has_samples = bool(path) and os.path.exists(path)
    if has_samples:
        from stoker.devices import receipt as sampling

        samples = sampling.read(path)
        if samples.header:
            # No advice yet: the rest of the step may change it.
            receipt = sampling.receipt_of(samples, asked=request, status="running", fallback=fallback)
            receipt = attrs.evolve(receipt, whole=False)
            return StepReceipt(
                key=event.key, number=number, receipt=receipt, tracks=sampling.tracks(samples), running=True
            )
    moment = time.time() if now is None else now
    receipt = Receipt(
        verdict="cpu-fallback" if fallback else "unknown",
        evidence=()
        if fallback
        else ("there are no samples yet" if has_samples else "its samples are not on this machine",),
        asked=request,
        started=event.time,
        seconds=max(0.0, moment - event.time),
        devices=tuple(_unmeasured_use(device) for device in lease.held),
        fallback=fallback,
        whole=False,
    )
    return StepReceipt(key=event.key, number=number, receipt=receipt, running=True)


def _current_receipt(store: Store, step: Step) -> StepReceipt | None:
    if step.status in STEP_DONE:
        return None
    events = [row for row in store.records.events(step.run_id) if row.kind == LEASED and row.key == step.key]
    newest_number = step.attempts[-1].number if step.attempts else 0
    return running_receipt(events[-1]) if events and _attempt_number(events[-1]) > newest_number else None


def _attempt_number(event: EventRow) -> int:
    """The number of the attempt that got the devices; it runs until the store has its row."""
    return int(event.data.get("attempt") or 0)


def _unmeasured_use(device: Device) -> Use:
    """The use of a device without measurements."""
    return Use(
        uuid=device.uuid,
        kind=device.kind,
        index=device.index,
        model=f"{device.model}/{device.slice}" if device.slice else device.model,
        memory=device.memory,
        simulated=device.simulated,
    )
