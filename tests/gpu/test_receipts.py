"""Receipts of real work: their verdicts, and their figures against what torch and the driver count."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
from tests.gpu.conftest import Machine, Note

from stoker.core.codec import to_json

pytestmark = pytest.mark.gpu

SECONDS = 10.0
"""How long the GPU works or rests in `WORK`: many times the second over which the driver's utilisation is a mean."""
WARM, COUNTED = 5.0, 20.0
"""Seconds before, and for which, the sampler's CPU time is counted."""

WORK = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings


    def joules():
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(context.devices[0].uuid)
        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1000
        except pynvml.NVMLError:
            return None


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)
    def work(seconds: float) -> dict:
        import torch

        left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        right = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        torch.cuda.synchronize()
        first, started, count = joules(), time.monotonic(), 0
        while time.monotonic() < started + seconds:
            for _ in range(20):
                left @ right
            torch.cuda.synchronize()
            count += 20
        last, took = joules(), time.monotonic() - started
        return {"products": count, "seconds": took, "joules": None if first is None else last - first}


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)
    def rest(seconds: float, context_first: bool) -> float:
        import torch

        if context_first:
            kept = torch.empty(1000, device="cuda")  # a context on the device is not yet work
            torch.cuda.synchronize()
        time.sleep(seconds)
        return seconds


    @pipeline
    def working(seconds: float = 10.0):
        worked = work(seconds)
        bare = rest.with_options(id="bare", after=[worked])(seconds, False)
        rest.with_options(id="with_context", after=[bare])(seconds, True)


    if __name__ == "__main__":
        working()
"""

BARE = """
import sys, time, torch

left = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
right = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
torch.cuda.synchronize()
started, count = time.monotonic(), 0
while time.monotonic() < started + float(sys.argv[1]):
    for _ in range(20):
        left @ right
    torch.cuda.synchronize()
    count += 20
print(count / (time.monotonic() - started))
"""

MEMORY = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.1), cache=False)
    def fill() -> dict:
        import os

        import pynvml
        import torch

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(context.devices[0].uuid)
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        pool = torch.cuda.memory_reserved()
        others = int(pynvml.nvmlDeviceGetMemoryInfo(device).used) - pool
        mine = [
            int(one.usedGpuMemory) - pool
            for one in pynvml.nvmlDeviceGetComputeRunningProcesses(device)
            if one.pid == os.getpid() and one.usedGpuMemory
        ]
        kept = torch.empty(torch.cuda.mem_get_info()[1] // 4, dtype=torch.uint8, device="cuda")
        kept.fill_(1)
        torch.cuda.synchronize()
        time.sleep(3)
        return {
            "allocated": torch.cuda.max_memory_allocated(),
            "others": others,  # on the device beside torch's memory: the context, and what the driver keeps
            "context": mine[0] if mine else None,
        }


    @pipeline
    def filling():
        fill()


    if __name__ == "__main__":
        filling()
"""


def test_used_and_idle(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """A loop of products is `used`, sleep is `idle`, and energy is what the driver counts."""
    run = done(WORK)
    told, receipt = run.steps["work"].load(), run.steps["work"].receipt
    (use,) = receipt.devices
    assert receipt.verdict == "used", receipt.evidence
    assert receipt.whole and not receipt.simulated
    assert use.utilization_peak >= 90
    assert use.first_use is not None and use.first_use < receipt.seconds
    assert use.idle < 0.75
    note(
        "used", utilization_mean=use.utilization_mean, first_use=use.first_use, idle=use.idle, products=told["products"]
    )
    note("used", power_peak=use.power_peak, clock_mean=use.clock_mean, temperature_peak=use.temperature_peak)
    bare = subprocess.run([sys.executable, "-c", BARE, str(SECONDS)], capture_output=True, text=True, check=True).stdout
    note("products_per_second", in_a_step=told["products"] / told["seconds"], bare=float(bare))

    for name in ("bare", "with_context"):
        rested = run.steps[name].receipt
        # To make a context may count as a moment's work, where the driver samples often.
        assert rested.verdict == "idle" or name == "with_context", rested.evidence
        assert rested.devices[0].longest_idle >= SECONDS / 2
        peak = rested.devices[0].utilization_peak
        note(f"idle_{name}", verdict=rested.verdict, utilization_peak=peak, energy=rested.energy)

    if told["joules"] is None:
        assert receipt.energy is None or use.power_mean is not None
        return
    # The receipt also has what came before and after the loop, at no more than the highest power. The driver's counter
    # moves about ten times a second.
    assert receipt.energy >= told["joules"] * 0.97
    rest = max(0.0, receipt.seconds - told["seconds"]) + 1.0
    assert receipt.energy <= told["joules"] * 1.03 + rest * use.power_peak
    note("energy", receipt=receipt.energy, counter=told["joules"], loop=told["seconds"], step=receipt.seconds)


def test_memory(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """The highest memory is torch's own count and the context, within 5 %."""
    step = done(MEMORY).steps["fill"]
    told, (use,) = step.load(), step.receipt.devices
    assert use.memory_peak == pytest.approx(told["allocated"] + told["others"], rel=0.05)
    if told["context"] is not None:
        assert use.own_memory_peak == pytest.approx(told["allocated"] + told["context"], rel=0.05)
    note("memory", **told, peak=use.memory_peak, own_peak=use.own_memory_peak)


@pytest.mark.parametrize("hertz", [1, 20])
def test_sampling_cost(hertz: int, gpu: Machine, tmp_path: Path, note: Note) -> None:
    """What the sampler costs beside a process that sleeps: noted, not judged. Its samples say what the driver tells."""
    samples, document = tmp_path / "samples.jsonl", tmp_path / "document.json"
    step = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    sampler = None
    try:
        settings = {"samples": str(samples), "interval": 1 / hertz, "devices": [to_json(gpu.device)]}
        document.write_text(json.dumps({**settings, "pid": step.pid, "started": time.time()}))
        sampler = subprocess.Popen([sys.executable, "-m", "stoker.devices.monitor", str(document)])
        process = psutil.Process(sampler.pid)
        time.sleep(WARM)
        first, before = lines(samples), cpu_seconds(process)
        time.sleep(COUNTED)
        last, after = lines(samples), cpu_seconds(process)
    finally:
        step.kill()
        step.wait()
        if sampler is not None:
            sampler.wait(30)
    rows = [line["devices"][gpu.device.uuid] for line in last if "procs" in line]
    assert all("m" in row for row in rows)
    assert gpu.device.slice or all("u" in row for row in rows)
    taken = len(last) - len(first)
    assert taken > 0
    note(f"sampler_{hertz}_hz", percent_of_a_core=100 * (after - before) / COUNTED, samples=taken)


def lines(path: Path) -> list[dict[str, Any]]:
    """Every whole line of the sampler's file."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process, its children's too."""
    told = process.cpu_times()
    return float(told.user + told.system + told.children_user + told.children_system)


def test_the_document_has_what_a_lease_has(gpu: Machine) -> None:
    """The device as JSON is what the monitor reads of it."""
    assert {"uuid", "kind", "slice", "parent"} <= to_json(gpu.device).keys() <= set(attrs.fields_dict(type(gpu.device)))
