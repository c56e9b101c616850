"""Where a step finds CUDA's libraries, cuDNN and the compiler: its image, apt's packages, other wheels. Pure.

A wheel that brings no CUDA of its own loads these by their major version.
"""

from __future__ import annotations

import re
from typing import Final, Mapping

import attrs

from stoker.core.imagenames import parse
from stoker.core.units import value_or
from stoker.plan.components.base import USES_DEVICES, USES_NO_DEVICES
from stoker.plan.packages import NEEDS_TORCH, FrameworkPackage
from stoker.plan.requirements import numbers
from stoker.plan.rules import PlanFacts, distributions
from stoker.vendors.builds import Version

# https://gitlab.com/nvidia/container-images/cuda/-/blob/master/doc/supported-tags.md: "base" has the runtime library
# only, "runtime" the mathematical libraries, "devel" the compiler; from 12.4.1 on, "cudnn" without a number is cuDNN 9.
_CUDA_IMAGE: Final = re.compile(
    r"(?:nvcr\.io/)?nvidia/cuda:[\d.]+(?P<cudnn>-cudnn(?P<major>\d*))?-(?P<part>base|runtime|devel)\b.*"
)
_PYTORCH_IMAGE: Final = re.compile(r"pytorch/pytorch:.*-(?P<part>runtime|devel)")
_NGC: Final = re.compile(r"nvcr\.io/nvidia/(?:pytorch|tensorflow|jax|cuda-dl-base):(?P<year>\d\d)\.(?P<month>\d\d).*")
_NGC_CUDNN_9: Final = (24, 3)
"""The first monthly release of NGC's images with cuDNN 9: https://docs.nvidia.com/deeplearning/frameworks/support-matrix."""
# PyTorch's own builds: Requires-Dist of the wheels of each release, nvidia-cudnn-cu11 and nvidia-cudnn-cu12.
_TORCH_CUDNN_9: Final = (2, 4)
_TORCH_CUDNN_8: Final = (1, 9)
_TENSORFLOW_IMAGE: Final = re.compile(r"tensorflow/tensorflow:.*gpu.*")
_WHEEL_CUDNN: Final = re.compile(r"nvidia-cudnn-cu(\d+)")
_WHEEL_CUDA: Final = re.compile(
    r"nvidia-(?:cublas|cuda-runtime|cuda-nvrtc|cufft|curand|cusolver|cusparse)(?:-cu(\d+))?"
)
_MATHEMATICS: Final = re.compile(r"nvidia-cublas(?:-cu\d+)?|cuda-toolkit")
_APT_CUDA: Final = re.compile(
    r"(?:cuda-toolkit|cuda-libraries|cuda-runtime|cuda|libcublas|cuda-minimal-build)-(\d+)-\d+.*"
)
_APT_CUDNN: Final = re.compile(r"(?:lib)?cudnn(\d)(?:-cuda-\d+)?.*")
_APT_NVCC: Final = re.compile(r"nvidia-cuda-toolkit|cuda-(?:nvcc|toolkit|compiler)-\d+-\d+.*")


@attrs.frozen(kw_only=True)
class Provided:
    """The libraries that a step is known to find, and whether there can be others."""

    cuda: Mapping[int, str]
    """Major version of CUDA's libraries → what has them."""
    cudnn: Mapping[int, str]
    """Major version of cuDNN → what has it."""
    nvcc: Version | None = None
    """The CUDA of the compiler in the image; () if there is none, None if that is not known."""
    complete: bool = False
    """Whether nothing else can bring libraries: the contents of the image and all requirements are known."""


def provided(facts: PlanFacts) -> Provided:
    """What is known of the libraries in the step's image, and of those that its requirements bring."""
    cuda: dict[int, str] = {}
    cudnn: dict[int, str] = {}
    image_known, nvcc = _image(facts, cuda, cudnn)
    for package in facts.packages:
        _framework(package, cuda, cudnn)
    for item in distributions(facts):
        wheel = _WHEEL_CUDA.fullmatch(item.name)
        if item.name == "cuda-toolkit" and item.version:
            cuda.setdefault(numbers(item.version)[0], item.title)
        elif wheel is not None and _MATHEMATICS.fullmatch(item.name):
            major = int(wheel[1]) if wheel[1] else (numbers(item.version) or (13,))[0]
            cuda.setdefault(major, item.title)
        if _WHEEL_CUDNN.fullmatch(item.name):
            cudnn.setdefault((numbers(item.version) or (9,))[0], item.title)
    apt_known, apt_nvcc = _apt(facts, cuda, cudnn)
    return Provided(
        cuda=cuda,
        cudnn=cudnn,
        nvcc=apt_nvcc or nvcc,
        complete=image_known and apt_known and requirements_known(facts),
    )


def _image(facts: PlanFacts, cuda: dict[int, str], cudnn: dict[int, str]) -> tuple[bool, Version | None]:
    """Whether the image's libraries are known, and the CUDA of its compiler; adds what it has."""
    reference, image = facts.reference, facts.image
    if not facts.in_image or not reference or value_or(facts.docker.dockerfile, ""):
        return False, None
    if facts.bare:
        return True, ()
    parts = parse(reference)
    text = f"{parts.name}:{parts.tag}" if parts is not None else reference
    version = numbers(image.cuda)
    match = _CUDA_IMAGE.fullmatch(text)
    if match is not None and version:
        if match["part"] != "base":
            cuda[version[0]] = reference
        found = (int(match["major"] or 9),) if match["cudnn"] else numbers(image.cudnn)
        if found:
            cudnn[found[0]] = reference
        return True, version[:2] if match["part"] == "devel" else ()
    pytorch = _PYTORCH_IMAGE.fullmatch(text)
    if pytorch is not None and version:
        if pytorch["part"] == "devel":  # built upon nvidia/cuda:*-devel; what torch brings is torch's
            cuda[version[0]] = reference
        return True, version[:2] if pytorch["part"] == "devel" else ()
    ngc = _NGC.fullmatch(text)
    if ngc is not None and version:
        cuda[version[0]] = reference
        cudnn[9 if (int(ngc["year"]), int(ngc["month"])) >= _NGC_CUDNN_9 else 8] = reference
        return True, version[:2]
    if version:
        cuda[version[0]] = reference
    if numbers(image.cudnn):
        cudnn[numbers(image.cudnn)[0]] = reference
    return bool(_TENSORFLOW_IMAGE.fullmatch(text)), None


def _framework(package: FrameworkPackage, cuda: dict[int, str], cudnn: dict[int, str]) -> None:
    """Add what a framework brings: torch loads its own libraries for everything that is imported after it."""
    build = package.build
    if not build.cuda or build.lacks:
        return
    release = numbers(build.version)[:2]
    if build.framework == "torch":
        text = f"torch {build.version}, imported first,"
        cuda.setdefault(build.cuda[0], text)
        if release >= _TORCH_CUDNN_8:
            cudnn.setdefault(9 if release >= _TORCH_CUDNN_9 else 8, text)
    elif build.framework == "jax" and package.origin == "requirement":
        cuda.setdefault(build.cuda[0], package.text)


def _apt(facts: PlanFacts, cuda: dict[int, str], cudnn: dict[int, str]) -> tuple[bool, Version]:
    """Whether the packages of the system are known, and the compiler among them; adds what they have."""
    known = True
    nvcc: Version = ()
    for name in value_or(facts.docker.apt_packages, ()):
        toolkit, deep, compiler = _APT_CUDA.fullmatch(name), _APT_CUDNN.fullmatch(name), _APT_NVCC.fullmatch(name)
        if toolkit is not None:
            cuda.setdefault(int(toolkit[1]), f"apt's {name}")
        if deep is not None:
            cudnn.setdefault(int(deep[1]), f"apt's {name}")
        if compiler is not None:
            digits = re.search(r"-(\d+)-(\d+)", name)
            nvcc = (int(digits[1]), int(digits[2])) if digits is not None else (0,)
        if not (toolkit or deep or compiler) and re.search(r"cuda|cudnn|nvidia|cublas", name):
            known = False
    return known, nvcc


def requirements_known(facts: PlanFacts) -> bool:
    """Whether no requirement can bring libraries that are not listed."""
    if facts.requirements.unread:
        return False
    if facts.locked or not facts.builds:
        return True
    known = {*USES_DEVICES, *USES_NO_DEVICES, *NEEDS_TORCH, "torch"}
    return all(item.name in known for item in facts.requirements.items)
