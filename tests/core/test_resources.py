"""Requests for hardware: names of accelerators, counts that disagree, and the request in words."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core import accelerators
from stoker.core.accelerators import MODELS, Accelerator
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings, check_complete
from stoker.core.units import UNSET


@pytest.mark.parametrize(
    ("text", "name", "count", "slice"),
    [
        ("H100:8", "H100", 8, ""),
        ("nvidia-h100-80gb:8", "H100", 8, ""),
        ("NVIDIA H100 80GB HBM3", "H100", None, ""),
        ("A100-80GB", "A100-80GB", None, ""),
        ("nvidia-tesla-a100", "A100", None, ""),
        ("NVIDIA A100 80GB PCIe:1", "A100-80GB", 1, ""),
        ("a100_40gb", "A100", None, ""),
        ("Tesla T4:2", "T4", 2, ""),
        ("V100-32GB", "V100-32GB", None, ""),
        ("V100-16GB", "V100", None, ""),
        ("NVIDIA GeForce RTX 4090", "RTX4090", None, ""),
        ("l40s", "L40S", None, ""),
        ("MI300X:8", "MI300X", 8, ""),
        ("AMD Instinct MI250X", "MI250X", None, ""),
        ("trainium:16", "trainium", 16, ""),
        ("trn2", "trainium2", None, ""),
        ("inferentia:2", "inferentia", 2, ""),
        ("tpu-v5e:8", "tpu-v5e", 8, ""),
        ("tpu-v5-lite-podslice:8", "tpu-v5e", 8, ""),
        ("v6e:4", "tpu-v6e", 4, ""),
        ("A100-80GB/1g.10gb:2", "A100-80GB", 2, "1g.10gb"),
        ("H100/MIG-1g.10gb+me", "H100", None, "1g.10gb+me"),
        ("H200/3g.71gb", "H200", None, "3g.71gb"),
        (" H100 : 8 ", "H100", 8, ""),
    ],
)
def test_accelerator(text: str, name: str, count: int | None, slice: str) -> None:
    assert Accelerator.parse(text) == Accelerator(name=name, count=count, slice=slice)


@pytest.mark.parametrize(
    ("text", "words", "fix"),
    [
        ("H10:8", "no accelerator called 'H10', did you mean 'H100'", ""),
        ("banana", "no accelerator called 'banana'", ""),
        ("H100:0", "asks for '0' accelerators", "H100:2"),
        ("H100:many", "asks for 'many'", "H100:2"),
        ("H100:", "asks for ''", "H100:2"),
        ("8xH100", "'8xH100' is not an accelerator", 'write "H100:8"'),
        ("v5p-8", "TPU type, whose number counts cores", 'write "tpu-v5p:4"'),
        ("tpu-v5litepod-8", "TPU type, whose number counts chips", 'write "tpu-v5e:8"'),
        ("tpu-v6e-8", "counts chips", 'write "tpu-v6e:8"'),
        ("", "'' is not an accelerator", "H100:8"),
        ("H100:2:3", "asks for '2:3'", "H100:2"),
        ("A100/1g.10", "A100 with 40GB has no slice '1g.10', did you mean '1g.10gb'", ""),
        ("A100/7g.80gb", "A100 with 40GB has no slice '7g.80gb'", ""),
        ("T4/1g.5gb", "T4 cannot be sliced", 'write "T4"'),
        ("A100/:2", "has no slice ''", ""),
    ],
)
def test_accelerator_refused(text: str, words: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Accelerator.parse(text)
    assert words in caught.value.message
    assert fix in caught.value.fix


@given(
    st.sampled_from(sorted(MODELS)).flatmap(
        lambda name: st.builds(
            Accelerator,
            name=st.just(name),
            count=st.none() | st.integers(min_value=1, max_value=4096),
            slice=st.sampled_from(["", *MODELS[name].slices]),
        )
    )
)
def test_every_accelerator_comes_back_from_its_text(accelerator: Accelerator) -> None:
    assert Accelerator.parse(str(accelerator)) == accelerator


def test_every_spelling_belongs_to_one_model() -> None:
    owners: dict[str, str] = {}
    for name, model in accelerators.MODELS.items():
        for spelling in (name, *model.spellings):
            plain = accelerators._plain(spelling)
            assert owners.setdefault(plain, name) == name, spelling
            assert accelerators.model(spelling).name == name


def test_memory_of_models_and_slices() -> None:
    assert Accelerator.parse("A100-80GB").memory == 80 * 10**9
    assert Accelerator.parse("B200").memory == 192 * 10**9
    assert Accelerator.parse("A100-80GB/1g.10gb").memory == 10 * 10**9
    assert MODELS["GH200"].memory == (96 * 10**9, 144 * 10**9)
    assert all(list(model.memory) == sorted(model.memory) for model in MODELS.values())


def test_nothing_given_is_unset() -> None:
    empty = ResourceSettings()
    assert all(getattr(empty, field.name) is UNSET for field in attrs.fields(ResourceSettings))
    assert empty.gpus_per_node == 0
    assert empty.get("cpu_count", 2.0) == 2.0
    assert ResourceSettings(cpu_count=None).get("cpu_count", 2.0) == 2.0
    assert str(empty) == "nothing in particular"


def test_texts_become_values() -> None:
    assert [ResourceSettings(cpu_count=text).cpu_count for text in ("500m", " 4000m", "0.5")] == [0.5, 4.0, 0.5]
    found = ResourceSettings(cpu_count="2", gpu_count="2", memory="16GB", nodes="4", disk="1TiB", gpu_vendor="NVIDIA")
    assert (found.cpu_count, found.gpu_count, found.memory, found.nodes) == (2.0, 2, 16 * 10**9, 4)
    assert found.disk == 2**40
    assert found.gpu_vendor == "nvidia"


@pytest.mark.parametrize(
    ("value", "kinds"),
    [
        ("H100:8", ["H100:8"]),
        (["H100:8", "A100-80GB:8"], ["H100:8", "A100-80GB:8"]),
        ({"V100": 2}, ["V100:2"]),
        (Accelerator(name="T4"), ["T4"]),
    ],
)
def test_accelerators_of_any_form(value: Any, kinds: list[str]) -> None:
    assert list(map(str, ResourceSettings(accelerators=value).get("accelerators"))) == kinds


@pytest.mark.parametrize(
    ("fields", "words", "fix"),
    [
        ({"gpus": 2}, "ResourceSettings has no field 'gpus'", "gpu_count=2"),
        ({"gpu_type": "H100"}, "ResourceSettings has no field 'gpu_type'", "accelerators='H100:2'"),
        ({"cpu": 4}, "ResourceSettings has no field 'cpu'", "cpu_count=4"),
        ({"memory_limit": "8Gi"}, "ResourceSettings has no field 'memory_limit'", "memory='16GB'"),
        ({"cpu_count": "m"}, "cpu_count: 'm' is not a number", "4 or 0.5"),
        ({"cpu_count": "0m"}, "cpu_count: 0.0 is not above 0", ""),
        ({"gpu_cout": 2}, "did you mean 'gpu_count'", ""),
        ({"gpu_count": 0.5}, "gpu_count: 0.5 is not a whole number", "share=True"),
        ({"gpu_count": "0.5"}, "not whole", "MIG"),
        ({"gpu_count": -1}, "less than 0", "0 or more"),
        ({"gpu_count": True}, "True is not a whole number", ""),
        ({"cpu_count": 0}, "cpu_count: 0 is not above 0", ""),
        ({"memory": "16 bananas"}, "memory: '16 bananas' has an unknown unit", "16GB"),
        ({"nodes": 0}, "nodes: 0 is less than 1", ""),
        ({"spot": "yes"}, "spot: 'yes' is neither true nor false", ""),
        ({"gpu_vendor": "nvida"}, "gpu_vendor: 'nvida' is not a vendor of GPUs, did you mean 'nvidia'", ""),
        ({"accelerators": []}, "the list of accelerators is empty", ""),
        ({"accelerators": 8}, "accelerators: 8 is not an accelerator", ""),
        ({"extended": {"example.com/fpga": 0}}, "extended: example.com/fpga: 0 is not above 0", ""),
        ({"extended": 4}, "extended: 4 does not map", ""),
        ({"gpu_count": 2, "accelerators": "H100:8"}, "gpu_count=2 and accelerators='H100:8' disagree", "gpu_count=2"),
        ({"gpu_count": 4, "accelerators": ["H100", "A100:8"]}, "accelerators='A100:8' disagree", ""),
        ({"gpu_count": 0, "accelerators": "H100"}, "gpu_count=0 and accelerators disagree", ""),
        ({"gpu_count": 0, "gpu_memory": "40GB"}, "gpu_count=0 and gpu_memory disagree", ""),
        ({"gpu_memory": "40GB", "accelerators": "T4"}, "it has 16GB", "remove one"),
        ({"gpu_memory": "20GB", "accelerators": "A100-80GB/1g.10gb"}, "it has 10GB", ""),
        ({"gpu_vendor": "amd", "accelerators": "H100"}, "it is made by nvidia", "remove gpu_vendor"),
        ({"share": True, "gpu_memory": "8GB", "gpu_count": 2}, "a part of one GPU, not of 2", "ask for 1"),
    ],
)
def test_refused(fields: dict[str, Any], words: str, fix: str) -> None:
    with pytest.raises(SettingsError) as caught:
        ResourceSettings(**fields)
    assert words in caught.value.message
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"gpu_count": 2}, 2),
        ({"accelerators": "H100:8"}, 8),
        ({"accelerators": "H100"}, 1),
        ({"accelerators": "H100", "gpu_count": 4}, 4),
        ({"gpu_memory": "40GB"}, 1),
        ({"gpu_vendor": "amd"}, 1),
        ({"cpu_count": 2}, 0),
        ({"gpu_count": 0}, 0),
    ],
)
def test_gpus_per_node(fields: dict[str, Any], count: int) -> None:
    assert ResourceSettings(**fields).gpus_per_node == count


def test_a_share_says_how_much() -> None:
    check_complete(ResourceSettings(share=True, gpu_memory="8GB"))
    with pytest.raises(SettingsError, match="how much of a GPU") as caught:
        check_complete(ResourceSettings(share=True))
    assert 'gpu_memory="10GB"' in caught.value.fix


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cpu_count": 8, "gpu_count": 2, "memory": "16GB"}, "8 CPUs, 2 GPUs, 16GB"),
        ({"cpu_count": 1, "gpu_count": 1}, "1 CPU, 1 GPU"),
        ({"cpu_count": 0.5, "gpu_count": 0}, "0.5 CPUs, no GPU"),
        ({"accelerators": ["H100:8", "A100-80GB:8"]}, "H100:8 or A100-80GB:8"),
        ({"accelerators": "T4", "gpu_count": 2}, "T4:2"),
        ({"gpu_count": 2, "gpu_vendor": "amd", "gpu_memory": "40GB"}, "2 AMD GPUs (40GB or more each)"),
        ({"gpu_count": 4, "gpu_vendor": "tpu"}, "4 Google TPU chips"),
        ({"share": True, "gpu_memory": "10GB"}, "1 GPU (10GB of one, shared)"),
        ({"nodes": 4, "gpu_count": 8, "spot": True}, "4 nodes with 8 GPUs, spot each"),
        ({"disk": "1TB", "shared_memory": "8GiB", "extended": {"x/fpga": 2}}, "8GiB shared memory, 1TB disk, 2 x/fpga"),
    ],
)
def test_in_words(fields: dict[str, Any], text: str) -> None:
    assert str(ResourceSettings(**fields)) == text
