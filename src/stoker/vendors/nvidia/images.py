"""NVIDIA's official images: nvidia/cuda by the version of CUDA, without a Python."""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple

from stoker.vendors.base import PlatformImage


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
