"""Names of accelerators, and the text by which a request names one: "H100:8", "A100-80GB/1g.10gb:2", "tpu-v5e:8".

The table has memory, MIG profiles, spellings, and the source of each row: only what parsing and checking a request
needs. What a driver, a wheel or a cloud knows of a chip is in `vendors`.
"""

from __future__ import annotations

import functools
import re
from typing import Any, ClassVar, Final, Iterable, Iterator, Mapping, NamedTuple, Protocol

from stoker.core.errors import SettingsError, nearest
from stoker.core.plugins import Registry
from stoker.core.units import count as whole_number
from stoker.core.units import size_text
from stoker.core.values import frozen, lazy_pattern
from stoker.core.words import bounded, shown

SOURCES: Final[Mapping[str, str]] = {
    "nvidia": "https://www.nvidia.com/en-us/data-center/products/",
    "nvidia-legacy": "https://developer.nvidia.com/cuda-legacy-gpus",
    "driver": "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/supportedchips.html",
    "geforce": "https://www.nvidia.com/en-us/geforce/graphics-cards/compare/",
    "workstation": "https://www.nvidia.com/en-us/products/workstations/",
    "mig": "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-gpus.html",
    "jetson": "https://developer.nvidia.com/embedded/jetson-modules",
    "aws": "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html",
    "amd": "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html",
    "amd-mi250": "https://rocm.docs.amd.com/en/latest/conceptual/gpu-arch/mi250.html",
    "amd-mi308x": "https://rocm.docs.amd.com/projects/install-on-linux/en/latest/reference/system-requirements.html",
    "gaudi": "https://docs.habana.ai/en/latest/Gaudi_Overview/Gaudi_Architecture.html",
    "intel-max": "https://www.intel.com/content/www/us/en/products/details/discrete-gpus/data-center-gpu/max-series.html",
    "intel-flex170": "https://www.intel.com/content/www/us/en/products/sku/230019/intel-data-center-gpu-flex-170/specifications.html",
    "neuron": "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/about-neuron/arch/neuron-hardware/",
    "tpu": "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm",
}
"""The key of a row's source → the page that gives its memory; spellings are what the platforms below write."""

# Spellings beside what a driver says (`vendors`): GKE's label cloud.google.com/gke-accelerator and Google's machine
# types (https://cloud.google.com/compute/docs/gpus), Karpenter's label karpenter.k8s.aws/instance-gpu-name
# (https://karpenter.sh/docs/reference/instance-types/), SkyPilot's catalog
# (https://github.com/skypilot-org/skypilot-catalog), dstack's gpuhunt (https://github.com/dstackai/gpuhunt),
# CoreWeave's label gpu.nvidia.com/class, RunPod's and Lambda's names of instances, types of Slurm's gres.conf.
# Case, blanks, "-", "_" and the names of makers and lines ("NVIDIA GeForce") do not count (`core.accelerators`).

# MIG profiles: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html. Drivers name the
# slices of one chip differently where its usable memory differs (B200, GB200): both spellings are kept.
_A100_40 = "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"
_80 = "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
_94 = "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"
_96 = "1g.12gb 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"
_141 = "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"
_144 = "1g.18gb 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb"
_180 = "1g.23gb 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"
_186 = "1g.23gb 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb"
_269 = "1g.34gb 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb"
# https://github.com/NVIDIA/mig-parted has the GB300's, whose usable memory is larger than the B300's.
_278 = "1g.35gb 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb"

Row = tuple[tuple[int, ...], str, str, str]
"""Sizes of memory in GB as sold (smallest first), spellings, MIG profiles, the key of the source."""


class ProductLine(NamedTuple):
    """What one vendor makes."""

    title: str
    """The vendor, for a person."""
    chips: Mapping[str, Row]
    """name → its row"""


NVIDIA: Final[Mapping[str, Row]] = {
    # Data centre. Two GPUs are on a K80 and an M60, four on an A16: each is a device, with this memory.
    "K40": ((12,), "K40m K40c", "", "nvidia-legacy"),
    "K80": ((12,), "", "", "nvidia-legacy"),
    "M40": ((12, 24), "M40-24GB", "", "nvidia-legacy"),
    "M60": ((8,), "", "", "nvidia-legacy"),
    "P4": ((8,), "", "", "nvidia-legacy"),
    "P6": ((16,), "", "", "nvidia-legacy"),
    "P40": ((24,), "", "", "nvidia-legacy"),
    "P100": ((16,), "P100-16GB P100-PCIE-16GB P100-SXM2-16GB P100-PCIE P100-SXM2", "", "nvidia-legacy"),
    "P100-12GB": ((12,), "P100-PCIE-12GB", "", "nvidia-legacy"),
    "V100": (
        (16,),
        "V100-16GB V100-SXM2-16GB V100-PCIE-16GB V100-FHHL-16GB V100-DGXS-16GB V100-PCIE V100-SXM2 V100-NVLINK",
        "",
        "nvidia",
    ),
    "V100-32GB": (
        (32,),
        "V100-SXM2-32GB V100-PCIE-32GB V100-SXM3-32GB V100-DGXS-32GB V100S-PCIE-32GB V100S V100S-32GB",
        "",
        "nvidia",
    ),
    "T4": ((16,), "T4-16GB", "", "nvidia"),
    "T4G": ((16,), "", "", "aws"),
    "A100": (
        (40,),
        (
            "A100-40GB A100-40G A100-SXM4-40GB A100-PCIE-40GB A100-SXM-40GB A100-SXM4 A100-SXM A100-PCIE A100-NVLINK "
            "A100-NVLINK-40GB"
        ),
        _A100_40,
        "mig",
    ),
    "A100-80GB": (
        (80,),
        (
            "A100-80G A100-SXM4-80GB A100-80GB-PCIe A100-PCIE-80GB A100-SXM-80GB A100-80GB-SXM A100-80GB-SXM4 "
            "A100-NVLINK-80GB A100-80GB-PCIe-LC tesla-a100-80gb"
        ),
        _80,
        "mig",
    ),
    "A800": ((80,), "A800-80GB A800-SXM4-80GB A800-80GB-PCIe A800-80GB-PCIe-LC A800-PCIE-80GB", _80, "driver"),
    "A800-40GB": ((40,), "A800-40GB-Active A800-40GB-PCIe", _A100_40, "driver"),
    "A30": ((24,), "A30-24GB", "1g.6gb 2g.12gb 4g.24gb", "mig"),
    "A2": ((16,), "", "", "nvidia"),
    "A10": ((24,), "A10-24GB A10-PCIE", "", "nvidia"),
    "A10G": ((24,), "A10G-24GB", "", "aws"),
    "A10M": ((20,), "", "", "driver"),
    "A16": ((16,), "", "", "nvidia"),
    "A40": ((48,), "A40-48GB A40-PCIE", "", "nvidia"),
    "L2": ((24,), "", "", "driver"),
    "L4": ((24,), "L4-24GB", "", "nvidia"),
    "L20": ((48,), "", "", "driver"),
    "L40": ((48,), "L40-48GB", "", "nvidia"),
    "L40S": ((48,), "L40S-48GB L40S-PCIE", "", "nvidia"),
    "H100": (
        (80,),
        (
            "H100-80GB H100-80G H100-SXM H100-SXM5 H100-SXM5-80GB H100-SXM-80GB H100-NVLINK-80GB H100-NVLINK "
            "H100-80GB-HBM3 H100-80GB-SXM H100-80GB-SXM5"
        ),
        _80,
        "mig",
    ),
    "H100-MEGA": ((80,), "H100-MEGA-80GB H100-80GB-MEGA H100-80GB-PLUS", _80, "mig"),
    "H100-PCIe": ((80,), "H100-PCIE-80GB H100-80GB-PCIe H100-80GB-HBM2e", _80, "mig"),
    "H100-NVL": ((94,), "H100-NVL-94GB H100-94GB", _94, "mig"),
    "H800": ((80,), "H800-80GB H800-SXM H800-SXM5 H800-SXM5-80GB", _80, "driver"),
    "H800-PCIe": ((80,), "H800-PCIE-80GB", _80, "driver"),
    "H800-NVL": ((94,), "", _94, "driver"),
    "H20": ((96,), "H20-96GB H20-SXM H20-SXM5 H20-SXM5-96GB H20-NVL16", _96, "mig"),
    "H20-3e": ((141,), "H20-141GB", _141, "driver"),
    "H200": ((141,), "H200-SXM H200-SXM5 H200-141GB H200-SXM-141GB H200-SXM5-141GB H200-NVLINK", _141, "mig"),
    "H200-NVL": ((141,), "H200-NVL-141GB", _141, "mig"),
    "GH200": ((96, 144), "GH200-480GB GH200-120GB GH200-96GB GH200-144G-HBM3e GH200-144GB", f"{_96} {_144}", "mig"),
    "B100": ((192,), "", "", "nvidia"),
    "B200": ((180, 192), "B200-SXM B200-SXM6 B200-180GB B200-192GB B200-SXM-180GB", f"{_180} {_186}", "mig"),
    "GB200": ((186, 192), "GB200-NVL4 GB200-NVL72", f"{_186} {_180}", "mig"),
    "B300": ((270, 288), "B300-SXM6-AC B300-SXM6-PC B300-SXM B300-SXM6 B300-288GB", _269, "mig"),
    "GB300": ((270, 288), "GB300-NVL72", f"{_278} {_269}", "mig"),
    "GB10": ((128,), "DGX-Spark", "", "driver"),
    # Workstations.
    "M4000": ((8,), "", "", "nvidia-legacy"),
    "M5000": ((8,), "", "", "nvidia-legacy"),
    "M6000": ((12, 24), "M6000-24GB", "", "nvidia-legacy"),
    "P2000": ((5,), "", "", "nvidia-legacy"),
    "P4000": ((8,), "", "", "nvidia-legacy"),
    "P5000": ((16,), "", "", "nvidia-legacy"),
    "P6000": ((24,), "", "", "nvidia-legacy"),
    "GP100": ((16,), "", "", "nvidia-legacy"),
    "GV100": ((32,), "", "", "nvidia-legacy"),
    "T1000": ((4, 8), "T1000-8GB", "", "workstation"),
    "RTX4000": ((8,), "", "", "workstation"),
    "RTX5000": ((16,), "", "", "workstation"),
    "RTX6000": ((24,), "", "", "workstation"),
    "RTX8000": ((48,), "", "", "workstation"),
    "A2000": ((6, 12), "RTXA2000 RTXA2000-12GB", "", "workstation"),
    "A4000": ((16,), "RTXA4000", "", "workstation"),
    "A4500": ((20,), "RTXA4500", "", "workstation"),
    "A5000": ((24,), "RTXA5000", "", "workstation"),
    "A5500": ((24,), "RTXA5500", "", "workstation"),
    "A6000": ((48,), "RTXA6000 A6000-48GB", "", "workstation"),
    "RTX2000-Ada": ((16,), "RTX2000-Ada-Generation RTX2000E-Ada-Generation", "", "workstation"),
    "RTX4000-Ada": (
        (20,),
        "RTX4000-Ada-Generation RTX4000-SFF-Ada-Generation RTX4000-SFF-Ada",
        "",
        "workstation",
    ),
    "RTX4500-Ada": ((24,), "RTX4500-Ada-Generation", "", "workstation"),
    "RTX5000-Ada": ((32,), "RTX5000-Ada-Generation", "", "workstation"),
    "RTX5880-Ada": ((48,), "RTX5880-Ada-Generation", "", "workstation"),
    "RTX6000-Ada": ((48,), "RTX6000-Ada-Generation RTX-Ada-6000 RTXA6000-Ada", "", "workstation"),
    "RTX6000D": ((84,), "", "", "driver"),
    "RTXPRO2000": ((16,), "RTX-PRO-2000-Blackwell", "", "workstation"),
    "RTXPRO4000": (
        (24,),
        "RTX-PRO-4000-Blackwell RTX-PRO-4000-Blackwell-SFF-Edition RTX-PRO-4000-SFF",
        "",
        "workstation",
    ),
    "RTXPRO4500": (
        (32,),
        "RTX-PRO-4500-Blackwell RTX-PRO-4500-Blackwell-Server-Edition RTX-PRO-Server-4500",
        "1g.16gb 2g.32gb",
        "mig",
    ),
    "RTXPRO5000": (
        (48, 72),
        "RTX-PRO-5000-Blackwell RTX-PRO-5000-72GB-Blackwell RTX-PRO-5000-48GB RTX-PRO-5000-72GB",
        "1g.24gb 2g.48gb",
        "mig",
    ),
    "RTXPRO6000": (
        (96,),
        (
            "RTX-PRO-6000-Blackwell RTX-PRO-6000-Blackwell-Server-Edition RTX-PRO-6000-Blackwell-Workstation-Edition "
            "RTX-PRO-6000-Blackwell-Max-Q-Workstation-Edition RTX-PRO-Server-6000 RTX-PRO-6000-96GB RTXPRO6000S "
            "RTXPRO6000WS RTXPRO6000WK RTXPRO6000-Server RTXPRO6000-Workstation RTXPRO6000-MaxQ RTXPRO6000-Max-Q "
            "RTX6000-Blackwell"
        ),
        "1g.24gb 2g.48gb 4g.96gb",
        "mig",
    ),
    # GeForce and TITAN.
    "TITANX": ((12,), "TITAN-X-Pascal", "", "nvidia-legacy"),
    "TITANXp": ((12,), "TITAN-Xp-COLLECTORS-EDITION", "", "nvidia-legacy"),
    "TITANV": ((12,), "", "", "nvidia-legacy"),
    "TITANRTX": ((24,), "", "", "geforce"),
    "GTXTITANX": ((12,), "", "", "nvidia-legacy"),
    "GTX980": ((4,), "", "", "nvidia-legacy"),
    "GTX980Ti": ((6,), "", "", "nvidia-legacy"),
    "GTX1050": ((2, 3), "", "", "nvidia-legacy"),
    "GTX1050Ti": ((4,), "", "", "nvidia-legacy"),
    "GTX1060": ((3, 6), "GTX1060-3GB GTX1060-6GB", "", "nvidia-legacy"),
    "GTX1070": ((8,), "", "", "nvidia-legacy"),
    "GTX1070Ti": ((8,), "", "", "nvidia-legacy"),
    "GTX1080": ((8,), "", "", "nvidia-legacy"),
    "GTX1080Ti": ((11,), "1080Ti", "", "nvidia-legacy"),
    "GTX1630": ((4,), "", "", "geforce"),
    "GTX1650": ((4,), "", "", "geforce"),
    "GTX1650SUPER": ((4,), "GTX1650S", "", "geforce"),
    "GTX1650Ti": ((4,), "", "", "geforce"),
    "GTX1660": ((6,), "", "", "geforce"),
    "GTX1660SUPER": ((6,), "GTX1660S", "", "geforce"),
    "GTX1660Ti": ((6,), "", "", "geforce"),
    "RTX2060": ((6, 12), "RTX2060-12GB", "", "geforce"),
    "RTX2060SUPER": ((8,), "RTX2060S", "", "geforce"),
    "RTX2070": ((8,), "", "", "geforce"),
    "RTX2070SUPER": ((8,), "RTX2070S", "", "geforce"),
    "RTX2080": ((8,), "", "", "geforce"),
    "RTX2080SUPER": ((8,), "RTX2080S", "", "geforce"),
    "RTX2080Ti": ((11,), "2080Ti", "", "geforce"),
    "RTX3050": ((6, 8), "", "", "geforce"),
    "RTX3060": ((8, 12), "RTX3060-12GB", "", "geforce"),
    "RTX3060Ti": ((8,), "", "", "geforce"),
    "RTX3070": ((8,), "", "", "geforce"),
    "RTX3070Ti": ((8,), "", "", "geforce"),
    "RTX3080": ((10, 12), "RTX3080-10GB RTX3080-12GB", "", "geforce"),
    "RTX3080Ti": ((12,), "", "", "geforce"),
    "RTX3090": ((24,), "3090", "", "geforce"),
    "RTX3090Ti": ((24,), "", "", "geforce"),
    "RTX4060": ((8,), "", "", "geforce"),
    "RTX4060Ti": ((8, 16), "RTX4060Ti-16GB", "", "geforce"),
    "RTX4070": ((12,), "", "", "geforce"),
    "RTX4070SUPER": ((12,), "RTX4070S", "", "geforce"),
    "RTX4070Ti": ((12,), "", "", "geforce"),
    "RTX4070TiSUPER": ((16,), "RTX4070TiS RTX4070STi", "", "geforce"),
    "RTX4080": ((16,), "", "", "geforce"),
    "RTX4080SUPER": ((16,), "RTX4080S", "", "geforce"),
    "RTX4090": ((24,), "RTX4090D 4090", "", "geforce"),
    "RTX5050": ((8,), "", "", "geforce"),
    "RTX5060": ((8,), "", "", "geforce"),
    "RTX5060Ti": ((8, 16), "RTX5060Ti-16GB", "", "geforce"),
    "RTX5070": ((12,), "", "", "geforce"),
    "RTX5070Ti": ((16,), "", "", "geforce"),
    "RTX5080": ((16,), "", "", "geforce"),
    "RTX5090": ((32,), "RTX5090D 5090", "", "geforce"),
    "RTX5090Dv2": ((24,), "", "", "geforce"),
    # Laptops have other chips under the names of the cards.
    "RTX3060-Laptop": ((6,), "RTX3060-Laptop-GPU", "", "geforce"),
    "RTX3070-Laptop": ((8,), "RTX3070-Laptop-GPU", "", "geforce"),
    "RTX3070Ti-Laptop": ((8,), "RTX3070Ti-Laptop-GPU", "", "geforce"),
    "RTX3080-Laptop": ((8, 16), "RTX3080-Laptop-GPU", "", "geforce"),
    "RTX3080Ti-Laptop": ((16,), "RTX3080Ti-Laptop-GPU", "", "geforce"),
    "RTX4050-Laptop": ((6,), "RTX4050-Laptop-GPU", "", "geforce"),
    "RTX4060-Laptop": ((8,), "RTX4060-Laptop-GPU", "", "geforce"),
    "RTX4070-Laptop": ((8,), "RTX4070-Laptop-GPU", "", "geforce"),
    "RTX4080-Laptop": ((12,), "RTX4080-Laptop-GPU", "", "geforce"),
    "RTX4090-Laptop": ((16,), "RTX4090-Laptop-GPU", "", "geforce"),
    "RTX5050-Laptop": ((8,), "RTX5050-Laptop-GPU", "", "geforce"),
    "RTX5060-Laptop": ((8,), "RTX5060-Laptop-GPU", "", "geforce"),
    "RTX5070-Laptop": ((8,), "RTX5070-Laptop-GPU", "", "geforce"),
    "RTX5070Ti-Laptop": ((12,), "RTX5070Ti-Laptop-GPU", "", "geforce"),
    "RTX5080-Laptop": ((16,), "RTX5080-Laptop-GPU", "", "geforce"),
    "RTX5090-Laptop": ((24,), "RTX5090-Laptop-GPU", "", "geforce"),
    # Jetson: one name for the modules of one chip, whose memory is also the processor's.
    "JetsonNano": ((4,), "", "", "jetson"),
    "JetsonTX2": ((4, 8), "TX2", "", "jetson"),
    "Xavier": ((8, 16, 32, 64), "Jetson-AGX-Xavier Jetson-Xavier-NX AGX-Xavier Xavier-NX", "", "jetson"),
    "Orin": (
        (4, 8, 16, 32, 64),
        "Jetson-AGX-Orin Jetson-Orin-NX Jetson-Orin-Nano AGX-Orin Orin-NX Orin-Nano Orin-nvgpu",
        "",
        "jetson",
    ),
    "Thor": ((64, 128), "Jetson-AGX-Thor Jetson-T5000 Jetson-T4000 AGX-Thor", "", "jetson"),
}
AMD: Final[Mapping[str, Row]] = {
    "MI25": ((16,), "Radeon-MI25", "", "amd"),
    "MI50": ((16, 32), "MI50-32GB", "", "amd"),
    "MI60": ((32,), "", "", "amd"),
    "MI100": ((32,), "", "", "amd"),
    "MI210": ((64,), "MI210-64GB", "", "amd"),
    # Each card has two chips (GCDs), which ROCm, Kubernetes and Slurm list as two devices of 64 GB.
    "MI250": ((64,), "MI250-OAM MI250-128GB", "", "amd-mi250"),
    "MI250X": ((64,), "MI250X-OAM MI250X-128GB", "", "amd-mi250"),
    "MI300A": ((128,), "MI300A-128GB", "", "amd"),
    "MI300X": ((192,), "MI300X-OAM MI300X-VF MI300X-HF MI300X-192GB", "", "amd"),
    "MI308X": ((192,), "MI308X-OAM MI308X-HF MI308X-192GB", "", "amd-mi308x"),
    "MI325X": ((256,), "MI325X-OAM MI325X-VF MI325X-256GB", "", "amd"),
    "MI350X": ((288,), "MI350X-OAM MI350X-VF MI350X-288GB", "", "amd"),
    "MI355X": ((288,), "MI355X-OAM MI355X-VF MI355X-288GB", "", "amd"),
    "RadeonProV520": ((8,), "V520", "", "aws"),
    "RadeonProV620": ((32,), "V620", "", "amd"),
    "RadeonProV710": ((28,), "V710", "", "amd"),
    "RadeonProW6800": ((32,), "W6800", "", "amd"),
    "RadeonProW7700": ((16,), "W7700", "", "amd"),
    "RadeonProW7800": ((32, 48), "W7800", "", "amd"),
    "RadeonProW7900": ((48,), "W7900", "", "amd"),
    "RadeonAIProR9700": ((32,), "R9700", "", "amd"),
    "RadeonVII": ((16,), "", "", "amd"),
    "RX5700XT": ((8,), "RadeonRX5700XT", "", "amd"),
    "RX6700XT": ((12,), "RadeonRX6700XT", "", "amd"),
    "RX6800": ((16,), "RadeonRX6800", "", "amd"),
    "RX6800XT": ((16,), "RadeonRX6800XT", "", "amd"),
    "RX6900XT": ((16,), "RadeonRX6900XT", "", "amd"),
    "RX6950XT": ((16,), "RadeonRX6950XT", "", "amd"),
    "RX7600": ((8,), "RadeonRX7600", "", "amd"),
    "RX7600XT": ((16,), "RadeonRX7600XT", "", "amd"),
    "RX7700XT": ((12,), "RadeonRX7700XT", "", "amd"),
    "RX7800XT": ((16,), "RadeonRX7800XT", "", "amd"),
    "RX7900GRE": ((16,), "RadeonRX7900GRE", "", "amd"),
    "RX7900XT": ((20,), "RadeonRX7900XT", "", "amd"),
    "RX7900XTX": ((24,), "RadeonRX7900XTX", "", "amd"),
    "RX9060XT": ((8, 16), "RadeonRX9060XT", "", "amd"),
    "RX9070": ((16,), "RadeonRX9070", "", "amd"),
    "RX9070XT": ((16,), "RadeonRX9070XT", "", "amd"),
}
LINES: Final[Mapping[str, ProductLine]] = {
    "nvidia": ProductLine("NVIDIA", NVIDIA),
    "amd": ProductLine("AMD", AMD),
    "intel": ProductLine(
        "Intel",
        {
            "Max1100": ((48,), "GPU-Max-1100 Data-Center-GPU-Max-1100", "", "intel-max"),
            "Max1550": ((128,), "GPU-Max-1550 Data-Center-GPU-Max-1550", "", "intel-max"),
            "Flex170": ((16,), "GPU-Flex-170 Data-Center-GPU-Flex-170", "", "intel-flex170"),
        },
    ),
    "gaudi": ProductLine(
        "Intel Gaudi",
        {
            "Gaudi": ((32,), "HL-205 Gaudi-HL-205 Gaudi1", "", "gaudi"),
            "Gaudi2": ((96,), "HL-225 HL-225H HL-225B HL-225D Gaudi-HL-225", "", "gaudi"),
            "Gaudi3": ((128,), "HL-325 HL-325L HL-328 HL-335 HL-338", "", "gaudi"),
        },
    ),
    "neuron": ProductLine(
        "AWS Neuron",
        {
            "inferentia": ((8,), "inf1 inferentia1", "", "neuron"),
            "inferentia2": ((32,), "inf2", "", "neuron"),
            "trainium": ((32,), "trn1 trn1n trainium1", "", "neuron"),
            "trainium2": ((96,), "trn2 trn2u", "", "neuron"),
            "trainium3": ((144,), "trn3 trn3u", "", "neuron"),
        },
    ),
    "tpu": ProductLine(
        "Google TPU",
        {
            "tpu-v2": ((16,), "", "", "tpu"),
            "tpu-v3": ((32,), "tpu-v3-slice tpu-v3-device", "", "tpu"),
            "tpu-v4": ((32,), "tpu-v4-podslice tpu-v4-lite-device", "", "tpu"),
            "tpu-v5e": ((16,), "v5litepod tpu-v5litepod tpu-v5-lite-podslice tpu-v5-lite-device v5lite", "", "tpu"),
            "tpu-v5p": ((95,), "tpu-v5p-slice", "", "tpu"),
            "tpu-v6e": ((32,), "tpu-v6e-slice tpu-v6e-device trillium", "", "tpu"),
            "tpu-v7x": ((192,), "tpu7x ironwood tpu-v7 tpu7", "", "tpu"),
        },
    ),
    "apple": ProductLine("Apple", {}),
}
"""name of a vendor → what it makes"""


ALIASES: Final[Mapping[str, str]] = {"mps": "apple", "aws": "neuron", "google": "tpu", "habana": "gaudi"}
"""Other names of vendors, also those in documents of earlier versions → the name."""
_MAKERS: Final[Mapping[str, str]] = {"gaudi": "intel"}
"""Vendors that are one line of products of another → that one."""
GROUP: Final = "stoker.vendors"
"""The group of entry points by which other distributions bring vendors with their chips."""
GB: Final = 10**9
VENDORS: Final[Mapping[str, str]] = {name: line.title for name, line in LINES.items()}
"""Names of vendors, the keys of `vendors.registry`, with the words for a person. Other distributions add their own."""
_PREFIXES = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")
_SUFFIXES = ("vws", "shared")
"""What Google's platforms add for a licence of virtual workstations, and GPU feature discovery where containers share a
GPU by time: https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md."""
# GPU feature discovery's label nvidia.com/gpu.product where all slices of a machine are the same.
_LABEL_OF_SLICE = lazy_pattern(r"(?P<name>.+?)-MIG-(?P<slice>\d+g\.\d+gb[\w.+-]*?)(?P<shared>-SHARED)?", re.IGNORECASE)
_TEXT = lazy_pattern(r"(?P<name>[^:/]+)(?:/(?P<slice>[^:/]*))?(?::(?P<count>.*))?")
_TURNED = lazy_pattern(r"(\d+)\s*[xX*:]\s*(.+)")
# A TPU type's number counts cores for v2-v5p and chips for v5litepod and v6e; asked as a count, it is always chips.
_TPU_TYPE = lazy_pattern(r"(?:tpu-?)?(v\d+(?:litepod|e|p|x)?)-(\d+)", re.IGNORECASE)
_TPU_CORES = ("v2", "v3", "v4", "v5p")


@frozen(kw_only=True)
class ChipModel:
    """A model of accelerator."""

    name: str
    """As a request names it: "A100-80GB"."""
    vendor: str
    """The vendor's name in `vendors.registry`."""
    memory: tuple[int, ...]
    """Each size that it is sold with, in bytes, smallest first."""
    slices: tuple[str, ...] = ()
    """Profiles of the slices that it can be cut into ("1g.10gb")."""
    spellings: tuple[str, ...] = ()
    """Other names for it."""
    source: str = ""
    """The page that gives its memory; empty for a model of another distribution that names none."""

    def is_by(self, vendor: str) -> bool:
        """Whether a vendor makes it; Intel makes Gaudi."""
        return vendor in (self.vendor, _MAKERS.get(self.vendor))


@frozen(kw_only=True)
class Accelerator:
    """So many accelerators of one model."""

    AS_TEXT: ClassVar = True
    name: str
    count: int | None = None
    """None where the request gives none."""
    slice: str = ""
    """A profile such as "1g.10gb"; empty for whole chips."""

    @classmethod
    def parse(cls, text: str) -> Accelerator:
        """The value of "H100:8" and its like; unknown names, slices and counts are a `SettingsError`."""
        written: object = text
        match = _TEXT.fullmatch(written.strip()) if isinstance(written, str) else None
        if match is None:
            raise SettingsError(
                f"{shown(text)} is not an accelerator", fix='write a name and a count, such as "H100:8"'
            )
        name, profile = match["name"], match["slice"]
        label = _LABEL_OF_SLICE.fullmatch(name.strip()) if profile is None else None
        if label is not None:
            name, profile = label["name"], label["slice"]
        kind = model(name, text)
        if label["shared"] if label is not None else name.strip().lower().endswith("-shared"):
            raise SettingsError(
                f"{shown(text)} is the label of a GPU that containers share",
                fix=f'write accelerators="{kind.name}", and gpu_memory="…", share=True for a part of it',
            )
        count = match["count"]
        try:
            amount = None if count is None else whole_number(count.strip(), least=1)
        except SettingsError as error:
            message = f"{shown(text)} asks for {shown(count)} accelerators: {error.message}"
            raise SettingsError(message, fix=f'write a count, such as "{kind.name}:2"') from None
        return cls(name=kind.name, count=amount, slice=_slice(profile, kind, text))

    def __str__(self) -> str:
        name = f"{self.name}/{self.slice}" if self.slice else self.name
        return name if self.count is None else f"{name}:{self.count}"

    @property
    def model(self) -> ChipModel:
        """The model that the name stands for."""
        return MODELS[self.name] if self.name in MODELS else model(self.name)

    @property
    def memory(self) -> int:
        """The most memory in bytes that one of them can have, as sold."""
        if self.slice:
            return int(self.slice.partition(".")[2].partition("gb")[0]) * GB
        return self.model.memory[-1]


class Catalog(Mapping[str, ChipModel]):
    """The models of `core.accelerators` by name; each is made when it is first asked for."""

    def __init__(self) -> None:
        self._vendors = {name: vendor for vendor, line in LINES.items() for name in line.chips}
        self._made: dict[str, ChipModel] = {}

    def __getitem__(self, name: str) -> ChipModel:
        if name not in self._made:
            vendor = self._vendors[name]
            memory, spellings, slices, source = LINES[vendor].chips[name]
            self._made[name] = ChipModel(
                name=name,
                vendor=vendor,
                memory=tuple(amount * GB for amount in memory),
                slices=tuple(slices.split()),
                spellings=tuple(spellings.split()),
                source=SOURCES[source],
            )
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._vendors

    def __iter__(self) -> Iterator[str]:
        return iter(self._vendors)

    def __len__(self) -> int:
        return len(self._vendors)


MODELS: Final[Mapping[str, ChipModel]] = Catalog()


def model(name: str, text: str = "") -> ChipModel:
    """The model called `name` in any of its spellings; `text` is what the person wrote around it."""
    if name in MODELS:
        return MODELS[name]
    plain, spellings = _plain(name), _spellings()
    if plain in spellings:
        return MODELS[spellings[plain]]
    others = _of_other_distributions()
    if plain in others:
        return others[plain]
    written = text or name
    turned = _TURNED.fullmatch(written.strip())
    if turned is not None and _plain(turned[2]) in spellings:
        raise SettingsError(f"{shown(written)} is not an accelerator", fix=f'write "{turned[2]}:{turned[1]}"')
    tpu = _TPU_TYPE.fullmatch(name.strip())
    if tpu is not None and _plain(tpu[1]) in spellings:
        chips = max(1, int(tpu[2]) // 2) if tpu[1].lower() in _TPU_CORES else int(tpu[2])
        counts = "cores" if tpu[1].lower() in _TPU_CORES else "chips"
        kind = spellings[_plain(tpu[1])]
        raise SettingsError(
            f"{shown(written)} is a TPU type, whose number counts {counts}", fix=f'write "{kind}:{chips}"'
        )
    raise SettingsError(f"there is no accelerator called '{bounded(name.strip(), 100)}'{nearest(name, model_names())}")


def model_names() -> tuple[str, ...]:
    """The names of all models."""
    return (*MODELS, *dict.fromkeys(model.name for model in _of_other_distributions().values()))


def vendor_names() -> tuple[str, ...]:
    """The names of all vendors."""
    return (*VENDORS, *(name for name in _REGISTRY.names() if name not in VENDORS))


def vendor_name(name: str) -> str:
    """The name of a vendor that is called so today, or was in an earlier version."""
    return ALIASES.get(name, name)


def parse_all(value: str | Accelerator | Mapping[str, Any] | Iterable[str | Accelerator]) -> tuple[Accelerator, ...]:
    """Ordered alternatives from one text, a list of texts, or `{"H100": 8}`."""
    if isinstance(value, (str, Accelerator)):
        value = [value]
    elif isinstance(value, Mapping):
        value = [f"{name}:{amount if isinstance(amount, str) else shown(amount)}" for name, amount in value.items()]
    elif not isinstance(value, Iterable):
        raise SettingsError(f"{shown(value)} is not an accelerator", fix='write a name and a count, such as "H100:8"')
    parsed = tuple(item if isinstance(item, Accelerator) else Accelerator.parse(item) for item in value)
    if not parsed:
        raise SettingsError("the list of accelerators is empty", fix="leave it out to ask for none")
    return parsed


def _plain(name: str) -> str:
    plain = re.sub(r"[\s()_-]", "", name.lower())
    for prefix in _PREFIXES:
        plain = plain.removeprefix(prefix)
    for suffix in _SUFFIXES:
        plain = plain.removesuffix(suffix)
    return plain


@functools.cache
def _spellings() -> Mapping[str, str]:
    """Spelling, in plain form → the name; read when a name is first written in another way than the table's."""
    names: dict[str, str] = {}
    for line in LINES.values():
        for name, (_, spellings, _, _) in line.chips.items():
            for spelling in (name, *spellings.split()):
                names[_plain(spelling)] = name
            if name.startswith("tpu-"):
                names[name.removeprefix("tpu-")] = name
    return names


class _WithChips(Protocol):
    """What this module needs of a vendor: the models that it adds to the catalog."""

    chips: tuple[ChipModel, ...]


_REGISTRY: Final[Registry[_WithChips]] = Registry(group=GROUP, noun="vendor", kind=object, builtin={})


@functools.cache
def _of_other_distributions() -> Mapping[str, ChipModel]:
    """Spelling → model, of the vendors that other distributions bring; read once a process."""
    return {
        _plain(spelling): model
        for _, vendor in _REGISTRY.third_party_parts()
        for model in vendor.chips
        for spelling in (model.name, *model.spellings)
    }


def _slice(profile: str | None, kind: ChipModel, text: str) -> str:
    if profile is None:
        return ""
    if not kind.slices:
        raise SettingsError(f"{text!r} asks for a slice, and {kind.name} cannot be sliced", fix=f'write "{kind.name}"')
    plain = profile.strip().lower().removeprefix("mig-")
    # "+me", "+me.all", "-me" and "+gfx" say which of the chip's media and graphics engines the slice has.
    if re.sub(r"(?:[+-]me(?:\.all)?|\+gfx)$", "", plain) not in kind.slices:
        raise SettingsError(
            f"{kind.name} with {size_text(kind.memory[-1])} has no slice '{profile}'{nearest(plain, kind.slices)}"
        )
    return plain
