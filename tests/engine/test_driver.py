"""What can become of steps on NVIDIA's GPUs, in whole runs. The two libraries of the driver are fakes; what they tell
of contexts, memory and work is what the steps do with them (`tests.devices.gpus.Rig`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from tests.devices.gpus import CUDA, GB, Rig, gpus_of
from tests.distributed.conftest import SPAWN
from tests.engine.test_devices import assert_apart
from tests.worker.test_health import NO_CUDA

SCRIPT = """
    import os
    import sys
    import time

    from cuda import Cuda

    from stoker import context, pipeline, step
    from stoker.config import Command, Monitor, ResourceSettings

    CONTEXT = 500_000_000
    ONE = ResourceSettings(gpu_count=1)


    def note(name):
        open(name, "w").close()


    def until(name):
        while not os.path.exists(name):
            time.sleep(0.01)


    @step(resources=ONE, monitor=Monitor(0.1), cache=False)
    def train(how: str) -> str:
        note("user-code")
        if how == "elsewhere":
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["OTHER"]
        cuda = Cuda()
        cuda.take(4_000_000_000)
        if how == "too much":
            cuda.take(79_000_000_000)
        elif how == "idle":
            time.sleep(2.5)
        elif how == "long":
            note(f"working-{context.attempt}")
            cuda.work(60 if context.attempt == 1 else 0.1)
        else:
            cuda.work(2.5)
        return cuda.digits


    @pipeline
    def training(how: str = "work"):
        train(how)


    @pipeline
    def three():
        for how in ("work", "idle", "elsewhere"):
            train.with_options(id=how)(how)


    @step(resources=ONE, accelerator_policy="prefer", cache=False)
    def either() -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


    @pipeline
    def preferring():
        either()


    @step(cache=False)
    def prepare(wait: bool) -> int:
        note("preparing")
        if wait:
            until("go")
        return 1


    @step(resources=ONE, cache=False)
    def whole(before: int) -> str:
        return Cuda().digits


    @pipeline
    def afterwards(wait: bool = False):
        whole(prepare(wait))


    @step(
        resources=ResourceSettings(accelerators="A100-80GB/1g.10gb:2"),
        launch=Command([sys.executable, "spawn.py"], num_processes=2, outputs="all"),
        monitor=Monitor(0.1),
        cache=False,
    )
    def each() -> list:
        cuda = Cuda()
        cuda.take(2_000_000_000)
        time.sleep(8)  # the monitor looks for new processes as seldom as costs one per cent
        return [cuda.digits, os.environ["CUDA_VISIBLE_DEVICES"], [device.uuid for device in context.devices]]


    @pipeline
    def slicing():
        each()


    def share(seconds):
        began, cuda = time.time(), Cuda()
        cuda.work(seconds)
        alone, held = cuda.used() == CONTEXT, [device.uuid for device in context.devices]
        return {"held": held, "sees": cuda.digits, "alone": alone, "began": began, "ended": time.time()}


    @step(resources=ONE, cache=False)
    def single(number: int) -> dict:
        return share(0.5)


    @step(resources=ResourceSettings(gpu_count=2), cache=False)
    def pair(number: int) -> dict:
        return share(0.5)


    @pipeline
    def eight():
        single.map(list(range(6)))
        pair.map(list(range(4)))


    @pipeline
    def pairs():
        pair(0)
"""


WHOLE = "accelerators=H100:1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    return Rig(tmp_path_factory.mktemp("rig"))


@pytest.fixture
def rig(made: Rig) -> Rig:
    made.torch("2.9.0+cu130", "13.0")
    return made.holds(*gpus_of(2))


@pytest.fixture
def go(lab: Any, rig: Rig) -> Callable[..., str]:
    """`go("training", "--how", "idle")`: runs a pipeline of the script; what it wrote."""
    lab.write("cuda.py", CUDA).write("steps.py", SCRIPT).write("spawn.py", SPAWN)

    def run(pipeline: str, *options: str, code: int = 0, **more: str) -> str:
        said: str = lab.run(
            "stoker", "run", f"steps.py:{pipeline}", *options, code=code, env={**rig.environment, **more}
        )
        return said

    return run


def stoker(lab: Any, rig: Rig, *words: str, code: int | None = 0) -> str:
    """All that a command wrote, in lines that were not wrapped."""
    said: str = lab.run("stoker", *words, env={**rig.environment, "COLUMNS": "400"}, code=code)
    return said


def plain(uuid: str) -> str:
    return uuid.removeprefix("GPU-").removeprefix("MIG-").replace("-", "")


def test_what_a_step_does_is_what_its_receipt_says(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    *_, last = gpus = gpus_of(4)
    rig.holds(*gpus)
    said = go("three", OTHER=last.uuid)
    steps = lab["three"].steps
    used, idle, wrong = (steps[how].receipt for how in ("work", "idle", "elsewhere"))
    shown = stoker(lab, rig, "gpu", "latest")

    (use,) = used.devices
    assert steps["work"].load() == plain(use.uuid)
    assert (used.verdict, use.utilization_peak, use.own_memory_peak) == ("used", 97, 4.5 * GB)
    assert use.memory_peak == 5 * GB, "with what the driver itself keeps"
    of_one = stoker(lab, rig, "gpu", "latest", "work")
    assert re.search(r"verdict +used\n", of_one) and re.search(r"own peak +4.5 GB\n", of_one), of_one

    (use,) = idle.devices
    number = [gpu.uuid for gpu in gpus].index(use.uuid)
    assert idle.verdict == "idle" and use.own_memory_peak == 4.5 * GB
    why = f"H100 {number}: utilisation 0 % at most, never 5 % or more"
    assert f"! idle: {why}" in said and f"idle: idle: {why}" in shown, shown
    assert "the step's processes had a context there with 4.5 GB of its memory" in idle.evidence[0]

    number = [gpu.uuid for gpu in gpus].index(wrong.devices[0].uuid)
    assert wrong.verdict == "wrong-device" and steps["elsewhere"].load() == plain(last.uuid)
    why = f"its processes computed on {last.uuid}, which it does not hold (it holds H100 {number})"
    assert wrong.evidence[0] == why and f"! elsewhere: {why}" in said and why in shown


def test_a_driver_that_is_too_old(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    rig.holds(*gpus_of(2), driver="535.104.05", number=12020)
    why = (
        "driver 535.104.05 (CUDA 12.2) is too old for torch 2.9.0+cu130, built for CUDA 13.0: "
        "CUDA 13 needs driver 580 or later"
    )
    assert f"proof     not proved: {why}" in stoker(lab, rig, "plan", "steps.py:training")
    told = stoker(lab, rig, "doctor", code=4)
    assert re.search(rf"✗ torch +2.9.0\+cu130, built for CUDA 13.0\n +{re.escape(why)}\n +fix: pip install", told), told

    said = go("training", code=1)
    (attempt,) = lab["training"].steps["train"].attempts
    assert attempt.failure.cause == "driver-too-old" and not (lab.folder / "user-code").exists()
    assert f"{why} (asked for: 1 GPU)\n  fix: pip install torch==2.9.0+cu128" in said
    assert (attempt.receipt.predicted, attempt.receipt.found) == ("not-proved", "unfit")

    # Who prefers a device computes on the CPU, and is told so.
    said = go("preferring")
    step = lab["preferring"].steps["either"]
    assert (step.receipt.verdict, step.receipt.fallback, step.load()) == ("cpu-fallback", why, "")
    assert f"! either: it ran without an accelerator: {why}" in said
    assert f"either: cpu-fallback: it ran without an accelerator: {why}" in stoker(lab, rig, "gpu", "latest")


LOST = (
    "lost_after = 0\nxid = 1:79\n",
    "999",
    "unknown error",
    "the GPU fell off the bus",
    "Xid 79",
)
# What CUDA calls the loss of a GPU: https://github.com/wilicc/gpu-burn/issues/1
ECC = (
    "double_bit = 1\necc_errors = 1\n",
    "214",
    "uncorrectable ECC error encountered",
    "the GPU met a memory or link error that its hardware could not correct",
    "an uncorrectable memory error",
)


@pytest.mark.parametrize(
    ("nvml", "number", "text", "why", "seen"), [LOST, pytest.param(*ECC, marks=pytest.mark.long)], ids=["lost", "ecc"]
)
def test_a_device_that_fails_while_a_step_computes(
    nvml: str, number: str, text: str, why: str, seen: str, lab: Any, rig: Rig, go: Callable[..., str]
) -> None:
    first, second = gpus_of(2)
    driver = lab.start("stoker", "run", "steps.py:training", "--how", "long", env=rig.environment)
    driver.until(lambda: (lab.folder / "working-1").exists())
    rig.holds(attrs.evolve(first, lines=nvml), second, cuda=f"bad = {first.uuid}:{number}\n")
    said = driver.wait()
    step = lab["training"].steps["train"]
    failed, succeeded = step.attempts
    assert (failed.failure.cause, failed.failure.message, failed.failure.why) == (
        "gpu-hardware",
        f"CUDA error: {text}",
        why,
    )
    assert any(f"H100 0: the driver reported {seen}" in one for one in failed.receipt.evidence), failed.receipt.evidence
    assert not any("reported" in one for one in succeeded.receipt.evidence), "that was of another device"
    assert f"train: device {first.uuid} is left out for the rest of this run: gpu-hardware" in said
    assert step.load() == plain(second.uuid)

    listed = stoker(lab, rig, "devices", code=4 if number == "999" else 0)
    assert f"left out by run {lab['training'].id}: device {first.uuid}" in listed
    assert ("STK123 error: GPU 0: the GPU is lost" in listed) is (number == "999")
    told = stoker(lab, rig, "doctor", code=4)
    assert f"gpu-hardware in attempt 1 of train: CUDA error: {text}" in told
    assert ("1 uncorrectable ECC errors since the driver was loaded" in told) is (number == "214")


def test_a_device_with_a_bad_row(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    """The driver goes on with it, and so does whoever does not ask for a health check."""
    rig.torch("2.9.0+cu130", "13.0", NO_CUDA)
    first, second = gpus_of(2, "remap_pending = 1", "remap_pending = 0")
    rig.holds(first, second)
    go("afterwards")
    assert lab["afterwards"].steps["whole"].load() == plain(first.uuid)
    said = go("afterwards", "--set", "steps.whole.health_check=quick")
    refused, succeeded = lab["afterwards"].steps["whole"].attempts
    why = "a bad row of its memory is to be replaced at the next reset"
    assert refused.failure.cause == "gpu-hardware" and f"H100 0 ({first.uuid}): {why}" in refused.failure.message
    assert f"device {first.uuid} is left out" in said
    assert "no errors counted" in succeeded.receipt.proved["health"]
    assert re.search(rf"✗ health +H100 0 \({first.uuid}\)\n +{why}", stoker(lab, rig, "doctor", code=4))


def test_too_little_memory(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    said = go("training", "--how", "too much", code=1)
    assert "train failed: gpu-oom" in said and "resources.gpu_memory" in said
    # Somebody fills the first device whom the driver does not list here, as from another container.
    first, second = gpus_of(2)
    rig.holds(attrs.evolve(first, lines=f"used = {40 * GB}"), second)
    go("afterwards")
    refused, succeeded = lab["afterwards"].steps["whole"].attempts
    assert refused.failure.cause == "gpu-busy"
    assert "GPU 0 (H100): 40 GB of its memory is in use" in refused.failure.message
    assert succeeded.receipt.proved["memory"] == "79.5 GB free"
    assert lab["afterwards"].steps["whole"].load() == plain(second.uuid)


CUT = (("1g.10gb", "MIG-00000001-1111-4000-8000-000000000000", 10 * GB),)


def test_mig_that_is_changed_between_plan_and_run(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    first, second = gpus_of(2)
    assert "proof     proved: " in stoker(lab, rig, "plan", "steps.py:training")
    rig.holds(attrs.evolve(first, slices=CUT), attrs.evolve(second, slices=()))
    listed = stoker(lab, rig, "devices")
    assert re.search(r"0  H100 +1g.10gb +10 GB", listed), listed
    assert "STK126 info: GPU 1: the GPU is in MIG mode and has no slices" in listed
    for command in ("plan", "run"):
        said = stoker(lab, rig, command, "steps.py:training", "--set", f"steps.train.resources.{WHOLE}", code=3)
        assert "STK103 error" in said and "H100:1 was asked for, and this machine has 1 × H100/1g.10gb" in said


@pytest.mark.parametrize(
    ("slices", "change"),
    [
        (CUT, "it is cut into 1g.10gb now"),
        pytest.param((), "it is in MIG mode now, and has no slices", marks=pytest.mark.long),
    ],
    ids=["cut", "empty"],
)
def test_mig_that_is_changed_in_a_run(slices: Any, change: str, lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    """The run has found its devices before; the gate sees what they have become."""
    first, second = gpus_of(2)
    driver = lab.start("stoker", "run", "steps.py:afterwards", "--wait", env=rig.environment)
    driver.until(lambda: (lab.folder / "preparing").exists())
    rig.holds(attrs.evolve(first, slices=slices), second)
    (lab.folder / "go").touch()
    driver.wait()
    step = lab["afterwards"].steps["whole"]
    failure = step.attempts[0].failure
    assert failure.cause == "no-gpu" and failure.message.startswith(
        f"GPU 0 as a whole (H100, {first.uuid}) was leased, and {change}; "
    )
    assert "fix: start the run again" in failure.message
    assert step.load() == plain(second.uuid)


def test_slices_are_devices_of_their_own(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    """CUDA shows a process one slice: each rank has its own, and the receipt tells them apart."""
    name = "NVIDIA A100-SXM4-80GB"
    slices = tuple(("1g.10gb", f"MIG-{number:08x}-1111-4000-8000-000000000000", 10 * GB) for number in (1, 2))
    larger = ("3g.40gb", "MIG-00000009-1111-4000-8000-000000000000", 40 * GB)
    first, second = gpus_of(2)
    rig.holds(attrs.evolve(first, slices=(larger, *slices), name=name), attrs.evolve(second, name=name))
    go("slicing")
    step = lab["slicing"].steps["each"]
    both = [uuid for _, uuid, _ in slices]
    assert step.load() == [[plain(uuid), uuid, both] for uuid in both]
    assert step.receipt.proved["devices"] == "2 visible, as leased, each to a process of its own"
    assert step.receipt.proved["memory"] == "10 GB free on the fullest"
    # The driver tells a slice's memory and processes, and never its utilisation.
    assert (step.receipt.verdict, [use.slice for use in step.receipt.devices]) == ("unknown", ["1g.10gb"] * 2)
    assert [use.own_memory_peak for use in step.receipt.devices] == [2.5 * GB] * 2
    assert step.receipt.evidence[1].startswith(
        "A100-80GB/1g.10gb MIG-00000002: the driver does not tell its utilisation"
    )
    shown = stoker(lab, rig, "gpu", "latest", "each")
    assert "2 × A100-80GB/1g.10gb" in shown and re.search(r"MIG-00000001 +MIG-00000002", shown), shown


def test_eight_gpus_are_shared_out(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    rig.holds(*gpus_of(8))
    go("eight")
    run = lab["eight"]
    uses = [one for name in ("single", "pair") for one in run.steps[name].load()]
    assert_apart((one["began"], one["ended"], one["held"]) for one in uses)
    assert {uuid for one in uses for uuid in one["held"]} == {gpu.uuid for gpu in gpus_of(8)}
    assert all(one["sees"] == plain(one["held"][0]) for one in uses), "what CUDA counts from 0 is the step's"
    assert all(one["alone"] for one in uses), "nobody else's memory was there"


def test_linked_and_near_devices_go_together(lab: Any, rig: Rig, go: Callable[..., str]) -> None:
    one, two, three, four = gpus_of(
        4, "nvlink = 2\nnuma = 0", "nvlink = 3\nnuma = 0", "nvlink = 0\nnuma = 1", "nvlink = 1\nnuma = 1"
    )
    rig.holds(one, two, three, four)
    listed = stoker(lab, rig, "devices").splitlines()
    assert listed[0].split()[:6] == ["index", "model", "memory", "capability", "links", "numa"]
    assert [line.split()[5:7] for line in listed[1:5]] == [["2", "0"], ["3", "0"], ["0", "1"], ["1", "1"]]
    go("pairs")
    assert lab["pairs"].steps["pair"].load()["held"] == [one.uuid, three.uuid], "NVLink goes before nearness"
    rig.holds(*gpus_of(4, "numa = 0", "numa = 1", "numa = 0", "numa = 1"))
    go("pairs")
    assert lab["pairs"].steps["pair"].load()["held"] == [one.uuid, three.uuid], "on one NUMA node"
