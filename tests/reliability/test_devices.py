"""Whoever of driver, fork server, worker and monitor dies: devices become free, and what is known of them is kept."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.engine.conftest import Lab
from tests.waiting import until

from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation

TWO = "2xH100-80GB"
SCRIPT = """
    import os
    import time

    from stoker import pipeline, step
    from stoker.config import Monitor, Retry


    def note(name, text=""):
        with open(f"{name}.new", "w") as file:
            file.write(str(text))
        os.replace(f"{name}.new", name)


    @step(resources={"gpu_count": 2}, monitor=Monitor(0.05), cache=False)
    def hold(number: int) -> str:
        if os.path.exists("free"):
            return os.environ["CUDA_VISIBLE_DEVICES"]
        note("pid", os.getpid())
        while True:
            time.sleep(0.01)


    @pipeline
    def holding():
        hold.map([0, 1])


    if __name__ == "__main__":
        holding()
"""


class Held:
    """A run whose first element holds every device, and the processes that make it so."""

    def __init__(self, lab: Lab, ledger: Ledger, *options: str) -> None:
        self.lab = lab
        self.ledger = ledger
        lab.write("hold.py", SCRIPT)
        self.driver = lab.start("hold.py", "--simulate", TWO, *options)
        self.driver.until(lambda: (lab.folder / "pid").exists())
        self.worker = psutil.Process(int((lab.folder / "pid").read_text()))
        self.server = psutil.Process(self.worker.ppid())
        self.samples = self.driver.until(lambda: [path for path in self.sampled() if path.stat().st_size])[0]
        self.driver.until(lambda: self.samples.read_bytes().count(b"\n") > 3)
        self.monitor = psutil.Process(json.loads(self.samples.read_bytes().splitlines()[0])["sampler"])

    def sampled(self) -> list[Path]:
        """The files of samples."""
        return list((self.lab.home / "scratch").glob("samples-*.jsonl"))

    def others_go_on(self) -> None:
        """From now on the step returns at once."""
        (self.lab.folder / "free").touch()

    def gone(self) -> None:
        """Nothing of it is left but the driver."""
        for process in (self.worker, self.server, self.monitor):
            until(functools.partial(_ended, process), "end of a process")


def _ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """The ledger that the drivers write, seen from outside."""
    return Ledger(lambda: parse_simulation(TWO), lambda inventory: (), folder=tmp_path / "stoker-leases")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.close()


def test_a_killed_driver_leaves_its_devices_to_the_next_run(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger)
    (first,) = [entry for entry in ledger.entries() if entry.devices]
    assert first.holder.pid == held.driver.process.pid and len(first.devices) == 2
    held.driver.signal(signal.SIGKILL)
    held.driver.wait(-signal.SIGKILL)
    assert not ledger.entries()
    held.gone()
    lab.run("stoker", "gc")
    assert held.samples.exists(), "the run may still be resumed, and somebody may look at it"
    held.others_go_on()
    run = lab["holding"]
    assert run.status == "interrupted"
    # The same run goes on, with the same devices; what the dead attempt left is no part of the new one's account.
    stale = held.samples.read_text()
    assert "header" in stale
    lab.run("stoker", "resume", run.id, "--simulate", TWO)
    for element in lab["holding"].steps["hold"]:
        (devices, receipt) = (element.load(), element.attempts[-1].receipt)
        assert devices.count(",") == 1 and receipt.whole and receipt.seconds < 30
        assert receipt.memory_peak is not None
    assert not ledger.entries()
    left = held.sampled()
    assert left in ([], [held.samples])
    yesterday = time.time() - 2 * 86400
    for path in left:
        os.utime(path, (yesterday, yesterday))
    lab.run("stoker", "gc")
    assert not held.sampled()


def test_a_killed_worker_leaves_a_receipt(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger, "--set", "retry=1")
    held.others_go_on()
    held.worker.kill()
    held.driver.wait()
    first, second = lab["holding"].steps["hold"][0].attempts
    assert first.failure.cause == "killed" and len(first.receipt.devices) == 2
    # The monitor saw the end of the process that it watched.
    assert first.receipt.whole and first.receipt.simulated and first.receipt.memory_peak > 0
    assert second.receipt.whole and not ledger.entries() and not held.sampled()


def test_a_killed_monitor_costs_samples_and_not_the_step(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger)
    held.monitor.kill()
    until(functools.partial(_ended, held.monitor), "end of the monitor")
    held.others_go_on()
    held.worker.kill()
    held.driver.wait(1)
    receipt = lab["holding"].steps["hold"][0].attempts[-1].receipt
    assert not receipt.whole and len(receipt.devices) == 2 and receipt.memory_peak > 0
    assert not ledger.entries()


def test_a_killed_fork_server_gives_the_devices_back(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger, "--set", "retry=1")
    held.others_go_on()
    held.server.kill()
    held.driver.wait()
    held.gone()
    first, second = lab["holding"].steps["hold"][0].attempts
    assert first.failure.cause == "worker-lost" and len(first.receipt.devices) == 2
    assert second.receipt.whole and not ledger.entries()


def test_a_killed_driver_under_debug_takes_its_monitor_along(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger, "--debug")
    assert held.worker.pid == held.driver.process.pid
    (entry,) = [entry for entry in ledger.entries() if entry.devices]
    assert entry.holder.pid == held.worker.pid
    held.driver.signal(signal.SIGKILL)
    held.driver.wait(-signal.SIGKILL)
    until(functools.partial(_ended, held.monitor), "end of the monitor")
    assert json.loads(held.samples.read_bytes().splitlines()[-1])["why"] == "gone"
    assert not ledger.entries()


def test_an_interrupt_under_debug_ends_the_monitor(lab: Lab, ledger: Ledger) -> None:
    held = Held(lab, ledger, "--debug")
    held.driver.signal()
    held.driver.wait(130)
    until(functools.partial(_ended, held.monitor), "end of the monitor")
    assert not ledger.entries() and lab["holding"].status == "cancelled"
