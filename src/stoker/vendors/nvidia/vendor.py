"""NVIDIA as a `Vendor`; loads its parts when they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.core import status
from stoker.core.accelerators import Accelerator
from stoker.core.devices import Device, Inventory, Process
from stoker.vendors.base import (
    GateRequest,
    GateResult,
    HealthReport,
    Limit,
    Meter,
    Platforms,
    Simulation,
    Vendor,
    named_devices,
)
from stoker.vendors.builds import Build, Hardware, Problem, numbers
from stoker.vendors.frameworks import jax_platforms, tensorflow_gpus, torch_gpus
from stoker.vendors.nvidia.builds import covers
from stoker.vendors.nvidia.chips import capability, cuda_of_driver, driver_name
from stoker.vendors.nvidia.images import NAMES, find

# How many slices of so many sevenths one GPU has room for:
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html
_SLICES_OF_ONE: Final[Mapping[str, int]] = {"1": 7, "2": 3, "3": 2, "4": 1, "7": 1}


def probe(environment: Mapping[str, str], root: Path) -> Inventory:
    """The GPUs and their slices, as NVML lists them."""
    from stoker.vendors.nvidia import probe

    return probe.inventory(root)


def processes(devices: Sequence[Device]) -> tuple[Process, ...]:
    """The processes that compute on some of the GPUs."""
    from stoker.vendors.nvidia import probe

    return probe.processes(devices)


def visibility(devices: Sequence[Device]) -> Mapping[str, str]:
    """https://docs.nvidia.com/cuda/cuda-c-programming-guide/#env-vars"""
    return {"CUDA_VISIBLE_DEVICES": ",".join(device.uuid for device in devices)}


def prove(request: GateRequest) -> GateResult:
    """Whether CUDA starts in this process, shows the leased devices, and has the leased memory."""
    from stoker.vendors.nvidia import gate

    return gate.prove(request)


def torch_cuda(torch: Any, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """Whether torch sees the held GPUs, and has code for their chips."""
    fact, problem = torch_gpus(torch, devices)
    if not fact:
        return fact, problem
    archs = tuple(torch.cuda.get_arch_list())
    cuda = numbers(str(torch.version.cuda or ""))
    for device in devices:
        if archs and device.capability is not None and not covers(archs, device.capability, cuda):
            chip = "".join(map(str, device.capability))
            sentence = f"sm_{chip} ({device.model}) is not in the list of torch {torch.__version__}: {' '.join(archs)}"
            fix = "install a build of torch that names it (torch.cuda.get_arch_list()), or ask for another GPU"
            return "", Problem(cause=status.NO_KERNEL_IMAGE, sentence=sentence, fix=fix)
    return fact + (f"; it has code for {' '.join(archs)}" if archs else ""), None


def unfit(build: Build, hardware: Hardware) -> Problem | None:
    """Why a build cannot use the devices: its CUDA, or its chips."""
    from stoker.vendors.nvidia import builds

    return builds.unfit(build, hardware)


def notes(build: Build, hardware: Hardware) -> Iterator[str]:
    """What a person should know of a build that fits."""
    from stoker.vendors.nvidia import builds

    return builds.notes(build, hardware)


def meter(devices: Sequence[Device]) -> Meter:
    """A meter of held GPUs through NVML."""
    from stoker.vendors.nvidia import meter

    return meter.open_meter(devices)


def _per_chip(accelerator: Accelerator) -> int:
    # Slices with more memory than their sevenths of it, such as "1g.20gb" of 80, are fewer.
    return min(_SLICES_OF_ONE.get(accelerator.slice[0], 1), accelerator.model.memory[-1] // accelerator.memory)


def health(devices: Sequence[Device]) -> HealthReport:
    """The errors that NVML has counted of GPUs."""
    from stoker.vendors.nvidia import health

    return health.health(devices)


VENDOR: Final = Vendor(
    name="nvidia",
    title="NVIDIA",
    example="H100",
    probe=probe,
    processes=processes,
    visibility=visibility,
    limits=(Limit(variable="CUDA_VISIBLE_DEVICES", select=named_devices, empty_hides=True),),
    simulation=Simulation(
        name=driver_name,
        capability=capability,
        per_chip=_per_chip,
        facts=("driver", "cuda"),
        cuda_of_driver=cuda_of_driver,
    ),
    prove=prove,
    health=health,
    frameworks={"torch": torch_cuda, "tensorflow": tensorflow_gpus, "jax": jax_platforms("cuda", "gpu")},
    unfit=unfit,
    notes=notes,
    meter=meter,
    runtime="cuda",
    runtime_title="CUDA",
    toolkit="nvidia.com/gpu",
    hidden_in_containers={"NVIDIA_VISIBLE_DEVICES": "void"},
    apptainer=("--nv",),  # https://apptainer.org/docs/user/latest/gpu.html
    platforms=Platforms(names=NAMES, find=find),
)
