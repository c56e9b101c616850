"""Whole runs on a stack whose orchestrator is AWS Batch: moto runs the containers, and our double what moto lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from tests.aws_batch.cluster import BatchAccount

PIPELINES = """
import os, sys, time

import helper
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step
def make(n: int) -> list[int]:
    print("made in", os.getcwd())
    print("a word aside", file=sys.stderr)
    return helper.numbers(n)

@step(cache=False)
def square(number: int) -> int:
    print("squares", number)
    return number**2

@step(cache=False, resources=ResourceSettings(nodes=2), launch={"launcher": "single", "outputs": "all"})
def ranks() -> dict:
    return {"rank": context.rank, "node": context.node, "of": context.world_size}

@step(cache=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def learn(n: int = 3):
    return total(square.map(make(n)))

@pipeline
def gang():
    ranks()

@step(cache=False)
def wait(folder: str, keep: str) -> int:
    open(os.path.join(folder, "begun-" + str(time.time_ns())), "w").close()
    print("waiting", flush=True)
    while not os.path.exists(os.path.join(folder, "go")):
        if context.should_stop:
            open(os.path.join(folder, "stopped"), "w").close()
            raise SystemExit("asked to stop")
        time.sleep(0.05)
    return 7

@pipeline
def long(folder: str, keep: str = ""):
    wait(folder, keep)

@step(cache=False)
def bad():
    raise ValueError("three is too much")

@pipeline
def wrong():
    bad()

if __name__ == "__main__":
    if sys.argv[1] == "learn":
        run = learn()
        print("total", run.steps["total"].output.load())
    elif sys.argv[1] == "gang":
        run = gang()
        print("ranks", run.steps["ranks"].output.load())
    elif sys.argv[1] == "wrong":
        wrong()
    else:
        long(sys.argv[1])
"""
HELPER = """
def numbers(n):
    return list(range(n))
"""
PATIENCE = 150.0


@pytest.fixture
def aws(project: Any, batch_account: BatchAccount, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A project whose stack is the account; its containers see the project's folder."""
    for name, text in batch_account.environment.items():
        monkeypatch.setenv(name, text)
    stack = batch_account.stack(f"b-{uuid.uuid4().hex[:12]}")
    shared = project.folder / "shared"
    shared.mkdir()
    stack = stack.replace("host_volumes = {", f'host_volumes = {{"{shared}" = "{shared}", ')
    return project.write({"stoker.toml": stack, "train.py": PIPELINES, "helper.py": HELPER})


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.1)
    return value


def started(aws: Any, folder: Any) -> subprocess.Popen[str]:
    """A driver whose step waits, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "train.py", str(folder)],
        cwd=aws.folder,
        env={**os.environ, "STOKER_HOME": str(aws.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_a_pipeline_with_a_fan_out(aws: Any, batch_account: BatchAccount) -> None:
    before = batch_account.control()["submissions"]
    done = aws.run("train.py", "learn", timeout=300.0)
    assert "total 5" in done.stdout, done.stdout
    log = aws.stoker("logs", "last", "make").stdout
    assert log.count("made in") == log.count("a word aside") == 1, log
    assert batch_account.control()["submissions"] - before == 3, "the fan-out is one array"
    failed = aws.run("train.py", "wrong", code=None, timeout=300.0)
    assert failed.returncode and "three is too much" in failed.stdout + failed.stderr
    assert not batch_account.live()


@pytest.mark.slow
def test_a_gang_is_a_multi_node_parallel_job(aws: Any, batch_account: BatchAccount) -> None:
    done = aws.run("train.py", "gang", timeout=300.0)
    assert "'rank': 1, 'node': 1, 'of': 2" in done.stdout, done.stdout
    assert not batch_account.live()


@pytest.mark.slow
def test_a_killed_driver_is_taken_over_and_a_cancelled_step_ends_in_time(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    before = batch_account.control()["submissions"]
    assert len(batch_account.live()) == 1, "the job goes on without its driver"
    (folder / "go").touch()
    resumed = aws.stoker("resume", "last", timeout=300.0)
    assert resumed.returncode == 0
    assert batch_account.control()["submissions"] == before, "the job was taken over, and none sent"
    assert len(list(folder.glob("begun-*"))) == 1
    assert "waiting" in aws.stoker("logs", "last", "wait").stdout
    assert not batch_account.live()
    # Cancelled: the worker gets SIGTERM, and the step ends by itself.
    (folder / "go").unlink()
    driver = started(aws, folder)
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second run")
    driver.send_signal(signal.SIGINT)
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode, output
    until(lambda: not batch_account.live(), "the end of the job")
    assert (folder / "stopped").exists(), output


@pytest.mark.slow
def test_a_reclaimed_instance_costs_no_retry(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    (job,) = batch_account.live()
    batch_account.control(reclaim=job["jobId"])
    until(lambda: len(list(folder.glob("begun-*"))) == 2, "the second start")
    (folder / "go").touch()
    output, _ = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 0, output
    assert len(aws.client().run("last").steps["wait"].attempts) == 1
    assert not batch_account.live()


@pytest.mark.slow
def test_gc_ends_what_is_left_and_deregisters_definitions(aws: Any, batch_account: BatchAccount) -> None:
    folder = aws.folder / "shared"
    driver = started(aws, folder)
    until(lambda: list(folder.glob("begun-*")), "the step")
    driver.kill()
    driver.communicate()
    assert len(batch_account.live()) == 1
    cancelled = aws.stoker("cancel", "last", code=None, timeout=200.0)
    until(lambda: not batch_account.live(), f"the end of the job: {cancelled.stdout}{cancelled.stderr}")
    aws.stoker("gc", timeout=200.0)
    client = batch_account.client()
    left = [row for row in client.definitions() if row.get("tags", {}).get("stoker") == "definition"]
    client.close()
    assert not left
