"""Names of chips as drivers tell them, against the models that a request can name."""

from __future__ import annotations

import pytest

from stoker.core.accelerators import MODELS, model
from stoker.vendors import amd, neuron, tpu
from stoker.vendors.nvidia import chips
from stoker.vendors.nvidia.chips import capability, cuda_of_driver, driver_name, model_of

NVML_NAMES = {
    "Tesla K80": "K80",
    "Tesla M60": "M60",
    "Tesla P4": "P4",
    "Tesla P40": "P40",
    "Tesla P100-PCIE-16GB": "P100",
    "Tesla P100-SXM2-16GB": "P100",
    "Tesla P100-PCIE-12GB": "P100-12GB",
    "Tesla V100-SXM2-16GB": "V100",
    "Tesla V100-PCIE-16GB": "V100",
    "Tesla V100-SXM2-32GB": "V100-32GB",
    "Tesla V100-PCIE-32GB": "V100-32GB",
    "Tesla T4": "T4",
    "NVIDIA T4": "T4",
    "NVIDIA T4G": "T4G",
    "NVIDIA GeForce RTX 2080 Ti": "RTX2080Ti",
    "Quadro RTX 6000": "RTX6000",
    "Quadro RTX 8000": "RTX8000",
    "NVIDIA A100-SXM4-40GB": "A100",
    "NVIDIA A100-PCIE-40GB": "A100",
    "A100-SXM4-40GB": "A100",
    "NVIDIA A100-SXM4-80GB": "A100-80GB",
    "NVIDIA A100 80GB PCIe": "A100-80GB",
    "NVIDIA A30": "A30",
    "NVIDIA A2": "A2",
    "NVIDIA A10": "A10",
    "NVIDIA A10G": "A10G",
    "NVIDIA A16": "A16",
    "NVIDIA A40": "A40",
    "NVIDIA RTX A4000": "A4000",
    "NVIDIA RTX A4500": "A4500",
    "NVIDIA RTX A5000": "A5000",
    "NVIDIA RTX A6000": "A6000",
    "NVIDIA GeForce RTX 3090": "RTX3090",
    "NVIDIA L4": "L4",
    "NVIDIA L40": "L40",
    "NVIDIA L40S": "L40S",
    "NVIDIA GeForce RTX 4090": "RTX4090",
    "NVIDIA RTX 6000 Ada Generation": "RTX6000-Ada",
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H100 PCIe": "H100-PCIe",
    "NVIDIA H100 NVL": "H100-NVL",
    "NVIDIA H200": "H200",
    "NVIDIA H200 NVL": "H200-NVL",
    "NVIDIA GH200 480GB": "GH200",
    "NVIDIA GH200 144G HBM3e": "GH200",
    "NVIDIA B200": "B200",
    "NVIDIA GB200": "GB200",
    "NVIDIA B300 SXM6 AC": "B300",
    "NVIDIA GB300": "GB300",
    "NVIDIA GeForce RTX 5090": "RTX5090",
    "NVIDIA RTX PRO 4500 Blackwell": "RTXPRO4500",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "RTXPRO6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "RTXPRO6000",
    "NVIDIA GB10": "GB10",
}


@pytest.mark.parametrize(("name", "expected"), NVML_NAMES.items())
def test_names_of_nvidia(name: str, expected: str) -> None:
    assert model_of(name) == expected
    assert model_of(name.lower()) == expected
    # Who copies the driver's word into a request asks for the same chip.
    assert model(name).name == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD INSTINCT MI250X (MCM) OAM AC MBA", "MI250X"),
        ("AMD Instinct MI210", "MI210"),
        ("AMD Radeon RX 7900 XTX", "RX7900XTX"),
        ("Radeon Pro V520", "RadeonProV520"),
        ("AMD Instinct MI999X", "AMD Instinct MI999X"),
        ("NVIDIA Rubin R100", "NVIDIA Rubin R100"),
        ("NVIDIA A100X", "NVIDIA A100X"),
        ("", ""),
    ],
)
def test_other_names(name: str, expected: str) -> None:
    assert amd.model_of(name) == expected


def test_every_nvidia_model_has_its_row() -> None:
    assert set(chips.NVIDIA) == {name for name, found in MODELS.items() if found.vendor == "nvidia"}
    assert set(neuron.MACHINES.values()) | set(tpu.PCI_DEVICES.values()) <= set(MODELS)
    for name in chips.NVIDIA:
        assert capability(name) is not None
        # Google's H100-MEGA is told as the H100 that it is.
        assert model_of(driver_name(name)) == name
    assert capability("MI300X") is None and driver_name("MI300X") == "MI300X"


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("535.104.05", (12, 2)),
        ("580.95.05", (13, 0)),
        ("537.13", (12, 2)),
        ("450.36.06", (11, 0)),
        ("700.1", (13, 4)),
        ("418.39", None),
    ],
)
def test_cuda_of_a_driver(driver: str, cuda: tuple[int, int] | None) -> None:
    assert cuda_of_driver(driver) == cuda
    assert list(chips.CUDA_OF_BRANCH) == sorted(chips.CUDA_OF_BRANCH, reverse=True)
