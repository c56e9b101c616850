"""Fills a lease with the devices that a platform gave to a job, where the job runs.

Slurm, Ray, a device plugin or a container's runtime choose the devices, and state them by variables such as
CUDA_VISIBLE_DEVICES, or hide all others. The lease comes without devices (`backends.base.leasing`) and gets those that
are visible here.
"""

from __future__ import annotations

import os
import socket
import time

import attrs

from stoker.core.devices import Inventory, Lease
from stoker.core.findings import errors
from stoker.core.protocol import NODE_ID
from stoker.core.status import NO_GPU
from stoker.devices.probe import probe, visible
from stoker.devices.simulate import parse_simulation
from stoker.vendors.registry import environment_of, visibility_variables
from stoker.worker.gate import GateError


def fill_lease(lease: Lease, simulate: str) -> Lease:
    """The lease with the devices that this process may use; the environment shows them to it and to its steps.

    With `simulate` they are those of the machine that it describes. Fewer than the step asked for are a `GateError`, or
    under the policy "prefer" the lease's fallback.
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
        host=_host(),
        node=os.environ.get(NODE_ID, ""),
        started=time.time(),
    )


def machine() -> str:
    """What the platform calls this machine."""
    return os.environ.get(NODE_ID) or _host()


def _host() -> str:
    """Slurm's name for this node (https://slurm.schedmd.com/sbatch.html#OPT_SLURMD_NODENAME), else its host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _inventory(simulate: str) -> Inventory:
    if not simulate.strip():
        return probe()
    whole = parse_simulation(simulate, node=machine())
    devices, _ = visible(whole.devices, os.environ)
    return Inventory(devices=devices, driver=whole.driver, cuda=whole.cuda, simulated=True)


def _too_few(inventory: Inventory, count: int) -> str:
    variables = [f"{name}={os.environ[name]!r}" for name in sorted(visibility_variables()) if name in os.environ]
    source = (
        f"; the platform set {', '.join(variables)}" if variables else ", and the platform set no variable for them"
    )
    return f"{socket.gethostname()} shows {len(inventory.devices)} of {count} devices{source}"


def _fix(inventory: Inventory) -> str:
    broken = errors(inventory.findings)
    if broken:
        return f"{broken[0].what} ({broken[0].code}): {broken[0].fix}"
    return "run `stoker devices` there; where the platform's nodes have no devices of their own, --simulate pretends"
