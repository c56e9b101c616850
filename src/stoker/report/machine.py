"""This machine's accelerators as `stoker devices` and the pages show them: who holds them, who waits, who uses them."""

from __future__ import annotations

import os
from typing import Any, Iterable, Mapping, Sequence

import attrs

from stoker import stacks
from stoker.client.leftout import LeftOut, recently_left_out
from stoker.core.codec import to_json
from stoker.core.devices import Entry, Inventory, Process
from stoker.core.errors import BackendError, StokerError
from stoker.devices.leases import Ledger
from stoker.devices.probe import processes
from stoker.report.streams import say
from stoker.store.store import open_store
from stoker.worker.survivors import Survivors


def entries(inventory: Inventory) -> Sequence[Entry]:
    """The leases of these devices; if the ledger cannot be read, a message says so and there are none."""
    return entries_of(ledger_of(inventory))


def entries_of(ledger: Ledger) -> Sequence[Entry]:
    """What stands in a ledger; if it cannot be read, a message says so and it is nothing."""
    try:
        return ledger.entries()
    except BackendError as error:
        say(str(error))
        return ()


def waits_of(run: str) -> dict[str, str]:
    """Step or element of a run → why it waits for devices of this machine."""
    known = entries(Inventory(devices=()))
    return {one.holder.key: one.waits for one in known if one.holder.run == run and not one.devices and one.waits}


def left_out() -> Sequence[LeftOut]:
    """The nodes and devices that runs of the current stack left out within a week; none where it has no store yet."""
    try:
        stack = stacks.load()
        if not os.path.isdir(stack.home):
            return ()
        store = open_store(stack.database, stack.artifact_store, str(stack.home), shared=stack.shared)
        try:
            return recently_left_out(store)
        finally:
            store.close()
    except StokerError as error:
        say(f"what runs left out is not known: {error}")
        return ()


def ledger_of(inventory: Inventory) -> Ledger:
    """The ledger of this machine's leases."""
    return Ledger(lambda: inventory, processes, survivors=Survivors())


def by_device(found: Iterable[Process]) -> dict[str, list[Process]]:
    """Device's uuid → the processes that use it."""
    users: dict[str, list[Process]] = {}
    for process in found:
        users.setdefault(process.uuid, []).append(process)
    return users


def document(inventory: Inventory, users: Mapping[str, Sequence[Process]], ledger: Sequence[Entry]) -> dict[str, Any]:
    """The inventory and the ledger as JSON. `leases` also has those of devices that are hidden from this process."""
    return {
        "simulated": inventory.simulated,
        "driver": inventory.driver or None,
        "cuda": version_text(inventory.cuda) or None,
        "devices": [
            {
                **attrs.asdict(device),
                "capability": version_text(device.capability) or None,
                "leased_to": [
                    {**_holder(entry), "memory": entry.memory} for entry in ledger if device.uuid in entry.devices
                ],
                "used_by": [{"pid": user.pid, "memory": user.memory or None} for user in users.get(device.uuid, ())],
            }
            for device in inventory.devices
        ],
        "leases": [
            {
                **_holder(entry),
                "devices": list(entry.devices),
                "memory": entry.memory,
                **({"quarantined_by": list(entry.survivors)} if entry.survivors else {}),
            }
            for entry in ledger
            if entry.devices
        ],
        "waiting": [
            {**_holder(entry), "claim": to_json(entry.claim), "why": entry.waits}
            for entry in ledger
            if not entry.devices
        ],
        "findings": [attrs.asdict(finding) for finding in inventory.findings],
    }


def version_text(version: tuple[int, int] | None) -> str:
    """`"12.2"`; empty for None."""
    return "" if version is None else ".".join(map(str, version))


def _holder(entry: Entry) -> dict[str, Any]:
    holder = entry.holder
    return {"run": holder.run, "step": holder.key, "attempt": holder.attempt, "pid": holder.pid}
