"""Real devices: found as nvidia-smi finds them, leased by UUID, proved by the gate, and given back whole."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import MARGIN, Machine, Note

from stoker.devices.probe import probe

pytestmark = pytest.mark.gpu

SEEN = """
    from stoker import context, pipeline, step
    from stoker.config import ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def held() -> dict:
        import torch

        properties = torch.cuda.get_device_properties(0)
        return {
            "count": torch.cuda.device_count(),
            "uuid": str(getattr(properties, "uuid", "")),
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "leased": [device.uuid for device in context.devices],
            "sum": float(torch.ones(1000, device="cuda").sum()),
        }


    @step(cache=False)
    def bare() -> list:
        import torch

        return [torch.cuda.is_available(), torch.cuda.device_count()]


    @pipeline
    def seen():
        held()
        bare()


    if __name__ == "__main__":
        seen()
"""

FILLS = """
    import os
    import signal

    from stoker import pipeline, step
    from stoker.config import ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def fill(dies: bool) -> int:
        import torch

        free, total = torch.cuda.mem_get_info()
        kept = torch.empty(total // 4, dtype=torch.uint8, device="cuda")
        kept.fill_(1)
        torch.cuda.synchronize()
        taken = free - torch.cuda.mem_get_info()[0]
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return taken


    @pipeline
    def filling(dies: bool = DIES):
        fill(dies)


    if __name__ == "__main__":
        filling()
"""


def test_discovery(gpu: Machine) -> None:
    """Every GPU of nvidia-smi is found, with its UUID, name, memory and driver; one in MIG mode by its slices."""
    if shutil.which("nvidia-smi") is None:
        pytest.skip("there is no nvidia-smi to compare with")
    fields = "index,uuid,name,memory.total,driver_version,mig.mode.current"
    argv = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    inventory = probe({})  # as if nothing were hidden
    found = {device.uuid: device for device in inventory.devices if device.kind == "nvidia"}
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]
    assert rows
    for index, uuid, name, memory, driver, mig in rows:
        assert inventory.driver == driver
        if mig == "Enabled":
            assert uuid not in found
            continue
        device = found[uuid]
        assert (device.index, device.name) == (int(index), name)
        # nvidia-smi leaves out what the driver keeps of the memory for itself.
        assert device.memory == pytest.approx(int(memory) * 2**20, rel=0.03)
    whole = {uuid for uuid, device in found.items() if not device.slice}
    assert whole == {row[1] for row in rows if row[5] != "Enabled"}


def test_lease_by_uuid(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """In a step torch sees the leased device and no other; in a step without a lease it sees none."""
    run = done(SEEN)
    told = run.steps["held"].load()
    assert told["count"] == 1
    assert told["sum"] == 1000.0
    assert tuple(told["capability"]) == gpu.device.capability
    (leased,) = told["leased"]
    assert leased in {device.uuid for device in probe().devices}
    if told["uuid"] and not gpu.device.slice:  # torch before 2.4 does not tell it
        assert leased.removeprefix("GPU-") == told["uuid"].removeprefix("GPU-")
    assert run.steps["bare"].load() == [False, 0]
    assert run.steps["bare"].receipt is None
    note("lease", seconds=run.steps["held"].receipt.seconds)


def test_gate(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """What the gate proved: the driver, the device, its memory, and the framework's build."""
    import torch

    proved = done(SEEN).steps["held"].receipt.proved
    assert proved["driver"].startswith(gpu.driver)
    assert proved["devices"].startswith("1 visible, as leased")
    assert proved["memory"].endswith("free")
    assert torch.__version__.partition("+")[0] in proved["torch"]
    assert "unfit" not in proved["torch"]
    assert proved["torch in use"]
    note("gate", **proved)


@pytest.mark.parametrize("dies", [False, True], ids=["ends", "is-killed"])
def test_memory_comes_back(dies: bool, gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """After a step, however it ended, the device has as much free memory as before it."""
    before = gpu.used()
    run = done(FILLS.replace("DIES", str(dies)), code=1 if dies else 0)
    step = run.steps["fill"]
    if dies:
        assert step.failure.cause == "killed"
    else:
        assert step.load() > gpu.device.memory // 5
    assert step.receipt.devices[0].memory_peak is not None
    after = gpu.used_after(before)
    assert after <= before + MARGIN
    note("memory_given_back" + ("_by_the_killed" if dies else ""), before=before, after=after)
