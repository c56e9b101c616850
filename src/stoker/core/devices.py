"""Accelerators that are there, claims on them, and leases: values that probe, ledger, backends and worker share.

A request has four forms: `ResourceSettings` of the step, a `Claim` on a machine, the `Lease` that answers it, and the
`StepDevice`s that the step's code sees. Finding devices is `devices.probe`, handing them out `devices.leases`; neither
is known here.
"""

from __future__ import annotations

from typing import ClassVar, Final, Iterable, Protocol, Sequence

import attrs

from stoker.core.accelerators import Accelerator, vendor_name
from stoker.core.findings import Finding
from stoker.core.resources import WATCHED, AcceleratorPolicy, HealthCheck, OnIdle, ResourceSettings

LEASE_VERSION: Final = 1


@attrs.frozen(kw_only=True)
class Device:
    """One accelerator, or one slice of one."""

    kind: str = attrs.field(converter=vendor_name)
    """The vendor's name in `vendors.registry`."""
    index: int
    """Its number among the vendor's devices of this machine."""
    uuid: str
    """What the vendor's visibility variables call it."""
    name: str = ""
    """The driver's name for it."""
    model: str = ""
    """The catalog's name ("A100-80GB") where it is known, else the driver's."""
    memory: int = 0
    """Bytes; 0 where the driver does not tell."""
    capability: tuple[int, int] | None = None
    """NVIDIA's compute capability."""
    slice: str = ""
    """The MIG profile ("1g.10gb"); empty for a whole chip."""
    parent: str = ""
    """The UUID of the GPU that a slice is cut from."""
    links: tuple[str, ...] = ()
    """UUIDs of devices that a fast link (NVLink, xGMI) joins it to."""
    numa: int | None = None
    """The NUMA node of the CPUs and memory that are nearest to it; None where the driver does not tell."""
    simulated: bool = False
    """Whether it is pretended (`STOKER_SIMULATE`)."""
    fault: str = ""
    """Of a simulated device: what the gate finds wrong with it; empty for a good one."""
    weakness: str = ""
    """Of a simulated device: what only the health check finds wrong with it."""
    exclusive: bool = True
    """False where it cannot be handed out to one process alone (Apple's GPU)."""


@attrs.frozen(kw_only=True)
class Process:
    """A process that uses a device, as the driver tells."""

    uuid: str
    pid: int
    memory: int
    """Bytes of the device's memory; 0 where the driver does not tell."""


@attrs.frozen(kw_only=True)
class Inventory:
    """The accelerators of this machine.

    A driver that is broken is a finding, not an error: the rest of the machine is still there.
    """

    devices: tuple[Device, ...] = ()
    driver: str = ""
    """The version of NVIDIA's driver."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    findings: tuple[Finding, ...] = ()
    simulated: bool = False


@attrs.frozen(kw_only=True)
class Claim:
    """What one attempt of a step asks of this machine's accelerators."""

    count: int
    choices: tuple[Accelerator, ...] = ()
    """Models (with a slice's profile) and counts, tried in order; without any, `count` devices of any model."""
    memory: int = 0
    """Bytes that each must have; with `share`, the part of one that is taken."""
    share: bool = False
    vendor: str = ""
    """The vendor of devices that are not named by `choices`; empty for any."""
    avoid: tuple[str, ...] = ()
    """UUIDs of devices that it must not get: an attempt failed on them (`engine.places`)."""


@attrs.frozen(kw_only=True)
class Holder:
    """Who claims: an attempt of a run's step, and the process whose death ends the lease."""

    run: str
    key: str
    attempt: int
    pid: int
    started: float
    """The process's start in seconds since the epoch (as psutil tells it): pids are used again."""


@attrs.frozen(kw_only=True)
class Lease:
    """The devices that one attempt holds, on one node: what ledger, gate, monitor and receipt know of them.

    It goes over process boundaries as JSON, which `core.codec` writes and reads.
    """

    COMPACT: ClassVar[bool] = True
    version: int = LEASE_VERSION
    ticket: str = ""
    """The ledger's name for it; empty where a platform has handed out the devices."""
    devices: tuple[Device, ...] | None = None
    """None where they are found out when the job starts, because the platform hands them out (`worker.boot`)."""
    memory: int = 0
    """The attempt's part of each device in bytes; 0 for whole devices."""
    asked: str = ""
    """The request in words."""
    count: int = 0
    """How many devices the step asks for on each node."""
    policy: AcceleratorPolicy = "require"
    fallback: str = ""
    """Why the step runs without devices, under the policy "prefer"."""
    driver: str = ""
    """The version of NVIDIA's driver."""
    cuda: tuple[int, int] | None = None
    """The newest CUDA that the driver runs."""
    simulated: bool = False
    host: str = ""
    """The machine; empty for the driver's own."""
    node: str = ""
    """What the platform calls the machine, where that is not `host`."""
    samples: str = ""
    """The file that the monitor writes."""
    interval: float = WATCHED.interval
    """Seconds between two samples."""
    idle_below: float = WATCHED.idle_below
    """Percent of utilisation from which on a device works."""
    idle_for: float = WATCHED.idle_for
    """Seconds without work after which devices are left idle."""
    on_idle: OnIdle = "warn"
    health_check: HealthCheck = "off"
    started: float = 0.0
    """Seconds since the epoch."""
    others: tuple[Lease, ...] = ()
    """Of a gang's first node: the leases of its other nodes."""

    @property
    def held(self) -> tuple[Device, ...]:
        """The devices on this node; none as long as they are not known."""
        return self.devices or ()


@attrs.frozen(kw_only=True)
class Entry:
    """One line of the ledger as a person sees it: a holder with its devices, or one that waits and why."""

    ticket: str
    holder: Holder
    claim: Claim
    devices: tuple[str, ...] = ()
    memory: int = 0
    waits: str = ""
    survivors: tuple[int, ...] = ()
    """Pids of processes that live although the attempt is over: its devices are in quarantine as long as they do."""


class Devices(Protocol):
    """This machine's accelerators and who holds them, for a backend that runs steps here."""

    def inventory(self) -> Inventory:
        """What is there; asked once a session."""

    def impossible(self, claim: Claim) -> str:
        """Why nothing that this machine has can ever satisfy a claim; empty where something can."""

    def claim(self, claim: Claim, holder: Holder) -> str:
        """Join the line; the ticket to ask with."""

    def answer(self, ticket: str) -> Lease | str:
        """The lease once it is this ticket's turn, else why it still waits, in words for a person."""

    def release(self, ticket: str) -> None:
        """Give back what the ticket holds, or leave the line; a ticket that is gone is fine."""

    def hand_over(self, ticket: str, pid: int) -> bool:
        """Let the lease live as long as another process, such as a container's first one; False if it is not there, or
        cannot be seen from here."""

    def quarantine(self, ticket: str, pids: Sequence[int]) -> None:
        """Release a ticket whose processes do not end: its devices become free when these have."""

    def holds(self, ticket: str) -> bool:
        """Whether a ticket is in the ledger with its devices: also one that another process had asked for."""

    def entries(self) -> Sequence[Entry]:
        """Everything in the ledger, holders first, then those who wait in their order."""


def claim_of(resources: ResourceSettings) -> Claim | None:
    """What a step's request asks of accelerators; None where it asks for none."""
    count = resources.gpus_per_node
    if not count:
        return None
    accelerators: Iterable[Accelerator] = resources.get("accelerators", ())
    return Claim(
        count=count,
        choices=tuple(attrs.evolve(choice, count=choice.count or count) for choice in accelerators),
        memory=resources.get("gpu_memory", 0),
        share=bool(resources.get("share")),
        vendor=resources.get("gpu_vendor", ""),
    )
