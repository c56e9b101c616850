"""What the sampler costs: `python -m benchmarks.sampler HZ [SECONDS]`, beside ten processes on eight GPUs.

The GPUs are those of the tests' fake driver, which answers at once: what is measured is Stoker's own part. Prints a
line of JSON: the sampler's CPU time in percent of one core, after its start, and the samples it took meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "tests" / "devices" / "fake_nvml.c"
GPUS = 8
PROCESSES = 10
WARM = 3.0
"""Seconds that are left out: imports, and finding the devices and processes for the first time."""

STEP = f"""
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) for _ in range({PROCESSES - 1})]
print("there", flush=True)
time.sleep(3600)
"""


def scenario(pid: int) -> str:
    """Eight H100s that tell everything, with the step's process on each."""
    gpus = [
        f"[gpu]\nname = NVIDIA H100 80GB HBM3\nuuid = GPU-{index}\nmemory = 85520809984\nused = 40000000000\n"
        f"process = {pid}:30000000000\nutilisation = 90\nbursts = {','.join(['90'] * 60)}\npower = 600000\n"
        "temperature = 60\nclock = 1980\nreasons = 0x4\nenergy = 1000000,600000\ncounters = 1000000,500000\n"
        "xid = 1000000:79\n"
        for index in range(GPUS)
    ]
    return "driver = 570.124.06\ncuda = 12080\n" + "".join(gpus)


def seconds_of(pid: int) -> float:
    """CPU seconds of a process, in nanoseconds' resolution."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measured(hertz: float, seconds: float) -> dict[str, Any]:
    """Percent of one core, and samples in that time."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name, contextlib.ExitStack() as ended:
        folder = Path(name)
        compiler = shutil.which("cc") or "gcc"
        library = folder / "libnvidia-ml.so.1"
        argv = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(library), str(SOURCE)]
        subprocess.run(argv, check=True)
        step = subprocess.Popen([sys.executable, "-c", STEP], stdout=subprocess.PIPE, start_new_session=True)
        ended.callback(os.killpg, step.pid, 9)
        assert step.stdout is not None
        step.stdout.readline()
        (folder / "scenario").write_text(scenario(step.pid))
        devices = [
            {"kind": "nvidia", "index": index, "uuid": f"GPU-{index}", "model": "H100", "memory": 85520809984}
            for index in range(GPUS)
        ]
        samples = folder / "samples.jsonl"
        facts = {"samples": str(samples), "interval": 1 / hertz, "devices": devices, "started": time.time()}
        (folder / "document.json").write_text(json.dumps({**facts, "pid": step.pid}))
        environment = {**os.environ, "LD_LIBRARY_PATH": name, "FAKE_NVML_SCENARIO": str(folder / "scenario")}
        sampler = subprocess.Popen(
            [sys.executable, "-m", "stoker.devices.monitor", str(folder / "document.json")], env=environment
        )
        ended.callback(sampler.wait)
        ended.callback(sampler.kill)
        time.sleep(WARM)
        before, lines, began = seconds_of(sampler.pid), len(samples.read_bytes().splitlines()), time.monotonic()
        time.sleep(seconds)
        taken, passed = seconds_of(sampler.pid) - before, time.monotonic() - began
        return {"percent": taken / passed * 100, "samples": len(samples.read_bytes().splitlines()) - lines}


if __name__ == "__main__":
    print(json.dumps(measured(float(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 20.0)))
