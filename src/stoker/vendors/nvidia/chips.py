"""NVIDIA's chips and drivers: a chip's names and compute capability, and the newest CUDA of a driver.

A name that the tables do not have is passed through, so that a chip newer than this file is found and leased.
"""

from __future__ import annotations

from typing import Final, Literal, Mapping, NamedTuple

from stoker.core.accelerators import model
from stoker.core.errors import SettingsError

Form = Literal["SXM", "PCIe", "superchip", "workstation", "GeForce", "laptop", "Jetson"]
"""How a chip is sold: a module of a data centre's board, its card, joined with an ARM processor, a card for
workstations, for games, a laptop's, an embedded module."""


class Chip(NamedTuple):
    """What NVIDIA's drivers know of one model."""

    capability: tuple[int, int]
    """Compute capability."""
    form: Form
    names: tuple[str, ...]
    """What `nvmlDeviceGetName` answers; the first one is told of simulated devices."""


def _card(capability: tuple[int, int], *names: str) -> Chip:
    return Chip(capability, "PCIe", names)


def _sxm(capability: tuple[int, int], *names: str) -> Chip:
    return Chip(capability, "SXM", names)


def _pro(capability: tuple[int, int], *names: str) -> Chip:
    return Chip(capability, "workstation", names)


def _game(capability: tuple[int, int], *names: str) -> Chip:
    """The names of a GeForce card; drivers before 470 leave "NVIDIA" out, and `model_of` knows both."""
    return Chip(capability, "GeForce", tuple(f"NVIDIA {name}" for name in names))


def _laptop(capability: tuple[int, int], name: str) -> Chip:
    return Chip(capability, "laptop", (f"NVIDIA GeForce {name} Laptop GPU",))


# Compute capability: https://developer.nvidia.com/cuda-gpus and cuda-legacy-gpus. Names: supported-gpus.json of the
# driver (https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/supportedchips.html), which is what
# nvmlDeviceGetName answers and what GPU feature discovery puts into the label nvidia.com/gpu.product with dashes for
# blanks. H100-MEGA is Google's name for machines with an H100 like any other, and B100 was not sold: no driver tells
# them.
NVIDIA: Final[Mapping[str, Chip]] = {
    "K40": _card((3, 5), "Tesla K40m", "Tesla K40c"),
    "K80": _card((3, 7), "Tesla K80"),
    "M40": _card((5, 2), "Tesla M40", "Tesla M40 24GB"),
    "M60": _card((5, 2), "Tesla M60"),
    "P4": _card((6, 1), "Tesla P4"),
    "P6": _card((6, 1), "Tesla P6"),
    "P40": _card((6, 1), "Tesla P40"),
    "P100": _sxm((6, 0), "Tesla P100-PCIE-16GB", "Tesla P100-SXM2-16GB"),
    "P100-12GB": _card((6, 0), "Tesla P100-PCIE-12GB"),
    "V100": _sxm(
        (7, 0),
        "Tesla V100-SXM2-16GB",
        "Tesla V100-PCIE-16GB",
        "Tesla V100-FHHL-16GB",
        "Tesla V100-DGXS-16GB",
        "Tesla V100-SXM2-16GB-N",
    ),
    "V100-32GB": _sxm(
        (7, 0),
        "Tesla V100-SXM2-32GB",
        "Tesla V100-PCIE-32GB",
        "Tesla V100-SXM3-32GB",
        "Tesla V100-DGXS-32GB",
        "Tesla V100S-PCIE-32GB",
        "Tesla V100-SXM2-32GB-LS",
    ),
    "T4": _card((7, 5), "Tesla T4", "NVIDIA T4"),
    "T4G": _card((7, 5), "NVIDIA T4G"),
    # Drivers before 470 leave "NVIDIA" out of the A100's name.
    "A100": _sxm((8, 0), "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB", "A100-PCIE-40GB"),
    "A100-80GB": _sxm((8, 0), "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe LC"),
    "A800": _sxm((8, 0), "NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe", "NVIDIA A800 80GB PCIe LC"),
    "A800-40GB": _card((8, 0), "NVIDIA A800 40GB Active"),
    "A30": _card((8, 0), "NVIDIA A30"),
    "A2": _card((8, 6), "NVIDIA A2"),
    "A10": _card((8, 6), "NVIDIA A10"),
    "A10G": _card((8, 6), "NVIDIA A10G"),
    "A10M": _card((8, 6), "NVIDIA A10M"),
    "A16": _card((8, 6), "NVIDIA A16"),
    "A40": _card((8, 6), "NVIDIA A40"),
    "L2": _card((8, 9), "NVIDIA L2"),
    "L4": _card((8, 9), "NVIDIA L4"),
    "L20": _card((8, 9), "NVIDIA L20"),
    "L40": _card((8, 9), "NVIDIA L40"),
    "L40S": _card((8, 9), "NVIDIA L40S"),
    "H100": _sxm((9, 0), "NVIDIA H100 80GB HBM3"),
    "H100-MEGA": _sxm((9, 0)),
    "H100-PCIe": _card((9, 0), "NVIDIA H100 PCIe"),
    "H100-NVL": _card((9, 0), "NVIDIA H100 NVL"),
    "H800": _sxm((9, 0), "NVIDIA H800"),
    "H800-PCIe": _card((9, 0), "NVIDIA H800 PCIe"),
    "H800-NVL": _card((9, 0), "NVIDIA H800 NVL"),
    "H20": _sxm((9, 0), "NVIDIA H20", "NVIDIA H20 NVL16"),
    "H20-3e": _sxm((9, 0), "NVIDIA H20-3e"),
    "H200": _sxm((9, 0), "NVIDIA H200"),
    "H200-NVL": _card((9, 0), "NVIDIA H200 NVL"),
    # The GH200's number is the memory of its CPU where it says 120GB or 480GB, and of its GPU where it says 144G.
    "GH200": Chip((9, 0), "superchip", ("NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e", "NVIDIA GH200 120GB")),
    "B100": _sxm((10, 0)),
    "B200": _sxm((10, 0), "NVIDIA B200"),
    "GB200": Chip((10, 0), "superchip", ("NVIDIA GB200",)),
    "B300": _sxm((10, 3), "NVIDIA B300 SXM6 AC"),
    "GB300": Chip((10, 3), "superchip", ("NVIDIA GB300",)),
    "GB10": Chip((12, 1), "superchip", ("NVIDIA GB10",)),
    "M4000": _pro((5, 2), "Quadro M4000"),
    "M5000": _pro((5, 2), "Quadro M5000"),
    "M6000": _pro((5, 2), "Quadro M6000", "Quadro M6000 24GB"),
    "P2000": _pro((6, 1), "Quadro P2000"),
    "P4000": _pro((6, 1), "Quadro P4000"),
    "P5000": _pro((6, 1), "Quadro P5000"),
    "P6000": _pro((6, 1), "Quadro P6000"),
    "GP100": _pro((6, 0), "Quadro GP100"),
    "GV100": _pro((7, 0), "Quadro GV100"),
    "T1000": _pro((7, 5), "NVIDIA T1000", "NVIDIA T1000 8GB"),
    "RTX4000": _pro((7, 5), "Quadro RTX 4000"),
    "RTX5000": _pro((7, 5), "Quadro RTX 5000"),
    "RTX6000": _pro((7, 5), "Quadro RTX 6000"),
    "RTX8000": _pro((7, 5), "Quadro RTX 8000"),
    "A2000": _pro((8, 6), "NVIDIA RTX A2000", "NVIDIA RTX A2000 12GB"),
    "A4000": _pro((8, 6), "NVIDIA RTX A4000"),
    "A4500": _pro((8, 6), "NVIDIA RTX A4500"),
    "A5000": _pro((8, 6), "NVIDIA RTX A5000"),
    "A5500": _pro((8, 6), "NVIDIA RTX A5500"),
    "A6000": _pro((8, 6), "NVIDIA RTX A6000"),
    "RTX2000-Ada": _pro((8, 9), "NVIDIA RTX 2000 Ada Generation", "NVIDIA RTX 2000E Ada Generation"),
    "RTX4000-Ada": _pro((8, 9), "NVIDIA RTX 4000 Ada Generation", "NVIDIA RTX 4000 SFF Ada Generation"),
    "RTX4500-Ada": _pro((8, 9), "NVIDIA RTX 4500 Ada Generation"),
    "RTX5000-Ada": _pro((8, 9), "NVIDIA RTX 5000 Ada Generation"),
    "RTX5880-Ada": _pro((8, 9), "NVIDIA RTX 5880 Ada Generation"),
    "RTX6000-Ada": _pro((8, 9), "NVIDIA RTX 6000 Ada Generation"),
    "RTX6000D": _pro((12, 0), "NVIDIA RTX 6000D"),
    "RTXPRO2000": _pro((12, 0), "NVIDIA RTX PRO 2000 Blackwell"),
    "RTXPRO4000": _pro((12, 0), "NVIDIA RTX PRO 4000 Blackwell", "NVIDIA RTX PRO 4000 Blackwell SFF Edition"),
    "RTXPRO4500": _pro((12, 0), "NVIDIA RTX PRO 4500 Blackwell", "NVIDIA RTX PRO 4500 Blackwell Server Edition"),
    "RTXPRO5000": _pro((12, 0), "NVIDIA RTX PRO 5000 Blackwell", "NVIDIA RTX PRO 5000 72GB Blackwell"),
    "RTXPRO6000": _pro(
        (12, 0),
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ),
    "TITANX": _game((6, 1), "TITAN X (Pascal)"),
    "TITANXp": _game((6, 1), "TITAN Xp", "TITAN Xp COLLECTORS EDITION"),
    "TITANV": _game((7, 0), "TITAN V"),
    "TITANRTX": _game((7, 5), "TITAN RTX"),
    "GTXTITANX": _game((5, 2), "GeForce GTX TITAN X"),
    "GTX980": _game((5, 2), "GeForce GTX 980"),
    "GTX980Ti": _game((5, 2), "GeForce GTX 980 Ti"),
    "GTX1050": _game((6, 1), "GeForce GTX 1050"),
    "GTX1050Ti": _game((6, 1), "GeForce GTX 1050 Ti"),
    "GTX1060": _game((6, 1), "GeForce GTX 1060 6GB", "GeForce GTX 1060 3GB", "GeForce GTX 1060"),
    "GTX1070": _game((6, 1), "GeForce GTX 1070"),
    "GTX1070Ti": _game((6, 1), "GeForce GTX 1070 Ti"),
    "GTX1080": _game((6, 1), "GeForce GTX 1080"),
    "GTX1080Ti": _game((6, 1), "GeForce GTX 1080 Ti"),
    "GTX1630": _game((7, 5), "GeForce GTX 1630"),
    "GTX1650": _game((7, 5), "GeForce GTX 1650"),
    "GTX1650SUPER": _game((7, 5), "GeForce GTX 1650 SUPER"),
    "GTX1650Ti": _game((7, 5), "GeForce GTX 1650 Ti"),
    "GTX1660": _game((7, 5), "GeForce GTX 1660"),
    "GTX1660SUPER": _game((7, 5), "GeForce GTX 1660 SUPER"),
    "GTX1660Ti": _game((7, 5), "GeForce GTX 1660 Ti"),
    "RTX2060": _game((7, 5), "GeForce RTX 2060"),
    "RTX2060SUPER": _game((7, 5), "GeForce RTX 2060 SUPER"),
    "RTX2070": _game((7, 5), "GeForce RTX 2070"),
    "RTX2070SUPER": _game((7, 5), "GeForce RTX 2070 SUPER"),
    "RTX2080": _game((7, 5), "GeForce RTX 2080"),
    "RTX2080SUPER": _game((7, 5), "GeForce RTX 2080 SUPER"),
    "RTX2080Ti": _game((7, 5), "GeForce RTX 2080 Ti"),
    "RTX3050": _game((8, 6), "GeForce RTX 3050", "GeForce RTX 3050 OEM"),
    "RTX3060": _game((8, 6), "GeForce RTX 3060"),
    "RTX3060Ti": _game((8, 6), "GeForce RTX 3060 Ti"),
    "RTX3070": _game((8, 6), "GeForce RTX 3070"),
    "RTX3070Ti": _game((8, 6), "GeForce RTX 3070 Ti"),
    "RTX3080": _game((8, 6), "GeForce RTX 3080"),
    "RTX3080Ti": _game((8, 6), "GeForce RTX 3080 Ti"),
    "RTX3090": _game((8, 6), "GeForce RTX 3090"),
    "RTX3090Ti": _game((8, 6), "GeForce RTX 3090 Ti"),
    "RTX4060": _game((8, 9), "GeForce RTX 4060"),
    "RTX4060Ti": _game((8, 9), "GeForce RTX 4060 Ti"),
    "RTX4070": _game((8, 9), "GeForce RTX 4070"),
    "RTX4070SUPER": _game((8, 9), "GeForce RTX 4070 SUPER"),
    "RTX4070Ti": _game((8, 9), "GeForce RTX 4070 Ti"),
    "RTX4070TiSUPER": _game((8, 9), "GeForce RTX 4070 Ti SUPER"),
    "RTX4080": _game((8, 9), "GeForce RTX 4080"),
    "RTX4080SUPER": _game((8, 9), "GeForce RTX 4080 SUPER"),
    "RTX4090": _game((8, 9), "GeForce RTX 4090", "GeForce RTX 4090 D"),
    "RTX5050": _game((12, 0), "GeForce RTX 5050"),
    "RTX5060": _game((12, 0), "GeForce RTX 5060"),
    "RTX5060Ti": _game((12, 0), "GeForce RTX 5060 Ti"),
    "RTX5070": _game((12, 0), "GeForce RTX 5070"),
    "RTX5070Ti": _game((12, 0), "GeForce RTX 5070 Ti"),
    "RTX5080": _game((12, 0), "GeForce RTX 5080"),
    "RTX5090": _game((12, 0), "GeForce RTX 5090", "GeForce RTX 5090 D"),
    "RTX5090Dv2": _game((12, 0), "GeForce RTX 5090 D v2"),
    "RTX3060-Laptop": _laptop((8, 6), "RTX 3060"),
    "RTX3070-Laptop": _laptop((8, 6), "RTX 3070"),
    "RTX3070Ti-Laptop": _laptop((8, 6), "RTX 3070 Ti"),
    "RTX3080-Laptop": _laptop((8, 6), "RTX 3080"),
    "RTX3080Ti-Laptop": _laptop((8, 6), "RTX 3080 Ti"),
    "RTX4050-Laptop": _laptop((8, 9), "RTX 4050"),
    "RTX4060-Laptop": _laptop((8, 9), "RTX 4060"),
    "RTX4070-Laptop": _laptop((8, 9), "RTX 4070"),
    "RTX4080-Laptop": _laptop((8, 9), "RTX 4080"),
    "RTX4090-Laptop": _laptop((8, 9), "RTX 4090"),
    "RTX5050-Laptop": _laptop((12, 0), "RTX 5050"),
    "RTX5060-Laptop": _laptop((12, 0), "RTX 5060"),
    "RTX5070-Laptop": _laptop((12, 0), "RTX 5070"),
    "RTX5070Ti-Laptop": _laptop((12, 0), "RTX 5070 Ti"),
    "RTX5080-Laptop": _laptop((12, 0), "RTX 5080"),
    "RTX5090-Laptop": _laptop((12, 0), "RTX 5090"),
    # Jetson's drivers come with JetPack, and name the chip.
    "JetsonNano": Chip((5, 3), "Jetson", ("NVIDIA Tegra X1",)),
    "JetsonTX2": Chip((6, 2), "Jetson", ("NVIDIA Tegra X2",)),
    "Xavier": Chip((7, 2), "Jetson", ("Xavier",)),
    "Orin": Chip((8, 7), "Jetson", ("Orin (nvgpu)", "Orin")),
    "Thor": Chip((11, 0), "Jetson", ("NVIDIA Thor",)),
}
"""model → what drivers know of it"""

# The first driver branch whose CUDA has code for a chip: the toolkit that first compiles for it ("Virtual Architecture
# Feature List" of https://docs.nvidia.com/cuda/cuda-compiler-driver-nvcc), and the driver that came with that toolkit
# (table 3 of https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/). Jetson's drivers have numbers of their own.
FIRST_BRANCH: Final[Mapping[tuple[int, int], int]] = {
    (3, 5): 319,
    (3, 7): 340,
    (5, 0): 331,
    (5, 2): 340,
    (6, 0): 367,
    (6, 1): 367,
    (7, 0): 384,
    (7, 5): 410,
    (8, 0): 450,
    (8, 6): 455,
    (8, 9): 520,
    (9, 0): 520,
    (10, 0): 570,
    (10, 3): 575,
    (12, 0): 570,
    (12, 1): 575,
}
# https://docs.nvidia.com/datacenter/tesla/mig-user-guide/deployment-considerations.html: data-centre chips that came
# after the first driver for their compute capability.
_FIRST_OF_MODEL: Final[Mapping[str, int]] = {
    "H20": 535,
    "H20-3e": 535,
    "H200": 550,
    "H200-NVL": 550,
    "B300": 580,
    "GB300": 580,
    "GB10": 580,
}
# "End of support" in the release notes of driver branch 590: Maxwell, Pascal and Volta end with 580, Kepler with 470.
LAST_BRANCH: Final[Mapping[int, int]] = {3: 470, 5: 580, 6: 580}
"""Major compute capability → the last driver branch that supports it; 7.0 ends with 580, too."""

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
    440: (10, 2),
    418: (10, 1),
    410: (10, 0),
    396: (9, 2),
    390: (9, 1),
    384: (9, 0),
}
"""the first number of an NVIDIA driver's version → the newest CUDA that it runs; newest first"""

_OF_NAME: Final = {name.lower(): kind for kind, chip in NVIDIA.items() for name in chip.names}
_DATA_CENTRE: Final = frozenset({"SXM", "PCIe", "superchip"})


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
    names = NVIDIA[kind].names if kind in NVIDIA else ()
    return names[0] if names else kind


def capability(kind: str) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA model; None for others."""
    return NVIDIA[kind].capability if kind in NVIDIA else None


def is_geforce(kind: str) -> bool:
    """Whether a model is of the lines for games, which have no forward compatibility; a TITAN counts as one."""
    return kind in NVIDIA and NVIDIA[kind].form in ("GeForce", "laptop")


def forward_compatible(kind: str) -> bool | None:
    """Whether a model runs CUDA's forward-compatibility package; None where its name does not tell.

    https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html: data-centre GPUs, Jetson modules, and
    workstation cards in certified servers.
    """
    if kind not in NVIDIA or NVIDIA[kind].form == "workstation" or kind == "GB10":
        return None
    return NVIDIA[kind].form in _DATA_CENTRE or NVIDIA[kind].form == "Jetson"


def branches(kind: str) -> tuple[int, int | None] | None:
    """The first and the last driver branch of a model; no last one where drivers still support it.

    None for an unknown model, and for Jetson, whose drivers have numbers of their own.
    """
    chip = NVIDIA.get(kind)
    if chip is None or chip.form == "Jetson":
        return None
    first = max(FIRST_BRANCH[chip.capability], _FIRST_OF_MODEL.get(kind, 0))
    return first, 580 if chip.capability == (7, 0) else LAST_BRANCH.get(chip.capability[0])


def cuda_of_driver(version: str) -> tuple[int, int] | None:
    """The newest CUDA that a driver such as "535.104.05" runs; None for one older than the table."""
    branch = int(version.partition(".")[0])
    return next((cuda for first, cuda in CUDA_OF_BRANCH.items() if first <= branch), None)
