"""Steps with accelerators, in whole runs: leased, waited for, seen, proved, watched and given back."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.devices.gpus import IDLES, WORKS, Gpus, fake_torch
from tests.devices.test_compat import UUIDS, package
from tests.distributed.conftest import SPAWN

FOUR = ("--simulate", "4xH100-80GB")
SCRIPT = """
    import os
    import sys
    import time

    from stoker import context, pipeline, step
    from stoker.config import Command, Monitor, ResourceSettings

    IMPORTED = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")


    def facts():
        return {
            "imported": IMPORTED,
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", "unset"),
            "amd": os.environ.get("ROCR_VISIBLE_DEVICES", "unset"),
            "held": [device.uuid for device in context.devices],
            "memory": [device.memory for device in context.devices],
            "simulated": [device.simulated for device in context.devices],
            "pid": os.getpid(),
        }


    def compute(seconds):
        started = time.time()
        time.sleep(seconds)
        return {**facts(), "started": started, "ended": time.time()}


    def note(name, text=""):
        new = f"{name}.{os.getpid()}"  # several drivers may be here
        with open(new, "w") as file:
            file.write(str(text))
        os.replace(new, name)


    def until(name):
        while not os.path.exists(name):
            time.sleep(0.01)


    def work(seconds):
        "For these seconds this process is the one that the driver tells of."
        place = os.environ.get("FAKE_NVML_STEP")
        if place:
            note(place, os.getpid())
        try:
            time.sleep(seconds)
        finally:
            if place:
                os.unlink(place)


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def one(number: int) -> dict:
        return compute(0.2)


    @step(resources=ResourceSettings(gpu_count=2), cache=False)
    def two(number: int) -> dict:
        return compute(0.2)


    @pipeline
    def twelve():
        one.map(list(range(8)))
        two.map(list(range(4)))


    def told(about):
        note("hook-" + about.step, os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))


    @step(resources=ResourceSettings(gpu_count=2), on_success=told, cache=False)
    def held() -> dict:
        return facts()


    @step(cache=False)
    def cpu(before: dict) -> dict:
        return facts()


    @step(isolation="fresh", cache=False)
    def fresh(before: dict) -> dict:
        return facts()


    @pipeline(on_success=told)
    def sights():
        before = held()
        cpu(before)
        fresh(before)


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def holder() -> dict:
        note("holding", os.getpid())
        until("go")
        return facts()


    @pipeline
    def holding():
        holder()


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def train() -> dict:
        return facts()


    @pipeline
    def training():
        train()


    @step(resources=ResourceSettings(gpu_count=1), timeout=1.0, cache=False)
    def hurried(slow: bool) -> dict:
        if slow:
            time.sleep(60)
        return facts()


    @pipeline
    def hurrying():
        hurried(slow=False)


    @step(resources=ResourceSettings(gpu_count=1, gpu_memory="20GB", share=True), cache=False)
    def share(number: int) -> dict:
        note(f"shares-{number}")
        until("go")
        return facts()


    @pipeline
    def sharing(count: int):
        for number in range(count):
            share(number)


    @step(resources=ResourceSettings(accelerators=["H100:3", "L4:1"]), cache=False)
    def either() -> dict:
        return facts()


    @pipeline
    def choosing():
        either()


    @step(resources=ResourceSettings(accelerators="A100-80GB/1g.10gb:1"), cache=False)
    def sliced() -> dict:
        return facts()


    @pipeline
    def slicing():
        sliced()


    @step(resources=ResourceSettings(gpu_count=1), accelerator_policy="prefer", cache=False)
    def preferring() -> dict:
        return facts()


    @pipeline
    def preferred():
        preferring()


    @step(resources=ResourceSettings(gpu_count=1), retry=1, cache=False)
    def flaky() -> dict:
        if context.attempt == 1:
            raise ValueError("the first time")
        return facts()


    @pipeline(failure_mode="continue")
    def ends():
        flaky()
        hurried(slow=True)
        train()


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.1), cache=False)
    def user() -> dict:
        note("user-code")
        work(float(os.environ.get("SECONDS", "2.5")))
        return facts()


    @pipeline
    def using():
        user()


    @step(
        resources=ResourceSettings(gpu_count=2),
        launch=Command([sys.executable, "spawn.py"], num_processes=2, outputs="all"),
        cache=False,
    )
    def rank() -> list:
        import torch

        return [context.rank, torch.__version__, os.environ["CUDA_VISIBLE_DEVICES"]]


    @pipeline
    def ranked():
        rank()


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.1), on_idle_gpu="fail", cache=False)
    def failing() -> dict:
        work(2.5)
        return facts()


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.1, idle_for=1.0), on_idle_gpu="stop", cache=False)
    def stopping() -> dict:
        work(120)
        return facts()


    @pipeline(failure_mode="continue", max_parallel=1)
    def idling():
        stopping()
        user()
        user.with_options(id="ignored", on_idle_gpu="ignore")()
        failing()


    @pipeline(max_parallel=1)
    def working():
        user()
        failing()


    if __name__ == "__main__":
        note("never", "the main block ran in a worker")
"""


IMPORTING = """
    from stoker import pipeline, step


    @step(resources={"gpu_count": 1}, cache=False)
    def gpu() -> int:
        return 1


    @step(cache=False)
    def cpu(before: int) -> int:
        import jax

        return jax.x


    @pipeline
    def importing():
        cpu(gpu())


    if __name__ == "__main__":
        importing()
"""


@pytest.fixture
def script(lab: Any) -> Any:
    return lab.write("devices.py", SCRIPT)


def start(lab: Any, pipeline: str, *options: str, env: Mapping[str, str] | None = None) -> Any:
    return lab.start("stoker", "run", f"devices.py:{pipeline}", *options, env=dict(env or {}))


def ran(lab: Any, pipeline: str, *options: str, code: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What a run wrote."""
    said: str = start(lab, pipeline, *options, env=env).wait(code, 120.0)
    return said


def value(lab: Any, pipeline: str, key: str) -> dict[str, Any]:
    """What a step of the newest run of a pipeline returned."""
    found: dict[str, Any] = lab[pipeline].steps[key].load()
    return found


def there(lab: Any, name: str) -> Callable[[], bool]:
    return lambda: (lab.folder / name).exists()


def go(lab: Any) -> None:
    (lab.folder / "go").touch()


def assert_apart(uses: Iterable[tuple[float, float, list[str]]]) -> None:
    """Nobody held a device while somebody else did."""
    by_device: dict[str, list[tuple[float, float]]] = {}
    for started, ended, devices in uses:
        for device in devices:
            by_device.setdefault(device, []).append((started, ended))
    for device, times in by_device.items():
        for (_, end), (begin, _) in zip(sorted(times), sorted(times)[1:]):
            assert end <= begin, f"{device} was held twice: {sorted(times)}"


def uses_of(run: Any) -> list[tuple[float, float, list[str]]]:
    found = []
    for key, count in (("one", 1), ("two", 2)):
        for element in run.steps[key].load():
            assert len(element["held"]) == count
            assert element["visible"] == element["imported"] == ",".join(element["held"])
            found.append((element["started"], element["ended"], element["held"]))
    return found


def test_two_runs_at_once_share_a_ledger(script: Any) -> None:
    drivers = [start(script, "twelve", *FOUR, "--tag", f"side-{number}") for number in range(2)]
    said = [driver.wait(0, 120.0) for driver in drivers]
    runs = [script.client.runs(tag=f"side-{number}")[0] for number in range(2)]
    uses = [use for run in runs for use in uses_of(run)]
    assert len(uses) == 24
    assert_apart(uses)
    # Each fills all devices by itself, so that somebody waited for the other one, and was told so.
    reasons = [f"leased to run {runs[1].id}", f"leased to run {runs[0].id}"]
    assert any(reason in text for reason, text in zip(reasons, said)), said
    devices = {device for _, _, held in uses for device in held}
    assert devices == {f"GPU-simulated-0000-0000-0000-{n:012d}" for n in range(4)}
    for run, text in zip(runs, said):
        assert "8 times unknown: 1 × H100 (simulated)" in text and "4 times unknown: 2 × H100 (simulated)" in text
        for element in [*run.steps["one"], *run.steps["two"]]:
            receipt = element.receipt
            assert receipt.simulated and receipt.whole and receipt.verdict == "unknown"
            assert receipt.proved["devices"] == f"{len(receipt.devices)} simulated (H100)"
    assert not list((script.home / "scratch").iterdir())


def test_a_step_sees_what_it_holds_and_no_other_sees_any(script: Any) -> None:
    ran(script, "sights", *FOUR, env={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    held, cpu, fresh = (value(script, "sights", key) for key in ("held", "cpu", "fresh"))
    assert len(held["held"]) == 2 and held["visible"] == held["imported"] == ",".join(held["held"])
    assert held["simulated"] == [True, True] and held["memory"] == [80 * 10**9] * 2
    for other in (cpu, fresh):
        assert (other["visible"], other["imported"], other["amd"], other["held"]) == ("", "", "", [])
    assert script.read("hook-held") == script.read("hook-") == []  # a line would be a device
    assert (script.folder / "hook-held").exists() and (script.folder / "hook-").exists()


def events(lab: Any, run: Any, kind: str) -> list[Any]:
    return [event for event in lab.client.store.records.events(run.id) if event.kind == kind]


def test_who_waits_is_told_for_whom_and_may_leave(script: Any) -> None:
    """One holds the only device; another run stands in line behind it, and then four more."""
    only = ("--simulate", "1xL4")
    holder = start(script, "holding", *only)
    holder.until(there(script, "holding"))
    holding = script["holding"].id
    (script.folder / "holding").unlink()
    first = start(script, "holding", *only, "--tag", "first")
    first.until_written(reason := f"waiting for 1 of 1 GPUs: 1 leased to run {holding}")
    line = {
        name: start(script, pipeline, *only, "--tag", name, *more)
        for name, pipeline, *more in (
            ("cancelled", "training"),
            ("hurried", "hurrying"),
            ("debugged", "training", "--debug"),
            ("left", "training", "--debug"),
        )
    }
    for driver in line.values():
        driver.until_written("waiting for")

    def run(name: str) -> Any:
        return script.client.runs(tag=name)[0]

    def state() -> tuple[str, Any, str]:
        (step,) = run("first").steps.values()
        return step.status, step.started, step.message

    assert run("first").status == "running" and state() == ("pending", None, reason)
    script.run("stoker", "cancel", run("cancelled").id)
    line["cancelled"].wait(130)
    assert run("cancelled").steps["train"].status == "cancelled" and not events(script, run("cancelled"), "leased")
    line["left"].signal()
    line["left"].wait(130)
    assert run("left").status == "cancelled"
    time.sleep(1.5)  # longer than the timeout of the hurried one, which counts no time in line
    assert line["hurried"].process.poll() is None

    script.run("stoker", "cancel", holding)
    holder.wait(130)
    first.until(there(script, "holding"))
    status, started, message = state()
    assert (status, message) == ("running", "") and started is not None
    go(script)
    for driver in (first, line["hurried"], line["debugged"]):
        driver.wait()
    assert [event.data["message"] for event in events(script, run("first"), "waiting")] == [reason]
    (leased,) = events(script, run("first"), "leased")
    assert leased.data["attempt"] == 1 and leased.data["simulated"] and len(leased.data["devices"]) == 1
    assert run("hurried").steps["hurried"].status == "succeeded"


def test_parts_of_a_device_are_given_out_up_to_its_memory(script: Any) -> None:
    driver = start(script, "sharing", "--count", "5", "--simulate", "1xH100-80GB")
    driver.until(lambda: len(list(script.folder.glob("shares-*"))) == 4)
    driver.until_written("waiting for 20 GB of 1 of 1 GPUs: 1 shared with 0 B left")
    assert len(list(script.folder.glob("shares-*"))) == 4
    go(script)
    driver.wait()
    values = [step.load() for step in script["sharing"].steps.values()]
    assert {tuple(one["held"]) for one in values} == {("GPU-simulated-0000-0000-0000-000000000000",)}
    assert [one["memory"] for one in values] == [[20 * 10**9]] * 5


def test_alternatives_are_tried_in_order(script: Any) -> None:
    ran(script, "choosing", "--simulate", "2xH100-80GB,1xL4")
    (use,) = script["choosing"].steps["either"].receipt.devices
    assert use.model == "L4"
    ran(script, "choosing", "--simulate", "3xH100-80GB,1xL4")
    assert [use.model for use in script["choosing"].steps["either"].receipt.devices] == ["H100"] * 3


def test_a_slice(script: Any) -> None:
    ran(script, "slicing", "--simulate", "2xA100-80GB/1g.10gb")
    found = value(script, "slicing", "sliced")
    assert found["visible"] == "MIG-simulated-0000-0000-0000-000000000000" and found["memory"] == [10 * 10**9]
    assert "STK103" in ran(script, "slicing", "--simulate", "2xA100-80GB", code=3)


def test_without_a_device_a_step_is_refused_with_the_ways_on(script: Any) -> None:
    said = ran(script, "training", code=3)
    assert "STK103" in said and "this machine has no GPU" in said
    assert "--stack NAME" in said and "--simulate 1x" in said
    assert "--set steps.train.accelerator_policy=prefer" in said
    assert not script.client.runs()
    # The third way is one.
    said = ran(script, "training", "--set", "steps.train.accelerator_policy=prefer")
    assert "cpu-fallback" in said


def test_a_step_that_prefers_a_device_runs_without(script: Any) -> None:
    said = ran(script, "preferred")
    step = script["preferred"].steps["preferring"]
    assert (step.receipt.verdict, step.receipt.devices) == ("cpu-fallback", ())
    assert step.receipt.fallback == "this machine has no GPU" and step.receipt.whole
    assert "! preferring: it ran without an accelerator: this machine has no GPU" in said
    assert (step.load()["visible"], step.load()["held"]) == ("", [])
    said = ran(script, "preferred", "--simulate", "1xL4")
    assert "!" not in said and len(script["preferred"].steps["preferring"].receipt.devices) == 1


def test_visibility_is_not_for_settings(script: Any) -> None:
    said = ran(script, "training", *FOUR, "--set", "steps.train.environment.CUDA_VISIBLE_DEVICES=1", code=3)
    assert "STK112" in said and "remove CUDA_VISIBLE_DEVICES" in said


def test_each_attempt_has_its_lease_and_receipt_and_gives_its_device_back(script: Any, tmp_path: Path) -> None:
    ran(script, "ends", "--simulate", "1xL4", code=1)
    steps = script["ends"].steps
    first, second = steps["flaky"].attempts
    assert first.failure.cause == "user-error" and first.receipt.whole and second.receipt.whole
    assert first.receipt.devices[0].uuid == second.receipt.devices[0].uuid
    leased = [event.data["attempt"] for event in events(script, script["ends"], "leased") if event.key == "flaky"]
    assert leased == [1, 2]
    (late,) = steps["hurried"].attempts
    assert late.failure.cause == "timed-out" and late.receipt.whole
    assert steps["train"].status == "succeeded"
    from stoker.devices.leases import Ledger
    from stoker.devices.probe import parse_simulation

    ledger = Ledger(lambda: parse_simulation("1xL4"), lambda inventory: (), folder=tmp_path / "stoker-leases")
    assert ledger.path.exists() and not ledger.entries()


# With a driver that answers.


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Gpus:
    return Gpus(tmp_path_factory.mktemp("gpus"))


@pytest.fixture
def gpus(both: Gpus) -> Gpus:
    return both.answer().torch("2.9.0+cu130", "13.0")


def test_a_device_that_is_used(script: Any, gpus: Gpus) -> None:
    gpus.answer(WORKS)
    said = ran(script, "working", env=gpus.environment)
    assert script["working"].status == "succeeded", "also the step that would fail with an idle device"
    step = script["working"].steps["user"]
    receipt = step.receipt
    assert receipt.verdict == "used" and receipt.whole and not receipt.simulated, receipt
    (use,) = receipt.devices
    assert use.uuid == UUIDS[0] == step.load()["visible"]
    assert use.utilization_peak == 90 and use.own_memory_peak == 2 * 10**9 and use.power_mean == 300
    assert receipt.proved["devices"] == "1 visible, as leased"
    assert receipt.proved["driver"] == "580.95.05 (CUDA 13.0)"
    assert "used 1 × H100" in said and "!" not in said
    assert (receipt.predicted, receipt.found) == ("proved", "fits"), receipt.prediction
    assert receipt.prediction.startswith("proved: torch 2.9.0+cu130 has code for sm_90 (H100); driver 580.95.05 runs ")
    assert "proved, found to fit" in said
    assert "proved, found to fit" in script.run("stoker", "show", "latest")
    # Nothing proves a build for the CPU, and the gate in the job refuses it.
    ran(script, "using", env=gpus.torch("2.9.0+cpu", None).environment, code=1)
    refused = script["using"].steps["user"].receipt
    assert (refused.predicted, refused.found) == ("not-proved", "unfit"), refused
    shown = script.run("stoker", "gpu", "latest", "user")
    assert "not proved: torch 2.9.0+cpu is a CPU build" in shown and "unfit" in shown
    assert {track.name for track in step.attempts[-1].tracks} >= {"utilization", "memory", "power"}


def test_ranks_import_a_framework_on_devices(script: Any, gpus: Gpus) -> None:
    """The gate looks at what each rank imports, against the devices that its node's agent has proved."""
    script.write("spawn.py", SPAWN)
    gpus.torch("2.9.0+cu130", "13.0", fake_torch()).answer(WORKS, WORKS)
    ran(script, "ranked", env=gpus.environment)
    step = script["ranked"].steps["rank"]
    assert [value[:2] for value in step.load()] == [[0, "2.9.0+cu130"], [1, "2.9.0+cu130"]]
    assert {uuid for value in step.load() for uuid in value[2].split(",")} <= set(UUIDS)
    # What a rank sees is what counts, whatever its files say.
    gpus.torch("2.9.0+cu130", "13.0", fake_torch("return False", 0))
    said = ran(script, "ranked", env=gpus.environment, code=1)
    assert script["ranked"].steps["rank"].failure.cause == "no-gpu" and "sees 0 of the step's 2 GPUs" in said


def test_a_device_that_stays_idle(script: Any, gpus: Gpus) -> None:
    """A step is told so, or not, or fails, or is ended and gives its device back, as it wants it."""
    gpus.answer(IDLES)
    said = ran(script, "idling", env=gpus.environment, code=1)
    steps = script["idling"].steps
    stopped, failed = (steps[name].attempts[-1] for name in ("stopping", "failing"))
    assert stopped.failure.cause == "idle-gpu" and stopped.receipt.stopped
    assert stopped.failure.message.startswith("its device has not worked (utilisation below 5 %) for 1.")
    assert stopped.seconds < 100
    receipt = steps["user"].receipt
    assert receipt.verdict == "idle" and "never 5 %" in receipt.evidence[0]
    assert "idle: 1 × H100" in said and "! user: H100 0: utilisation 0 % at most" in said
    assert steps["ignored"].receipt.verdict == "idle" and "! ignored" not in said
    assert (steps["failing"].status, failed.failure.cause) == ("failed", "idle-gpu")
    assert "utilisation 0 % at most" in failed.failure.message and "failing failed: idle-gpu" in said
    assert not steps["failing"].outputs and failed.receipt.verdict == "idle"


def refused(lab: Any, gpus: Gpus, cause: str, *said: str) -> None:
    """The step fails at the gate, and none of its code has run."""
    written = ran(lab, "using", env=gpus.environment, code=1)
    attempt = lab["using"].steps["user"].attempts[-1]
    assert attempt.failure.cause == cause, written
    assert all(text in written for text in said), written
    assert not (lab.folder / "user-code").exists()
    assert attempt.receipt.verdict in ("unknown", "idle")
    # What may be one device's fault is tried on the other one, too; a driver is the same for both.
    tried = [attempt.receipt.devices[0].uuid for attempt in lab["using"].steps["user"].attempts]
    assert tried == (list(UUIDS) if cause == "no-gpu" else [UUIDS[0]])


def test_the_gate_finds_no_device(script: Any, gpus: Gpus) -> None:
    gpus.answer(cuda="init = 100\n")
    refused(script, gpus, "no-gpu", "(asked for: 1 GPU)", "fix: ")  # the sentence is another one in a container


def test_the_gate_finds_a_build_for_the_cpu(script: Any, gpus: Gpus) -> None:
    gpus.torch("2.9.0+cpu", None)
    refused(script, gpus, "no-gpu-build", "torch 2.9.0+cpu is a CPU build", "pip install torch==2.9.0+cu130")
    # Who prefers a device goes on without, and sees none.
    said = ran(script, "preferred", env=gpus.environment)
    step = script["preferred"].steps["preferring"]
    assert step.receipt.verdict == "cpu-fallback" and "is a CPU build" in step.receipt.fallback
    assert (step.load()["visible"], step.load()["held"]) == ("", [])
    assert "! preferring: it ran without an accelerator: torch 2.9.0+cpu is a CPU build" in said


def test_a_device_that_somebody_else_fills_is_passed_over(script: Any, gpus: Gpus) -> None:
    gpus.answer(f"process = {os.getpid()}:40000000000\n", WORKS)
    ran(script, "training", env=gpus.environment)
    assert value(script, "training", "train")["visible"] == UUIDS[1]
    filled = f"process = {os.getpid()}:40000000000\n"
    gpus.answer(filled, filled)
    driver = start(script, "training", env=gpus.environment)
    driver.until_written(f"train: waiting for 1 of 2 GPUs: 2 in use by pid {os.getpid()} (40 GB)")
    driver.signal()
    driver.wait(130)


# Under a debugger.


def test_debug_leases_proves_and_watches(script: Any, gpus: Gpus) -> None:
    gpus.answer(WORKS)
    driver = start(script, "using", "--debug", env=gpus.environment)
    driver.wait()
    step = script["using"].steps["user"]
    found, receipt = step.load(), step.receipt
    assert (found["visible"], found["held"]) == (UUIDS[0], [UUIDS[0]]) and found["pid"] == driver.process.pid
    assert receipt.verdict == "used" and receipt.whole and receipt.devices[0].utilization_peak == 90
    assert receipt.proved["devices"] == "1 visible, as leased"
    assert not list((script.home / "scratch").iterdir())


def test_debug_hides_devices_from_other_steps(script: Any) -> None:
    ran(script, "sights", *FOUR, "--debug", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    held, cpu = (value(script, "sights", key) for key in ("held", "cpu"))
    assert len(held["held"]) == 2 and held["visible"] == ",".join(held["held"])
    assert held["imported"] == "0,1"  # the driver's own: it imported the module before there was a lease
    assert (cpu["visible"], cpu["held"]) == ("", [])
    assert script.read("hook-held") == []


@pytest.mark.long
def test_debug_opens_the_gate(script: Any, gpus: Gpus) -> None:
    gpus.answer(cuda="init = 100\n")
    said = ran(script, "using", "--debug", env=gpus.environment, code=1)
    assert "(asked for: 1 GPU)" in said and not (script.folder / "user-code").exists()
    assert script["using"].steps["user"].attempts[-1].failure.cause == "no-gpu"


@pytest.mark.long
def test_debug_forgets_the_gate_behind_the_step(script: Any, gpus: Gpus) -> None:
    """A build for the CPU is no error in a step without devices, whatever ran before it in the same process."""
    package(gpus.site, "jax", {"jax/version.py": "_version = '0.9.0'", "jax/__init__.py": "x = 1"})
    try:
        script.write("importing.py", IMPORTING)
        for how in ((), ("--debug",)):
            script.run("importing.py", *how, env=gpus.environment)
            assert script["importing"].steps["cpu"].load() == 1
    finally:
        shutil.rmtree(gpus.site / "jax")


def test_debug_stops_nothing_for_idleness(script: Any, gpus: Gpus) -> None:
    gpus.answer(IDLES)
    settings = ("--set", "steps.user.on_idle_gpu=stop", "--set", "steps.user.monitor.idle_for=0.3")
    said = ran(script, "using", "--debug", *settings, env={**gpus.environment, "SECONDS": "2"})
    step = script["using"].steps["user"]
    assert step.status == "succeeded" and step.receipt.verdict == "idle" and step.receipt.left_idle
    assert "! user: H100 0: utilisation 0 % at most" in said
    planned = script.run("stoker", "plan", "devices.py:using", "--debug", *settings, env=gpus.environment)
    assert "STK113" in planned
