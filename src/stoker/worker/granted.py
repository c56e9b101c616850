"""The devices that a platform gave to a job, as the lease that gate and monitor know: taken over where the job runs.

Slurm, Ray, a device plugin or a container's runtime have chosen them already, and say so by variables such as
CUDA_VISIBLE_DEVICES, or by showing no others. A lease comes without devices (`backends.base.leasing`) and
gets those that are visible here.
"""

from __future__ import annotations

import os
import socket
import time

import attrs

from stoker.core.devices import Inventory, Lease
from stoker.core.findings import errors
from stoker.core.status import NO_GPU
from stoker.devices.probe import probe, visible
from stoker.devices.simulate import parse_simulation
from stoker.vendors.registry import environment_of, visibility_variables
from stoker.worker.gate import GateError


def taken(lease: Lease, simulate: str) -> Lease:
    """The lease with the devices that this process may use, which it sees from then on as its steps will.

    With `simulate` they are those of the machine that it describes. Where there are fewer than the step asked for, it
    is a `GateError`, or under the policy "prefer" the lease's fallback.
    """
    inventory = _inventory(simulate)
    devices = inventory.devices
    fallback = ""
    if len(devices) < lease.count:
        fallback = _too_few(inventory, lease.count)
        if lease.policy != "prefer":
            raise GateError(f"{fallback} (asked for: {lease.asked})", cause=NO_GPU, fix=_fix(inventory))
        devices = ()
    os.environ.update(environment_of(devices))
    return attrs.evolve(
        lease,
        ticket="",
        devices=devices,
        fallback=fallback,
        driver=inventory.driver,
        cuda=inventory.cuda,
        simulated=inventory.simulated,
        host=socket.gethostname(),
        started=time.time(),
    )


def _inventory(simulate: str) -> Inventory:
    if not simulate.strip():
        return probe()
    whole = parse_simulation(simulate)
    devices, _ = visible(whole.devices, os.environ)
    return Inventory(devices=devices, driver=whole.driver, cuda=whole.cuda, simulated=True)


def _too_few(inventory: Inventory, count: int) -> str:
    said = [f"{name}={os.environ[name]!r}" for name in sorted(visibility_variables()) if name in os.environ]
    given = f"; the platform set {', '.join(said)}" if said else ", and the platform set no variable for them"
    return f"{socket.gethostname()} shows {len(inventory.devices)} of {count} devices{given}"


def _fix(inventory: Inventory) -> str:
    broken = errors(inventory.findings)
    if broken:
        return f"{broken[0].what} ({broken[0].code}): {broken[0].fix}"
    return "run `stoker devices` there; where the platform's nodes have no devices of their own, --simulate pretends"
