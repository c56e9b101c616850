"""Receipts that the store has, and those of steps that still run, from what their samplers have written so far.

When a step gets its devices, its run has an event `leased` that says which, and where on which machine samples of them
are written. A receipt is only kept when the attempt is over.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Final

import attrs

from stoker.client import Run, Step
from stoker.client.order import element_of, in_order
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
"""The kind of the event; its data are a `Lease` and the number `attempt`."""
_ASKED: Final = ("gpu_count", "accelerators", "gpu_memory", "gpu_vendor", "share")


@attrs.frozen(kw_only=True)
class Shown:
    """The receipt of one attempt at a step; of one that still runs as far as it has come."""

    key: str
    number: int
    receipt: Receipt
    tracks: tuple[Track, ...] = ()
    running: bool = False


def of_run(store: Store, run: Run) -> list[Shown]:
    """The receipt of each step's last attempt, without tracks, in the order of the pipeline."""
    last = store.records.attempt_numbers(run.id)
    found = {
        row.key: Shown(key=row.key, number=row.number, receipt=row.receipt)
        for row in store.records.receipts(run.id)
        if last.get(row.key) == row.number
    }
    done = {row.key for row in store.records.all_steps(run.id) if row.status in STEP_DONE}
    leases = {event.key: event for event in store.records.events(run.id) if event.kind == LEASED}
    for key, event in leases.items():
        if key not in done and _number(event) > last.get(key, 0):
            found[key] = so_far(event)
    return [found[key] for key in in_order(found, run.steps)]


def newest(store: Store, step: Step) -> Shown | None:
    """The receipt of a step's newest attempt, the one that runs if one does."""
    running = _running(store, step)
    if running is not None:
        return running
    return of_attempt(store, step, step.attempts[-1].number) if step.attempts else None


def of_attempt(store: Store, step: Step, number: int) -> Shown | None:
    """The receipt of one attempt at a step; an attempt that never was is an error."""
    for attempt in step.attempts:
        if attempt.number == number:
            receipt = attempt.receipt
            if receipt is None:
                return None
            return Shown(key=step.key, number=number, receipt=receipt, tracks=attempt.tracks)
    running = _running(store, step)
    if running is not None and running.number == number:
        return running
    last = step.attempts[-1].number if step.attempts else 0
    raise NotFound(f"step '{step.key}' has no attempt {number}: its last one is {last}")


def asked_for(store: Store, step: Step) -> str | None:
    """The accelerators that a step asked for, in words; empty for none, None where the plan does not say."""
    text = store.records.plan(step.run_id)
    if not text:
        return None
    try:
        steps = plandoc.load(text).steps
    except StokerError as error:
        log.debug("the plan of run %s cannot be read: %s", step.run_id, error)
        return None
    parent = element_of(step.key)[0]
    for planned in steps:
        if planned.key in (step.key, parent):
            resources: ResourceSettings = planned.settings.resources
            if claim_of(resources) is None:
                return ""
            return describe(ResourceSettings(**{name: resources.get(name) for name in _ASKED if resources.get(name)}))
    return None


def so_far(event: EventRow, *, now: float | None = None) -> Shown:
    """The receipt of an attempt that runs, from the samples that are on this machine."""
    lease = from_json(Lease, event.data, strict=False)
    path, asked, fallback = lease.samples, lease.asked, lease.fallback
    number = _number(event)
    there = bool(path) and os.path.exists(path)
    if there:
        from stoker.devices import receipt as measured

        samples = measured.read(path)
        if samples.header:
            # Advice is for a step that is over: what is still to come may change it.
            receipt = measured.receipt_of(samples, asked=asked, status="running", fallback=fallback)
            receipt = attrs.evolve(receipt, whole=False)
            return Shown(key=event.key, number=number, receipt=receipt, tracks=measured.tracks(samples), running=True)
    moment = time.time() if now is None else now
    receipt = Receipt(
        verdict="cpu-fallback" if fallback else "unknown",
        evidence=() if fallback else ("there are no samples yet" if there else "its samples are not on this machine",),
        asked=asked,
        started=event.time,
        seconds=max(0.0, moment - event.time),
        devices=tuple(_use(device) for device in lease.held),
        fallback=fallback,
        whole=False,
    )
    return Shown(key=event.key, number=number, receipt=receipt, running=True)


def _running(store: Store, step: Step) -> Shown | None:
    if step.status in STEP_DONE:
        return None
    events = [row for row in store.records.events(step.run_id) if row.kind == LEASED and row.key == step.key]
    last = step.attempts[-1].number if step.attempts else 0
    return so_far(events[-1]) if events and _number(events[-1]) > last else None


def _number(event: EventRow) -> int:
    """Which attempt got the devices; it runs until its row is there."""
    return int(event.data.get("attempt") or 0)


def _use(device: Device) -> Use:
    """A device of which nothing has been measured."""
    return Use(
        uuid=device.uuid,
        kind=device.kind,
        index=device.index,
        model=f"{device.model}/{device.slice}" if device.slice else device.model,
        memory=device.memory,
        simulated=device.simulated,
    )
