"""AMD's GPUs by an amd-smi of the tests' own, where Python has no amdsmi: forms of two versions, and counted errors."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tests.devices.test_othermeters import sampled, step  # noqa: F401  # a fixture

from stoker.core.devices import Device
from stoker.devices.receipt import receipt_of
from stoker.vendors import amd

STATIC = [
    {
        "gpu": number,
        "asic": {"market_name": "AMD Instinct MI300X", "asic_serial": f"0xABC{number:02X}"},
        "vram": {"type": "HBM3", "size": {"value": 196592, "unit": "MB"}},
    }
    for number in (1, 0)
]
PROCESSOR = {"cpu": 0, "smu": {}}
METRIC = {
    "gpu": 1,
    "usage": {"gfx_activity": {"value": 75, "unit": "%"}, "umc_activity": "N/A"},
    "power": {"socket_power": "N/A", "average_socket_power": {"value": 300, "unit": "W"}},
    "clock": {"gfx_0": {"clk": {"value": 2100, "unit": "MHz"}}},
    "temperature": {"edge": "N/A", "hotspot": {"value": 64, "unit": "C"}},
    "energy": {"total_energy_consumption": {"value": 1234.5, "unit": "J"}},
    "ecc": {"total_correctable_count": 3, "total_uncorrectable_count": 0},
    "mem_usage": {"total_vram": {"value": 196592, "unit": "MB"}, "used_vram": {"value": 4096, "unit": "MB"}},
}
CARD = {"kind": "amd", "index": 1, "uuid": "GPU-00000000000abc01", "model": "MI300X", "memory": 192 * 10**9}


def amd_smi(folder: Path, static: str, metrics: tuple[str, ...] = ()) -> dict[str, str]:
    """A command of this name, whose answers of `metric` change; the environment that finds it."""
    path = folder / "tools" / "amd-smi"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport os, sys\nfolder = {str(path.parent)!r}\n"
        f"if sys.argv[1:] == ['static', '--asic', '--vram', '--json']:\n    print({static!r})\n"
        "elif sys.argv[1:] == ['metric', '--json']:\n"
        "    count = len([name for name in os.listdir(folder) if name.startswith('asked')])\n"
        "    open(os.path.join(folder, f'asked-{count}'), 'w').close()\n"
        f"    text = {metrics!r}[min(count, {len(metrics) - 1})]\n"
        "    sys.exit(text) if 'lost' in text else print(text)\n"
        "else:\n    sys.exit(7)\n"
    )
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:/usr/bin:/bin"}


@pytest.fixture
def rocm(tmp_path: Path) -> Path:
    """A machine whose kernel has GPUs for computing."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    return tmp_path


@pytest.mark.parametrize("answer", [STATIC, {"cpu_data": [PROCESSOR], "gpu_data": STATIC}])
def test_found_in_both_forms(answer: Any, rocm: Path) -> None:
    inventory = amd.probe(amd_smi(rocm, json.dumps(answer)), rocm)
    first, second = inventory.devices
    assert not inventory.findings
    assert (first.index, first.uuid, first.model) == (0, "GPU-00000000000abc00", "MI300X")
    assert (second.index, second.uuid, second.memory) == (1, "GPU-00000000000abc01", 196592 * 2**20)
    assert amd.visibility([second]) == {"ROCR_VISIBLE_DEVICES": "GPU-00000000000abc01"}
    assert amd.probe(amd_smi(rocm / "dev", json.dumps(answer)), rocm / "dev").devices == (), "no /dev/kfd there"


def test_a_gpu_of_which_nothing_is_told_keeps_its_number(rocm: Path) -> None:
    silent = [{"gpu": 0}, {**STATIC[0], "gpu": 1}]
    devices = amd.probe(amd_smi(rocm, json.dumps(silent)), rocm).devices
    assert [(one.index, one.uuid, one.model) for one in devices] == [(0, "0", "AMD GPU"), (1, "1", "MI300X")]


@pytest.mark.parametrize("answer", ["", "ERROR: no driver", "{}", '[{"gpu": 0, "asic": 3}]'])
def test_an_amd_smi_that_fails(answer: str, rocm: Path) -> None:
    inventory = amd.probe(amd_smi(rocm, answer), rocm)
    (finding,) = inventory.findings
    assert not inventory.devices and finding.level == "error" and "amd-smi" in finding.what


def test_a_receipt_has_what_amd_smi_tells(rocm: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    worse = {
        **METRIC,
        "ecc": {"total_uncorrectable_count": 2},
        "mem_usage": {"used_vram": {"value": 8192, "unit": "MB"}},
    }
    tools = amd_smi(rocm, "", (json.dumps([METRIC]), json.dumps({"gpu_data": [worse]})))
    samples = sampled(rocm, step, CARD, 3, **tools)
    use = receipt_of(samples).devices[0]
    assert use.utilization_peak == 75 and use.power_mean == 300 and use.temperature_peak == 64
    assert use.memory_peak == 8 * 2**30 and use.own_memory_peak is None, "it does not tell whose memory it is"
    assert [event["ecc"] for event in samples.events] == [CARD["uuid"]]


def test_an_amd_smi_that_ends(rocm: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    samples = sampled(rocm, step, CARD, 1, **amd_smi(rocm, "", ("lost",)))
    assert [event["why"] for event in samples.events] == ["amd-smi: it ended with 1: lost"]
    assert receipt_of(samples).verdict == "unknown"


def test_counted_errors_of_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[Any] = [0, 3, "N/A"]
    library = types.ModuleType("amdsmi")
    library.__spec__ = types.SimpleNamespace()  # type: ignore[assignment]  # as the finder of installed modules sees it
    for name, call in {
        "amdsmi_init": lambda: None,
        "amdsmi_shut_down": lambda: None,
        "amdsmi_get_processor_handles": lambda: [0, 1, 2],
        "amdsmi_get_gpu_total_ecc_count": lambda handle: {"uncorrectable_count": counts[handle]},
    }.items():
        setattr(library, name, call)
    devices = [Device(kind="amd", index=index, uuid=f"GPU-{index}", model="MI300X") for index in range(3)]
    assert amd.health(devices).facts == ("nothing counted: there is no amdsmi in this Python",)
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    good = amd.health(devices[:1])
    assert not good.faults and good.facts == ("no errors counted",)
    found = amd.health(devices)
    assert set(found.faults) == {"GPU-1"} and "3 uncorrectable" in found.faults["GPU-1"]
    assert found.facts == ("unknown: its errors of memory",)
