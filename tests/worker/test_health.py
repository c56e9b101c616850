"""The health check: what each part finds, how it ends where a driver crashes or hangs, and that it is made once.

Processes, libraries of NVIDIA's that answer scenarios, and torch on the CPU are real; no device here is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.devices.test_compat import UUIDS
from tests.worker.test_gate import Place, libraries  # noqa: F401  # a fixture

from stoker.core import status
from stoker.core.codec import from_json
from stoker.core.devices import Lease
from stoker.devices.probe import parse_simulation
from stoker.worker import health

NVML = "driver = 580.95.05\ncuda = 13000\n"
NO_CUDA = """
__version__ = "2.9.0+cu130"
class cuda:
    is_available = staticmethod(lambda: False)
"""


FAILING = """
class cuda:
    @staticmethod
    def is_available():
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
"""


@pytest.fixture
def place(tmp_path: Path, libraries: Path) -> Place:  # noqa: F811
    made = Place(tmp_path, libraries)
    made.torch("2.9.0+cu130", "13.0", NO_CUDA)
    return made


@pytest.mark.parametrize(
    ("counted", "words"),
    [
        ("remap_pending = 1", "a bad row of its memory is to be replaced at the next reset"),
        ("remap_failed = 1", "could not be replaced: the GPU has to be exchanged"),
        ("retire_pending = 1", "bad pages of its memory are to be retired"),
        ("ecc_errors = 3", "3 uncorrectable ECC errors since the driver was loaded"),
        ("xid = 2:79", "the driver reported Xid 79: the GPU fell off the bus"),
    ],
)
def test_what_the_driver_has_counted(counted: str, words: str, place: Place) -> None:
    place.nvml(NVML, "", counted)
    found = place.opened(health_check="quick")
    assert found.get("cause") == status.GPU_HARDWARE, found
    assert words in found["message"] and f"H100 1 ({UUIDS[1]})" in found["message"] and UUIDS[0] not in found["message"]
    assert "facts" in place.opened(), "nobody looks without the setting"


def test_healthy_devices_are_said_to_be(place: Place) -> None:
    place.nvml(NVML, "remap_pending = 0\necc_errors = 0\nreasons = 64", "ecc_errors = 0\nxid = 2:43")
    fact = place.opened(health_check="quick")["facts"]["health"]
    assert fact.startswith("no errors counted; H100 0 is throttled: thermal; not exercised: torch 2.9.0+cu130 cannot")
    assert "checked in" in fact
    place.nvml(NVML, "ecc_errors = 0", "")
    assert "unknown: errors of memory of H100 1;" in place.opened(health_check="quick")["facts"]["health"]


@pytest.mark.parametrize(
    ("body", "cause", "words"),
    [
        ("import os\nos.kill(os.getpid(), 11)", status.DRIVER_BROKEN, "ended by signal 11 while torch was imported"),
        (
            FAILING,
            status.GPU_HARDWARE,
            "while CUDA started: RuntimeError: CUDA error: uncorrectable ECC error encountered",
        ),
    ],
)
def test_a_check_that_breaks_off(body: str, cause: str, words: str, place: Place) -> None:
    place.torch("2.9.0+cu130", "13.0", body)
    found = place.opened(health_check="quick")
    assert found.get("cause") == cause and words in found["message"], found


def test_a_check_that_hangs_is_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.torch("2.9.0+cu130", "13.0", "import time\nclass cuda:\n    is_available = lambda: time.sleep(600)")
    monkeypatch.syspath_prepend(str(place.site))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(place.libraries))
    monkeypatch.setenv("FAKE_NVML_SCENARIO", str(place.folder / "nvml"))
    monkeypatch.setattr(health, "WORKING", 5.0)
    lease = from_json(Lease, place.document(health_check="quick"), strict=False)
    began = time.monotonic()
    text, problem = health.check(lease, "")
    assert time.monotonic() < began + 120, text
    assert problem is not None and problem.cause == status.GPU_HARDWARE
    assert problem.sentence == "the health check has not ended after 5 s while CUDA started"


class Damaged:
    """torch with memory that loses a bit."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def equal(self, one: Any, other: Any) -> bool:
        one.view(-1)[7] ^= 1
        return bool(self._torch.equal(one, other))


def _wrong_once(torch: Any) -> Callable[[Any, Any], Any]:
    right = torch.matmul

    def multiply(one: Any, other: Any) -> Any:
        product = right(one, other)
        product[3, 5] += 1
        return product

    return multiply


def test_the_work_on_a_device() -> None:
    torch = pytest.importorskip("torch")
    cpu = torch.device("cpu")
    health.exercise(torch, cpu, memory=1 << 20, seconds=0.0, side=64)
    health.copy(torch, cpu, cpu)
    with pytest.raises(ValueError, match="a product of matrices is wrong in 1 of 64 rows"):
        health.exercise(torch, cpu, memory=8, seconds=0.0, side=64, multiply=_wrong_once(torch))
    with pytest.raises(ValueError, match="memory does not hold what was written, in 1 words"):
        health.exercise(Damaged(torch), cpu, memory=1 << 10, seconds=0.0, side=64)
    with pytest.raises(ValueError, match="arrives damaged"):
        health.copy(Damaged(torch), cpu, cpu)


def test_all_parts_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two devices, both of which are this machine's CPU: only what asks CUDA for them is replaced."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (1 << 20, 1 << 20))
    monkeypatch.setattr(health, "_places", lambda torch, devices: [torch.device("cpu")] * len(devices))
    devices = parse_simulation("2xH100").devices
    parts: list[str] = []
    fact = health._work(devices, 0, lambda what, slow=False: parts.append(what))
    assert fact == "memory, matrices, copies between them of 2"
    names = [f"H100 {number} ({device.uuid})" for number, device in enumerate(devices)]
    assert parts[:2] == ["torch was imported", "CUDA started"]
    assert parts[2:4] == [f"{name} was exercised" for name in names]
    assert parts[4:] == [f"data was copied between {one} and {other}" for one, other in (names, names[::-1])]
    monkeypatch.setattr(torch, "matmul", _wrong_once(torch))
    with pytest.raises(health.Unwell, match=re.escape(f"{names[0]}: a product of matrices is wrong in 1 of 2048 rows")):
        health._work(devices[:1], 0, lambda what, slow=False: None)


def test_marks_are_of_a_run_and_of_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    marks = health.Marks("one")
    assert not marks.has(["a", "b"])
    marks.add(["a", "b"])
    assert marks.has(["b", "a"]) and marks.has(["a"]) and not marks.has(["a", "c"])
    assert not health.Marks("two").has(["a"]) and not health.Marks("").has(["a"])
    [folder] = tmp_path.iterdir()
    for path in folder.iterdir():
        os.utime(path, (1.0, 1.0))
    marks.add(["c"])
    assert marks.has(["c"]) and not marks.has(["a"]), "old marks are removed"
