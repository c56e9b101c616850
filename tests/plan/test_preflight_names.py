"""What the references of well-known images say by themselves, and that unknown ones say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.imagefacts import ImageFacts
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
    "nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04": {"cuda": "12.8.1"},
    "nvcr.io/nvidia/cuda:13.0.2-base-ubi9": {"cuda": "13.0.2"},
    "nvcr.io/nvidia/pytorch:25.03-py3": {"cuda": "12.8.1"},
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
    "us-docker.pkg.dev/deeplearning-platform-release/gcr.io/pytorch-cu124.2-4.py310": {
        "cuda": "12.4",
        "python": "3.10",
    },
    "mcr.microsoft.com/aifx/acpt/stable-ubuntu2204-cu124-py310-torch250:biweekly.202410.1": {
        "cuda": "12.4",
        "python": "3.10",
        "frameworks": {"torch": "2.5.0+cu124"},
    },
    "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04:latest": {"cuda": "11.8", "cudnn": "8"},
    "mcr.microsoft.com/azureml/openmpi4.1.0-ubuntu22.04": {},
    "tensorflow/tensorflow:2.17.0-gpu": {"cuda": "12.3", "frameworks": {"tensorflow": "2.17.0"}},
    "tensorflow/tensorflow:2.16.1": {"frameworks": {"tensorflow": "2.16.1"}},
    "tensorflow/tensorflow:latest-gpu": {},
    "rocm/pytorch:rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0": {
        "rocm": "7.1",
        "python": "3.12",
        "frameworks": {"torch": "2.8.0+rocm7.1"},
    },
    "rayproject/ray:2.44.0-py311-cu124": {"cuda": "12.4", "python": "3.11", "frameworks": {"ray": "2.44.0"}},
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
