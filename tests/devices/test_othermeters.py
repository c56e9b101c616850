"""AMD's and AWS's devices in the sampler: an amdsmi and a neuron-monitor of our own, which answer as real ones do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.devices.receipt import Samples, read, receipt_of

DEADLINE = 60.0
AMD = {"kind": "amd", "index": 1, "uuid": "GPU-00ab", "model": "MI300X", "memory": 192 * 10**9}
NEURON = {"kind": "neuron", "index": 1, "uuid": "neuron-cores:2-3", "model": "Trainium", "memory": 32 * 2**30}

AMDSMI = """
import types
calls = {"activity": 0, "broken": 0}
class AmdSmiLibraryException(Exception): pass
AmdSmiTemperatureType = types.SimpleNamespace(HOTSPOT=1)
AmdSmiTemperatureMetric = types.SimpleNamespace(CURRENT=0)
AmdSmiClkType = types.SimpleNamespace(GFX=0)
def amdsmi_init(): START
def amdsmi_get_processor_handles(): return ["first", "second"]
def amdsmi_get_gpu_activity(handle):
    assert handle == "second"
    calls["activity"] += 1
    if calls["activity"] > LIVES: raise AmdSmiLibraryException("device not found")
    return {"gfx_activity": 0 if calls["activity"] == 1 else 75, "umc_activity": 10, "mm_activity": "N/A"}
def amdsmi_get_gpu_vram_usage(handle): return {"vram_total": 196592, "vram_used": 4096}
def amdsmi_get_power_info(handle): return {"current_socket_power": "N/A", "average_socket_power": 300}
def amdsmi_get_temp_metric(handle, kind, metric): return 64
def amdsmi_get_clock_info(handle, kind):
    calls["broken"] += 1
    assert calls["broken"] == 1, "a question that was not answered is asked once"
    raise AmdSmiLibraryException("not supported")
def amdsmi_get_energy_count(handle):
    return {"energy_accumulator": 1_000_000 * calls["activity"], "counter_resolution": 15.3, "timestamp": 1}
def amdsmi_get_gpu_process_list(handle): return [{"name": "step", "pid": PID, "mem": 2_000_000_000}]
"""


@pytest.fixture
def step() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield started
    started.kill()
    started.wait(DEADLINE)


def sampled(
    folder: Path, step: subprocess.Popen[bytes], device: dict[str, Any], wanted: int, **variables: str
) -> Samples:
    """What a sampler wrote until the device, or what failed of it, was told so often."""
    path, file = folder / "samples.jsonl", folder / "document.json"
    facts = {"samples": str(path), "interval": 0.05, "devices": [device], "started": time.time(), "pid": step.pid}
    file.write_text(json.dumps(facts))
    argv = [sys.executable, "-m", "stoker.devices.monitor", str(file)]
    sampler = subprocess.Popen(argv, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + DEADLINE
    told, found = 0, Samples()
    while (told < wanted or not found.moments) and time.monotonic() < deadline:
        time.sleep(0.01)
        found = read(path)
        told = len(found.events) + sum(bool(moment["devices"]) for moment in found.moments)
    sampler.terminate()
    said, _ = sampler.communicate(timeout=DEADLINE)
    assert (sampler.returncode, said) == (0, b"") and told >= wanted
    return read(path)


def amdsmi(folder: Path, pid: int, start: str = "pass", lives: int = 10**9) -> dict[str, str]:
    (folder / "amdsmi.py").write_text(
        AMDSMI.replace("START", start).replace("LIVES", str(lives)).replace("PID", str(pid))
    )
    return {"PYTHONPATH": str(folder)}


def test_amd_tells_what_it_can(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    samples = sampled(tmp_path, step, AMD, 5, **amdsmi(tmp_path, step.pid))
    receipt = receipt_of(samples)
    use = receipt.devices[0]
    assert receipt.verdict == "used" and use.utilization_peak == 75
    assert use.memory_peak == 4 * 2**30 and use.own_memory_peak == 2_000_000_000
    assert use.power_mean == 300 and use.temperature_peak == 64 and use.clock_mean is None
    assert use.energy == pytest.approx(15.3 * (len(samples.moments) - 1))


def test_an_amd_gpu_that_fails_in_the_middle(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    samples = sampled(tmp_path, step, AMD, 9, **amdsmi(tmp_path, step.pid, lives=3))
    assert [event["why"] for event in samples.events] == ["AmdSmiLibraryException: device not found"]
    assert "u" not in samples.moments[-1]["devices"]["GPU-00ab"]


def test_amdsmi_that_cannot_be_used(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    broken = amdsmi(tmp_path, step.pid, start="print('noise'); raise KeyError('libamd_smi.so')")
    samples = sampled(tmp_path, step, AMD, 1, **broken)
    assert [event["why"] for event in samples.events] == ["amdsmi does not answer: KeyError: 'libamd_smi.so'"]
    assert receipt_of(samples).verdict == "unknown"


def test_an_amd_gpu_that_is_not_there(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    samples = sampled(tmp_path, step, {**AMD, "index": 2}, 1, **amdsmi(tmp_path, step.pid))
    assert [event["why"] for event in samples.events] == ["the driver does not know it"]


REPORT = {
    "neuron_runtime_data": [
        {
            "pid": 0,
            "report": {
                "neuroncore_counters": {
                    "neuroncores_in_use": {
                        "1": {"neuroncore_utilization": 99.0},
                        "2": {"neuroncore_utilization": 80.0},
                        "3": {"neuroncore_utilization": 40.0},
                    }
                },
                "memory_used": {
                    "neuron_runtime_used_bytes": {
                        "host": 7,
                        "neuron_device": 600,
                        "usage_breakdown": {
                            "neuroncore_memory_usage": {
                                "1": {"constants": 1, "tensors": 1},
                                "2": {"constants": 100, "tensors": 200},
                                "3": {"constants": 300, "tensors": 0},
                            }
                        },
                    }
                },
            },
        }
    ]
}


def neuron_monitor(folder: Path, script: str, pid: int) -> dict[str, str]:
    commands = folder / "bin"
    commands.mkdir()
    command = commands / "neuron-monitor"
    report = json.dumps(REPORT).replace('"pid": 0', f'"pid": {pid}')
    (folder / "report").write_text(report + "\n")
    command.write_text(f"#!/bin/sh\ntest -s \"$2\" || exit 3\nREPORT='{folder / 'report'}'\n{script}\n")
    command.chmod(0o755)
    return {"PATH": f"{commands}:{os.environ['PATH']}", "TMPDIR": str(folder)}


def test_neuron_monitor_is_read_and_ended(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    script = 'echo $$ > "$REPORT.pid"; while true; do cat "$REPORT"; sleep 0.1; done'
    samples = sampled(tmp_path, step, NEURON, 4, **neuron_monitor(tmp_path, script, step.pid))
    use = receipt_of(samples).devices[0]
    assert use.utilization_peak == 60 and use.memory_peak == use.own_memory_peak == 600
    assert use.power_mean is None and receipt_of(samples).verdict == "used"
    pid = int((tmp_path / "report.pid").read_text())
    deadline = time.monotonic() + DEADLINE
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}")
    assert not list(tmp_path.glob("tmp*.json"))


@pytest.mark.parametrize(
    ("script", "why"), [("exit 7", "neuron-monitor ended with 7"), ("echo '{}'; exit 0", "neuron-monitor ended with 0")]
)
def test_neuron_monitor_that_ends(tmp_path: Path, step: subprocess.Popen[bytes], script: str, why: str) -> None:
    samples = sampled(tmp_path, step, NEURON, 1, **neuron_monitor(tmp_path, script, step.pid))
    assert [event["why"] for event in samples.events] == [why]
    assert receipt_of(samples).verdict == "unknown"


def test_neuron_monitor_that_is_missing(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    samples = sampled(tmp_path, step, NEURON, 1, PATH=str(tmp_path))
    assert samples.events[0]["why"].startswith("neuron-monitor is not on PATH")


def test_kinds_that_tell_nothing_from_outside(tmp_path: Path, step: subprocess.Popen[bytes]) -> None:
    device = {"kind": "tpu", "index": 0, "uuid": "tpu-0", "model": "v5e", "memory": 16 * 10**9}
    samples = sampled(tmp_path, step, device, 0)
    receipt = receipt_of(samples)
    assert receipt.verdict == "unknown" and receipt.devices[0].utilization_mean is None and not samples.events
