"""Labels of nodes name accelerators of the catalog, in both directions."""

from __future__ import annotations

from typing import Mapping

import pytest

from stoker.backends.kubernetes.explain import nodelabels
from stoker.core.accelerators import MODELS


@pytest.mark.parametrize(
    ("labels", "name", "slice"),
    [
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}, "H100", ""),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "T4", ""),
        ({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}, "A100-80GB", "1g.10gb"),
        ({"cloud.google.com/gke-accelerator": "nvidia-h100-mega-80gb"}, "H100-MEGA", ""),
        ({"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"}, "tpu-v5e", ""),
        ({"karpenter.k8s.aws/instance-gpu-name": "a100"}, "A100", ""),
        (
            {"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "81920"},
            "A100-80GB",
            "",
        ),
        ({"karpenter.k8s.aws/instance-accelerator-name": "trainium"}, "trainium", ""),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}, "MI300X", ""),
        ({"accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"}, "H100", ""),
        ({"node.kubernetes.io/instance-type": "Standard_NC40ads_H100_v5"}, "H100-NVL", ""),
        ({"node.kubernetes.io/instance-type": "Standard_NC24ads_A100_v4"}, "A100-80GB", ""),
        ({"node.kubernetes.io/instance-type": "p5.48xlarge"}, "H100", ""),
        ({"node.kubernetes.io/instance-type": "p5en.48xlarge"}, "H200", ""),
        ({"node.kubernetes.io/instance-type": "p4de.24xlarge"}, "A100-80GB", ""),
        ({"node.kubernetes.io/instance-type": "g6.12xlarge"}, "L4", ""),
    ],
)
def test_labels_name_a_model(labels: Mapping[str, str], name: str, slice: str) -> None:
    device = nodelabels.device_of(labels)
    assert device is not None
    assert (device.name, device.known, device.slice) == (name, True, slice)


def test_a_label_that_the_catalog_does_not_know_is_shown_as_it_is() -> None:
    device = nodelabels.device_of({"nvidia.com/gpu.product": "NVIDIA-X999"})
    assert device == nodelabels.NodeDevice(name="NVIDIA-X999", known=False, label="nvidia.com/gpu.product")
    assert nodelabels.device_of({"kubernetes.io/arch": "amd64", "accelerator": "nvidia"}) is None


def test_every_value_that_is_asked_for_reads_back_as_the_same_model() -> None:
    alike = {"H100": {"H100", "H100-MEGA"}, "V100-32GB": {"V100", "V100-32GB"}, "A100-80GB": {"A100", "A100-80GB"}}
    seen = 0
    for name in MODELS:
        for label, values in nodelabels.label_values(name).items():
            for value in values:
                device = nodelabels.device_of({label: value})
                assert device is not None and device.known, (name, label, value)
                assert device.name in alike.get(name, {name}), (name, label, value)
                seen += 1
    assert seen > 100


def test_drivers_and_memory() -> None:
    assert (
        nodelabels.driver_of({"nvidia.com/cuda.driver.major": "550", "nvidia.com/cuda.driver.minor": "54"}) == "550.54"
    )
    assert nodelabels.driver_of({"nvidia.com/cuda.driver-version.full": "550.54.15"}) == "550.54.15"
    assert nodelabels.memory_of({"nvidia.com/gpu.memory": "81559"}) == 81559 * 2**20
    assert nodelabels.is_device("nvidia.com/mig-1g.10gb") and not nodelabels.is_device("cpu")
