"""The proof before a run: each rule refuses the case that it comes from, and nothing that works or is not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pytest

from stoker.core.devices import Device, Inventory
from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.findings import Finding
from stoker.core.plan import Plan, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import DEFAULTS, Launch, StepSettings
from stoker.devices.probe import parse_simulation
from stoker.plan.preflight import findings
from stoker.plan.rules import ClientPython

CLIENT = ClientPython(python=(3, 11, 9), versions={"torch": "2.4.0", "numpy": "1.26.4"}, machine="x86_64")
OLD = "1xH100;driver=470.82.01"
NEW = "1xH100;driver=580.95.05"
PYTORCH = "pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime"
DIGEST = "sha256:" + "a" * 64


def no_registry(reference: str) -> ImageFacts | None:
    return None


def a_step(
    docker: DockerSettings | None,
    resources: ResourceSettings,
    *,
    name: str = "train",
    kind: Any = "module",
    **more: Any,
) -> StepPlan:
    return StepPlan(
        key=name,
        name=name,
        source=FunctionSource(kind=kind, path="train.py", module="train", qualname=name),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(resources=resources, docker=docker, **more),
        backend="orchestrator",
        code="",
        where="train.py:7",
    )


def a_plan(*steps: StepPlan, told: tuple[Finding, ...] = ()) -> Plan:
    return Plan(pipeline="p", steps=steps, parameters={}, failure_mode="fail_fast", stack="s", findings=told)


def said(
    parent: str | None = None,
    requirements: Sequence[str] = (),
    *,
    on: str | Inventory | None = NEW,
    asks: ResourceSettings | None = None,
    facts: Callable[[str], ImageFacts | None] = no_registry,
    client: ClientPython = CLIENT,
    seen: dict[str, str] | None = None,
    kind: str = "module",
    settings: dict[str, Any] | None = None,
    **docker: Any,
) -> dict[str, Finding]:
    """The findings of one step by code; of several of one code, the first of the gravest."""
    given = {"parent_image": parent, **docker} if parent is not None else docker
    if requirements:
        given["requirements"] = requirements
    step = a_step(
        DockerSettings(**given),
        ResourceSettings(gpu_count=1) if asks is None else asks,
        kind=kind,
        **(settings or {}),
    )
    inventory = parse_simulation(on) if isinstance(on, str) else on
    found = findings(a_plan(step), inventory=inventory, image_facts=facts, client=client, last_digests=seen)
    by_code: dict[str, Finding] = {}
    for finding in found:
        before = by_code.get(finding.code)
        if before is None or (finding.level == "error" and before.level != "error"):
            by_code[finding.code] = finding
    return by_code


def level(found: dict[str, Finding], code: str) -> str:
    return found[code].level if code in found else ""


def refused(found: dict[str, Finding]) -> list[str]:
    return sorted(code for code, finding in found.items() if finding.level == "error")


def read(**known: Any) -> Callable[[str], ImageFacts]:
    return lambda reference: ImageFacts(reference=reference, **known)


# What works is not refused.


@pytest.mark.parametrize(
    ("parent", "requirements", "on"),
    [
        (PYTORCH, (), NEW),
        (PYTORCH, ("torch>=2", "numpy"), NEW),
        ("python:3.11-slim", ("torch==2.4.0",), NEW),
        ("python:3.11-slim", ("torch==2.4.0+cu118",), "1xV100;driver=470.82.01"),
        ("python:3.11-slim", ("jax[cuda12]==0.6.2",), NEW),
        ("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", ("cupy-cuda12x",), NEW),
        ("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", ("tensorflow==2.18.0",), NEW),  # 2.17 needs cuDNN 8
        ("rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0", (), "1xMI300X"),
        ("myorg/anything:3", ("whatever==1", "-r not-there.txt"), NEW),
        (PYTORCH, (), None),
    ],
)
def test_what_works_or_is_not_known_is_not_refused(parent: str, requirements: Sequence[str], on: str | None) -> None:
    assert refused(said(parent, requirements, on=on)) == []


def test_the_pipeline_of_the_example_passes_on_a_new_driver_and_is_refused_on_an_old_one() -> None:
    assert refused(said(PYTORCH, on=NEW)) == []
    found = said(PYTORCH, on=OLD)
    assert "STK203" in refused(found)
    assert "driver 470.82.01 (CUDA 11.4) is too old for torch 2.4.0+cu124" in found["STK203"].what
    assert "CUDA 12 needs driver 525.60.13 or later" in found["STK203"].what
    # A machine that has both proves that the driver knows the chip, and is refused for its CUDA all the same.
    assert "525.60.13" in said(PYTORCH, on=attrs.evolve(parse_simulation(OLD), simulated=False))["STK203"].what


def test_where_no_image_is_named_the_one_that_the_build_takes_is_judged() -> None:
    found = said()
    assert refused(found) == ["STK201"]
    assert "python:3.11-slim" in found["STK201"].what
    assert refused(said(requirements=("torch==2.4.0",))) == []


def test_an_accelerator_chooses_the_image_and_torchs_wheels_as_in_the_build() -> None:
    on = "1xA100;driver=535.183.01"
    assert refused(said(requirements=("torch",), on=on)) == ["STK203"]
    found = said(requirements=("torch",), on=on, accelerator="cuda12.4")
    assert refused(found) == []
    assert "built for CUDA 12.4" in found["STK203"].what
    # Its image has the compatibility package, which a data-centre GPU may use and a GeForce may not.
    assert level(said(requirements=("torch",), on=on, accelerator="cuda13.0"), "STK203") == "info"
    geforce = said(requirements=("torch",), on="1xRTX4090;driver=535.183.01", accelerator="cuda13.0")
    assert refused(geforce) == ["STK203"]


def test_a_step_without_devices_is_not_asked_for_cuda() -> None:
    assert refused(said("python:3.11-slim", ("torch==2.4.0+cpu",), asks=ResourceSettings(cpu_count=1))) == []


# STK201


def test_a_plain_image_for_a_gpu_is_refused() -> None:
    """kubeflow/pipelines 2561: it completes, and does not use the GPU."""
    found = said("python:3.11-slim", ("scikit-learn", "pandas>=2"))
    assert refused(found) == ["STK201"]
    assert "python:3.11-slim" in found["STK201"].what
    assert found["STK201"].fix


@pytest.mark.parametrize("requirement", ["vllm==0.6.0", "nvidia-cuda-runtime-cu12", "somebodys-package", "xgboost"])
def test_a_requirement_that_may_bring_cuda_is_not_refused(requirement: str) -> None:
    assert "STK201" not in refused(said("python:3.11-slim", (requirement,)))


def test_what_a_configuration_does_not_tell_is_said_to_be_unknown() -> None:
    found = said("myorg/train:1", facts=read(env={"PATH": "/bin"}))
    assert level(found, "STK201") == "info"
    assert "STK201" not in said("myorg/train:1")
    unknown = said("python:3.11-slim", ("attrs", "numpy", "certifi", "somebodys-package"))
    assert unknown["STK201"].why == "whether somebodys-package brings it is not known"


def test_a_step_that_may_run_without_its_gpu_is_told_and_not_stopped() -> None:
    found = said("python:3.11-slim", ("numpy",), settings={"accelerator_policy": "prefer"})
    assert level(found, "STK201") == "info"


# STK202


@pytest.mark.parametrize(
    "requirements",
    [
        # zonca/jupyterhub-deploy-kubernetes-jetstream 72: locked on a machine without a GPU.
        ("torch==2.4.0+cpu \\\n    --hash=sha256:0123",),
        ("--index-url https://download.pytorch.org/whl/cpu", "torch==2.4.0"),
        ("--extra-index-url=https://download.pytorch.org/whl/cpu", "torch>=2.2"),
        ("tensorflow-cpu==2.17.0",),
        ("jax==0.6.2",),
        ("torch @ https://download.pytorch.org/whl/cpu/torch-2.4.0%2Bcpu-cp311-cp311-linux_x86_64.whl",),
    ],
)
def test_a_build_for_the_cpu_is_refused(requirements: Sequence[str]) -> None:
    found = said("python:3.11-slim", requirements)
    assert refused(found) == ["STK202"]
    assert "CPU build" in found["STK202"].what


def test_the_index_of_an_installer_argument_counts() -> None:
    arguments = {"index-url": "https://download.pytorch.org/whl/cpu", "system": None}
    found = said("python:3.11-slim", ("torch==2.4.0",), python_package_installer_args=arguments)
    assert refused(found) == ["STK202"]
    assert refused(said("python:3.11-slim", ("torch==2.4.0",), accelerator="cpu")) == ["STK202"]


def test_torch_for_arm_is_for_the_cpu_before_2_11() -> None:
    assert refused(said("python:3.11", ("torch==2.9.0",), on="1xGH200;driver=580.95.05")) == ["STK202"]
    assert refused(said("python:3.11", ("torch==2.11.0",), on="1xGH200;driver=580.95.05")) == []


def test_torch_for_the_cpu_beside_jax_for_the_gpu_is_told() -> None:
    found = said("python:3.11-slim", ("torch==2.4.0+cpu", "jax[cuda12]==0.6.2"))
    assert refused(found) == []
    assert level(found, "STK202") == "info"


def test_requirement_files_are_read_with_what_they_include(tmp_path: Any) -> None:
    (tmp_path / "base.txt").write_text("torch==2.4.0+cpu  # locked\n")
    (tmp_path / "requirements.txt").write_text("-r base.txt\nnumpy\n")
    assert refused(said("python:3.11-slim", requirements=str(tmp_path / "requirements.txt"))) == ["STK202"]
    (tmp_path / "base.txt").write_text("-r requirements.txt\n")
    assert refused(said("python:3.11-slim", requirements=str(tmp_path / "requirements.txt"))) == []


# STK203


@pytest.mark.parametrize(
    ("parent", "requirements", "on"),
    [
        # skypilot 9406: the resolver takes cu130, the driver is 535, nvidia-smi is fine, and it runs on the CPU.
        ("python:3.11-slim", ("torch",), "1xA100;driver=535.183.01"),
        ("python:3.11-slim", ("torch>=2.11", "numpy"), "1xA100;driver=535.183.01"),
        ("python:3.11-slim", ("torch==2.13.0",), "1xA100;driver=535.183.01"),
        # skypilot 5867 and clearml 725: the toolkit in the image is newer than the driver.
        ("pytorch/pytorch:2.13.0-cuda13.0-cudnn9-runtime", (), "1xA10G;driver=550.54.15"),
        ("myorg/cuda:1", (), "1xRTX4090;driver=470.82.01"),
        ("python:3.11-slim", ("jax[cuda13]==0.8.0",), "1xA100;driver=570.124.06"),
    ],
)
def test_a_driver_that_is_too_old_is_refused(parent: str, requirements: Sequence[str], on: str) -> None:
    facts = read(cuda="12.4.1", env={"CUDA_VERSION": "12.4.1"}) if parent == "myorg/cuda:1" else no_registry
    found = said(parent, requirements, on=on, facts=facts)
    assert refused(found) == ["STK203"]
    assert found["STK203"].fix


def test_an_unpinned_torch_that_others_may_hold_back_is_told() -> None:
    found = said("python:3.11-slim", ("torch", "a-package-that-pins-torch"), on="1xA100;driver=535.183.01")
    assert refused(found) == []
    assert level(found, "STK203") == "info"
    assert "holds it back" in found["STK203"].why


def test_minor_versions_are_compatible_and_told() -> None:
    """CUDA 12.8 on driver 535, which is for 12.2."""
    found = said("python:3.11-slim", ("torch==2.9.0",), on="1xA100;driver=535.183.01")
    assert refused(found) == []
    assert level(found, "STK203") == "info"
    assert "minor-version" in found["STK203"].why


def test_the_compatibility_package_helps_data_centre_gpus_only() -> None:
    parent = "nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04"
    assert level(said(parent, on="1xA100;driver=550.54.15"), "STK203") == "info"
    assert level(said(parent, on="1xRTX4090;driver=550.54.15"), "STK203") == "error"


def test_the_container_runtimes_own_condition_is_asked() -> None:
    env = {"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=geforce,driver>=535,driver<536", "CUDA_VERSION": "12.8.1"}
    facts = read(cuda="12.8.1", env=env)
    found = said("myorg/cuda:1", on="1xA100;driver=550.54.15", facts=facts)
    assert refused(found) == ["STK203"]
    assert "cuda>=12.8" in found["STK203"].what
    assert refused(said("myorg/cuda:1", on="1xRTX4090;driver=535.183.01", facts=facts)) == []
    off = {"NVIDIA_DISABLE_REQUIRE": "1"}
    assert refused(said("myorg/cuda:1", on="1xA100;driver=550.54.15", facts=facts, runtime_environment=off)) == []


def test_a_simulated_driver_that_does_not_know_the_chip_is_refused() -> None:
    found = said("nvidia/cuda:11.4.3-runtime-ubuntu20.04", on=OLD)
    assert refused(found) == ["STK203"]
    assert "older than H100" in found["STK203"].what
    real = attrs.evolve(parse_simulation(OLD), simulated=False)
    assert "STK203" not in refused(said("nvidia/cuda:11.4.3-runtime-ubuntu20.04", on=real))


# STK204


@pytest.mark.parametrize(
    ("requirement", "on"),
    [
        ("torch==2.15.0", "1xV100;driver=580.95.05"),  # pytorch 190385
        ("torch==2.6.0", "1xRTX5090;driver=570.124.06"),
        ("torch==2.4.0+cu121", "1xB200;driver=580.95.05"),
    ],
)
def test_a_chip_that_a_wheel_has_no_code_for_is_refused(requirement: str, on: str) -> None:
    found = said("python:3.11-slim", (requirement,), on=on)
    assert refused(found) == ["STK204"]
    assert found["STK204"].fix.startswith(("require torch==", "no build of torch"))


def test_a_chip_that_only_an_alternative_has_is_told() -> None:
    asks = ResourceSettings(accelerators=["H100", "V100"], gpu_count=1)
    found = said("python:3.11-slim", ("torch==2.13.0",), on="1xH100,1xV100;driver=580.95.05", asks=asks)
    assert level(found, "STK204") == "info"


def test_chips_of_which_only_the_name_is_known_are_judged_too() -> None:
    found = said("python:3.11-slim", ("torch==2.15.0",), on=None, asks=ResourceSettings(accelerators="V100:1"))
    assert refused(found) == ["STK204"]


# STK205 and 206


def test_another_runtime_in_the_image_is_told() -> None:
    """skypilot 2694"""
    found = said("nvidia/cuda:11.8.0-runtime-ubuntu22.04", ("torch==2.13.0",))
    assert level(found, "STK205") == "info"
    assert "STK205" not in said("nvidia/cuda:12.4.1-runtime-ubuntu22.04", ("torch==2.6.0",))


@pytest.mark.parametrize(
    "requirements",
    [
        ("torch==2.4.0+cu121", "torchvision==0.19.0+cu118"),
        ("torch==2.4.0+cu121", "torchvision==0.20.0+cu121"),  # pytorch/vision 9174
        ("torch==2.6.0+cu124", "torchaudio==2.5.0+cu124"),
        ("torch==2.4.0+cu124", "torchvision==0.19.0+cpu"),
        ("torch==2.4.0", "https://x/flash_attn-2.6.3+cu118torch2.4cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        ("torch==2.4.0", "https://x/flash_attn-2.6.3+cu122torch2.3cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
        ("jax[cuda12]==0.8.0", "jax-cuda13-plugin==0.8.0"),
        ("jax==0.6.2", "jax-cuda12-plugin==0.6.0"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(requirements: Sequence[str]) -> None:
    found = said("python:3.11-slim", requirements)
    assert refused(found) == ["STK206"]
    assert found["STK206"].fix


def test_parts_that_belong_together_are_not_refused() -> None:
    both = ("torch==2.4.0+cu121", "torchvision==0.19.0+cu121", "torchaudio==2.4.0+cu121")
    assert refused(said("python:3.11-slim", both)) == []


def test_cupy_needs_its_own_cuda_in_the_image() -> None:
    parent = "nvidia/cuda:12.4.1-runtime-ubuntu22.04"
    assert refused(said(parent, ("cupy-cuda11x==13.3.0",))) == ["STK206"]
    assert refused(said(parent, ("cupy-cuda13x[ctk]==14.0.1",))) == []  # older ones have no such extra


def test_a_torchvision_that_pins_no_torch_refuses_none() -> None:
    """Of 0.29.2 an installer takes torch 2.14 and 2.15: the numbers of older releases say nothing of it."""
    parent = "pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime"
    for torch in ("2.14.0", "2.15.0"):
        assert "STK206" not in refused(said(parent, (f"torch=={torch}", "torchvision==0.29.2")))
    assert "STK206" in refused(said(parent, ("torch==2.15.0", "torchvision==0.29.1")))


# STK207, 208, 210 and 212


def test_a_python_that_the_worker_does_not_run_on_is_refused() -> None:
    found = said("python:3.9-slim", asks=ResourceSettings())
    assert refused(found) == ["STK207"]


def test_a_pickled_function_needs_the_same_python() -> None:
    """dask 6007, nrdg/cloudknot 270"""
    assert refused(said("python:3.12-slim", asks=ResourceSettings(), kind="pickled")) == ["STK208"]
    found = said("python:3.12-slim", asks=ResourceSettings())
    assert level(found, "STK208") == "info"
    assert "STK208" not in said("python:3.11.2-slim", asks=ResourceSettings(), kind="pickled")


def test_other_versions_than_here_are_told() -> None:
    found = said("python:3.11-slim", ("torch==2.6.0", "numpy==1.26.4"))
    assert "torch 2.6.0 (here 2.4.0)" in found["STK210"].what
    assert "numpy" not in found["STK210"].what
    assert "STK210" not in said(PYTORCH)


@pytest.mark.parametrize(
    ("parent", "requirement"),
    [
        ("python:3.13-slim", "torch==2.4.0"),
        ("python:3.11-slim", "torch==2.4.0+cu130"),
        ("python:3.11-slim", "torch==2.2.0+cu117"),  # clearml-agent 152: no such build, and pip took another
        ("python:3.11-slim", "https://x/thing-1.0-cp310-cp310-linux_x86_64.whl"),
        ("python:3.11-slim", "https://x/thing-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"),
        ("python:3.11-slim", "https://x/thing-1.0-cp311-cp311-win_amd64.whl"),
    ],
)
def test_what_cannot_be_installed_is_refused(parent: str, requirement: str) -> None:
    assert "STK212" in refused(said(parent, (requirement,)))


@pytest.mark.parametrize(
    "wheel",
    [
        "thing-1.0-py3-none-any.whl",
        "thing-1.0-cp38-abi3-manylinux2014_x86_64.whl",
        "thing-1.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    ],
)
def test_wheels_that_fit_are_not_refused(wheel: str) -> None:
    assert "STK212" not in said("python:3.11-slim", (f"https://x/{wheel}",))


# STK209, 211 and 218


def test_an_image_for_another_processor_is_refused() -> None:
    """docker/for-mac 5475"""
    found = said("myorg/train:1", facts=read(architectures=("arm64",)), asks=ResourceSettings())
    assert refused(found) == ["STK209"]
    assert refused(said("myorg/train:1", facts=read(architectures=("arm64", "amd64")), asks=ResourceSettings())) == []
    assert refused(said(PYTORCH, platform="linux/arm64")) == ["STK209"]
    assert "STK209" in refused(said(PYTORCH, on="1xGB200;driver=580.95.05", platform="linux/amd64"))


def test_tags_that_move_are_told() -> None:
    found = said("myorg/train", facts=read(digest=DIGEST, cuda="12.4"))
    assert f'"myorg/train@{DIGEST}"' in found["STK211"].fix
    assert level(said("myorg/train:latest"), "STK211") == "info"
    assert "STK211" not in said(PYTORCH)
    assert "STK211" not in said(f"myorg/train@{DIGEST}")
    moved = said("myorg/train:1", facts=read(digest=DIGEST, cuda="12.4"), seen={"myorg/train:1": "sha256:" + "b" * 64})
    assert "moved" in moved["STK211"].why


def test_an_image_that_may_not_be_read_is_refused_and_one_that_was_not_reached_is_told() -> None:
    denied = read(unreadable="registry.example.com answers 401", refused=True)
    assert refused(said("registry.example.com/train:1", facts=denied)) == ["STK218"]
    nameless = read(unreadable="'Foo Bar:latest' does not name an image", base="name")
    assert "STK218" not in said("Foo Bar:latest", facts=nameless), "STK230 says so"
    away = read(unreadable="no route to registry.example.com", base="name")
    assert level(said("registry.example.com/train:1", facts=away), "STK218") == "info"


# STK213, 216 and 217


def launched(launcher: str, *requirements: str, parent: str = PYTORCH) -> dict[str, Finding]:
    launch: Launch = attrs.evolve(DEFAULTS, launcher=launcher)
    return said(parent, requirements, settings={"launch": launch})


def test_a_launcher_that_is_not_installed_is_refused() -> None:
    assert refused(launched("accelerate")) == ["STK213"]
    assert refused(launched("deepspeed")) == ["STK213"]
    assert level(launched("deepspeed", "accelerate"), "STK213") == "info"
    assert refused(launched("jax", "numpy")) == ["STK213"]
    assert "STK213" not in launched("torchrun")
    assert "STK213" not in launched("accelerate", "accelerate>=1")
    assert "STK213" not in launched("accelerate", "transformers[torch]")
    assert level(launched("accelerate", parent="myorg/train:1"), "STK213") == "info"


def test_little_shared_memory_is_told() -> None:
    """pytorch 5040"""
    assert level(said(PYTORCH, asks=ResourceSettings(gpu_count=1, shared_memory="64MB")), "STK216") == "info"
    assert "STK216" not in said(PYTORCH), "a container gets more where nobody asks"
    assert "STK216" not in said(PYTORCH, asks=ResourceSettings(gpu_count=1, shared_memory="8GB"))
    assert "STK216" not in said("nvidia/cuda:12.4.1-base-ubuntu22.04")


def test_devices_that_are_nowhere_are_refused_once() -> None:
    """skypilot 8388"""
    asks = ResourceSettings(accelerators="H100:8")
    assert refused(said(PYTORCH, asks=asks)) == ["STK217"]
    step = a_step(DockerSettings(parent_image=PYTORCH), asks)
    told = Finding(code="STK103", level="error", what="", where="train.py:7 step 'train'")
    found = list(
        findings(a_plan(step, told=(told,)), inventory=parse_simulation(NEW), image_facts=no_registry, client=CLIENT)
    )
    assert "STK217" not in {finding.code for finding in found}


# STK214 and 215


def test_images_of_another_maker_are_refused() -> None:
    rocm = "rocm/pytorch:rocm6.2_ubuntu22.04_py3.10_pytorch_release_2.3.0"
    assert "STK214" in refused(said(rocm))
    assert "STK214" in refused(said(PYTORCH, on="1xMI300X"))
    assert "STK214" in refused(said("python:3.11-slim", ("numpy",), on="1xMI300X"))
    assert "STK214" not in said("python:3.11-slim", ("torch==2.4.0+rocm6.1",), on="1xMI300X")


@pytest.mark.parametrize(
    "requirement", ["torch==2.4.0", "torch==2.4.0+cu121", "jax[cuda12]==0.6.2", "tensorflow==2.17.0"]
)
def test_a_cuda_wheel_on_amds_gpus_is_refused(requirement: str) -> None:
    """It computes on no device that the step has, so that it excuses no other build either."""
    found = said("myorg/train:1", (requirement,), on="1xMI300X")
    assert refused(found) == ["STK202"]
    assert "AMD GPUs" in found["STK202"].what
    assert refused(said("myorg/train:1", (requirement, "paddlepaddle"), on="1xMI300X")) == ["STK202"]


def test_neuron_needs_its_sdk() -> None:
    """metaflow 3086"""
    neuron = (
        "public.ecr.aws/deep-learning-containers/pytorch-training-neuronx:2.9.0-neuronx-py311-sdk2.30.0-ubuntu24.04"
    )
    asks = ResourceSettings(accelerators="trainium:1")
    assert refused(said(neuron, on="1xtrainium", asks=asks)) == []
    assert "STK215" in refused(said(PYTORCH, on="1xtrainium", asks=asks))
    assert "STK215" not in said("python:3.11", ("torch-neuronx==2.5.1",), on="1xtrainium", asks=asks)
    assert "STK215" in refused(said(neuron))


# All together


def test_every_finding_names_step_and_place() -> None:
    for finding in said("python:3.9", ("scikit-learn",)).values():
        assert finding.where == "train.py:7 step 'train'"
        assert finding.level in ("error", "info")


def test_each_image_is_read_once_for_all_steps() -> None:
    asked: list[str] = []

    def facts(reference: str) -> ImageFacts:
        asked.append(reference)
        return ImageFacts(reference=reference, cuda="12.4.1", python="3.11.2")

    lines = [f"package-{number}==1.{number}" for number in range(200)] + ["torch>=2", "numpy"]
    docker = [DockerSettings(parent_image=f"myorg/image{number % 5}:1", requirements=lines) for number in range(50)]
    steps = [a_step(one, ResourceSettings(gpu_count=1), name=f"s{number}") for number, one in enumerate(docker)]
    found = list(findings(a_plan(*steps), inventory=parse_simulation(NEW), image_facts=facts))
    assert len(asked) == 5
    assert {finding.where for finding in found} == {f"train.py:7 step 's{number}'" for number in range(50)}


def test_a_driver_from_after_the_end_of_a_chip_is_refused() -> None:
    found = said("python:3.11-slim", ("torch==2.8.0+cu126",), on="1xV100;driver=595.58.03")
    assert refused(found) == ["STK204"]
    assert "branch 580 is the last" in found["STK204"].what


def test_a_companion_that_would_replace_the_images_torch_is_refused() -> None:
    found = said(PYTORCH, ("torchvision==0.20.0",))
    assert refused(found) == ["STK206"]
    assert "would replace it" in found["STK206"].what
    assert refused(said(PYTORCH, ("torchvision==0.19.0",))) == []


def test_settings_whose_packages_are_not_known_refuse_nothing() -> None:
    for more in ({"pyproject_path": "pyproject.toml"}, {"conda_packages": ["pytorch"]}, {"dockerfile": "Dockerfile"}):
        assert refused(said("python:3.11-slim", ("numpy",), **more)) == []
    assert refused(said("python:3.11-slim", requirements="no-such-file.txt")) == []


def test_images_that_are_used_as_they_are_get_no_requirements() -> None:
    assert "STK202" not in said(PYTORCH, ("torch==2.4.0+cpu",), skip_build=True)
    assert refused(said(PYTORCH, ("torch==2.4.0+cpu",))) == ["STK202"]


def test_alike_steps_are_judged_once() -> None:
    step = a_step(DockerSettings(parent_image="python:3.9"), ResourceSettings())
    both = a_plan(step, attrs.evolve(step, key="train[1]"))
    found = list(findings(both, inventory=None, image_facts=no_registry, client=CLIENT))
    assert [finding.code for finding in found] == ["STK207"]


def test_a_device_without_a_known_driver_or_chip_refuses_nothing() -> None:
    device = Device(kind="nvidia", index=0, uuid="GPU-1", name="Something new", model="Something new", memory=0)
    assert refused(said("python:3.11-slim", ("torch==2.13.0",), on=Inventory(devices=(device,)))) == []


def test_an_accelerator_that_chooses_nothing_is_a_finding() -> None:
    found = said(PYTORCH, ("numpy",), accelerator="cuda12.4")
    assert level(found, "STK221") == "warning"
    assert "accelerator='cuda12.4' has no effect: parent_image" in found["STK221"].what
    assert found["STK221"].fix.startswith("remove accelerator")
    assert "dockerfile says" in said(None, dockerfile="Dockerfile", accelerator="cuda12.4")["STK221"].what


@pytest.mark.parametrize(
    ("parent", "requirements", "more"),
    [
        (PYTORCH, ("torch==2.4.0",), {}),  # it chooses torch's wheels
        (PYTORCH, ("accelerate",), {}),
        (PYTORCH, (), {"pyproject_path": "pyproject.toml"}),  # what that requires is not known
        (None, ("numpy",), {}),
    ],
)
def test_an_accelerator_that_chooses_something_is_none(
    parent: str | None, requirements: Sequence[str], more: dict[str, Any]
) -> None:
    assert "STK221" not in said(parent, requirements, accelerator="cuda12.4", **more)


@pytest.mark.parametrize("requirement", ["torch==2.5.1", "onnxruntime-gpu", "cupy-cuda12x", "nvidia-cudnn-cu12"])
def test_musl_has_no_wheels_of_it(requirement: str) -> None:
    found = said("python:3.11-alpine", (requirement,))
    assert level(found, "STK250") == "error"
    assert "STK250" not in said("python:3.11-slim", (requirement,))
    assert "STK250" not in said(
        "python:3.11-alpine", ("numpy", "torch @ https://example.com/torch-2.5.1-py3-none-any.whl")
    )
    # An image whose layers were read says it, whatever its name.
    assert level(said("myorg/train:1", (requirement,), facts=read(libc="musl", python="3.11")), "STK250") == "error"


@pytest.mark.parametrize("chip", ["Orin", "Thor", "GH200", "T4G"])
def test_hosts_of_arm_chips(chip: str) -> None:
    image = "nvcr.io/nvidia/l4t-pytorch:r35.2.1-pth2.0-py3"
    asks = ResourceSettings(accelerators=f"{chip}:1")
    assert "STK209" not in said(image, on=None, asks=asks)
    assert level(said(image, on="1xA100;driver=550.54.15"), "STK209") == "error"
