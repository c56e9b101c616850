"""`stoker devices`: this machine's accelerators as steps could get them, who uses them, and what is wrong with them."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import attrs
import click

from stoker.cli.options import json_option
from stoker.cli.output import paint, print_json, short, table
from stoker.core.devices import Device, Inventory, Process
from stoker.core.errors import EXIT_INFRASTRUCTURE
from stoker.core.findings import Finding, errors
from stoker.core.words import count_text, memory_text
from stoker.hardware.probe import probe, processes
from stoker.hardware.simulate import VARIABLE, simulated

HEADERS = ("index", "model", "slice", "memory", "capability", "links", "used by", "uuid", "name")
"""The longest last, which is what a narrow terminal cuts off."""


@click.command("devices")
@json_option
@click.option(
    "--simulate",
    metavar="TEXT",
    help=f'Show the machine that {VARIABLE}=TEXT makes, such as "4xH100-80GB,1xA10;driver=535.104.05".',
)
def command(*, as_json: bool, simulate: str | None) -> int:
    """List this machine's accelerators; exit code 4 if a driver is broken."""
    inventory = probe() if simulate is None else simulated(simulate)
    users = by_device(processes(inventory))
    if as_json:
        print_json(document(inventory, users))
    else:
        for line in lines(inventory, users):
            click.echo(line)
    return EXIT_INFRASTRUCTURE if errors(inventory.findings) else 0


def by_device(found: Iterable[Process]) -> dict[str, list[Process]]:
    """uuid → the processes that use it."""
    users: dict[str, list[Process]] = {}
    for process in found:
        users.setdefault(process.uuid, []).append(process)
    return users


def document(inventory: Inventory, users: Mapping[str, Sequence[Process]]) -> dict[str, Any]:
    """The inventory as JSON."""
    return {
        "simulated": inventory.simulated,
        "driver": inventory.driver or None,
        "cuda": version_text(inventory.cuda) or None,
        "devices": [
            {
                **attrs.asdict(device),
                "capability": version_text(device.capability) or None,
                "used_by": [{"pid": user.pid, "memory": user.memory} for user in users.get(device.uuid, ())],
            }
            for device in inventory.devices
        ],
        "findings": [attrs.asdict(finding) for finding in inventory.findings],
    }


def lines(inventory: Inventory, users: Mapping[str, Sequence[Process]]) -> Iterable[str]:
    """The inventory as a person reads it: the devices, then the driver, then what is wrong."""
    if inventory.devices:
        rows = [_row(device, inventory, users.get(device.uuid, ())) for device in inventory.devices]
        # A column in which nothing stands is left out.
        shown = [number for number in range(len(HEADERS)) if any(row[number] for row in rows)]
        headers = [HEADERS[number] for number in shown]
        yield table(headers, [[row[number] for number in shown] for row in rows], right=("index", "memory"))
    else:
        yield "no accelerators"
    facts = [
        count_text(len(inventory.devices), "device") + (" (simulated)" if inventory.simulated else ""),
        f"NVIDIA driver {inventory.driver}" if inventory.driver else "",
        f"CUDA up to {version_text(inventory.cuda)}" if inventory.cuda else "",
    ]
    if inventory.devices or inventory.driver:
        yield ", ".join(fact for fact in facts if fact)
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


def _row(device: Device, inventory: Inventory, users: Sequence[Process]) -> list[str]:
    index = {other.uuid: str(other.index) for other in inventory.devices if other.kind == device.kind}
    return [
        str(device.index),
        device.model,
        device.slice,
        memory_text(device.memory) if device.memory else "",
        version_text(device.capability),
        ",".join(index[uuid] for uuid in device.links if uuid in index),
        short(", ".join(_user(user) for user in users)),
        device.uuid,
        device.name if device.name != device.model else "",
    ]


def _user(process: Process) -> str:
    return f"pid {process.pid}" + (f" ({memory_text(process.memory)})" if process.memory else "")
