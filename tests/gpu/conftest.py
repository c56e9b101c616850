"""Tests that need an NVIDIA GPU and a torch that can use it; where either is missing they are skipped, and say why.

With STOKER_GPU_FIGURES=FILE what was measured is written there as JSON, with a description of the machine. Nothing else
may compute on the GPU meanwhile.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest

from stoker.core.devices import Device
from stoker.devices.probe import probe

# Read before the session's fixtures take STOKER_* out of the environment.
FIGURES: Final = os.environ.get("STOKER_GPU_FIGURES", "")

MARGIN: Final = 64 * 2**20
"""Bytes by which the driver's own use of a device may differ before and after a step."""
PATIENCE: Final = 15.0
"""Seconds in which the driver gives back what a process had that ended."""

Note = Callable[..., None]


def needs(*packages: str) -> None:
    """Skip a test where one of these packages is not installed; nothing of them is imported here."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


@attrs.frozen(kw_only=True)
class Machine:
    """What the tests run on: the first device that steps get, and what the driver is."""

    device: Device
    driver: str
    cuda: tuple[int, int] | None

    def used(self) -> int:
        """Bytes in use on the device, by everybody, as the driver tells."""
        import pynvml

        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(self.device.uuid)).used)
        finally:
            pynvml.nvmlShutdown()

    def used_after(self, before: int) -> int:
        """Bytes in use once that is about as much as before, or the driver has had `PATIENCE` seconds for it."""
        deadline = time.monotonic() + PATIENCE
        while (after := self.used()) > before + MARGIN and time.monotonic() < deadline:
            time.sleep(0.1)
        return after


@pytest.fixture(scope="session")
def gpu() -> Machine:
    """The machine with its GPU; skips the test where there is none, or no torch that can use it."""
    inventory = probe()
    devices = [device for device in inventory.devices if device.kind == "nvidia"]
    if not devices:
        broken = "; ".join(finding.what for finding in inventory.findings)
        pytest.skip(f"no NVIDIA GPU that steps can have{f' ({broken})' if broken else ''}")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.version.cuda is None:
        pytest.skip(f"torch {torch.__version__} is not built for CUDA")
    # Whole devices come first, as they do in the ledger.
    device = min(devices, key=lambda device: (bool(device.slice), device.index))
    return Machine(device=device, driver=inventory.driver, cuda=inventory.cuda)


@pytest.fixture
def whole(gpu: Machine) -> Machine:
    """A GPU that is not cut into slices: of a slice, the driver tells no utilisation, power or energy."""
    if gpu.device.slice:
        pytest.skip("this machine has only MIG slices, of which the driver tells no utilisation")
    return gpu


@pytest.fixture(scope="session")
def note(gpu: Machine) -> Note:
    """`note("sampler", percent=0.3)`: keep figures, written at once, so that a test that fails later loses none."""
    import torch

    found: dict[str, dict[str, Any]] = {
        "machine": {
            "gpu": gpu.device.name,
            "model": gpu.device.model,
            "slice": gpu.device.slice,
            "memory": gpu.device.memory,
            "capability": gpu.device.capability,
            "driver": gpu.driver,
            "cuda": gpu.cuda,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
    }

    def keep(name: str, **figures: Any) -> None:
        found.setdefault(name, {}).update(figures)
        print(name, json.dumps(figures))
        if FIGURES:
            beside = Path(f"{FIGURES}.new")
            beside.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            os.replace(beside, FIGURES)

    return keep


@pytest.fixture
def done(gpu: Machine, project: Any) -> Callable[..., Any]:
    """`done(program)`: run a program that calls a pipeline, and hand its run back; `code` is its exit code."""

    def run(program: str, *, code: int = 0) -> Any:
        project.write({"program.py": program})
        project.run("program.py", code=code, timeout=240.0)
        return project.client().runs()[0]

    return run
