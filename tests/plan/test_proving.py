"""The three answers: proved only where every component is known and fits, refused only for what is known not to fit."""

from __future__ import annotations

import attrs
import pytest
from tests.plan.test_preflight import CLIENT, NEW, OLD, PYTORCH, a_plan, a_step, no_registry

from stoker.core.devices import Inventory
from stoker.core.docker import DockerSettings, ImageFacts
from stoker.core.findings import Finding
from stoker.core.receipt import Fact, Proof, UnknownFact, proof_text
from stoker.core.resources import ResourceSettings
from stoker.devices.probe import parse_simulation
from stoker.plan import preflight
from stoker.plan.components.base import ProofComponent
from stoker.plan.preflight import Surroundings, judge
from stoker.plan.proving import components, prove
from stoker.plan.rules import PlanFacts, distributions

GPU = ResourceSettings(gpu_count=1)
SLIM = "python:3.11-slim"


def proof_of(
    parent: str | None,
    *requirements: str,
    on: str | Inventory | None = NEW,
    image: ImageFacts | None = None,
    asks: ResourceSettings = GPU,
    here: bool = False,
    **settings: object,
) -> Proof | None:
    """The proof of one step that asks for a GPU, in an image or in this Python."""
    given = {"parent_image": parent, "requirements": requirements} if requirements else {"parent_image": parent}
    step = a_step(None if parent is None else DockerSettings(**given), asks, **settings)  # type: ignore[arg-type]
    inventory = parse_simulation(on) if isinstance(on, str) else on
    surroundings = Surroundings(
        inventory=lambda: inventory,
        image_facts=lambda reference: image if image is not None else no_registry(reference),
        in_images=frozenset({"orchestrator"} if parent is not None else ()),
        here=frozenset({"orchestrator"} if here else ()),
    )
    [judged], _ = judge(a_plan(step), surroundings, client=CLIENT)
    return judged.proof


def verdict(*arguments: str, **named: object) -> str:
    proof = proof_of(*arguments, **named)  # type: ignore[arg-type]
    assert proof is not None
    assert (proof.verdict == "proved") == (not proof.unknown and not proof.refused)
    assert (proof.verdict == "refused") == bool(proof.refused)
    return proof.verdict


def facts_of(step_name: str = "train", parent: str = SLIM, requirements: tuple[str, ...] = ()) -> PlanFacts:
    step = a_step(DockerSettings(parent_image=parent, requirements=requirements), GPU, name=step_name)
    return preflight._image_facts(
        step, inventory=parse_simulation(NEW), image_facts=no_registry, client=CLIENT, last_digests={}
    )


@pytest.mark.parametrize(
    ("parent", "requirements", "on"),
    [
        (SLIM, ("torch==2.4.0+cu121", "numpy"), "1xH100;driver=550.54.15"),
        (SLIM, ("torch==2.4.0",), "1xH100;driver=535.104.05"),  # minor-version compatibility runs code for sm_90
        (SLIM, ("torch==2.4.0+cu118",), "1xV100;driver=470.82.01"),
        (PYTORCH, (), NEW),
        (PYTORCH, ("torch>=2", "numpy"), NEW),
    ],
)
def test_what_is_known_and_fits_is_proved(parent: str, requirements: tuple[str, ...], on: str) -> None:
    assert verdict(parent, *requirements, on=on) == "proved"


def test_a_proof_has_its_facts_and_where_they_are_from() -> None:
    proof = proof_of(SLIM, "torch==2.4.0+cu121", on="1xH100;driver=550.54.15")
    assert proof is not None
    facts = {(fact.component, fact.fact) for fact in proof.facts}
    assert ("torch", "torch 2.4.0+cu121 has code for sm_90 (H100)") in facts
    assert ("driver", "driver 550.54.15 runs CUDA 12.1") in facts
    assert {fact.component for fact in proof.facts} >= {"torch", "driver", "chip", "image", "processor", "python"}
    assert all(fact.source for fact in proof.facts)
    assert proof_text(proof).startswith(
        "proved: torch 2.4.0+cu121 has code for sm_90 (H100); driver 550.54.15 runs CUDA 12.1; "
    )


@pytest.mark.parametrize(
    ("parent", "requirements", "on", "component"),
    [
        (SLIM, ("torch>=2",), NEW, "torch"),  # which one is decided when it is installed
        (SLIM, ("torch==2.4.0+cu121", "whatever==1"), NEW, "whatever"),
        (SLIM, ("torch==2.4.0+cu121", "-r not-there.txt"), NEW, "packages"),
        (SLIM, ("torch==2.4.0+cu121", "k2==1.0"), NEW, "k2"),
        (SLIM, ("torch==2.99.0",), NEW, "torch"),
        (SLIM, ("torch==2.4.0+cu121",), "1xH100", "driver"),
        (SLIM, ("torch==2.4.0+cu121",), None, "chip"),
        ("myorg/anything:3", ("torch==2.4.0+cu121",), NEW, "image"),
        ("nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04", (), NEW, "packages"),
        # PTX that the driver compiles, beside cuBLAS and cuDNN of a CUDA from before the chip.
        ("nvcr.io/nvidia/pytorch:24.05-py3", (), "1xB200;driver=570.86.15", "torch"),
        ("tensorflow/tensorflow:2.3.0-gpu", (), "1xA100;driver=460.32.03", "tensorflow"),
    ],
)
def test_what_is_not_known_is_named_and_not_proved(
    parent: str, requirements: tuple[str, ...], on: str | None, component: str
) -> None:
    proof = proof_of(parent, *requirements, on=on)
    assert proof is not None
    assert proof.verdict == "not-proved", proof_text(proof)
    assert component in {one.component for one in proof.unknown}, proof.unknown
    assert proof_text(proof).startswith("not proved: ")


@pytest.mark.parametrize(
    ("parent", "requirements", "on", "code"),
    [
        (PYTORCH, (), OLD, "STK203"),
        (SLIM, ("torch==2.4.0+cpu",), NEW, "STK202"),
        (SLIM, ("torch==2.6.0",), "1xRTX5090;driver=580.95.05", "STK204"),
        (SLIM, ("numpy",), NEW, "STK201"),
        (SLIM, ("torch==2.4.0",), "1xGH200;driver=580.95.05", "STK202"),  # CPU builds on ARM until 2.11
    ],
)
def test_what_is_known_not_to_fit_is_refused(parent: str, requirements: tuple[str, ...], on: str, code: str) -> None:
    proof = proof_of(parent, *requirements, on=on)
    assert proof is not None
    assert proof.verdict == "refused"
    assert code in {one.code for one in proof.refused}
    assert proof.refused[0].fix
    assert proof_text(proof).startswith(f"refused: {proof.refused[0].code} ")


def test_a_refusal_of_the_backend_refuses_the_proof() -> None:
    step = a_step(DockerSettings(parent_image=PYTORCH), ResourceSettings(accelerators="A100"))
    finding = Finding(code="STK103", level="error", where="train.py:7 step 'train'", what="asks for A100: none is here")
    surroundings = Surroundings(inventory=lambda: parse_simulation(NEW), in_images=frozenset({"orchestrator"}))
    [judged], _ = judge(a_plan(step, told=(finding,)), surroundings, client=CLIENT)
    assert judged.proof is not None
    assert [one.code for one in judged.proof.refused] == ["STK103"]


def test_a_step_that_may_run_without_its_devices_is_not_proved_where_it_would() -> None:
    assert verdict(SLIM, "torch==2.4.0+cpu", accelerator_policy="prefer") == "not-proved"
    assert verdict(PYTORCH, on=OLD, accelerator_policy="prefer") == "not-proved"


def test_a_step_without_accelerators_has_no_proof() -> None:
    assert proof_of(PYTORCH, asks=ResourceSettings()) is None
    assert proof_of(None, asks=ResourceSettings(), here=True) is None


def test_a_step_in_this_python_is_judged_by_what_is_installed_here() -> None:
    proof = proof_of(None, here=True)
    assert proof is not None
    assert proof.verdict == "not-proved"
    assert "is a CPU build" in {one.component: one.reason for one in proof.unknown}["torch"]


def test_of_a_step_elsewhere_neither_driver_nor_packages_are_known() -> None:
    proof = proof_of(None, asks=ResourceSettings(accelerators="H100"))
    assert proof is not None
    assert proof.verdict == "not-proved"
    assert {one.component for one in proof.unknown} == {"driver", "packages"}
    assert [fact.fact for fact in proof.facts] == ["H100 is sm_90, 80GB"]


def test_the_layers_of_an_image_say_more_than_its_name() -> None:
    image = ImageFacts(reference="myorg/train:1", architectures=("amd64",), digest="sha256:" + "a" * 64)
    contents = {"torch": "2.4.0+cu121", "numpy": "1.26.4", "ujson": "5.10.0"}
    assert verdict("myorg/train:1", image=image) == "not-proved"
    image = attrs.evolve(image, distributions=contents, frameworks={"torch": "2.4.0+cu121"})
    assert verdict("myorg/train:1", image=image) == "proved"
    image = attrs.evolve(image, distributions={**contents, "k2": "1.24"})
    assert verdict("myorg/train:1", image=image) == "not-proved"
    image = attrs.evolve(image, env={"NVIDIA_REQUIRE_CUDA": "cuda>=13.2"}, distributions=contents)
    assert verdict("myorg/train:1", image=image) == "refused"


def test_a_lock_says_what_unpinned_requirements_become() -> None:
    written = facts_of(requirements=("torch==2.4.0+cu121", "whatever==1"))
    assert prove(written, ()).proof.verdict == "not-proved"
    locked = attrs.evolve(written, locked="uv 0.9.2")
    assert prove(locked, ()).proof.verdict == "proved"


def test_a_component_is_asked_with_its_distributions_and_its_findings_are_the_plans() -> None:
    asked: list[tuple[str, ...]] = []

    def check(facts: PlanFacts, items: tuple[object, ...]) -> list[object]:
        asked.append(tuple(item.title for item in items))  # type: ignore[attr-defined]
        refusal = Finding(code="STK204", level="error", where=facts.where, what="no kernels for sm_90", fix="another")
        return [Fact(component="k2", fact="k2 is there", source="its page"), refusal]

    part = ProofComponent(name="k2", distributions=frozenset({"k2"}), check=check)  # type: ignore[arg-type]
    facts = facts_of(requirements=("torch==2.4.0+cu121", "k2==1.24"))
    judgement = prove(facts, (), [*components(), part])
    assert asked == [("k2 1.24",)]
    assert judgement.proof.verdict == "refused"
    assert [one.code for one in judgement.findings] == ["STK204"]
    assert prove(facts_of(requirements=("torch==2.4.0+cu121",)), (), [*components(), part]).proof.verdict == "proved"


def test_an_installer_keeps_what_a_requirement_allows() -> None:
    facts = facts_of(parent=PYTORCH, requirements=("torch>=2", "jax[cuda12]==0.6.2", "Flash_Attn"))
    there = {item.name: item for item in distributions(facts)}
    assert (there["torch"].version, there["torch"].origin) == ("2.4.0+cu124", "image")
    assert (there["jax"].version, there["jax"].extras, there["jax"].origin) == ("0.6.2", {"cuda12"}, "requirement")
    assert there["flash-attn"].version == ""


def test_a_long_proof_says_how_much_it_leaves_out() -> None:
    facts = tuple(Fact(component="a", fact=f"fact {number}", source="here") for number in range(5))
    assert proof_text(Proof(verdict="proved", facts=facts)) == "proved: fact 0; fact 1; fact 2; and 2 more"
    unknown = (UnknownFact(component="k2", reason="no facts for k2 1.24"),)
    assert proof_text(Proof(verdict="not-proved", unknown=unknown)) == "not proved: no facts for k2 1.24"


NGC = "nvcr.io/nvidia/pytorch"


@pytest.mark.parametrize(
    ("parent", "on", "expected"),
    [
        (f"{NGC}:24.05-py3", "1xA100;driver=550.54.15", "proved"),
        (f"{NGC}:24.05-py3", "1xA100;driver=535.183.01", "proved"),  # listed for data-centre GPUs
        (f"{NGC}:24.05-py3", "1xA100;driver=530.30.02", "not-proved"),
        (f"{NGC}:24.05-py3", "1xRTX4090;driver=535.183.01", "not-proved"),
        (f"{NGC}:26.03-py3", "1xH100;driver=595.45.04", "proved"),
        (f"{NGC}:25.01-py3", "1xRTX5090;driver=570.124.06", "proved"),
        (f"{NGC}:25.03-py3", "1xL40S;driver=570.124.06", "proved"),
        (f"{NGC}:25.09-py3", "1xV100;driver=580.95.05", "refused"),
        (f"{NGC}:24.05-py3", "1xRTX3090;driver=470.182.03", "refused"),
        (f"{NGC}:20.06-py3", "1xRTX3090;driver=455.45.01", "not-proved"),
        (f"{NGC}:26.07-py3", "1xH100;driver=610.43.02", "not-proved"),
        ("mosaicml/pytorch:2.4.0_cu124-python3.11-ubuntu20.04", "1xH100;driver=550.54.15", "proved"),
        ("mosaicml/pytorch:2.3.1_cpu-python3.11-ubuntu20.04", "1xA100;driver=550.54.15", "refused"),
        ("gcr.io/deeplearning-platform-release/tf2-cpu.2-15.py310", "1xT4;driver=535.183.01", "refused"),
        ("tensorflow/tensorflow:2.16.1", "1xA100;driver=550.54.15", "refused"),
        ("ghcr.io/huggingface/text-embeddings-inference:1.2", "1xV100;driver=550.54.15", "refused"),
        ("nvcr.io/nvidia/l4t-pytorch:r35.2.1-pth2.0-py3", "1xA100;driver=535.183.01", "refused"),
    ],
)
def test_what_a_publisher_puts_into_an_image(parent: str, on: str, expected: str) -> None:
    assert verdict(parent, on=on) == expected


def test_the_python_that_a_build_installs_is_known() -> None:
    cuda = "nvidia/cuda:12.4.1-cudnn-runtime-ubuntu22.04"
    proof = proof_of(cuda, "torch==2.4.0+cu124")
    assert proof is not None and not [one for one in proof.unknown if one.component == "python"]
    assert "torch 2.4.0+cu124 has wheels for Python 3.11" in [one.fact for one in proof.facts]
    assert verdict("ubuntu:22.04", "torch==2.4.0+cu124") == "proved"


def test_images_for_both_processors_and_images_without_a_gate_are_known_by_name() -> None:
    assert verdict(SLIM, "torch==2.11.0", on="1xGH200;driver=580.95.05") == "proved"
    assert verdict(SLIM, "torch==2.10.0", on="1xGH200;driver=580.95.05") == "refused", "a CPU build"
    old_driver = "1xT4;driver=470.256.02"  # for CUDA 11.4: minor version compatibility runs 11.8
    assert verdict("pytorch/pytorch:2.5.1-cuda11.8-cudnn9-runtime", on=old_driver) == "proved"
    proof = proof_of("pytorch/pytorch:2.5.1-cuda11.8-cudnn9-devel", on=old_driver)
    assert proof is not None and [one.component for one in proof.unknown] == ["gate"], "its parent is nvidia/cuda"


def test_builds_of_torch_before_2_are_known_by_their_cuda() -> None:
    old = "pytorch/pytorch:1.9.0-cuda10.2-cudnn7-runtime"
    assert verdict(old, on="1xV100;driver=450.80.02") == "proved"
    assert verdict(old, on="1xT4;driver=440.33.01") == "proved", "code for sm_70 runs on sm_75"
    assert verdict(old, on="1xA100;driver=470.82.01") == "refused"
    assert verdict(old, on="1xT4;driver=418.87.01") == "refused", "the driver is for CUDA 10.1"
    assert verdict("pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime", on="1xH100;driver=525.105.17") == "refused"


def test_wheels_of_tensorflow_for_arm_are_for_the_cpu() -> None:
    proof = proof_of(SLIM, "tensorflow[and-cuda]==2.17.0", on="1xGH200;driver=550.90.07")
    assert proof is not None and [one.code for one in proof.refused] == ["STK202"]


def test_an_image_for_neuron_devices_is_proved_by_its_sdk() -> None:
    image = "public.ecr.aws/deep-learning-containers/pytorch-training-neuronx:{}-neuronx-py311-sdk{}-ubuntu22.04"
    assert verdict(image.format("2.9.0", "2.30.0"), on="1xTrainium2") == "proved"
    assert verdict(image.format("2.1.2", "2.20.0"), on="1xTrainium2") == "not-proved", "before its first release"
    assert verdict(image.format("2.9.0", "2.30.0"), on=NEW) == "refused", "of no use to a GPU"


@pytest.mark.parametrize("model", ["RX5700XT", "RX7600XT"])
def test_wheels_for_rocm_have_no_code_for_cards_that_it_does_not_support(model: str) -> None:
    assert verdict(SLIM, "torch==2.6.0+rocm6.2.4", on=f"1x{model}") == "refused"


@pytest.mark.parametrize(
    ("packages", "code", "simulated", "answer"),
    [
        (("k2",), "STK204", True, "refused"),
        (("k2",), "STK202", False, "refused"),
        (("k2",), "STK202", True, "not-proved"),  # on simulated devices a build for the CPU runs, as ever
        (("pandas",), "STK204", True, "not-proved"),  # it is installed, and the step does not import it
        ((), "STK204", True, "not-proved"),
    ],
)
def test_in_this_python_only_what_the_code_imports_refuses(
    packages: tuple[str, ...], code: str, simulated: bool, answer: str
) -> None:
    def check(facts: PlanFacts, items: object) -> list[Finding]:
        return [Finding(code=code, level="error", where=facts.where, what="k2 1.24 does not fit", fix="another")]

    part = ProofComponent(name="k2", distributions=frozenset({"k2"}), check=check)
    step = attrs.evolve(a_step(None, GPU), packages=packages)
    facts = preflight._device_facts(step, inventory=parse_simulation(NEW), client=CLIENT, is_here=True)
    facts = attrs.evolve(facts, installed={"k2": "1.24"}, packages=(), simulated=simulated)
    judgement = prove(facts, (), [part])
    assert judgement.proof.verdict == answer
    assert bool(judgement.findings) == (answer == "refused")
    assert "k2 1.24 does not fit" in proof_text(judgement.proof)


def test_minor_version_compatibility_begins_with_its_driver() -> None:
    # 450.51.06 is CUDA 11.0's own driver; later minor versions of 11 run from 450.80.02 on.
    assert verdict(SLIM, "torch==2.3.1+cu118", on="1xA100;driver=450.51.06") == "refused"
    assert verdict(SLIM, "torch==2.3.1+cu118", on="1xA100;driver=450.80.02") == "proved"
    assert verdict("pytorch/pytorch:1.7.1-cuda11.0-cudnn8-runtime", on="1xA100;driver=450.51.06") == "proved"
