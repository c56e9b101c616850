"""What the references of well-known images say by themselves, and that unknown ones say nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stoker.core import imagenames
from stoker.core.docker import ImageFacts
from stoker.core.imagenames import facts_of_name, is_plain, merge_facts, parse

NAMES: dict[str, dict[str, Any]] = {
    "pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime": {
        "cuda": "13.0",
        "cudnn": "9",
        "frameworks": {"torch": "2.13.0+cu130"},
    },
    "docker.io/pytorch/pytorch:1.12.1-cuda11.3-cudnn8-devel": {
        "cuda": "11.3",
        "cudnn": "8",
        "frameworks": {"torch": "1.12.1+cu113"},
    },
    "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04": {"cuda": "12.8.1", "cudnn": "9"},
    "nvidia/cuda:12.2.2-cudnn8-devel-rockylinux9": {"cuda": "12.2.2", "cudnn": "8"},
    "nvcr.io/nvidia/cuda:13.0.2-base-ubi9": {"cuda": "13.0.2"},
    "nvcr.io/nvidia/pytorch:25.03-py3": {"cuda": "12.8.1", "python": "3.12", "frameworks": {"torch": "2.7.0a0"}},
    "nvcr.io/nvidia/pytorch:24.05-py3": {"cuda": "12.4.1", "python": "3.10", "frameworks": {"torch": "2.4.0a0"}},
    "nvcr.io/nvidia/pytorch:24.12-py3-igpu": {"cuda": "12.6.3", "python": "3.12"},
    "nvcr.io/nvidia/pytorch:20.06-py3": {"cuda": "11.0"},
    "nvcr.io/nvidia/tensorflow:25.02-tf2-py3": {"cuda": "12.8.0"},
    "nvcr.io/nvidia/jax:25.04-py3": {"cuda": "12.9.0"},
    "nvcr.io/nvidia/nemo:24.07": {"cuda": "12.5.1"},
    "nvcr.io/nvidia/tritonserver:26.07-vllm-python-py3": {"cuda": "13.3.0"},
    "nvcr.io/nvidia/l4t-pytorch:r35.2.1-pth2.0-py3": {"cuda": "11.4", "frameworks": {"torch": "2.0"}},
    "nvcr.io/nvidia/l4t-tensorflow:r35.3.1-tf2.11-py3": {"cuda": "11.4", "frameworks": {"tensorflow": "2.11"}},
    "nvcr.io/nvidia/l4t-jetpack:r36.4.0": {"cuda": "12.6"},
    "dustynv/l4t-pytorch:r36.2.0": {"cuda": "12.2"},
    "dustynv/pytorch:2.1-r36.2.0": {"cuda": "12.2"},
    "nvcr.io/nvidia/pytorch:19.01-py3": {},
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch-training:2.10.0-gpu-py313-cu130-ubuntu22.04-ec2": {
        "cuda": "13.0",
        "python": "3.13",
        "frameworks": {"torch": "2.10.0+cu130"},
    },
    "763104351884.dkr.ecr.eu-west-1.amazonaws.com/pytorch-training:2.4.0-cpu-py311-ubuntu22.04-ec2": {
        "python": "3.11",
        "frameworks": {"torch": "2.4.0+cpu"},
    },
    "public.ecr.aws/deep-learning-containers/pytorch-training-neuronx:2.9.0-neuronx-py312-sdk2.30.0-ubuntu24.04": {
        "python": "3.12",
        "neuron": "2.30.0",
        "frameworks": {"torch": "2.9.0"},
    },
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/huggingface-pytorch-training:2.0.0-transformers4.28.1-gpu-py310-cu118-"
    "ubuntu20.04": {
        "cuda": "11.8",
        "python": "3.10",
        "frameworks": {"torch": "2.0.0+cu118", "transformers": "4.28.1"},
    },
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-training:2.21.0-gpu-py312-cu129-amzn2023-sagemaker": {
        "cuda": "12.9",
        "python": "3.12",
        "frameworks": {"tensorflow": "2.21.0"},
    },
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/tensorflow-inference:2.18.0-cpu-py310-ubuntu20.04-ec2": {
        "python": "3.10",
        "frameworks": {"tensorflow": "2.18.0+cpu"},
    },
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/pytorch:2.13.0-cu133-amzn2023-sagemaker": {
        "cuda": "13.3",
        "frameworks": {"torch": "2.13.0+cu133"},
    },
    "763104351884.dkr.ecr.us-west-2.amazonaws.com/vllm:0.15.1-gpu-py312-cu129-ubuntu22.04-ec2": {
        "cuda": "12.9",
        "python": "3.12",
        "frameworks": {"vllm": "0.15.1"},
    },
    "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/pytorch-cu124.2-4.py310": {
        "cuda": "12.4",
        "python": "3.10",
        "frameworks": {"torch": "2.4+cu124"},
    },
    "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/tf2-gpu.2-17.py310": {
        "cuda": "12.3",
        "python": "3.10",
        "frameworks": {"tensorflow": "2.17"},
    },
    "gcr.io/deeplearning-platform-release/tf2-cpu.2-15.py310": {
        "python": "3.10",
        "frameworks": {"tensorflow": "2.15+cpu"},
    },
    "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4.py310:latest": {
        "python": "3.10",
        "frameworks": {"torch": "2.4"},
    },
    "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest": {"frameworks": {"tensorflow": "2.15+cpu"}},
    "mcr.microsoft.com/azureml/curated/acpt-pytorch-2.2-cuda12.1:27": {
        "cuda": "12.1",
        "frameworks": {"torch": "2.2+cu121"},
    },
    "mcr.microsoft.com/aifx/acpt/stable-ubuntu2204-cu124-py310-torch250:biweekly.202410.1": {
        "cuda": "12.4",
        "python": "3.10",
        "frameworks": {"torch": "2.5.0+cu124"},
    },
    "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04:latest": {"cuda": "11.8", "cudnn": "8"},
    "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04": {},
    "tensorflow/tensorflow:2.17.0-gpu": {"cuda": "12.3", "frameworks": {"tensorflow": "2.17.0"}},
    "tensorflow/tensorflow:2.16.1": {"frameworks": {"tensorflow": "2.16.1+cpu"}},
    "tensorflow/tensorflow:2.16.1-jupyter": {"frameworks": {"tensorflow": "2.16.1+cpu"}},
    "tensorflow/tensorflow:latest-gpu": {},
    "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0": {
        "rocm": "7.1",
        "python": "3.12",
        "frameworks": {"torch": "2.8.0+rocm7.1"},
    },
    "rayproject/ray:2.44.0-py311-cu124": {"cuda": "12.4", "python": "3.11", "frameworks": {"ray": "2.44.0"}},
    "rayproject/ray:2.9.3-gpu": {"frameworks": {"ray": "2.9.3"}},
    "rayproject/ray:2.44.0-py311-cpu-aarch64": {"python": "3.11", "frameworks": {"ray": "2.44.0"}},
    "rocm/tensorflow:rocm6.3-py3.10-tf2.16.2-dev": {
        "rocm": "6.3",
        "python": "3.10",
        "frameworks": {"tensorflow-rocm": "2.16.2"},
    },
    "rocm/vllm:rocm6.3.1_vllm_0.8.5_20250521": {"rocm": "6.3.1"},
    "rocm/dev-ubuntu-22.04:6.2.4-complete": {"rocm": "6.2.4"},
    "vllm/vllm-openai:v0.6.3": {"cuda": "12.4.1", "frameworks": {"vllm": "0.6.3", "torch": "2.4.0+cu121"}},
    "vllm/vllm-openai:v0.11.0": {"cuda": "12.8.1", "frameworks": {"vllm": "0.11.0", "torch": "2.8.0+cu128"}},
    "vllm/vllm-openai:v0.99.0": {"frameworks": {"vllm": "0.99.0"}},
    "vllm/vllm-openai:nightly": {},
    "mosaicml/pytorch:2.4.0_cu124-python3.11-ubuntu20.04": {
        "cuda": "12.4",
        "python": "3.11",
        "frameworks": {"torch": "2.4.0+cu124"},
    },
    "mosaicml/pytorch:2.3.1_cpu-python3.11-ubuntu20.04": {"python": "3.11", "frameworks": {"torch": "2.3.1+cpu"}},
    "ghcr.io/huggingface/text-embeddings-inference:1.2": {"frameworks": {"text-embeddings-inference": "1.2"}},
    "ghcr.io/huggingface/text-embeddings-inference:turing-1.2": {"frameworks": {"text-embeddings-inference": "1.2"}},
    "ghcr.io/huggingface/text-embeddings-inference:cpu-1.2": {},
    "cupy/cupy:v13.6.0": {"frameworks": {"cupy": "13.6.0"}},
    "condaforge/miniforge3:24.9.2-0": {},
    "python:3.11-slim": {"python": "3.11"},
    "public.ecr.aws/docker/library/python:3.9": {"python": "3.9"},
    "myorg/pytorch-cuda12.4:1": {},
    "myorg/train": {},
    "not a reference": {},
}


@pytest.mark.parametrize("reference", NAMES)
def test_names(reference: str) -> None:
    said = facts_of_name(reference)
    fields = ("cuda", "cudnn", "python", "rocm", "neuron", "frameworks")
    assert {name: getattr(said, name) for name in fields if getattr(said, name)} == NAMES[reference]
    assert said.base == "name"


@pytest.mark.parametrize(
    ("reference", "libc", "architectures", "archs"),
    [
        ("python:3.11-alpine", "musl", (), ()),
        ("python:3.11-slim", "glibc", (), ()),
        ("alpine:3.20", "musl", (), ()),
        ("ubuntu", "glibc", (), ()),
        ("myorg/train:alpine", "", (), ()),
        ("nvcr.io/nvidia/l4t-pytorch:r35.2.1-pth2.0-py3", "glibc", ("arm64",), ("sm_72", "sm_87")),
        ("dustynv/l4t-pytorch:r36.2.0", "glibc", ("arm64",), ()),
        ("nvcr.io/nvidia/pytorch:24.12-py3-igpu", "glibc", ("arm64",), ()),
        ("nvcr.io/nvidia/pytorch:20.06-py3", "glibc", (), ()),
        (
            "nvcr.io/nvidia/pytorch:25.10-py3",
            "glibc",
            (),
            ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"),
        ),
        ("ghcr.io/huggingface/text-embeddings-inference:89-1.5", "glibc", ("amd64",), ("sm_89",)),
        ("rayproject/ray:2.44.0-py311-cpu-aarch64", "glibc", ("arm64",), ()),
    ],
)
def test_for_which_machines_an_image_is(
    reference: str, libc: str, architectures: tuple[str, ...], archs: tuple[str, ...]
) -> None:
    facts = facts_of_name(reference)
    assert (facts.libc, facts.architectures, facts.archs) == (libc, architectures, archs)


def test_every_family_has_its_source_and_an_example() -> None:
    texts = []
    for name in NAMES:
        reference = parse(name)
        if reference is not None:
            texts.append(f"{reference.name}:{reference.tag}" if reference.tag else reference.name)
    for family in imagenames.families():
        assert family.source.startswith("https://"), family.pattern
        assert any(re.fullmatch(family.pattern, text) for text in texts), family.pattern
    for months in (imagenames.NGC_TORCH_ARCHS, imagenames.NGC_PYTHONS):
        assert all(first <= last and {first, last} <= imagenames.ngc_releases().keys() for first, last, _ in months)


def test_parts() -> None:
    short = parse("ubuntu")
    assert short is not None
    assert (short.registry, short.repository, short.name, short.moving) == (
        "docker.io",
        "library/ubuntu",
        "ubuntu",
        True,
    )
    whole = parse("localhost:5000/team/train:v1@sha256:" + "a" * 64)
    assert whole is not None
    assert (whole.registry, whole.repository, whole.tag) == ("localhost:5000", "team/train", "v1")
    assert whole.pinned and not whole.moving
    for text in ("", "UPPER/case", "a b", "name:tag:tag", "name@sha256:short"):
        assert parse(text) is None


def test_plain_images() -> None:
    for reference in (
        "ubuntu:22.04",
        "python:3.11-slim",
        "docker.io/library/debian",
        "public.ecr.aws/docker/library/python:3.9",
    ):
        assert is_plain(reference)
    for reference in (
        "pytorch/pytorch:latest",
        "myorg/python:3.11",
        "registry.example.com/python:3.11",
        "nvidia/cuda:12.4",
    ):
        assert not is_plain(reference)


def test_a_configuration_goes_before_the_name() -> None:
    reference = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"
    known = ImageFacts(reference=reference, cuda="12.6.1", python="3.11.9", frameworks={"torch": "2.5.0+cu126"})
    both = merge_facts(known, reference)
    assert (both.cuda, both.python, both.cudnn) == ("12.6.1", "3.11.9", "9")
    assert both.frameworks == {"torch": "2.5.0+cu126"}
    assert both.base == "registry"
    assert merge_facts(None, reference).base == "name"
