"""NVIDIA as a `Vendor`; loads its parts when they are used. Also its official images: nvidia/cuda by the version of
CUDA, without a Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Iterator, Mapping, NamedTuple, Sequence

from stoker.core import status
from stoker.core.accelerators import Accelerator
from stoker.core.devices import Device, Inventory, Process
from stoker.vendors.base import (
    GateRequest,
    GateResult,
    HealthReport,
    Limit,
    Meter,
    PlatformImage,
    Platforms,
    Simulation,
    Vendor,
    jax_platforms,
    named_devices,
    tensorflow_gpus,
    torch_gpus,
)
from stoker.vendors.builds import Build, Hardware, Problem, numbers
from stoker.vendors.nvidia.builds import covers
from stoker.vendors.nvidia.chips import capability, cuda_of_driver, driver_name


class _Cuda(NamedTuple):
    """The image of one version of CUDA."""

    cudnn: str
    """cuDNN's part of the tag."""
    ubuntu: tuple[str, ...]
    """Releases of Ubuntu, newest first."""
    wheels: str
    """The platform of torch's wheels."""


_BOTH: Final = ("24.04", "22.04")
_OLD: Final = ("22.04",)
# https://hub.docker.com/r/nvidia/cuda/tags; also in
# https://github.com/replicate/cog/blob/main/pkg/config/cuda_compatibility.json. Releases of Ubuntu whose Python is
# older than 3.10 are left out. Torch has wheels for some versions of CUDA only (https://pytorch.org/get-started/): they
# bring their own CUDA, so that the newest one of the same major version that is not newer is taken, and for 12.0 the
# first one of its major version, which NVIDIA's minor version compatibility lets run on its drivers
# (https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
CUDA: Final[Mapping[str, _Cuda]] = {
    "11.7.1": _Cuda("cudnn8", _OLD, "cu117"),
    "11.8.0": _Cuda("cudnn8", _OLD, "cu118"),
    "12.0.0": _Cuda("cudnn8", _OLD, "cu121"),
    "12.0.1": _Cuda("cudnn8", _OLD, "cu121"),
    "12.1.0": _Cuda("cudnn8", _OLD, "cu121"),
    "12.1.1": _Cuda("cudnn8", _OLD, "cu121"),
    "12.2.2": _Cuda("cudnn8", _OLD, "cu121"),
    "12.3.2": _Cuda("cudnn9", _OLD, "cu121"),
    "12.4.1": _Cuda("cudnn", _OLD, "cu124"),
    "12.5.1": _Cuda("cudnn", _OLD, "cu124"),
    "12.6.0": _Cuda("cudnn", _BOTH, "cu126"),
    "12.6.1": _Cuda("cudnn", _BOTH, "cu126"),
    "12.6.2": _Cuda("cudnn", _BOTH, "cu126"),
    "12.6.3": _Cuda("cudnn", _BOTH, "cu126"),
    "12.8.0": _Cuda("cudnn", _BOTH, "cu128"),
    "12.8.1": _Cuda("cudnn", _BOTH, "cu128"),
    "12.9.0": _Cuda("cudnn", _BOTH, "cu129"),
    "12.9.1": _Cuda("cudnn", _BOTH, "cu129"),
    "13.0.0": _Cuda("cudnn", _BOTH, "cu130"),
    "13.0.1": _Cuda("cudnn", _BOTH, "cu130"),
    "13.0.2": _Cuda("cudnn", _BOTH, "cu130"),
    "13.0.3": _Cuda("cudnn", _BOTH, "cu130"),
    "13.1.1": _Cuda("cudnn", _BOTH, "cu130"),
    "13.1.2": _Cuda("cudnn", _BOTH, "cu130"),
    "13.2.0": _Cuda("cudnn", _BOTH, "cu132"),
    "13.2.1": _Cuda("cudnn", _BOTH, "cu132"),
}
"""CUDA's version → the image nvidia/cuda of it."""


def find(written: str) -> PlatformImage | None:
    """The image for the newest known patch of the version in "cuda12.4", "cuda12.4.1" or "cu124"."""
    match = re.fullmatch(r"cuda[ :=_-]?(\d+\.\d+(?:\.\d+)?)|cu(\d{2})(\d)", written)
    if match is None:
        return None
    wanted_version = match[1] or f"{match[2]}.{match[3]}"
    fitting = [version for version in CUDA if version == wanted_version or version.rpartition(".")[0] == wanted_version]
    if not fitting:
        return None
    version = max(fitting, key=_numbers)
    row = CUDA[version]
    image = f"nvidia/cuda:{version}-{row.cudnn}-runtime-ubuntu{{ubuntu}}"
    return PlatformImage(image=image, releases=row.ubuntu, wheels=row.wheels)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


NAMES: Final = tuple(f"cuda{minor}" for minor in sorted({version.rpartition(".")[0] for version in CUDA}, key=_numbers))
"""The platforms as a person writes them."""


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
    from stoker.vendors.nvidia import gate

    return gate.health(devices)


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
