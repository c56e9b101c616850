"""Workers and the fork server, killed at random moments: the run ends, and what it says of itself is true."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.client import Client, Run
from stoker.core.status import KILLED, WORKER_LOST
from stoker.store.store import Store

SEED = 20250102
RUNS = [0, *(pytest.param(number, marks=pytest.mark.long) for number in (1, 2, 3))]

FLOW = """
import sys, time
from stoker import pipeline, step

@step
def link(number: int, size: int) -> list[int]:
    print("link", number)
    time.sleep(0.02)
    return [number + 1] * size

@step
def first(numbers: list[int]) -> int:
    return numbers[0]

@step
def parts(number: int) -> list[int]:
    return list(range(number, number + 40))

@step
def element(number: int) -> int:
    print("element", number)
    time.sleep(0.004 if number % 4 else 0.03)
    return number * 2

@step
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def killed():
    number = 0
    for index in range(6):
        number = first(link(number, size=1 if index % 2 else 3000))
    total(element.map(parts(number)))

if __name__ == "__main__":
    killed.with_options(retry=int(sys.argv[1]))()
"""
EXPECTED = sum(number * 2 for number in range(6, 46))


class Target:
    """A running pipeline whose processes are killed."""

    def __init__(self, folder: Path, mark: Any, *, retry: int, seed: str) -> None:
        self.home = folder / "home"
        self.random = random.Random(seed)
        self.mark = mark
        self.kills = 0
        self._output = folder / "output"
        folder.mkdir()
        (folder / "flow.py").write_text(FLOW)
        with open(self._output, "w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "flow.py", str(retry)],
                cwd=folder,
                env={**mark.environment, "STOKER_HOME": str(self.home)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self, victims: Callable[[psutil.Process], list[psutil.Process]], *, times: int) -> None:
        """Kill one of those that are found each time after a moment, until the run is over or it was often enough."""
        moment = threading.Event()
        while self.process.poll() is None and self.kills < times:
            moment.wait(self.random.uniform(0.0, 0.06))
            try:
                found = victims(psutil.Process(self.process.pid))
                if found:
                    self.random.choice(found).kill()
                    self.kills += 1
            except psutil.NoSuchProcess:
                continue

    def told(self) -> str:
        """What the run printed, once it is over."""
        self.process.wait()
        return self._output.read_text()


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [process for process in processes if process.status() != psutil.STATUS_ZOMBIE]


def supervisors(driver: psutil.Process) -> list[psutil.Process]:
    """The supervisor of the fork server, once it is there."""
    return living(driver.children())


def fork_servers(driver: psutil.Process) -> list[psutil.Process]:
    """The fork server, and the supervisor above it."""
    above = supervisors(driver)
    return [*above, *(server for supervisor in above for server in living(supervisor.children()))]


def workers(driver: psutil.Process) -> list[psutil.Process]:
    """All workers."""
    servers = [server for supervisor in supervisors(driver) for server in living(supervisor.children())]
    return [worker for server in servers for worker in living(server.children())]


def assert_true(run: Run, *, causes: set[str]) -> None:
    """What the run says of itself fits together."""
    steps = [step for one in run.steps.values() for step in (list(one) if one.count is not None else [one])]
    for step in steps:
        numbers = [attempt.number for attempt in step.attempts]
        assert numbers == list(range(1, len(numbers) + 1)), f"{step.key}: {numbers}"
        assert step.attempt_count == len(numbers)
        assert {attempt.status for attempt in step.attempts[:-1]} <= {"failed"}
        assert {attempt.failure.cause for attempt in step.attempts if attempt.failure} <= causes
        if step.status == "succeeded":
            assert step.attempts[-1].status == "succeeded"
            step.output.load()
        elif step.status == "failed":
            assert step.attempts[-1].status == "failed" and step.failure is not None and step.failure.message
        else:
            assert run.status == "failed" and step.status in ("skipped", "cancelled")
    assert run.status == ("succeeded" if all(step.status == "succeeded" for step in steps) else "failed")


@pytest.mark.parametrize("number", RUNS)
def test_killed_workers(
    number: int,
    tmp_path: Path,
    mark: Callable[[str], Any],
    opened: Callable[[Path], Store],
    wrong_in: Callable[[Path], list[str]],
) -> None:
    target = Target(tmp_path / "run", mark("run"), retry=1000, seed=f"{SEED}/workers/{number}")
    target.kill(workers, times=60)
    told = target.told()
    assert target.process.returncode == 0, f"seed {SEED}/{number}, {target.kills} kills\n{told}"
    run = Client(store=opened(target.home)).run("latest")
    assert run.steps["total"].output.load() == EXPECTED
    assert_true(run, causes={KILLED, WORKER_LOST})
    failed = [one for step in [*run.steps.values(), *run.steps["element"]] for one in step.attempts if one.failure]
    assert len(failed) <= target.kills, f"{target.kills} kills made {failed}"
    assert {one.failure.exit_code for one in failed if one.failure and one.failure.cause == KILLED} <= {-signal.SIGKILL}
    assert not target.mark.gone()
    assert not wrong_in(target.home)


@pytest.mark.parametrize("retry", [0, 1000])
@pytest.mark.parametrize("number", RUNS)
def test_killed_fork_server(
    number: int,
    retry: int,
    tmp_path: Path,
    mark: Callable[[str], Any],
    opened: Callable[[Path], Store],
    wrong_in: Callable[[Path], list[str]],
) -> None:
    target = Target(tmp_path / "run", mark("run"), retry=retry, seed=f"{SEED}/server/{number}")
    target.kill(fork_servers, times=6 if retry else 1)
    told = target.told()
    run = Client(store=opened(target.home)).run("latest")
    if retry:
        assert target.process.returncode == 0, f"seed {SEED}/{number}, {target.kills} kills\n{told}"
        assert run.steps["total"].output.load() == EXPECTED
    else:
        assert (target.process.returncode == 0) == (run.status == "succeeded"), told
    assert_true(run, causes={WORKER_LOST, "cancelled"} if not retry else {WORKER_LOST})
    assert not run.error, run.error
    assert not target.mark.gone()
    assert not wrong_in(target.home)
