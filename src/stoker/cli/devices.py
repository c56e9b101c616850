"""`stoker devices`: this machine's accelerators, their leases and processes, and what is wrong with them."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import attrs
import click

from stoker.cli.options import json_option
from stoker.cli.output import paint, print_json, say, short, table
from stoker.core.codec import to_json
from stoker.core.devices import Device, Entry, Inventory, Process
from stoker.core.errors import EXIT_INFRASTRUCTURE, BackendError
from stoker.core.findings import Finding, errors
from stoker.core.words import count_text, memory_text
from stoker.devices.leases import Ledger
from stoker.devices.probe import probe, processes
from stoker.devices.simulate import VARIABLE, parse_simulation

HEADERS = ("index", "model", "slice", "memory", "capability", "links", "leased to", "used by", "uuid", "name")
"""The longest last, since a narrow terminal cuts lines off."""


@click.command("devices")
@json_option
@click.option(
    "--simulate",
    metavar="TEXT",
    help=f'Show the machine that {VARIABLE}=TEXT makes, such as "4xH100-80GB,1xA10;driver=535.104.05".',
)
def command(*, as_json: bool, simulate: str | None) -> int:
    """List this machine's accelerators, who holds them and who waits; exit code 4 if a driver is broken."""
    inventory = probe() if simulate is None else parse_simulation(simulate)
    users = by_device(processes(inventory))
    ledger = entries(inventory)
    if as_json:
        print_json(document(inventory, users, ledger))
    else:
        for line in lines(inventory, users, ledger):
            click.echo(line)
    return EXIT_INFRASTRUCTURE if errors(inventory.findings) else 0


def entries(inventory: Inventory) -> Sequence[Entry]:
    """The leases of these devices; if the ledger cannot be read, a message says so and there are none."""
    try:
        return Ledger(lambda: inventory, processes).entries()
    except BackendError as error:
        say(str(error))
        return ()


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
                "used_by": [{"pid": user.pid, "memory": user.memory} for user in users.get(device.uuid, ())],
            }
            for device in inventory.devices
        ],
        "leases": [
            {**_holder(entry), "devices": list(entry.devices), "memory": entry.memory}
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


def lines(inventory: Inventory, users: Mapping[str, Sequence[Process]], ledger: Sequence[Entry]) -> Iterable[str]:
    """The inventory as text: the devices, the driver, who waits, and the findings."""
    if inventory.devices:
        rows = [_row(device, inventory, users.get(device.uuid, ()), ledger) for device in inventory.devices]
        # Empty columns are left out.
        columns = [number for number in range(len(HEADERS)) if any(row[number] for row in rows)]
        headers = [HEADERS[number] for number in columns]
        yield table(headers, [[row[number] for number in columns] for row in rows], right=("index", "memory"))
    else:
        yield "no accelerators"
    facts = [
        count_text(len(inventory.devices), "device") + (" (simulated)" if inventory.simulated else ""),
        f"NVIDIA driver {inventory.driver}" if inventory.driver else "",
        f"CUDA up to {version_text(inventory.cuda)}" if inventory.cuda else "",
    ]
    if inventory.devices or inventory.driver:
        yield ", ".join(fact for fact in facts if fact)
    for entry in ledger:
        if not entry.devices:
            yield f"{_attempt(entry)}: {entry.waits}"
    for finding in inventory.findings:
        yield from finding_lines(finding)


def version_text(version: tuple[int, int] | None) -> str:
    """`"12.2"`; empty for None."""
    return "" if version is None else ".".join(map(str, version))


def finding_lines(finding: Finding) -> Iterable[str]:
    """A finding's text; its first line is coloured if it is an error."""
    first, *rest = finding.text().splitlines()
    yield paint(first, "31" if finding.level == "error" else "33")
    yield from rest


def _row(device: Device, inventory: Inventory, users: Sequence[Process], ledger: Sequence[Entry]) -> list[str]:
    index = {other.uuid: str(other.index) for other in inventory.devices if other.kind == device.kind}
    return [
        str(device.index),
        device.model,
        device.slice,
        memory_text(device.memory) if device.memory else "",
        version_text(device.capability),
        ",".join(index[uuid] for uuid in device.links if uuid in index),
        short(", ".join(_lessee(entry) for entry in ledger if device.uuid in entry.devices)),
        short(", ".join(_user(user) for user in users)),
        device.uuid,
        device.name if device.name != device.model else "",
    ]


def _user(process: Process) -> str:
    return f"pid {process.pid}" + (f" ({memory_text(process.memory)})" if process.memory else "")


def _holder(entry: Entry) -> dict[str, Any]:
    holder = entry.holder
    return {"run": holder.run, "step": holder.key, "attempt": holder.attempt, "pid": holder.pid}


def _attempt(entry: Entry) -> str:
    holder = entry.holder
    return f"run {holder.run} step '{holder.key}' attempt {holder.attempt}"


def _lessee(entry: Entry) -> str:
    holder = entry.holder
    part = f" ({memory_text(entry.memory)})" if entry.memory else ""
    return f"run {holder.run} {holder.key} #{holder.attempt}{part}"
