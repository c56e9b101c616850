"""What a dead fork server left is found by its mark and its cgroup, whatever it does to escape, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.devices import processtree
from stoker.worker import processes, survivors
from stoker.worker.containment import Containment
from stoker.worker.survivors import Survivors

HYDRA = """
import os, sys, time
os.environ.clear()  # what shows of it is how the process was started
if os.fork():
    os._exit(0)
open(sys.argv[1], "w").close()
while True:
    os.setsid()
    time.sleep(0.01)
    if os.fork():
        os._exit(0)
"""
"""A process that is another one every 10 ms, each in a session of its own."""

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs Linux's /proc")


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    """A driver that lives until `kill`: every other driver and `stoker gc` ends what a dead one left."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    kill(process)
    survivors.end(processes.mark_of(process.pid), 10.0)
    process.communicate(timeout=60)


def kill(driver: subprocess.Popen[bytes]) -> None:
    """End a driver; its mark stays, and no other process gets its pid, since nobody has waited for it."""
    os.kill(driver.pid, signal.SIGKILL)
    while processtree.alive(driver.pid):
        time.sleep(0.01)


def hydra(folder: Path, mark: str, group: Containment | None = None) -> None:
    environment = {processes.MARK: mark} if group is None else {}
    enter = None if group is None else lambda: group.add(0)
    argv = [sys.executable, "-c", HYDRA, str(folder / "ready")]
    subprocess.run(argv, env=environment, check=True, timeout=60, preexec_fn=enter)
    while not (folder / "ready").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("contained", [False, True], ids=["by its mark", "by its cgroup"])
def test_what_always_forks_is_found_and_ended(driver: subprocess.Popen[bytes], tmp_path: Path, contained: bool) -> None:
    mark = processes.mark_of(driver.pid)
    group = Containment.open(f"{mark}-0") if contained else None
    if contained and group is None:
        pytest.skip("this user may not make a cgroup")
    hydra(tmp_path, f"{mark}-0", group)
    assert all(survivors.find(mark) and survivors.find(f"{mark}-0") for _ in range(5)), "no look misses it"
    assert survivors.find(f"{mark}-01") == survivors.find(mark[:-1]) == (), "marks are compared whole"
    kill(driver)
    end = Survivors()
    deadline = time.monotonic() + 60
    pid, ticks = mark.split("-")
    while end(int(pid), ticks):
        assert time.monotonic() < deadline
    assert survivors.find(mark) == ()
    assert group is None or not os.path.exists(group.folder), "its group goes with the last process"


def test_a_sweep_ends_what_dead_drivers_left_and_nothing_of_living_ones(
    driver: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    own = f"{processes.mark_of(os.getpid())}-0"
    living = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={processes.MARK: own})
    hydra(tmp_path, f"{processes.mark_of(driver.pid)}-3")
    kill(driver)
    survivors.sweep()
    remaining = survivors.find(processes.mark_of(driver.pid))
    assert remaining == (), [survivors.process_text(pid) for pid in remaining]
    assert living.poll() is None and survivors.find(own) == (living.pid,)
    living.communicate(b"\n", timeout=60)
