"""Programs that break a GPU's rules, and processes that hold what a step wants: told by the driver, and found again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from tests.gpu.conftest import MARGIN, Machine, Note, needs

from stoker.devices.probe import probe

pytestmark = pytest.mark.gpu

HEAD = """
    import os
    import time

    from stoker import context, pipeline, step
    from stoker.config import Monitor, ResourceSettings

    GPU = dict(resources=ResourceSettings(gpu_count=1), monitor=Monitor(0.2), cache=False)


    @step(**GPU)
    def work() -> float:
        import torch

"""

ASSERT = """
        table = torch.nn.Embedding(10, 4, device="cuda")
        return float(table(torch.tensor([10], device="cuda")).sum())
"""

ILLEGAL = """
        import cupy

        kernel = cupy.RawKernel('extern "C" __global__ void wild(int *at) { at[1ll << 40] = 1; }', "wild")
        kernel((1,), (1,), (cupy.zeros(1, dtype=cupy.int32),))
        cupy.cuda.Device().synchronize()
        return 0.0
"""

HELD = """
        return float(torch.ones(10, device="cuda").sum())
"""

SLOW = """
        kept = torch.ones(1 << 28, device="cuda")
        with open(os.environ["BEGUN"], "a") as begun:
            print(os.getpid(), file=begun)
        left = torch.randn(2048, 2048, device="cuda")
        until = time.monotonic() + float(os.environ["FOR"])
        while time.monotonic() < until:
            (left @ left).sum().item()
        return float(kept.sum())
"""

TAIL = """

    @pipeline
    def working():
        work()


    if __name__ == "__main__":
        working()
"""

HOLDER = """
import sys, time, torch
kept = torch.ones(1 << 30, device="cuda")
torch.cuda.synchronize()
print("held", flush=True)
time.sleep(float(sys.argv[1]))
"""


def test_assert(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """An index out of range on the device is told as one, and the next step has a device that works."""
    failure = done(HEAD + ASSERT + TAIL, code=1).steps["work"].failure
    assert failure.cause == "illegal-memory-access", failure
    assert "CUDA_LAUNCH_BLOCKING=1" in failure.advice or "Xid" in failure.evidence
    note("assert", message=failure.message[:160], why=failure.why, evidence=failure.evidence)


def test_illegal_access(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """A write to memory that is not mapped: the program's fault and not the device's, with the driver's own number."""
    needs("cupy")
    step = done(HEAD + ILLEGAL + TAIL, code=1).steps["work"]
    failure = step.failure
    assert failure.cause == "illegal-memory-access", failure
    reported = [sentence for sentence in step.receipt.evidence if "Xid" in sentence]
    note("illegal", message=failure.message[:160], why=failure.why, evidence=failure.evidence, reported=reported)
    assert all("Xid 31" in sentence or "Xid 13" in sentence or "Xid 43" in sentence for sentence in reported)


def test_a_busy_gpu_is_waited_for(gpu: Machine, project: Any, note: Note) -> None:
    """A step waits for a GPU on which a foreign process holds memory, says which, and runs once that has ended."""
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, "8"], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        project.write({"program.py": HEAD + HELD + TAIL})
        finished = project.run("program.py", timeout=240.0)
    finally:
        holder.kill()
        holder.communicate()
    said = [line for line in finished.stderr.splitlines() + finished.stdout.splitlines() if "waiting" in line]
    assert any(f"pid {holder.pid}" in line for line in said), finished.stderr
    assert project.client().runs()[0].steps["work"].load() == 10.0
    note("busy", said=said)


def test_a_killed_driver(gpu: Machine, project: Any, note: Note) -> None:
    """kill -9 of the driver in the middle of a step: its process ends, its memory comes back, the next run has both."""
    before = gpu.used()
    begun = project.folder / "begun"
    project.write({"program.py": HEAD + SLOW + TAIL})
    variables = {**os.environ, "STOKER_HOME": str(project.home), "BEGUN": str(begun)}
    driver = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=project.folder,
        env={**variables, "FOR": "600"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (begun.exists() and begun.read_text().endswith("\n")):
            assert time.monotonic() < deadline and driver.poll() is None
            time.sleep(0.1)
    finally:
        driver.kill()
        driver.wait()
    at, pid = time.monotonic(), int(begun.read_text())
    project.run("program.py", env={"BEGUN": str(begun), "FOR": "0.1"}, timeout=240.0)
    took = time.monotonic() - at
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    last = project.client().runs()[0]
    assert last.steps["work"].load() == float(1 << 28)
    after = gpu.used_after(before)
    assert after <= before + MARGIN
    note("killed_driver", next_run_seconds=took, before=before, after=after)


def test_devices_command(gpu: Machine, project: Any, note: Note) -> None:
    """`stoker devices`, `top` and `doctor` of a machine with a GPU end well and name it."""
    named = [device for device in probe().devices if device.uuid == gpu.device.uuid]
    assert named
    for words in (["devices"], ["top", "--once"], ["doctor"]):
        finished = project.command([sys.executable, "-m", "stoker", *words], code=None)
        note("said_" + words[0], code=finished.returncode, text=finished.stdout + finished.stderr)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        assert gpu.device.model in finished.stdout
        assert words[0] != "top" or " °C" in finished.stdout
