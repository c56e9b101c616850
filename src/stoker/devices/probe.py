"""The accelerators of this machine, of every vendor, as one `Inventory`. Loads no framework, and raises for no driver.

What a process may use is less than what there is: a scheduler or a person says so by `CUDA_VISIBLE_DEVICES` and its
like, and what these hide is not offered.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Mapping, Sequence

from stoker.core.devices import Device, Inventory, Process
from stoker.core.findings import Finding
from stoker.devices.simulate import VARIABLE, simulated
from stoker.vendors.registry import VENDORS, by_vendor

HIDDEN: Final = "STK129"


def probe(environment: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Inventory:
    """What is here, or what `STOKER_SIMULATE` says: then only that. `root` is where /dev, /proc and /sys are."""
    environment = os.environ if environment is None else environment
    text = environment.get(VARIABLE, "")
    if text.strip():
        return simulated(text)
    parts = [vendor.probe(environment, root) for _, vendor in VENDORS.parts()]
    devices, hidden = visible([device for part in parts for device in part.devices], environment)
    return Inventory(
        devices=devices,
        driver=next((part.driver for part in parts if part.driver), ""),
        cuda=next((part.cuda for part in parts if part.cuda), None),
        findings=(*(finding for part in parts for finding in part.findings), *hidden),
    )


def processes(inventory: Inventory) -> tuple[Process, ...]:
    """Who computes on the devices, as their drivers tell. Of simulated ones, nobody."""
    real = [device for device in inventory.devices if not device.simulated]
    return tuple(process for vendor, devices in by_vendor(real).items() for process in vendor.processes(devices))


def visible(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[tuple[Device, ...], list[Finding]]:
    """The devices that the environment leaves to this process, and a finding for each variable that hides some."""
    left, findings = list(devices), []
    for vendor in by_vendor(devices):
        for limit in vendor.limits:
            value = environment.get(limit.variable)
            own = [device for device in left if device.kind == vendor.name]
            if value is None or not own or (not value.strip() and not limit.empty_hides):
                continue
            rest = limit.left(own, value)
            if len(rest) < len(own):
                findings.append(_hidden(limit.variable, value, len(rest), len(own)))
                left = [device for device in left if device.kind != vendor.name or device in rest]
    return tuple(left), findings


def _hidden(variable: str, value: str, left: int, count: int) -> Finding:
    return Finding(
        code=HIDDEN,
        level="info",
        what=f"{variable}={value} leaves {left} of {count} devices",
        why="Stoker hands out only what the process that starts it may see",
        fix=f"unset {variable} to use all of them",
    )
