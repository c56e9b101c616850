"""What the publishers of well-known images put into each release; `core.imagenames` reads it by an image's tag.

A release that is not here is unknown. Tables are by the part of a tag that decides.
"""

from __future__ import annotations

from typing import Final, Mapping, NamedTuple, Sequence


class NgcRelease(NamedTuple):
    """One month's images of nvcr.io/nvidia."""

    cuda: str
    torch: str = ""
    """The release of nvcr.io/nvidia/pytorch's torch, which NVIDIA builds itself from a commit of its own."""


# The CUDA and the torch of each month: the release notes of each month's image,
# https://docs.nvidia.com/deeplearning/frameworks/pytorch-release-notes/, its support matrix
# https://docs.nvidia.com/deeplearning/frameworks/support-matrix/, and for 24.04 and later
# https://github.com/triton-inference-server/server/blob/main/docs/introduction/compatibility.md.
NGC: Final[Mapping[str, NgcRelease]] = {
    "26.07": NgcRelease("13.3.0"),
    "26.06": NgcRelease("13.3.0"),
    "26.05": NgcRelease("13.2.1"),
    "26.04": NgcRelease("13.2.1"),
    "26.03": NgcRelease("13.2.0", "2.11.0a0"),
    "26.02": NgcRelease("13.1.1", "2.11.0a0"),
    "26.01": NgcRelease("13.1.1", "2.10.0a0"),
    "25.12": NgcRelease("13.1.0", "2.10.0a0"),
    "25.11": NgcRelease("13.0.2", "2.10.0a0"),
    "25.10": NgcRelease("13.0.2", "2.9.0a0"),
    "25.09": NgcRelease("13.0.1", "2.9.0a0"),
    "25.08": NgcRelease("13.0.0", "2.8.0a0"),
    "25.06": NgcRelease("12.9.1", "2.8.0a0"),
    "25.05": NgcRelease("12.9.0", "2.8.0a0"),
    "25.04": NgcRelease("12.9.0", "2.7.0a0"),
    "25.03": NgcRelease("12.8.1", "2.7.0a0"),
    "25.02": NgcRelease("12.8.0", "2.7.0a0"),
    "25.01": NgcRelease("12.8.0", "2.6.0a0"),
    "24.12": NgcRelease("12.6.3", "2.6.0a0"),
    "24.11": NgcRelease("12.6.3", "2.6.0a0"),
    "24.10": NgcRelease("12.6.2", "2.5.0a0"),
    "24.09": NgcRelease("12.6.1", "2.5.0a0"),
    "24.08": NgcRelease("12.6.0", "2.5.0a0"),
    "24.07": NgcRelease("12.5.1", "2.4.0a0"),
    "24.06": NgcRelease("12.5.0", "2.4.0a0"),
    "24.05": NgcRelease("12.4.1", "2.4.0a0"),
    "24.04": NgcRelease("12.4.1", "2.3.0a0"),
    "24.03": NgcRelease("12.4.0", "2.3.0a0"),
    "24.02": NgcRelease("12.3.2", "2.3.0a0"),
    "24.01": NgcRelease("12.3.2", "2.2.0a0"),
    "23.12": NgcRelease("12.3.2", "2.2.0a0"),
    "23.11": NgcRelease("12.3.0", "2.2.0a0"),
    "23.10": NgcRelease("12.2.2", "2.1.0a0"),
    "23.09": NgcRelease("12.2.1", "2.1.0a0"),
    "23.08": NgcRelease("12.2.1", "2.1.0a0"),
    "23.07": NgcRelease("12.1.1", "2.1.0a0"),
    "23.06": NgcRelease("12.1.1", "2.1.0a0"),
    "23.05": NgcRelease("12.1.1"),
    "23.04": NgcRelease("12.1.0"),
    "23.03": NgcRelease("12.1.0"),
    "23.02": NgcRelease("12.0.1"),
    "23.01": NgcRelease("12.0.1"),
    "22.12": NgcRelease("11.8.0"),
    "22.05": NgcRelease("11.7.0"),
    "21.09": NgcRelease("11.4.2"),
    "21.06": NgcRelease("11.3.1"),
    "20.06": NgcRelease("11.0"),
}

NGC_GATE: Final = "cuda>=9.0"
"""NVIDIA_REQUIRE_CUDA of all of them, whatever their CUDA; their start looks at the driver and prints what it finds."""

# TORCH_CUDA_ARCH_LIST of nvcr.io/nvidia/pytorch's configuration, for which its torch was built. From 25.08 on the
# images for arm64 have another list than those for amd64, which is not known by a name.
NGC_TORCH_ARCHS: Final[Sequence[tuple[str, str, str]]] = (
    ("23.06", "24.12", "5.2 6.0 6.1 7.0 7.2 7.5 8.0 8.6 8.7 9.0+PTX"),
    ("25.01", "26.03", "7.5 8.0 8.6 9.0 10.0 12.0+PTX"),
)
"""First and last month, and the list."""

# "Contents" of the release notes above; months in which the release of Ubuntu changed are left out.
NGC_PYTHONS: Final[Sequence[tuple[str, str, str]]] = (
    ("23.06", "24.09", "3.10"),
    ("24.12", "26.03", "3.12"),
)
"""First and last month, and the Python."""


class VllmRelease(NamedTuple):
    """The images vllm/vllm-openai of some releases."""

    first: tuple[int, int, int]
    last: tuple[int, int, int]
    cuda: str
    """That of the image, nvidia/cuda, whose NVIDIA_REQUIRE_CUDA the driver must satisfy."""
    torch: str


# ARG CUDA_VERSION of docker/Dockerfile (Dockerfile before 0.8.2) and requirements/cuda.txt of each tag of
# https://github.com/vllm-project/vllm; torch without an index of its own is the default build of its release.
VLLM: Final[Sequence[VllmRelease]] = (
    VllmRelease((0, 5, 0), (0, 5, 1), "12.4.1", "2.3.0+cu121"),
    VllmRelease((0, 5, 2), (0, 5, 3), "12.4.1", "2.3.1+cu121"),
    VllmRelease((0, 5, 4), (0, 6, 3), "12.4.1", "2.4.0+cu121"),
    VllmRelease((0, 6, 4), (0, 7, 3), "12.4.1", "2.5.1+cu124"),
    VllmRelease((0, 8, 0), (0, 8, 5), "12.4.1", "2.6.0+cu124"),
    VllmRelease((0, 9, 0), (0, 9, 2), "12.8.1", "2.7.0+cu128"),
    VllmRelease((0, 10, 0), (0, 10, 1), "12.8.1", "2.7.1+cu128"),
    VllmRelease((0, 10, 2), (0, 11, 0), "12.8.1", "2.8.0+cu128"),
)


class L4tRelease(NamedTuple):
    """Jetson Linux, which its images are made for."""

    cuda: str
    archs: tuple[str, ...]
    """The chips of the modules that it runs on."""


# JetPack's release notes: https://developer.nvidia.com/embedded/jetpack-archive
L4T: Final[Mapping[str, L4tRelease]] = {
    "32": L4tRelease("10.2", ("sm_53", "sm_62", "sm_72")),
    "34": L4tRelease("11.4", ("sm_72", "sm_87")),
    "35": L4tRelease("11.4", ("sm_72", "sm_87")),
    "36.2": L4tRelease("12.2", ("sm_87",)),
    "36.3": L4tRelease("12.2", ("sm_87",)),
    "36.4": L4tRelease("12.6", ("sm_87",)),
}
"""The first numbers of a release → its row."""

# https://huggingface.co/docs/text-embeddings-inference/supported_models#supported-hardware
TEXT_EMBEDDINGS: Final[Mapping[str, str]] = {
    "turing-": "sm_75",
    "": "sm_80",
    "86-": "sm_86",
    "89-": "sm_89",
    "hopper-": "sm_90",
}
"""The beginning of the tag → the chip that the image was built for."""


def ngc_archs(release: str) -> tuple[str, ...]:
    """The chips that the torch of a month's nvcr.io/nvidia/pytorch for amd64 has code for; none if not known."""
    for first, last, listed in NGC_TORCH_ARCHS:
        if first <= release <= last:
            return archs_of_list(listed)
    return ()


def ngc_python(release: str) -> str:
    """The Python of a month's images; empty if not known."""
    return next((python for first, last, python in NGC_PYTHONS if first <= release <= last), "")


def vllm_release(version: tuple[int, int, int]) -> VllmRelease | None:
    """The row of a release of vLLM; None if not known."""
    return next((row for row in VLLM if row.first <= version <= row.last), None)


def l4t_release(version: str) -> L4tRelease | None:
    """The row of a release of Jetson Linux such as "35.2.1"; None if not known."""
    major, _, rest = version.partition(".")
    return L4T.get(f"{major}.{rest.partition('.')[0]}") or L4T.get(major)


def archs_of_list(listed: str) -> tuple[str, ...]:
    """`"8.0 9.0+PTX"`, as TORCH_CUDA_ARCH_LIST has it, as `("sm_80", "sm_90", "compute_90")`."""
    archs: list[str] = []
    for item in listed.replace(";", " ").split():
        number = item.removesuffix("+PTX").replace(".", "")
        if not number[:-1].isdecimal():
            return ()  # a name such as "Ampere"
        archs.append(f"sm_{number}")
        if item.endswith("+PTX"):
            archs.append(f"compute_{number}")
    return tuple(archs)
