"""The accelerators of this machine, of every vendor, as one `Inventory`; or simulated ones.

Loads no framework; a missing driver is no error. Devices that `CUDA_VISIBLE_DEVICES` and the like hide from this
process are left out. `STOKER_SIMULATE="4xH100-80GB,1xA10;driver=535.104.05"` is read into an inventory, too: what the
text leaves out stays unknown, and without `driver` no build can be unfit for it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Mapping, Sequence

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.devices import Device, Inventory, Process
from stoker.core.errors import SettingsError, nearest
from stoker.core.findings import Finding
from stoker.vendors.base import Simulation
from stoker.vendors.registry import VENDORS, by_vendor
from stoker.vendors.table import SIMULATE

VARIABLE: Final = SIMULATE
FACTS: Final = ("driver", "cuda", "bad", "weak")
BAD: Final = "an uncorrectable ECC error, simulated"
WEAK: Final = "a product of matrices is wrong in 3 of 2048 rows, simulated"
MOST: Final = 256
"""Devices of one simulated machine. Real ones have 16 at most; a typo should not fill the memory with devices."""

_MOST_DIGITS: Final = 9
_PART = re.compile(r"(?:(\d+)\s*[xX×*]\s*)?(.*)", re.DOTALL)
_EXAMPLE = 'write counts and names, such as "4xH100-80GB,1xA10;driver=535.104.05"'


def parse_simulation(text: str, *, node: str = "") -> Inventory:
    """The machine that `COUNTxNAME,…;driver=…;cuda=…;bad=…;weak=…` describes; any other text is a `SettingsError`.

    `bad=1` makes the second device faulty, `bad=0+1@n2` two of them on the node n2 alone; `node` is this one's name.
    The faults of those that are `weak` are found by the health check alone.
    """
    parts, *facts = text.split(";")
    devices: list[Device] = []
    for part in parts.split(","):
        devices += _devices(part, devices, text)
        if len(devices) > MOST:
            raise _wrong(text, f"it asks for more than {MOST} devices", _EXAMPLE)
    driver_facts = _facts(facts, text)
    bad, weak = (
        _faulty_devices(name, driver_facts.pop(name, ""), len(devices), text, node) for name in ("bad", "weak")
    )
    devices = [
        attrs.evolve(one, fault=BAD if number in bad else "", weakness=WEAK if number in weak else "")
        for number, one in enumerate(devices)
    ]
    simulation = next((one for one in map(_simulation, (device.kind for device in devices)) if one.facts), None)
    if driver_facts and simulation is None:
        name = next(iter(driver_facts))
        raise _wrong(
            text, f"'{name}' is a fact of NVIDIA's driver, and no NVIDIA device is simulated", f"remove {name}"
        )
    return Inventory(
        devices=_with_fast_links(devices),
        driver=driver_facts.get("driver", ""),
        cuda=None if simulation is None else _cuda(driver_facts, simulation),
        simulated=True,
    )


def _devices(part: str, before: list[Device], text: str) -> list[Device]:
    match = _PART.fullmatch(part.strip())
    assert match is not None  # the pattern takes every text
    count, name = match[1], match[2].strip()
    if not name:
        raise _wrong(text, "a name is missing", _EXAMPLE) if text.strip() else _wrong(text, "it is empty", _EXAMPLE)
    if count is not None and (len(count) > _MOST_DIGITS or not 1 <= int(count) <= MOST):
        raise _wrong(text, f"'{part.strip()}' asks for {count} devices", f"write a number from 1 to {MOST}")
    try:
        accelerator = Accelerator.parse(name)
    except SettingsError as error:
        raise _wrong(text, f"'{part.strip()}': {error.message}", _EXAMPLE) from None
    if accelerator.count is not None:
        whole = attrs.evolve(accelerator, count=None)
        raise _wrong(text, f"'{part.strip()}' has its count behind the name", f'write "{accelerator.count}x{whole}"')
    kind = accelerator.model.vendor
    if VENDORS.load(kind).simulation is None:
        raise _wrong(text, f"{accelerator.name} cannot be simulated, as Stoker finds none of its kind", _EXAMPLE)
    first = len(before)
    index = 1 + max((device.index for device in before if device.kind == kind), default=-1)
    return [_device(accelerator, kind, first, index, number) for number in range(int(count or 1))]


def _device(accelerator: Accelerator, kind: str, first: int, index: int, number: int) -> Device:
    """One device of a part. UUIDs count all devices of the machine, so that the same text gives the same UUIDs."""
    simulation = _simulation(kind)
    parent = ""
    if accelerator.slice:
        per_chip = simulation.per_chip(accelerator)
        parent = _uuid("GPU", first + number // per_chip)
        index += number // per_chip
    else:
        index += number
    name = simulation.name(accelerator.name)
    return Device(
        kind=kind,
        index=index,
        uuid=_uuid("MIG" if accelerator.slice else simulation.prefix, first + number),
        name=f"{name} MIG {accelerator.slice}" if accelerator.slice else name,
        model=accelerator.name,
        memory=accelerator.memory if accelerator.slice else accelerator.model.memory[0],
        capability=simulation.capability(accelerator.name),
        slice=accelerator.slice,
        parent=parent,
        simulated=True,
        exclusive=VENDORS.load(kind).exclusive,
    )


def _faulty_devices(name: str, value: str, count: int, text: str, node: str) -> frozenset[int]:
    """The numbers of the devices that are faulty on a node."""
    numbers, at, where = value.partition("@")
    wanted = frozenset(int(number) for number in numbers.split("+")) if numbers else frozenset()
    if any(number >= count for number in wanted):
        raise _wrong(text, f"{name}={value} names a device that it does not have", "count from 0")
    return wanted if not at or where == node else frozenset()


def _simulation(kind: str) -> Simulation:
    simulation = VENDORS.load(kind).simulation
    assert simulation is not None  # other vendors were refused before
    return simulation


def _uuid(prefix: str, number: int) -> str:
    # "simulated" is not hexadecimal, so that no real device has this UUID.
    return f"{prefix}-simulated-0000-0000-0000-{number:012d}"


def _with_fast_links(devices: list[Device]) -> tuple[Device, ...]:
    whole: dict[str, list[str]] = {}
    for device in devices:
        if not device.slice:
            whole.setdefault(device.model, []).append(device.uuid)
    return tuple(
        attrs.evolve(device, links=tuple(uuid for uuid in whole[device.model] if uuid != device.uuid))
        if not device.slice
        else device
        for device in devices
    )


def _facts(facts: list[str], text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    patterns = {
        "driver": r"\d{2,4}(\.\d{1,6}){0,3}",
        "cuda": r"\d{1,3}\.\d{1,3}",
        **dict.fromkeys(("bad", "weak"), r"\d{1,3}(\+\d{1,3})*(@[\w.-]+)?"),
    }
    examples = {"driver": "driver=535.104.05", "cuda": "cuda=12.2", "bad": "bad=1@n2", "weak": "weak=1@n2"}
    for fact in facts:
        key, equals, value = (piece.strip() for piece in fact.partition("="))
        if not equals:
            raise _wrong(text, f"'{fact.strip()}' is no fact", "write facts as key=value, such as driver=535.104.05")
        if key not in FACTS:
            raise _wrong(
                text, f"there is no fact '{key}'{nearest(key, FACTS)}", "driver, cuda, bad and weak can be given"
            )
        if key in values:
            raise _wrong(text, f"'{key}' is given twice", f"leave one {key} out")
        if not re.fullmatch(patterns[key], value):
            raise _wrong(
                text,
                f"'{value}' is no {'device' if key in ('bad', 'weak') else f'version of {key}'}",
                f"write it as in {examples[key]}",
            )
        values[key] = value
    return values


def _cuda(facts: Mapping[str, str], simulation: Simulation) -> tuple[int, int] | None:
    if "cuda" in facts:
        major, minor = facts["cuda"].split(".")
        return int(major), int(minor)
    return simulation.cuda_of_driver(facts["driver"]) if "driver" in facts else None


def _wrong(text: str, why: str, fix: str) -> SettingsError:
    return SettingsError(f"{text!r} does not describe simulated accelerators: {why}", fix=fix)


HIDDEN: Final = "STK129"


def probe(environment: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Inventory:
    """The machine's devices, or only those of `STOKER_SIMULATE` if it is set. `root` is where /dev, /proc and /sys
    are.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(VARIABLE, "")
    if text.strip():
        return parse_simulation(text)
    parts = [vendor.probe(environment, root) for _, vendor in VENDORS.parts()]
    devices, hidden = visible([device for part in parts for device in part.devices], environment)
    return Inventory(
        devices=devices,
        driver=next((part.driver for part in parts if part.driver), ""),
        cuda=next((part.cuda for part in parts if part.cuda), None),
        findings=(*(finding for part in parts for finding in part.findings), *hidden),
    )


def processes(inventory: Inventory) -> tuple[Process, ...]:
    """The processes that compute on the devices, as their drivers report them; none for simulated devices."""
    real = [device for device in inventory.devices if not device.simulated]
    return tuple(process for vendor, devices in by_vendor(real).items() for process in vendor.processes(devices))


def visible(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[tuple[Device, ...], list[Finding]]:
    """The devices that the environment leaves to this process, and a finding for each variable that hides some."""
    remaining, findings = list(devices), []
    for vendor in by_vendor(devices):
        for limit in vendor.limits:
            value = environment.get(limit.variable)
            offered = [device for device in remaining if device.kind == vendor.name]
            if value is None or not offered or (not value.strip() and not limit.empty_hides):
                continue
            try:
                allowed = limit.select(offered, value)
            except SettingsError as error:
                allowed = ()
                findings.append(_not_understood(limit.variable, value, error))
            else:
                if len(allowed) < len(offered):
                    findings.append(_hidden(limit.variable, value, len(allowed), len(offered)))
            if len(allowed) < len(offered):
                remaining = [device for device in remaining if device.kind != vendor.name or device in allowed]
    return tuple(remaining), findings


def _not_understood(variable: str, value: str, error: SettingsError) -> Finding:
    return Finding(
        code=HIDDEN,
        level="error",
        what=f"{variable}={value} is not understood: {error.message}",
        why="which devices it hides is not known, and none of them is handed out",
        fix=f"{error.fix}, or unset {variable}",
    )


def _hidden(variable: str, value: str, remaining: int, count: int) -> Finding:
    return Finding(
        code=HIDDEN,
        level="info",
        what=f"{variable}={value} leaves {remaining} of {count} devices",
        why="Stoker hands out only what the process that starts it may see",
        fix=f"unset {variable} to use all of them",
    )
