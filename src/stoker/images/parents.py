"""The official image that an accelerator's platform stands for: `accelerator="cuda12.4"` is looked up, never guessed.

cuda12.4  nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04, and the driver's Python put into it
rocm7.1   rocm/pytorch, with the Python and the torch that are in it
neuron2.30  AWS's deep learning container, with the Python and the torch that are in it
cpu       python:3.11-slim, as without an accelerator, and torch's wheels for the CPU
"""

from __future__ import annotations

import re
from typing import Final, Mapping, NamedTuple

import attrs

from stoker.core.errors import SettingsError, nearest
from stoker.images.dockerfile import Python


class _CudaImage(NamedTuple):
    """The images nvidia/cuda of one version of CUDA."""

    cudnn: str
    """cuDNN's part of the tag."""
    ubuntu: tuple[str, ...]
    """Releases of Ubuntu, the newest first."""
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
CUDA: Final[Mapping[str, _CudaImage]] = {
    "11.7.1": _CudaImage("cudnn8", _OLD, "cu117"),
    "11.8.0": _CudaImage("cudnn8", _OLD, "cu118"),
    "12.0.0": _CudaImage("cudnn8", _OLD, "cu121"),
    "12.0.1": _CudaImage("cudnn8", _OLD, "cu121"),
    "12.1.0": _CudaImage("cudnn8", _OLD, "cu121"),
    "12.1.1": _CudaImage("cudnn8", _OLD, "cu121"),
    "12.2.2": _CudaImage("cudnn8", _OLD, "cu121"),
    "12.3.2": _CudaImage("cudnn9", _OLD, "cu121"),
    "12.4.1": _CudaImage("cudnn", _OLD, "cu124"),
    "12.5.1": _CudaImage("cudnn", _OLD, "cu124"),
    "12.6.0": _CudaImage("cudnn", _BOTH, "cu126"),
    "12.6.1": _CudaImage("cudnn", _BOTH, "cu126"),
    "12.6.2": _CudaImage("cudnn", _BOTH, "cu126"),
    "12.6.3": _CudaImage("cudnn", _BOTH, "cu126"),
    "12.8.0": _CudaImage("cudnn", _BOTH, "cu128"),
    "12.8.1": _CudaImage("cudnn", _BOTH, "cu128"),
    "12.9.0": _CudaImage("cudnn", _BOTH, "cu129"),
    "12.9.1": _CudaImage("cudnn", _BOTH, "cu129"),
    "13.0.0": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.0.1": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.0.2": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.0.3": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.1.1": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.1.2": _CudaImage("cudnn", _BOTH, "cu130"),
    "13.2.0": _CudaImage("cudnn", _BOTH, "cu132"),
    "13.2.1": _CudaImage("cudnn", _BOTH, "cu132"),
}
"""CUDA's version → the image nvidia/cuda of it."""

WITH_PYTHON: Final[Mapping[str, str]] = {
    # https://hub.docker.com/r/rocm/pytorch/tags
    "rocm6.2": "rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0",
    "rocm7.1": "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0",
    # https://github.com/aws/deep-learning-containers/blob/master/available_images.md
    "neuron2.30": (
        "public.ecr.aws/deep-learning-containers/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04"
    ),
}
"""Platform → an image that brings its own Python and framework."""

PYTHONS: Final[Mapping[str, str]] = {
    # https://packages.ubuntu.com/search?keywords=python3 and https://packages.debian.org/search?keywords=python3
    "ubuntu22.04": "3.10",
    "ubuntu24.04": "3.12",
    "debian12": "3.11",
    "debian13": "3.13",
}
"""Distribution → the Python that its packages bring."""
_NAMES: Final[Mapping[str, str]] = {
    "jammy": "22.04",
    "noble": "24.04",
    "focal": "20.04",
    "bookworm": "12",
    "trixie": "13",
    "bullseye": "11",
}
# Images that hold a bare distribution, by the grammar of their tags: https://hub.docker.com/_/ubuntu,
# https://hub.docker.com/_/debian, https://hub.docker.com/r/nvidia/cuda.
_BARE: Final = (
    re.compile(r"(?:docker\.io/(?:library/)?)?(?P<name>ubuntu|debian):(?P<release>[a-z0-9.]+?)(?:-slim|-\d+)*(?:@.*)?"),
    re.compile(r"(?:docker\.io/|nvcr\.io/)?nvidia/cuda:[^@]*-(?P<name>ubuntu)(?P<release>[\d.]+)(?:@.*)?"),
)
_OFFICIAL: Final = re.compile(r"(?:docker\.io/(?:library/)?)?python:(?P<version>\d+\.\d+(?:\.\d+)?)(-[^@]*)?(@.*)?")


@attrs.frozen(kw_only=True)
class Parent:
    """A parent image."""

    image: str
    interpreter: Python = "parent"
    """Where its Python comes from."""
    wheels: str = ""
    """The platform of torch's wheels for it; empty for the usual index."""


def plain(python: str) -> Parent:
    """The default parent: Docker's official image of the driver's Python."""
    return Parent(image=f"python:{python}-slim")  # https://hub.docker.com/_/python


def parent_for(accelerator: str, *, python: str) -> Parent:
    """The parent for `accelerator` and a Python such as "3.11"; a `SettingsError` for what the table lacks."""
    platform = accelerator.strip().lower()
    if platform == "cpu":
        return attrs.evolve(plain(python), wheels="cpu")
    if platform in WITH_PYTHON:
        return Parent(image=WITH_PYTHON[platform])
    version = _cuda_version(platform)
    if version is None:
        raise SettingsError(
            f"accelerator: there is no official image for {accelerator!r} in the table"
            f"{nearest(platform, accelerators())}",
            fix="take one of these, or name an image: parent_image=",
        )
    row = CUDA[version]
    same_python = [release for release in row.ubuntu if PYTHONS.get(f"ubuntu{release}") == python]
    image = f"nvidia/cuda:{version}-{row.cudnn}-runtime-ubuntu{[*same_python, *row.ubuntu][0]}"
    return Parent(image=image, interpreter=interpreter_of(image, python=python), wheels=row.wheels)


def interpreter_of(image: str, *, python: str) -> Python:
    """Where an image's Python comes from: "parent", unless the image is known to have a bare distribution."""
    for pattern in _BARE:
        match = pattern.fullmatch(image)
        if match is not None:
            name, release = match["name"], _NAMES.get(match["release"], match["release"])
            release = release.partition(".")[0] if name == "debian" else release
            return "distribution" if PYTHONS.get(name + release) == python else "uv"
    return "parent"


def check_python(image: str, python: str) -> None:
    """Refuse a Python other than the one that an image brings, or that its name does not state.

    The names of Docker's official images of Python state it: https://hub.docker.com/_/python.
    """
    match = _OFFICIAL.fullmatch(image)
    if match is None:
        raise SettingsError(
            f"python_version: {image} brings a Python of its own, so that it cannot be {python}",
            fix="remove python_version, or take an image without a Python, such as ubuntu:24.04",
        )
    image_python, requested = match["version"].split("."), python.split(".")
    if image_python[: len(requested)] != requested[: len(image_python)]:
        raise SettingsError(
            f"python_version: {image} has Python {match['version']}, not {python}", fix=f"take python:{python}-slim"
        )


def accelerators() -> list[str]:
    """Every accelerator that has an official image, as settings name it."""
    minors = {f"cuda{version.rpartition('.')[0]}" for version in CUDA}
    return [*sorted(minors, key=lambda name: tuple(map(int, name[4:].split(".")))), *WITH_PYTHON, "cpu"]


def _cuda_version(platform: str) -> str | None:
    """The newest known patch of the version in "cuda12.4", "cuda12.4.1" or "cu124"."""
    match = re.fullmatch(r"cuda[ :=_-]?(\d+\.\d+(?:\.\d+)?)|cu(\d{2})(\d)", platform)
    if match is None:
        return None
    asked = match[1] or f"{match[2]}.{match[3]}"
    versions = [version for version in CUDA if version == asked or version.rpartition(".")[0] == asked]
    return max(versions, key=lambda version: tuple(map(int, version.split("."))), default=None)
