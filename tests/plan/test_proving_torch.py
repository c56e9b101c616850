"""What is known of PyTorch's builds: for CUDA by release, for ROCm by chip, and of what belongs to one torch."""

from __future__ import annotations

import pytest
from tests.plan.test_proving import SLIM, proof_of, verdict

from stoker.core.docker import ImageFacts
from stoker.core.resources import ResourceSettings
from stoker.plan.components import torch, torchparts
from stoker.vendors.amd import GFX
from stoker.vendors.nvidia.builds import TORCH, torch_archs

A100 = "1xA100;driver=550.90.07"


@pytest.mark.parametrize(
    ("version", "cuda", "archs"),
    [
        ("1.8.1", (10, 2), "sm_37 sm_50 sm_60 sm_70"),
        ("1.8.1", (11, 1), "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86"),
        ("1.7.1", (11, 0), "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80"),
        ("1.12.1", (11, 6), "sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86"),
        ("1.7.1", (11, 1), ""),
        ("1.3.0", (10, 1), ""),
    ],
)
def test_old_builds(version: str, cuda: tuple[int, int], archs: str) -> None:
    assert torch_archs(version, cuda, "x86_64") == tuple(archs.split())
    assert all(len(row) == 4 for rows in TORCH.values() for row in rows)


@pytest.mark.parametrize(
    ("image", "on", "answer"),
    [
        ("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", "1xA100;driver=470.82.01", "proved"),
        ("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", "1xH100;driver=525.105.17", "refused"),
        ("pytorch/pytorch:1.6.0-cuda10.1-cudnn7-runtime", "1xV100;driver=418.87.01", "proved"),
        ("pytorch/pytorch:1.6.0-cuda10.1-cudnn7-runtime", "1xV100;driver=410.48", "refused"),
        ("pytorch/pytorch:1.6.0-cuda10.1-cudnn7-runtime", "1xA100;driver=470.82.01", "refused"),
        # The runtime images have no condition of their own: minor-version compatibility decides.
        ("pytorch/pytorch:2.5.1-cuda11.8-cudnn9-runtime", "1xT4;driver=470.256.02", "proved"),
        ("pytorch/pytorch:2.5.1-cuda11.8-cudnn9-devel", "1xT4;driver=470.256.02", "not-proved"),
    ],
)
def test_images_of_old_and_new_releases(image: str, on: str, answer: str) -> None:
    assert verdict(image, on=on) == answer


def test_what_a_driver_before_the_tables_runs_is_not_known() -> None:
    proof = proof_of("pytorch/pytorch:1.6.0-cuda10.1-cudnn7-runtime", on="1xK80;driver=375.26")
    assert proof is not None
    assert "driver" in {one.component for one in proof.unknown} and proof.verdict == "not-proved"


@pytest.mark.parametrize(
    ("requirements", "answer"),
    [
        (("torch==2.5.1", "torchvision==0.20.1", "torchaudio==2.5.1"), "proved"),
        (("torch==2.5.1+cu121", "torchvision==0.20.1+cu121"), "proved"),
        (("torch==1.13.1", "torchvision==0.14.1"), "proved"),
        (("torch==2.5.1+cu118", "torchvision==0.20.1"), "not-proved"),  # one from another index, for CUDA 12
        (("torch==2.5.1", "torchvision==0.19.1"), "refused"),
        (("torch==2.5.1", "torchvision"), "not-proved"),
        (("torch==2.5.1", "triton==3.1.0"), "proved"),
        (("torch==2.5.1", "triton==2.1.0"), "refused"),
        (("torch==2.5.1", "triton"), "not-proved"),
    ],
)
def test_companions(requirements: tuple[str, ...], answer: str) -> None:
    image = "python:3.10-slim" if "1.13" in requirements[0] else SLIM
    assert verdict(image, *requirements, on=A100) == answer


@pytest.mark.parametrize(
    ("requirement", "model", "answer"),
    [
        ("torch==2.0.1+rocm5.4.2", "MI250X", "proved"),
        ("torch==2.0.1+rocm5.4.2", "RX7900XTX", "refused"),
        ("torch==2.2.2+rocm5.7", "MI300X", "refused"),
        ("torch==2.3.1+rocm5.7", "MI300X", "refused"),
        ("torch==2.3.1+rocm6.0", "MI300X", "proved"),
        ("torch==2.6.0+rocm6.2.4", "RX9070XT", "refused"),
        ("torch==2.7.0+rocm6.2.4", "RX9070XT", "not-proved"),
        ("torch==2.7.0+rocm6.3", "RX9070XT", "proved"),
        ("torch==2.9.1+rocm6.4", "MI355X", "not-proved"),
        ("torch==2.10.0+rocm7.0", "MI355X", "proved"),
        ("torch==2.99.0+rocm9.9", "MI300X", "not-proved"),
        ("torch==2.4.1+rocm6.1", "H100", "refused"),
    ],
)
def test_builds_for_rocm(requirement: str, model: str, answer: str) -> None:
    on = f"1x{model}" + (";driver=580.95.05" if model == "H100" else "")
    python = "python:3.12-slim" if "2.10" in requirement else "python:3.10-slim"
    assert verdict(python, requirement, on=on) == answer


@pytest.mark.parametrize(
    ("tag", "model", "answer"),
    [
        ("rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", "MI300X", "proved"),
        ("rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", "MI355X", "refused"),
        ("rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0", "MI355X", "proved"),
        ("rocm7.1_ubuntu24.04_py3.12_pytorch_release_2.8.0", "RX7600", "not-proved"),
    ],
)
def test_images_for_rocm(tag: str, model: str, answer: str) -> None:
    assert verdict(f"rocm/pytorch:{tag}", on=f"1x{model}") == answer


def test_without_a_machine_that_lists_an_amd_gpu_its_driver_is_not_known() -> None:
    proof = proof_of(SLIM, "torch==2.4.1+rocm6.1", on=None, asks=ResourceSettings(accelerators="MI300X"))
    assert proof is not None
    assert {one.component for one in proof.unknown} == {"driver"}


def test_each_row_for_rocm_has_its_source_and_names_chips_of_the_catalog() -> None:
    known = {gfx.removeprefix("gfx") for gfx in GFX.values()} | {"1150", "1151", "1103"}
    for row in torch.BUILDS:
        assert row.source.startswith("https://") and row.first <= row.last
        assert set(row.chips.split()) <= known and not set(row.chips.split()) & set(row.unsure.split())
    assert list(torch.BUILDS) == sorted(torch.BUILDS, key=lambda row: (row.first, row.rocm)), "a later row wins"
    for release, version in torchparts.TRITON.items():
        assert release.count(".") == version.count(".") == 2


@pytest.mark.parametrize("requirement", ["torch==2.5.1+cu124", "tensorflow==2.17.0", "cupy-cuda12x==13.3.0"])
def test_wheels_for_glibc_are_refused_on_musl(requirement: str) -> None:
    proof = proof_of("python:3.10-alpine", requirement, on=A100)
    assert proof is not None and "STK212" in {one.code for one in proof.refused}
    read = ImageFacts(reference="myorg/x:1", libc="musl", python="3.10", architectures=("amd64",), distributions={})
    refused = proof_of("myorg/x:1", requirement, on=A100, image=read)
    assert refused is not None and "STK212" in {one.code for one in refused.refused}


@pytest.mark.parametrize(
    ("image", "requirement", "on", "answer"),
    [
        ("python:3.12-slim", "torch==2.9.1+cu128", "1xGH200;driver=570.172.08", "proved"),
        ("python:3.12-slim", "torch==2.11.0", "1xGH200;driver=580.95.05", "proved"),
        ("myorg/x:1", "torch==2.11.0", "1xGH200;driver=580.95.05", "not-proved"),
        # CUDA 13 has neither Volta, nor older drivers.
        (SLIM, "torch==2.11.0", "1xV100;driver=580.95.05", "refused"),
        (SLIM, "torch==2.11.0", "1xT4;driver=580.95.05", "proved"),
        (SLIM, "torch==2.11.0", "1xT4;driver=575.57.08", "refused"),
    ],
)
def test_processors_and_cuda_13(image: str, requirement: str, on: str, answer: str) -> None:
    assert verdict(image, requirement, on=on) == answer


def test_the_python_that_a_build_installs_counts() -> None:
    image = "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"
    proof = proof_of(image, "torch==2.5.1", on=A100)
    assert proof is not None
    assert "torch 2.5.1 has wheels for Python 3.11" in {fact.fact for fact in proof.facts}
