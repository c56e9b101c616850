"""Accelerators that are there, claims on them, and leases: values that probe, ledger, backends and terminal share.

Finding devices is `devices.probe`, handing them out `devices.leases`; neither is known here.
"""

from __future__ import annotations

from typing import Iterable, Literal, Protocol, Sequence

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.findings import Finding
from stoker.core.resources import ResourceSettings

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


@attrs.frozen(kw_only=True)
class Claim:
    """What one attempt of a step asks of this machine's accelerators.

    `choices` are tried in order: each is a model (with a MIG profile) and a count. Without choices, `count` devices of
    any kind, of `vendor` if it is given. `memory`: bytes that each must have; with `share`, the part of one that is
    taken.
    """

    count: int
    choices: tuple[Accelerator, ...] = ()
    memory: int = 0
    share: bool = False
    vendor: str = ""


@attrs.frozen(kw_only=True)
class Holder:
    """Who claims: an attempt of a run's step, and the process whose death ends the lease.

    `started` is that process's start in seconds since the epoch (as psutil tells it): pids are used again.
    """

    run: str
    key: str
    attempt: int
    pid: int
    started: float


@attrs.frozen(kw_only=True)
class Lease:
    """Devices that one attempt holds. `memory` is its part of each in bytes when they are shared, else 0."""

    id: str
    devices: tuple[Device, ...]
    memory: int = 0


@attrs.frozen(kw_only=True)
class Entry:
    """One line of the ledger as a person sees it: a holder with its devices, or one that waits and why."""

    ticket: str
    holder: Holder
    claim: Claim
    devices: tuple[str, ...] = ()
    memory: int = 0
    waits: str = ""


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

    def holds(self, ticket: str) -> bool:
        """Whether a ticket is in the ledger with its devices: also one that another process had asked for."""

    def entries(self) -> Sequence[Entry]:
        """Everything in the ledger, holders first, then those who wait in their order."""


def claim_of(resources: ResourceSettings) -> Claim | None:
    """What a step's request asks of accelerators; None where it asks for none."""
    count = resources.gpus_per_node
    if not count:
        return None
    named: Iterable[Accelerator] = resources.get("accelerators", ())
    return Claim(
        count=count,
        choices=tuple(attrs.evolve(choice, count=choice.count or count) for choice in named),
        memory=resources.get("gpu_memory", 0),
        share=bool(resources.get("share")),
        vendor=resources.get("gpu_vendor", ""),
    )
