"""Accelerators that are there: values that `hardware.probe` makes and the command line shows."""

from __future__ import annotations

from typing import Literal

import attrs

from stoker.core.findings import Finding

Kind = Literal["nvidia", "amd", "neuron", "tpu", "mps"]


@attrs.frozen(kw_only=True)
class Device:
    """One accelerator, or one MIG slice of one.

    `model` is the catalog's name ("A100-80GB") where it is known, else the driver's own; `name` is the driver's.
    `memory` in bytes, 0 where the driver does not tell. `slice` is the MIG profile ("1g.10gb"), `parent` the UUID of
    the GPU that it is cut from. `links` are UUIDs of devices that a fast link (NVLink, xGMI) joins it to. `exclusive`
    is False for a kind that cannot be handed out to one process alone (Apple's MPS).
    """

    kind: Kind
    index: int
    uuid: str
    name: str
    model: str
    memory: int
    capability: tuple[int, int] | None = None
    slice: str = ""
    parent: str = ""
    links: tuple[str, ...] = ()
    simulated: bool = False
    exclusive: bool = True


@attrs.frozen(kw_only=True)
class Process:
    """A process that uses a device, as the driver tells: pid, and bytes of the device's memory."""

    uuid: str
    pid: int
    memory: int


@attrs.frozen(kw_only=True)
class Inventory:
    """The accelerators of this machine. `driver` is NVIDIA's version, `cuda` the newest CUDA that it runs.

    A driver that is broken is a finding, not an error: the rest of the machine is still there.
    """

    devices: tuple[Device, ...] = ()
    driver: str = ""
    cuda: tuple[int, int] | None = None
    findings: tuple[Finding, ...] = ()
    simulated: bool = False
