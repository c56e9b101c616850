"""The sampler in a process of its own beside real steps, with the real nvidia-ml-py and a fake driver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from stoker.devices.processtree import Tree, alive
from stoker.devices.receipt import Samples, read, receipt_of
from stoker.system import system

DEADLINE = 60.0
GPU = {
    "kind": "nvidia",
    "index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA H100 80GB HBM3",
    "model": "H100",
    "memory": 85 * 10**9,
}
SLEEP = "import time; time.sleep(600)"


class Bench:
    """Steps and samplers that are ended with the test."""

    def __init__(self, machine: Any, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.path = folder / "samples.jsonl"
        self.processes: list[subprocess.Popen[Any]] = []
        self.groups: list[int] = []

    def step(self, program: str) -> subprocess.Popen[Any]:
        """A step: the leader of a session of its own."""
        started = subprocess.Popen([sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE)
        self.processes.append(started)
        self.groups.append(started.pid)
        return started

    def sampler(
        self, step: subprocess.Popen[Any], scenario: str = "", *flags: str, **document: Any
    ) -> subprocess.Popen[Any]:
        """The sampler beside it."""
        if scenario:
            self.machine.nvml(scenario.replace("STEP", str(step.pid)), *flags)
        file = self.folder / "document.json"
        facts = {"samples": str(self.path), "interval": 0.05, "devices": [GPU], "started": time.time()}
        file.write_text(json.dumps({**facts, "pid": step.pid, **document}))
        argv = [sys.executable, "-m", "stoker.devices.monitor", str(file)]
        started = subprocess.Popen(argv, env={**os.environ, **self.machine.variables(), "PATH": os.environ["PATH"]})
        self.processes.append(started)
        return started

    def samples(self, count: int = 3) -> Samples:
        """What it has written, once there are so many moments."""
        return until(lambda: (found := read(self.path)) and len(found.moments) >= count and found, f"{count} samples")

    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for moment in read(self.path).moments if (row := moment["devices"].get("GPU-0"))]

    def end(self, step: subprocess.Popen[Any], sampler: subprocess.Popen[Any]) -> Samples:
        """End the step, and let the sampler see it."""
        step.kill()
        step.wait(DEADLINE)
        assert sampler.wait(DEADLINE) == 0
        return read(self.path)


@pytest.fixture
def bench(machine: Any, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(machine, tmp_path)
    yield made
    for group in made.groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)  # what it forked outlives it
    for process in made.processes:
        process.kill()
        process.wait(DEADLINE)
        if process.stdout is not None:
            process.stdout.close()


H100 = """
    driver = 570.124.06
    [gpu]
    name = NVIDIA H100 80GB HBM3
    uuid = GPU-0
    memory = 85520809984
    used = 30000000000
    process = STEP:25000000000
    utilisation = 0,90,80
    power = 100000,500000
    temperature = 40,71
    clock = 1980
    reasons = 0,0x24
    energy = 1000000,250000
    counters = 3000000,1000000
"""


def test_everything_the_driver_tells_is_written_down(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100)
    until(lambda: sum("c" in row for row in bench.rows()) >= 2, "slow values")
    samples = bench.end(step, sampler)
    assert samples.header["pid"] == step.pid
    assert samples.end is not None and samples.end["why"] == "gone"
    use = receipt_of(samples).devices[0]
    assert use.utilization_peak == 90 and use.memory_peak == 30_000_000_000 and use.own_memory_peak == 25_000_000_000
    assert use.power_peak == 500 and use.temperature_peak == 71 and use.clock_mean == 1980
    rows = list(bench.rows())
    assert "j" in rows[0] and "j" in rows[-1] and sum("j" in row for row in rows) < sum("c" in row for row in rows)
    assert use.energy == 250.0
    assert set(use.throttled) == {"power cap", "thermal"} and 0 < use.throttled["thermal"] < 1
    assert use.pcie_received and use.pcie_sent and use.pcie_received > use.pcie_sent
    receipt = receipt_of(samples)
    assert receipt.verdict == "used" and receipt.whole
    assert "had a context there with 25.0 GB" in receipt.evidence[0]


def test_an_old_driver_leaves_questions_open(bench: Bench) -> None:
    step = bench.step(SLEEP)
    flags = ("-DWITHOUT_METERS", "-DWITHOUT_PROCESSES_V3", "-DWITHOUT_MIG")
    sampler = bench.sampler(step, H100, *flags)
    bench.samples()
    samples = bench.end(step, sampler)
    use = receipt_of(samples).devices[0]
    assert use.utilization_peak == 90 and use.own_memory_peak == 25_000_000_000
    assert use.power_mean is use.energy is use.temperature_peak is use.clock_mean is use.pcie_sent is None
    assert not use.throttled and not samples.events


def test_bursts_between_two_samples_count(bench: Bench) -> None:
    step = bench.step(SLEEP)
    scenario = H100 + "bursts = 100,100,100,0,95,0,0,0,0\n"
    sampler = bench.sampler(step, scenario.replace("utilisation = 0,90,80", "utilisation = 0"), interval=0.2)
    until(lambda: any("up" in row for row in bench.rows()), "bursts")
    bench.end(step, sampler)
    first = next(row for row in bench.rows() if "up" in row)
    assert first["up"] == 95 and first["u"] == pytest.approx(31.7)  # the first three were before the step


def test_an_older_driver_is_asked_for_pcie_in_turn_and_for_reasons_by_their_old_name(bench: Bench) -> None:
    step = bench.step(SLEEP)
    scenario = H100.replace("counters = 3000000,1000000", "pcie = 3000,1000")
    sampler = bench.sampler(step, scenario, "-DWITHOUT_NEW_REASONS")
    until(lambda: {"rx", "tx"} <= {name for row in bench.rows() for name in row}, "both directions")
    until(lambda: sum("r" in row for row in bench.rows()) >= 2, "reasons")
    use = receipt_of(bench.end(step, sampler)).devices[0]
    assert (use.pcie_received, use.pcie_sent) == (3_000_000, 1_000_000) and "thermal" in use.throttled


def test_critical_errors_are_recorded(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100 + "xid = 2:79\n")
    until(lambda: read(bench.path).events, "event")
    samples = bench.end(step, sampler)
    assert [event["xid"] for event in samples.events] == [79]
    assert any("H100 0: the driver reported Xid 79" in text for text in receipt_of(samples).evidence)


def test_a_gpu_that_is_lost_in_the_middle_leaves_the_processes_measured(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100 + "lost_after = 40\n")
    until(lambda: read(bench.path).events, "failure")
    before = len(read(bench.path).moments)
    bench.samples(before + 5)
    samples = bench.end(step, sampler)
    assert [(event["failed"], event["why"]) for event in samples.events] == [("GPU-0", "GPU is lost")]
    assert samples.moments[0]["devices"] and not samples.moments[-1]["devices"]
    assert all(moment["procs"] for moment in samples.moments[:-1])


@pytest.mark.parametrize("scenario", ["init = 9\n" + H100, H100 + "lost_after = 0\n", ""])
def test_a_driver_that_never_answers_is_told_once(bench: Bench, scenario: str) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, scenario)
    bench.samples(5)
    samples = bench.end(step, sampler)
    assert [event["failed"] for event in samples.events] == ["GPU-0"] and samples.events[0]["why"]
    receipt = receipt_of(samples)
    assert receipt.verdict == "unknown" and receipt.whole and receipt.memory_peak
    assert receipt.devices[0].samples == 0 and receipt.devices[0].utilization_mean is None


def test_processes_of_another_namespace_are_not_taken_for_the_steps(bench: Bench) -> None:
    step = bench.step(SLEEP)
    # Not here: numbers end at 2**22.
    sampler = bench.sampler(step, H100.replace("process = STEP:25000000000", "process = 9999999:1"))
    bench.samples()
    bench.end(step, sampler)
    counted = {row.get("n") for row in bench.rows()}
    # Outside of a container, a process that has just ended is still listed, and is not the step's.
    inside = os.readlink("/proc/self/ns/pid") != "pid:[4026531836]"
    assert counted <= ({None} if inside else {0, None})


def test_the_steps_processes_on_a_device_that_it_does_not_hold(bench: Bench) -> None:
    step = bench.step(SLEEP)
    other = "[gpu]\nuuid = GPU-1\nprocess = STEP:1000\n[gpu]\nuuid = GPU-2\nprocess = 1:1000\n"
    sampler = bench.sampler(step, H100 + other)
    until(lambda: read(bench.path).events, "stray")
    samples = bench.end(step, sampler)
    assert samples.events[0]["strays"] == ["GPU-1"]
    receipt = receipt_of(samples)
    assert receipt.verdict == "wrong-device" and "GPU-1" in receipt.evidence[0]


def test_a_slice_tells_memory_and_processes_only(bench: Bench) -> None:
    step = bench.step(SLEEP)
    scenario = (
        "[gpu]\nuuid = GPU-9\nmemory = 80000000000\nmig = 1\nutilisation = 50\npower = 1\nprocess = STEP:1\n"
        "[slice]\nuuid = GPU-0\nmemory = 10000000000\nused = 3000000000\nprocess = STEP:2000000000\nutilisation = 99\n"
    )
    sampler = bench.sampler(
        step, scenario, devices=[{**GPU, "slice": "1g.10gb", "parent": "GPU-9"}], on_idle="stop", idle_for=0.1
    )
    bench.samples(10)
    assert step.poll() is None
    receipt = receipt_of(bench.end(step, sampler))
    use = receipt.devices[0]
    assert receipt.verdict == "unknown" and "context" in receipt.evidence[0] and not receipt.stopped
    assert use.utilization_peak is use.power_peak is use.energy is None
    assert use.memory_peak == 3_000_000_000 and use.own_memory_peak == 2_000_000_000


def test_simulated_devices_are_not_measured_and_the_processes_are(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100, devices=[{**GPU, "simulated": True}], simulated=True)
    bench.samples()
    samples = bench.end(step, sampler)
    assert all(not moment["devices"] for moment in samples.moments) and not samples.events
    receipt = receipt_of(samples)
    assert receipt.verdict == "unknown" and receipt.simulated and receipt.memory_peak
    assert receipt.evidence == ("the devices are simulated: nothing was measured on them",)


def test_a_sampler_that_is_killed_leaves_its_samples(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100)
    bench.samples(5)
    sampler.kill()
    sampler.wait(DEADLINE)
    receipt = receipt_of(read(bench.path))
    assert not receipt.whole and receipt.verdict == "used" and step.poll() is None


def test_a_sampler_that_is_told_to_end_says_so(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100, interval=600)
    bench.samples(1)
    sampler.terminate()
    assert sampler.wait(DEADLINE) == 0
    samples = read(bench.path)
    assert samples.end is not None and samples.end["why"] == "told" and len(samples.moments) == 2
    assert step.poll() is None


def test_the_end_of_the_step_is_seen_at_once(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, H100, interval=600)  # a sampler that waited would outlive the deadline
    bench.samples(1)
    assert len(bench.end(step, sampler).moments) == 2


def test_a_step_that_is_gone_before_the_sampler_comes(bench: Bench) -> None:
    step = bench.step("")
    step.wait(DEADLINE)
    sampler = bench.sampler(step, H100, interval=600)
    assert sampler.wait(DEADLINE) == 0
    receipt = receipt_of(read(bench.path))
    assert receipt.whole and receipt.cpus_mean is None


BUSY = """
import os, subprocess, sys, time
child = "import time\\nend = time.process_time() + 0.6\\nwhile time.process_time() < end: pass\\n"
memory = "x = bytearray(200_000_000)\\nimport time; print('there', flush=True); time.sleep(600)"
subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"])
subprocess.run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {memory!r}])"])
"""


def test_children_of_children_are_counted(bench: Bench) -> None:
    step = bench.step(BUSY)
    sampler = bench.sampler(step, devices=[])
    assert step.stdout is not None and step.stdout.readline() == b"there\n"
    until(lambda: ((read(bench.path).moments or [{}])[-1].get("rss") or 0) > 2e8, "memory of the grandchild")
    bench.samples(len(read(bench.path).moments) + 3)
    samples = bench.end(step, sampler)
    receipt = receipt_of(samples)
    assert max(moment["procs"] for moment in samples.moments) == 3
    assert max(moment["cpu"] for moment in samples.moments) >= 0.1  # of a process that has ended since
    assert receipt.memory_peak is not None and 2e8 < receipt.memory_peak < 4e8


FORKED = """
import os, time
block = bytearray(os.urandom(1)) * 100_000_000
for _ in range(3):
    if os.fork() == 0:
        time.sleep(600)
print("there", flush=True)
time.sleep(600)
"""


def test_memory_that_forked_processes_share_counts_once(bench: Bench) -> None:
    step = bench.step(FORKED)
    assert step.stdout is not None and step.stdout.readline() == b"there\n"
    sampler = bench.sampler(step, devices=[])
    until(lambda: any(moment["rss"] and moment["procs"] == 4 for moment in read(bench.path).moments), "four processes")
    peak = receipt_of(bench.end(step, sampler)).memory_peak
    assert peak is not None and 1e8 <= peak < 1.9e8


IDLE = H100.replace("utilisation = 0,90,80", "utilisation = 0")
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("there", flush=True)
time.sleep(600)
"""


def test_a_step_that_leaves_its_device_idle_is_ended(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, IDLE, on_idle="stop", idle_for=0.3)
    assert step.wait(DEADLINE) == -signal.SIGTERM
    assert sampler.wait(DEADLINE) == 0
    receipt = receipt_of(read(bench.path))
    assert receipt.verdict in {"idle", "unknown"} and receipt.stopped.startswith("its device has not worked")
    assert receipt.left_idle.startswith("its device has not worked (utilisation below 5 %) for 0.")


def test_another_policy_ends_nothing(bench: Bench) -> None:
    step = bench.step(SLEEP)
    sampler = bench.sampler(step, IDLE, on_idle="fail", idle_for=0.1)
    bench.samples(10)
    assert step.poll() is None
    receipt = receipt_of(bench.end(step, sampler))
    assert not receipt.stopped and receipt.left_idle


def test_one_device_that_works_is_enough(bench: Bench) -> None:
    step = bench.step(SLEEP)
    scenario = IDLE + "[gpu]\nuuid = GPU-1\nutilisation = 50\n"
    sampler = bench.sampler(
        step, scenario, devices=[GPU, {**GPU, "uuid": "GPU-1", "index": 1}], on_idle="stop", idle_for=0.1
    )
    bench.samples(10)
    assert step.poll() is None
    assert receipt_of(bench.end(step, sampler)).stopped == ""


def test_a_step_that_does_not_end_when_asked_is_killed_with_what_left_its_group(bench: Bench) -> None:
    step = bench.step(STUBBORN)
    assert step.stdout is not None and step.stdout.readline() == b"there\n"
    tree = Tree(step.pid)
    tree.read()
    (child,) = tree.members - {step.pid}
    sampler = bench.sampler(step, IDLE, on_idle="stop", idle_for=0.3)
    assert step.wait(DEADLINE) == -signal.SIGKILL
    assert sampler.wait(DEADLINE) == 0
    until(lambda: not alive(child), "end of the child")


def test_a_step_that_leads_no_group_is_ended_alone(bench: Bench) -> None:
    program = (
        f"import subprocess, sys, time\np = subprocess.Popen([sys.executable, '-c', {SLEEP!r}])\n"
        "print(p.pid, flush=True)\np.wait()\ntime.sleep(600)"
    )
    around = bench.step(program)
    assert around.stdout is not None
    pid = int(around.stdout.readline())
    sampler = bench.sampler(around, IDLE.replace("STEP", str(pid)), pid=pid, on_idle="stop", idle_for=0.3)
    assert sampler.wait(DEADLINE) == 0
    assert not alive(pid) and around.poll() is None
    assert read(bench.path).events[-1]["stop"]


def test_a_tree_knows_processes_of_its_session_that_were_orphaned(bench: Bench) -> None:
    step = bench.step(
        "import os, time\nif os.fork() == 0:\n    child = os.fork()\n    if child: os._exit(0)\n    time.sleep(600)\n"
        "os.wait(); print('there', flush=True); time.sleep(600)"
    )
    assert step.stdout is not None and step.stdout.readline() == b"there\n"
    tree = Tree(step.pid)
    assert tree.read().processes == 2
    orphan = next(iter(tree.members - {step.pid}))
    found = system.stat_of(orphan)
    assert found is not None and found.parent != step.pid and found.session == step.pid
    step.kill()
    step.wait(DEADLINE)
    assert tree.read().processes == 1  # it lives on, and still belongs to the tree


def test_without_proc_a_process_is_alive_while_it_is_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    step = bench.step(SLEEP)
    monkeypatch.setattr("stoker.system.linux.PROC", str(tmp_path / "proc"))
    reading = Tree(step.pid).read()
    assert (reading.cpu, reading.memory, reading.processes, alive(step.pid)) == (None, None, 0, True)
    step.kill()
    step.wait(DEADLINE)
    assert not alive(step.pid)


@pytest.mark.parametrize("how", ["the step ends", "the sampler is told"])
def test_systems_without_descriptors_of_processes(bench: Bench, how: str) -> None:
    step = bench.step(SLEEP)
    document = bench.folder / "document.json"
    facts = {"samples": str(bench.path), "interval": 600, "devices": [], "started": time.time(), "pid": step.pid}
    document.write_text(json.dumps(facts))
    program = "import os, sys; del os.pidfd_open; from stoker.devices import monitor; monitor.main()"
    sampler = subprocess.Popen([sys.executable, "-c", program, str(document)])
    bench.processes.append(sampler)
    bench.samples(1)
    if how == "the step ends":
        step.kill()  # it stays a zombie: nobody waits for it before the sampler has seen its end
    else:
        sampler.terminate()
    assert sampler.wait(DEADLINE) == 0
    end = read(bench.path).end
    assert end is not None and end["why"] == ("gone" if how == "the step ends" else "told")


def test_the_sampler_loads_no_framework_and_no_attrs() -> None:
    heavy = {"attrs", "attr", "cattrs", "pynvml", "psutil", "torch", "numpy"}
    program = f"import sys, stoker.devices.monitor; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
