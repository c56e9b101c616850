"""Accelerators that are there, claims on them, and leases: values that probe, ledger, backends and terminal share.

Finding devices is `hardware.probe`, handing them out `hardware.leases`; neither is known here.
"""

from __future__ import annotations

from typing import Iterable, Literal, Mapping, Protocol, Sequence

import attrs

from stoker.core.accelerators import Accelerator
from stoker.core.findings import Finding
from stoker.core.resources import ResourceSettings

Kind = Literal["nvidia", "amd", "neuron", "tpu", "mps"]

CORES = "neuron-cores:"
"""What the UUID of a Neuron device begins with; behind it stand its cores as NEURON_RT_VISIBLE_CORES takes them."""


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


def environment_of(devices: Iterable[Device]) -> Mapping[str, str]:
    """The variables by which a process sees exactly these devices, by UUID, and of NVIDIA's and AMD's none for none.

    CUDA: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars. ROCm takes its own UUIDs, and HIP counts
    among what ROCr leaves: https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html. Neuron counts cores:
    https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-configurable-parameters.html. Neither
    Neuron nor libtpu documents a value for "none", so that theirs are only set for a step that holds some.
    """
    held = list(devices)

    def joined(kind: Kind) -> str:
        return ",".join(one.uuid for one in held if one.kind == kind)

    variables = {"CUDA_VISIBLE_DEVICES": joined("nvidia"), "ROCR_VISIBLE_DEVICES": joined("amd")}
    if not variables["ROCR_VISIBLE_DEVICES"]:
        variables["HIP_VISIBLE_DEVICES"] = ""
    cores = ",".join(one.uuid.removeprefix(CORES) for one in held if one.kind == "neuron" and not one.simulated)
    chips = ",".join(str(one.index) for one in held if one.kind == "tpu" and not one.simulated)
    if cores:
        variables["NEURON_RT_VISIBLE_CORES"] = cores
    if chips:
        variables["TPU_VISIBLE_CHIPS"] = chips
    return variables
