"""The accelerators of this machine, of every vendor, as one `Inventory`. Loads no framework; a missing driver is no
error.

Devices that `CUDA_VISIBLE_DEVICES` and the like hide from this process are left out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Mapping, Sequence

from stoker.core.devices import Device, Inventory, Process
from stoker.core.errors import SettingsError
from stoker.core.findings import Finding
from stoker.devices.simulate import VARIABLE, parse_simulation
from stoker.vendors.registry import VENDORS, by_vendor

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
