"""Names of chips as drivers tell them, against the models that a request can name."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from stoker.core.accelerators import GB, MODELS, TABLE, Accelerator, model
from stoker.core.errors import SettingsError
from stoker.vendors import amd, neuron, tpu
from stoker.vendors.nvidia import chips
from stoker.vendors.nvidia.chips import (
    branches,
    capability,
    cuda_of_driver,
    driver_name,
    forward_compatible,
    is_geforce,
    model_of,
)


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
        ("418.39", (10, 1)),
        ("396.37", (9, 2)),
        ("375.26", None),
    ],
)
def test_cuda_of_a_driver(driver: str, cuda: tuple[int, int] | None) -> None:
    assert cuda_of_driver(driver) == cuda
    assert list(chips.CUDA_OF_BRANCH) == sorted(chips.CUDA_OF_BRANCH, reverse=True)


PLATFORMS = {
    "nvml": "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/supportedchips.html",
    "nvidia.com/gpu.product": "https://github.com/NVIDIA/k8s-device-plugin/tree/main/docs/gpu-feature-discovery",
    "cloud.google.com/gke-accelerator": "https://cloud.google.com/kubernetes-engine/docs/concepts/gpus",
    "cloud.google.com/gke-tpu-accelerator": "https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus",
    "karpenter.k8s.aws/instance-gpu-name": "https://karpenter.sh/docs/reference/instance-types/",
    "skypilot catalog": "https://github.com/skypilot-org/skypilot-catalog, catalogs/v8 and v9, common/accelerators.csv",
    "skypilot gpu_names": "https://github.com/skypilot-org/skypilot/blob/master/sky/utils/gpu_names.py",
    "gpuhunt": "https://github.com/dstackai/gpuhunt/blob/main/src/gpuhunt/_internal/constraints.py",
    "aws describe-instance-types": "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html",
    "gcp machine types": "https://cloud.google.com/compute/docs/gpus",
    "azure vm sizes": "https://learn.microsoft.com/en-us/azure/virtual-machines/sizes/overview#gpu-accelerated",
    "gpu.nvidia.com/class": "https://docs.coreweave.com/docs/platform/instances/gpu-instances",
    "runpod": "https://docs.runpod.io/references/gpu-types",
    "slurm gres": "https://slurm.schedmd.com/gres.conf.html: the driver's name, in small letters with _ for blanks",
    "amd.com/gpu.product-name": "https://github.com/ROCm/k8s-device-plugin/tree/master/cmd/k8s-node-labeller",
    "amdsmi": "https://rocm.docs.amd.com/projects/amdsmi/en/latest/, market_name",
}
"""Column `platform` of accelerator_names.csv → where the platform's names are written down."""
_DRIVERS = {"nvml": model_of, "amdsmi": amd.model_of}


def test_every_name_that_a_platform_writes_is_known() -> None:
    with open(Path(__file__).with_name("accelerator_names.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["name"] for row in rows}) >= 250
    assert {row["platform"] for row in rows} == set(PLATFORMS)
    unknown = []
    for row in rows:
        by_driver = _DRIVERS.get(row["platform"])
        try:
            name = by_driver(row["name"]) if by_driver is not None else model(row["name"]).name
        except SettingsError as error:
            name = error.message
        if row["platform"] == "nvml":
            assert model_of(row["name"].lower()) == name
        if name != row["model"] or name not in MODELS:
            unknown.append(f"{row['name']} ({row['platform']}): {name}, not {row['model']}")
    assert not unknown, "\n".join(unknown)


def test_every_row_has_its_source_and_means_one_chip() -> None:
    spelled: dict[str, str] = {}
    for name, one in MODELS.items():
        assert one.source.startswith("https://"), name
        assert list(one.memory) == sorted(one.memory) and one.memory, name
        for spelling in (name, *one.spellings):
            plain = model(spelling).name
            assert spelled.setdefault(spelling.lower().replace("-", ""), plain) == name == plain, spelling
        for profile in one.slices:
            assert int(profile.partition(".")[2].removesuffix("gb")) * GB <= one.memory[-1], (name, profile)
    sources = Path(TABLE).read_text(encoding="utf-8").partition("[sources]\n")[2].partition("\n\n")[0].splitlines()
    assert {line.partition(" | ")[2] for line in sources} == {one.source for one in MODELS.values()}


def test_rows_of_vendors() -> None:
    assert set(amd.GFX) == {name for name, one in MODELS.items() if one.vendor == "amd"}
    for name in chips.NVIDIA:
        known = branches(name)
        assert known is not None or chips.NVIDIA[name].form == "Jetson"
        assert known is None or known[1] is None or known[0] <= known[1]
    # A card with two chips is two devices, as the driver lists it.
    assert model("MI250").memory == (64 * GB,) == model("AMD Instinct MI250X").memory
    assert (branches("V100"), branches("K80"), branches("L4")) == ((384, 580), (340, 470), (520, None))
    assert (branches("H200"), branches("GB300"), branches("Orin")) == ((550, None), (580, None), None)


@pytest.mark.parametrize(
    ("name", "compatible", "geforce"),
    [
        ("A100", True, False),
        ("GB200", True, False),
        ("Orin", True, False),
        ("RTX4090", False, True),
        ("RTX5080-Laptop", False, True),
        ("TITANRTX", False, True),
        ("A6000", None, False),
        ("RTXPRO6000", None, False),
        ("GB10", None, False),
        ("NVIDIA Rubin R100", None, False),
    ],
)
def test_forward_compatibility_of_a_chip(name: str, compatible: bool | None, geforce: bool) -> None:
    assert forward_compatible(name) is compatible
    assert is_geforce(name) is geforce


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100/1g.5gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb:2", "H100/3g.40gb:2"),
        ("RTXPRO6000/1g.24gb-me", "RTXPRO6000/1g.24gb-me"),
        ("RTXPRO6000/1g.24gb+me.all", "RTXPRO6000/1g.24gb+me.all"),
        ("RTX PRO 4500 Blackwell/2g.32gb+gfx", "RTXPRO4500/2g.32gb+gfx"),
    ],
)
def test_requests_by_a_platforms_words(text: str, expected: str) -> None:
    assert str(Accelerator.parse(text)) == expected


@pytest.mark.parametrize("text", ["Tesla-T4-SHARED:1", "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED"])
def test_a_label_of_a_shared_gpu_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(SettingsError, match="share=True"):
        Accelerator.parse(text)
