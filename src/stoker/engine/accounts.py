"""Records which steps wait for devices, which have some, and the receipt of each attempt that is over.

The monitor beside a step writes samples; they become the receipt, which `on_idle_gpu` judges.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any, Final, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.observer import Observer
from stoker.core.plan import JobStatus, StepPlan
from stoker.core.status import IDLE_GPU, NO_DRIVER, NO_GPU, RETRYABLE, UNFIT
from stoker.engine.execution import StepExecution
from stoker.engine.recorder import Recorder

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.core.protocol import StepResult
    from stoker.core.receipt import Receipt
    from stoker.devices.samples import Samples

PLACE: Final = ("job", "id", "task", "node", "partition", "url")
"""What a receipt says of the place of an attempt, beside its times: the names of `client.placements.Placement`."""
ASKED_FOR_NONE = (
    "the step asks for no accelerator, so that it sees none: give it resources=ResourceSettings(gpu_count=1)"
)


class Accounts:
    """The leases and receipts of one run."""

    def __init__(self, recorder: Recorder, observer: Observer) -> None:
        self._recorder = recorder
        self._observer = observer
        self._recorded: set[tuple[str, int]] = set()

    def record_waiting(self, key: str, parent: str, attempt: int, message: str) -> None:
        """Record that an attempt waits for devices, or in its platform's queue."""
        self._recorder.record_event("waiting", key, {"message": message, "attempt": attempt})
        self._recorder.record_queued(key, attempt, parent=parent, message=message)
        self._observer.changed(key, "waiting", {"parent": parent, "message": message})

    def note_place(self, execution: StepExecution, data: Mapping[str, Any]) -> None:
        """Note what is new of the place of an attempt on a platform with a queue, for its receipt."""
        place = execution.facts.setdefault("place", {})
        place.update({name: data[name] for name in PLACE if data.get(name)})
        if data.get("state") in ("sent", "running"):
            place[data["state"]] = data["time"]

    def note_wait(self, execution: StepExecution, moment: float) -> None:
        """Note that an attempt waits in its platform's queue: one that ran is started again there."""
        place = execution.facts.get("place", {})
        if "running" in place:
            place["ran"] = place.get("ran", 0.0) + max(0.0, moment - place.pop("running"))

    def record_lease(self, key: str, parent: str, attempt: int, lease: Lease) -> None:
        """Record the devices that an attempt has, once."""
        if (key, attempt) in self._recorded:
            return
        self._recorded.add((key, attempt))
        self._recorder.record_event(
            "leased", key, {**to_json(lease), "host": lease.host or socket.gethostname(), "attempt": attempt}
        )
        devices = [device for node in (lease, *lease.others) for device in node.held]
        self._observer.changed(key, "leased", {"parent": parent, "attempt": attempt, "devices": to_json(devices)})

    def record_receipt(self, key: str, step: StepPlan, status: JobStatus, facts: dict[str, Any]) -> None:
        """Write the receipt of an attempt that is over, and complete the attempt's facts with its verdict."""
        if status.lease is None:
            _advise_asking(step, facts)
            return
        from stoker.core.receipt import summary
        from stoker.devices.receipt import receipt_of, together, tracks

        lease, result = status.lease, status.result
        leases = [lease, *lease.others]
        samples = [_samples(one) for one in leases]
        receipts = [
            receipt_of(
                one,
                asked=lease.asked,
                resources=step.settings.resources,
                status="failed" if facts["cause"] else "succeeded",
                seconds=_seconds(facts),
                proved={} if result is None else result.proved,
                fallback=lease.fallback or ("" if result is None else result.fallback),
            )
            for one in samples
        ]
        receipt = attrs.evolve(
            together(receipts),
            **_placement(facts),
            **_prediction(step, lease, result, facts["cause"]),
            data_seconds=facts.get("data_seconds"),
            lost_seconds=facts["usage"].get("lost"),
            restart_seconds=facts["usage"].get("restarting"),
        )
        device_tracks = [track for one in samples for track in tracks(one) if track.uuid or one is samples[0]]
        self._recorder.record_receipt(key, facts["attempt"], receipt, tuple(device_tracks))
        for one in leases:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(one.samples)
        facts["pretended"] = receipt.simulated or bool(receipt.fallback)
        facts["receipt"] = summary(receipt)
        objection = _objection(receipt, step, facts)
        if objection:
            from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

            why, advice = signatures.general(IDLE_GPU)
            facts.update(cause=IDLE_GPU, message=objection, outputs={})
            facts["error"] = {"message": objection, "why": why, "advice": advice, "retryable": RETRYABLE[IDLE_GPU]}
        elif step.settings.on_idle_gpu != "ignore" and receipt.verdict in ("idle", "wrong-device", "cpu-fallback"):
            facts["warning"] = "; ".join(receipt.evidence)


def _prediction(step: StepPlan, lease: Lease, result: StepResult | None, cause: str) -> dict[str, Any]:
    """What the plan's proof predicted of an attempt, and what the job found, as fields of its receipt."""
    if step.proof is None:
        return {}
    from stoker.core.receipt import proof_text

    outcome: str | None = None
    if lease.simulated:
        outcome = "simulated"
    elif lease.fallback or (result is not None and result.fallback):
        outcome = "fallback"
    elif cause in UNFIT:
        outcome = "unfit"
    elif result is not None and result.proved:
        outcome = "fits"
    return {"predicted": step.proof.verdict, "prediction": proof_text(step.proof), "found": outcome}


def _placement(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Where an attempt was on a platform with a queue, and for how long it waited there, as fields of its receipt."""
    place = facts.get("place", {})
    known = {"sent", "running"} <= place.keys()
    waited = max(0.0, place["running"] - place["sent"] - place.get("ran", 0.0)) if known else None
    return {"placement": {name: place[name] for name in PLACE if name in place}, "queue_seconds": waited}


def _samples(lease: Lease) -> Samples:
    """A monitor's samples; where it wrote none, only their header: the devices were leased all the same."""
    from stoker.devices.receipt import read

    samples = read(lease.samples)
    return samples if samples.header else attrs.evolve(samples, header=to_json(lease))


def _objection(receipt: Receipt, step: StepPlan, facts: Mapping[str, Any]) -> str:
    """Why an attempt counts as failed for its use of devices; empty where it does not."""
    if receipt.stopped and facts["cause"]:
        return receipt.stopped
    if step.settings.on_idle_gpu != "fail" or facts["cause"]:
        return ""
    if receipt.verdict in ("idle", "wrong-device"):
        return "; ".join(receipt.evidence)
    return receipt.left_idle


def _seconds(facts: Mapping[str, Any]) -> float | None:
    started, ended = facts.get("started"), facts.get("ended")
    return None if started is None or ended is None else float(ended - started)


def _advise_asking(step: StepPlan, facts: dict[str, Any]) -> None:
    """Advise a step that used a GPU without asking for one to ask."""
    if facts["cause"] in (NO_GPU, NO_DRIVER) and not step.settings.resources.gpus_per_node:
        facts["error"] = {**(facts.get("error") or {}), "advice": ASKED_FOR_NONE}
