"""What is known of packages with device code: every row has its source, and each judgement comes from its row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from packaging.specifiers import SpecifierSet
from tests.plan.test_preflight import CLIENT, a_plan, a_step, no_registry
from tests.plan.test_proving import SLIM, proof_of

from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.receipt import Proof
from stoker.core.resources import ResourceSettings
from stoker.devices.probe import parse_simulation
from stoker.plan import preflight
from stoker.plan.components import jaxtensorflow as jax
from stoker.plan.components import torchparts
from stoker.plan.components import wheels as arrays
from stoker.plan.components.base import USES_DEVICES, USES_NO_DEVICES
from stoker.plan.components.cudalibraries import provided
from stoker.plan.components.releases import Release
from stoker.plan.packages import TORCH_PINS
from stoker.plan.preflight import Surroundings, judge
from stoker.plan.proving import components
from stoker.plan.rules import PlanFacts
from stoker.vendors.nvidia.builds import archs_of

TABLES: Sequence[Mapping[str, Sequence[Release]]] = (
    arrays.CUPY_TABLE,
    arrays.NUMBA_TABLE,
    arrays.RAPIDS_TABLE,
    arrays.INFERENCE_TABLE,
    jax.TABLE,
    torchparts.COMPILED,
    torchparts.TABLE,
    arrays.TREES_TABLE,
    {f"jax-cuda{major}-plugin": rows for major, rows in jax.PLUGINS.items()},
)
H100, T4, V100, P100 = (f"1x{model};driver=550.90.07" for model in ("H100", "T4", "V100", "P100"))
B200 = "1xB200;driver=580.95.05"
MI300X = "1xMI300X"
CUDNN_9 = "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"
CUDNN_8 = "nvidia/cuda:12.2.2-cudnn8-runtime-ubuntu22.04"
CUDA_11 = "nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04"
RUNTIME = "nvidia/cuda:12.4.1-runtime-ubuntu22.04"
DEVEL = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-devel"
TORCH_IMAGE = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"


def rows() -> Iterator[tuple[str, Release]]:
    for table in TABLES:
        for name, releases in table.items():
            yield from ((name, row) for row in releases)


def proof(parent: str, *requirements: str, on: str = H100, **more: object) -> Proof:
    answer = proof_of(parent, *requirements, on=on, **more)  # type: ignore[arg-type]
    assert answer is not None
    return answer


def test_every_row_has_its_source_and_can_be_read() -> None:
    for name, row in rows():
        assert re.search(r"https://\S+\.\S+", row.source), name
        assert str(SpecifierSet(row.versions)), f"{name}: a row without versions is about every release"
        for archs in (row.archs, *row.archs_by_cuda.values()):
            assert all(re.fullmatch(r"(sm|compute)_\d{2,3}", one) for one in archs_of(archs)), (name, archs)
        assert row.cuda or row.libraries == "torch" or row.compiled or row.least, f"{name}: {row.versions} says nothing"
        assert row.archs or row.archs_by_cuda or row.least or row.compiled, f"{name}: {row.versions} names no chips"
        assert set(row.vendors) <= {"nvidia", "amd", "intel", "gaudi", "tpu"}


def test_no_release_has_two_rows() -> None:
    for table in TABLES:
        for name, releases in table.items():
            edges = {edge for row in releases for edge in re.findall(r"\d+(?:\.\w+)+", row.versions)}
            for edge in edges:
                assert sum(SpecifierSet(row.versions).contains(edge) for row in releases) <= 1, (name, edge)


def test_pins_name_one_torch_for_each_release() -> None:
    for name, pins in TORCH_PINS.items():
        for versions, torch in pins:
            assert re.fullmatch(r"\d+\.\d+\.\d+", torch), name
            assert sum(one == versions for one, _ in pins) == 1


def test_components_know_their_distributions_and_no_list_says_otherwise() -> None:
    named = frozenset().union(*(component.distributions for component in components())) - {"torch"}
    assert named <= USES_DEVICES, sorted(named - USES_DEVICES)
    assert not USES_DEVICES & USES_NO_DEVICES, sorted(USES_DEVICES & USES_NO_DEVICES)
    assert {name for table in TABLES for name in table} <= named


@pytest.mark.parametrize(
    ("parent", "requirements", "on"),
    [
        (CUDNN_9, ("onnxruntime-gpu==1.20.2",), H100),
        (CUDNN_9, ("onnxruntime-gpu==1.23.2", "numpy"), T4),
        (CUDA_11, ("onnxruntime-gpu==1.16.3",), T4),
        (SLIM, ("onnxruntime-gpu[cuda,cudnn]==1.23.2",), T4),
        (SLIM, ("torch==2.4.0", "onnxruntime-gpu==1.20.2"), T4),
        (CUDNN_9, ("ctranslate2==4.5.0",), H100),
        (CUDNN_8, ("ctranslate2==4.4.0",), T4),
        (RUNTIME, ("faster-whisper==1.1.1", "ctranslate2==4.6.3"), H100),
        (SLIM, ("tensorflow[and-cuda]==2.17.1",), H100),
        (CUDNN_9, ("tensorflow==2.18.1",), T4),
        ("tensorflow/tensorflow:2.17.0-gpu", (), T4),
        (SLIM, ("jax[cuda12]==0.6.2",), H100),
        (  # as a lock has it
            SLIM,
            ("jax==0.6.2", "jax-cuda12-plugin==0.6.2", "nvidia-cublas-cu12==12.9.1.4", "nvidia-cudnn-cu12==9.8.0.87"),
            H100,
        ),
        (SLIM, ("tensorflow==2.17.1", "nvidia-cublas-cu12==12.3.4.1", "nvidia-cudnn-cu12==8.9.7.29"), H100),
        (SLIM, ("jax[cuda13]==0.10.2",), "1xH100;driver=580.95.05"),
        (RUNTIME, ("cupy-cuda12x==13.3.0",), T4),
        (SLIM, ("cupy-cuda12x[ctk]==14.0.1",), T4),
        (RUNTIME, ("spacy[cuda12x]==3.7.5",), T4),
        (SLIM, ("cudf-cu12==24.12.0",), V100),
        (SLIM, ("torch==2.4.0", "bitsandbytes==0.44.1"), H100),
        (SLIM, ("torch==2.8.0+cu128", "bitsandbytes==0.50.0"), B200),
        (SLIM, ("torch==2.8.0+cu129", "bitsandbytes==0.50.0"), B200),  # it takes its part for 12.8
        (SLIM, ("vllm==0.6.3",), H100),
        (SLIM, ("torch==2.4.0", "xformers==0.0.27.post2"), T4),
        (SLIM, ("torch==2.4.0+cu118", "xformers==0.0.27.post2+cu118"), T4),
        (SLIM, ("torch==2.4.0", "torchvision==0.19.0", "torchaudio==2.4.0"), H100),
        (SLIM, ("torch==2.4.0+cu121", "torch-scatter==2.1.2+pt24cu121"), H100),
        (SLIM, ("xgboost==3.1.3",), H100),
        (SLIM, ("torch==2.4.0", "xgboost==1.7.6", "lightgbm==4.6.0"), H100),
        (DEVEL, ("deepspeed==0.14.4",), H100),
        (SLIM, ("torch-xla[tpu]==2.7.0", "torch==2.7.0"), "1xTPU-v5e"),
        (SLIM, ("jax[tpu]==0.10.2",), "1xTPU-v5e"),
    ],
)
def test_what_fits_is_proved(parent: str, requirements: tuple[str, ...], on: str) -> None:
    answer = proof(parent, *requirements, on=on)
    assert (answer.verdict, answer.unknown, answer.refused) == ("proved", (), ())
    assert all(one.source for one in answer.facts)


@pytest.mark.parametrize(
    ("parent", "requirements", "on", "code", "words"),
    [
        (CUDNN_9, ("onnxruntime-gpu==1.18.1",), T4, "STK222", "loads the libraries of CUDA 11, and there is CUDA 12"),
        (RUNTIME, ("onnxruntime-gpu==1.20.2",), T4, "STK222", "loads the libraries of cuDNN 9, and there is no cuDNN"),
        (SLIM, ("onnxruntime-gpu==1.20.2",), T4, "STK222", "there is no CUDA"),
        (SLIM, ("torch==2.3.1", "onnxruntime-gpu==1.20.2"), T4, "STK222", "cuDNN 9, and there is cuDNN 8"),
        (SLIM, ("onnxruntime==1.19.2",), T4, "STK226", "computes on the CPU"),
        (SLIM, ("onnxruntime-gpu==1.20.2",), MI300X, "STK226", "on devices of NVIDIA only"),
        (CUDNN_9, ("ctranslate2==4.4.0",), T4, "STK222", "cuDNN 8, and there is cuDNN 9"),
        (SLIM, ("tensorflow==2.17.1",), T4, "STK222", "there is no CUDA"),
        (CUDNN_9, ("tensorflow==2.17.0",), T4, "STK222", "cuDNN 8, and there is cuDNN 9"),
        (SLIM, ("tensorflow[and-cuda]==2.16.1",), T4, "STK222", "there is no CUDA"),
        (SLIM, ("cudf-cu12==24.12.0",), "1xT4;driver=470.82.01", "STK222", "does not run CUDA 12"),
        (SLIM, ("tensorflow[and-cuda]==2.17.1",), "1xM60;driver=550.90.07", "STK223", "no code for sm_52"),
        ("python:3.13-slim", ("tensorflow[and-cuda]==2.17.1",), T4, "STK227", "no wheel for Python 3.13"),
        ("python:3.10-slim", ("jax[cuda12]==0.7.2",), T4, "STK227", "no wheel for Python 3.10"),
        ("python:3.13-slim", ("jax[cuda12]==0.4.30",), T4, "STK227", "no wheel for Python 3.13"),
        (SLIM, ("jax[cuda12]==0.4.38", "nvidia-cudnn-cu12==8.9.7.29"), T4, "STK222", "requires cuDNN 9 by its extra"),
        (SLIM, ("torch==2.5.1", "Nvidia.cuDNN_cu12==8.9.7.29"), T4, "STK212", "torch==2.5.1 requires cuDNN 9"),
        (SLIM, ("torch==2.3.1", "nvidia-cudnn-cu12==9.1.0.70"), T4, "STK212", "torch==2.3.1 requires cuDNN 8"),
        (SLIM, ("torch==2.4.0", "torch==2.5.1"), T4, "STK212", "no version of torch satisfies"),
        (SLIM, ("cupy-cuda12x==13.3.0",), T4, "STK222", "loads the libraries of CUDA 12, and there is no CUDA"),
        (SLIM, ("cupy==13.3.0",), T4, "STK225", "is compiled when it is installed"),
        (SLIM, ("cudf-cu12==25.10.0",), P100, "STK223", "needs sm_70 or newer"),
        (SLIM, ("torch==2.6.0+cu126", "bitsandbytes==0.44.1"), T4, "STK222", "no part for CUDA 12.6"),
        (SLIM, ("torch==2.4.0", "bitsandbytes==0.44.1"), MI300X, "STK226", "on devices of NVIDIA only"),
        (SLIM, ("torch==2.5.1", "vllm==0.6.3"), H100, "STK224", "requires torch==2.4.0"),
        (SLIM, ("vllm==0.6.3",), P100, "STK223", "needs sm_70 or newer"),
        (SLIM, ("torch==2.5.1", "xformers==0.0.27"), H100, "STK224", "requires torch==2.3.1"),
        (SLIM, ("torch==2.5.1", "torch-scatter==2.1.2+pt24cu121"), H100, "STK224", "is a wheel for torch 2.4"),
        (SLIM, ("torch==2.4.0", "torch-scatter==2.1.2"), H100, "STK225", "has no nvcc"),
        (SLIM, ("torch==2.4.0", "flash-attn==2.6.3"), T4, "STK223", "needs sm_80 or newer"),
        (DEVEL, ("torch==2.4.0+cu118", "flash-attn==2.6.3"), H100, "STK225", "nvcc of CUDA 12.4"),
        (SLIM, ("torch==2.4.1", "deepspeed==0.15.1"), H100, "STK225", "looks for nvcc"),
        (SLIM, ("torch==2.4.0", "xgboost==3.1.3", "vllm==0.9.2"), H100, "STK224", "requires torch==2.7.0"),
        (SLIM, ("torch==2.7.0",), "1xTPU-v5e", "STK226", "torch-xla, which is not among the requirements"),
        (SLIM, ("torch-xla==2.7.0", "torch==2.7.0"), H100, "STK226", "on devices of"),
    ],
)
def test_what_is_known_not_to_fit_is_refused(
    parent: str, requirements: tuple[str, ...], on: str, code: str, words: str
) -> None:
    answer = proof(parent, *requirements, on=on)
    assert answer.verdict == "refused"
    assert words in {one.code: one.what for one in answer.refused}.get(code, ""), answer.refused


@pytest.mark.parametrize(
    ("parent", "requirements", "on", "words"),
    [
        (CUDNN_9, ("onnxruntime-gpu==1.99.0",), T4, "no facts for onnxruntime-gpu 1.99.0"),
        (CUDNN_9, ("onnxruntime-gpu",), T4, "onnxruntime-gpu: its version is decided when it is installed"),
        ("myorg/anything:3", ("onnxruntime-gpu==1.20.2",), T4, "whether they are there is not known"),
        (SLIM, ("onnxruntime-gpu==1.20.2", "mycompany-tools"), T4, "whether they are there is not known"),
        (SLIM, ("onnxruntime==1.20.1", "onnxruntime-gpu[cuda,cudnn]==1.23.2"), T4, "which of them is imported"),
        (SLIM, ("tensorflow[and-cuda]==2.19.1",), B200, "was built for chips up to sm_90"),
        ("tensorflow/tensorflow:2.15.0-gpu", (), T4, "reported to find no device"),
        (DEVEL, ("flash-attn==2.6.3",), H100, "is compiled when it is installed"),
        (SLIM, ("spacy[cuda-autodetect]==3.7.5",), T4, "no facts for the CuPy that"),
        (SLIM, ("bitsandbytes==0.44.1",), T4, "no part for CUDA 13.2 of torch 2.15"),
        ("rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", ("bitsandbytes==0.49.2",), MI300X, "of AMD"),
    ],
)
def test_what_is_not_known_is_named(parent: str, requirements: tuple[str, ...], on: str, words: str) -> None:
    answer = proof(parent, *requirements, on=on)
    assert answer.verdict == "not-proved", answer.refused
    assert words in " ".join(one.reason for one in answer.unknown), answer.unknown


def test_a_package_replaces_the_images_torch_by_the_one_that_it_pins() -> None:
    image = ImageFacts(reference=TORCH_IMAGE, python="3.11", frameworks={"torch": "2.4.0+cu124"})
    answer = proof(TORCH_IMAGE, "vllm==0.8.5", image=image)
    assert "vllm 0.8.5 requires torch==2.6.0, and there is torch 2.6.0" in [one.fact for one in answer.facts]
    assert answer.verdict == "proved", answer.unknown
    assert proof(TORCH_IMAGE, "vllm==0.8.5", on="1xH100;driver=470.82.01").verdict == "refused"


def test_one_of_several_devices_that_does_not_fit_refuses_nothing() -> None:
    either = ResourceSettings(accelerators=["T4:1", "H100:1"])
    machine = "1xT4,1xH100;driver=550.90.07"
    answer = proof(SLIM, "torch==2.4.0", "cudf-cu12==25.10.0", on=machine, asks=either)
    assert answer.verdict == "proved"
    answer = proof(SLIM, "torch==2.4.0+cu121", "flash-attn==2.6.3+cu12torch2.4cxx11abiFALSE", on=machine, asks=either)
    assert answer.verdict == "not-proved"
    assert "flash-attn 2.6.3+cu12torch2.4cxx11abifalse needs sm_80 or newer" in " ".join(
        one.reason.replace("FALSE", "false") for one in answer.unknown
    )


def test_libraries_in_an_image_that_was_read_count() -> None:
    read = ImageFacts(reference="myorg/x:1", cuda="12.4", cudnn="9.1", python="3.11", architectures=("amd64",))
    read_all = ImageFacts(
        reference="myorg/x:1",
        cuda="12.4",
        cudnn="9.1",
        python="3.11",
        architectures=("amd64",),
        distributions={"numpy": "1.26.4"},
    )
    assert proof("myorg/x:1", "onnxruntime-gpu==1.20.2", on=T4, image=read_all).verdict == "proved"
    reasons = " ".join(one.reason for one in proof("myorg/x:1", "onnxruntime-gpu==1.20.2", image=read).unknown)
    assert "onnxruntime" not in reasons


def facts_with(parent: str, *requirements: str, **docker: object) -> PlanFacts:
    settings = DockerSettings(parent_image=parent, requirements=requirements, **docker)  # type: ignore[arg-type]
    step = a_step(settings, ResourceSettings(gpu_count=1))
    return preflight._image_facts(
        step, inventory=parse_simulation(H100), image_facts=no_registry, client=CLIENT, last_digests={}
    )


def test_libraries_of_apts_packages_count() -> None:
    there = provided(facts_with(SLIM, "numpy", apt_packages=["libcudnn9-cuda-12", "cuda-toolkit-12-4", "libgl1"]))
    assert set(there.cuda) == {12} and set(there.cudnn) == {9}
    assert there.nvcc == (12, 4) and there.complete
    assert not provided(facts_with(SLIM, "numpy", apt_packages=["nvidia-something"])).complete


def test_the_compiler_and_the_libraries_of_images_are_those_of_their_names() -> None:
    base = provided(facts_with("nvidia/cuda:12.4.1-base-ubuntu22.04", "numpy"))
    assert (dict(base.cuda), dict(base.cudnn), base.nvcc, base.complete) == ({}, {}, (), True)
    devel = provided(facts_with("nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04", "numpy"))
    assert (set(devel.cuda), set(devel.cudnn), devel.nvcc) == ({12}, {9}, (12, 4))
    unknown = provided(facts_with("myorg/anything:3", "numpy"))
    assert unknown.nvcc is None and not unknown.complete


def test_flash_attn_takes_a_wheel_of_its_own_where_it_sees_torch() -> None:
    arguments = {"no-build-isolation": None}
    image = ImageFacts(reference=DEVEL, python="3.11", frameworks={"torch": "2.4.0+cu124"}, architectures=("amd64",))
    step = a_step(
        DockerSettings(
            parent_image=DEVEL, requirements=("flash-attn==2.6.3",), python_package_installer_args=arguments
        ),
        ResourceSettings(gpu_count=1),
    )
    surroundings = Surroundings(
        inventory=lambda: parse_simulation(H100),
        image_facts=lambda reference: image,
        in_images=frozenset({"orchestrator"}),
        here=frozenset(),
    )
    [judged], _ = judge(a_plan(step), surroundings, client=CLIENT)
    assert judged.proof is not None
    assert "flash-attn 2.6.3 has a wheel that is built against torch 2.4.0" in [one.fact for one in judged.proof.facts]


@pytest.mark.parametrize("package", ["torch==2.5.1", "jax[cuda12]==0.4.38"])
def test_a_library_that_is_pinned_beside_the_package_that_requires_it_needs_a_lock(package: str) -> None:
    answer = proof(SLIM, package, "nvidia-cudnn-cu12==9.1.0.70", on=T4)
    assert answer.verdict == "not-proved" and "nvidia-cudnn-cu12" in answer.unknown[0].reason
    assert proof(SLIM, package, "nvidia-cudnn-cu12", on=T4).verdict == "proved"
    assert proof(SLIM, "torch==2.5.1", "torch==2.5.1+cu124", on=T4).verdict == "proved"
