"""NVIDIA's chips and drivers: a chip's names and compute capability, and the newest CUDA of a driver.

A name that the tables do not have is passed through, so that a chip newer than this file is found and leased.
"""

from __future__ import annotations

from typing import Final, Mapping

from stoker.core.accelerators import model
from stoker.core.errors import SettingsError

# Compute capability: https://developer.nvidia.com/cuda-gpus and cuda-legacy-gpus. Names: what nvmlDeviceGetName
# answers, which is what GPU feature discovery puts into the label nvidia.com/gpu.product with dashes for blanks.
# H100-MEGA is Google's name for machines with an H100 like any other: no driver tells it.
NVIDIA: Final[Mapping[str, tuple[tuple[int, int], tuple[str, ...]]]] = {
    "K80": ((3, 7), ("Tesla K80",)),
    "M60": ((5, 2), ("Tesla M60",)),
    "P4": ((6, 1), ("Tesla P4",)),
    "P40": ((6, 1), ("Tesla P40",)),
    "P100": ((6, 0), ("Tesla P100-PCIE-16GB", "Tesla P100-SXM2-16GB")),
    "P100-12GB": ((6, 0), ("Tesla P100-PCIE-12GB",)),
    "V100": ((7, 0), ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB")),
    "V100-32GB": ((7, 0), ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB")),
    "T4": ((7, 5), ("Tesla T4", "NVIDIA T4")),
    "T4G": ((7, 5), ("NVIDIA T4G",)),
    "RTX2080Ti": ((7, 5), ("NVIDIA GeForce RTX 2080 Ti",)),
    "RTX6000": ((7, 5), ("Quadro RTX 6000",)),
    "RTX8000": ((7, 5), ("Quadro RTX 8000",)),
    # Drivers before 470 leave "NVIDIA" out of the A100's name.
    "A100": ((8, 0), ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB")),
    "A100-80GB": ((8, 0), ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")),
    "A30": ((8, 0), ("NVIDIA A30",)),
    "A2": ((8, 6), ("NVIDIA A2",)),
    "A10": ((8, 6), ("NVIDIA A10",)),
    "A10G": ((8, 6), ("NVIDIA A10G",)),
    "A16": ((8, 6), ("NVIDIA A16",)),
    "A40": ((8, 6), ("NVIDIA A40",)),
    "A4000": ((8, 6), ("NVIDIA RTX A4000",)),
    "A4500": ((8, 6), ("NVIDIA RTX A4500",)),
    "A5000": ((8, 6), ("NVIDIA RTX A5000",)),
    "A6000": ((8, 6), ("NVIDIA RTX A6000",)),
    "RTX3090": ((8, 6), ("NVIDIA GeForce RTX 3090",)),
    "L4": ((8, 9), ("NVIDIA L4",)),
    "L40": ((8, 9), ("NVIDIA L40",)),
    "L40S": ((8, 9), ("NVIDIA L40S",)),
    "RTX4090": ((8, 9), ("NVIDIA GeForce RTX 4090",)),
    "RTX6000-Ada": ((8, 9), ("NVIDIA RTX 6000 Ada Generation",)),
    "H100": ((9, 0), ("NVIDIA H100 80GB HBM3",)),
    "H100-MEGA": ((9, 0), ()),
    "H100-PCIe": ((9, 0), ("NVIDIA H100 PCIe",)),
    "H100-NVL": ((9, 0), ("NVIDIA H100 NVL",)),
    "H200": ((9, 0), ("NVIDIA H200",)),
    "H200-NVL": ((9, 0), ("NVIDIA H200 NVL",)),
    # The GH200's number is the memory of its CPU where it says 480GB, and of its GPU where it says 144G.
    "GH200": ((9, 0), ("NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e")),
    "B200": ((10, 0), ("NVIDIA B200",)),
    "GB200": ((10, 0), ("NVIDIA GB200",)),
    "B300": ((10, 3), ("NVIDIA B300 SXM6 AC",)),
    "GB300": ((10, 3), ("NVIDIA GB300",)),
    "RTX5090": ((12, 0), ("NVIDIA GeForce RTX 5090",)),
    "RTXPRO4500": ((12, 0), ("NVIDIA RTX PRO 4500 Blackwell",)),
    "RTXPRO6000": (
        (12, 0),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"),
    ),
    "GB10": ((12, 1), ("NVIDIA GB10",)),
}
"""model → (compute capability, what the driver calls it)"""

# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html, table 3.
CUDA_OF_BRANCH: Final[Mapping[int, tuple[int, int]]] = {
    615: (13, 4),
    610: (13, 3),
    595: (13, 2),
    590: (13, 1),
    580: (13, 0),
    575: (12, 9),
    570: (12, 8),
    565: (12, 7),
    560: (12, 6),
    555: (12, 5),
    550: (12, 4),
    545: (12, 3),
    535: (12, 2),
    530: (12, 1),
    525: (12, 0),
    520: (11, 8),
    515: (11, 7),
    510: (11, 6),
    495: (11, 5),
    470: (11, 4),
    465: (11, 3),
    460: (11, 2),
    455: (11, 1),
    450: (11, 0),
}
"""the first number of an NVIDIA driver's version → the newest CUDA that it runs; newest first"""

_OF_NAME: Final = {name.lower(): kind for kind, (_, names) in NVIDIA.items() for name in names}


def model_of(name: str) -> str:
    """The model that a driver's name stands for; the name itself where no model is known by it."""
    plain = " ".join(name.split())
    if plain.lower() in _OF_NAME:
        return _OF_NAME[plain.lower()]
    try:
        return model(plain).name
    except SettingsError:
        return name


def driver_name(kind: str) -> str:
    """What a driver would call a model: NVIDIA's own word where it is known, else the model's name."""
    names = NVIDIA[kind][1] if kind in NVIDIA else ()
    return names[0] if names else kind


def capability(kind: str) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA model; None for others."""
    return NVIDIA[kind][0] if kind in NVIDIA else None


def cuda_of_driver(version: str) -> tuple[int, int] | None:
    """The newest CUDA that a driver such as "535.104.05" runs; None for one older than the table."""
    branch = int(version.partition(".")[0])
    return next((cuda for first, cuda in CUDA_OF_BRANCH.items() if first <= branch), None)
