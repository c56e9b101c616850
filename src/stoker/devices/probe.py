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
from stoker.core.visibility import CORES
from stoker.devices import nvidia, others
from stoker.devices.simulate import VARIABLE, simulated

HIDDEN: Final = "STK129"

# ROCr filters first, HIP counts among what it leaves: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
_VISIBLE: Final[Sequence[tuple[str, str]]] = (
    ("nvidia", "CUDA_VISIBLE_DEVICES"),
    ("amd", "ROCR_VISIBLE_DEVICES"),
    ("amd", "HIP_VISIBLE_DEVICES"),
    ("neuron", "NEURON_RT_VISIBLE_CORES"),
    ("tpu", "TPU_VISIBLE_CHIPS"),
)
"""kind of device, and a variable that hides some of them"""
_EMPTY_IS_NONE: Final = ("nvidia", "amd")
"""Kinds whose variable, set to nothing, hides all of them; the others document no such value."""


def probe(environment: Mapping[str, str] | None = None, *, root: Path = Path("/")) -> Inventory:
    """What is here, or what `STOKER_SIMULATE` says: then only that. `root` is where /dev, /proc and /sys are."""
    environment = os.environ if environment is None else environment
    text = environment.get(VARIABLE, "")
    if text.strip():
        return simulated(text)
    found = nvidia.probe(root)
    more = (others.amd(root), others.neuron(environment, root), others.tpu(environment, root), others.mps(environment))
    parts = (found, *more)
    devices, hidden = visible([device for part in parts for device in part.devices], environment)
    findings = (*(finding for part in parts for finding in part.findings), *hidden)
    return Inventory(devices=devices, driver=found.driver, cuda=found.cuda, findings=findings)


def processes(inventory: Inventory) -> tuple[Process, ...]:
    """Who computes on the devices, as their driver tells (NVIDIA's only). Of simulated ones, nobody."""
    return nvidia.processes(inventory.devices)


def visible(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[tuple[Device, ...], list[Finding]]:
    """The devices that the environment leaves to this process, and a finding for each variable that hides some."""
    kept, findings = list(devices), []
    for kind, variable in _VISIBLE:
        value = environment.get(variable)
        mine = [device for device in kept if device.kind == kind]
        if value is None or not mine or (not value.strip() and kind not in _EMPTY_IS_NONE):
            continue
        left = _cores(mine, value) if kind == "neuron" else _listed(mine, value)
        if len(left) < len(mine):
            findings.append(_hidden(variable, value, len(left), len(mine)))
            kept = [device for device in kept if device.kind != kind or device in left]
    return tuple(kept), findings


def _listed(devices: list[Device], value: str) -> list[Device]:
    """Those that a list of numbers and UUIDs names. As CUDA reads it: the first that names none ends the list.

    https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars. Numbers are taken in the order of the bus, as with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; without it, CUDA puts the fastest chip first on machines with several kinds.
    """
    indexes = sorted({device.index for device in devices})
    left: list[Device] = []
    for item in value.split(","):
        name = item.strip().lower()
        if name.isdecimal():
            number = int(name)
            # CUDA gives a process one slice of a GPU that is cut into slices.
            named = [one for one in devices if number < len(indexes) and one.index == indexes[number]][:1]
        else:
            named = [one for one in devices if name and one.uuid.lower().startswith(name)]
        if len(named) != 1:
            break
        if named[0] not in left:
            left += named
    return left


def _cores(devices: list[Device], value: str) -> list[Device]:
    """The Neuron devices all of whose cores are in a list such as "0-3,8"."""
    allowed = _numbers(value)
    return [one for one in devices if _numbers(one.uuid.removeprefix(CORES)) <= allowed]


def _numbers(value: str) -> set[int]:
    found: set[int] = set()
    for item in value.split(","):
        first, _, last = item.strip().partition("-")
        if first.isdecimal() and (last or first).isdecimal():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _hidden(variable: str, value: str, left: int, count: int) -> Finding:
    return Finding(
        code=HIDDEN,
        level="info",
        what=f"{variable}={value} leaves {left} of {count} devices",
        why="Stoker hands out only what the process that starts it may see",
        fix=f"unset {variable} to use all of them",
    )
