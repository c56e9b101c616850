"""Launchers that start ranks again, start none, fail at once, or are asked for what they do not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.conftest import Lab

from stoker.worker.cluster import free_port, listening

FAILING = """
@step(cache=False, launch=Command(["false"], num_processes=2))
def fails_at_once() -> int:
    return 1

@step(cache=False, launch=Command(["true"], num_processes=2))
def starts_nobody() -> int:
    return 1

ONE = "import os, subprocess, sys; place = {'RANK': '0', 'WORLD_SIZE': '2'}; " \
    "sys.exit(subprocess.call(sys.argv[1:], env={**os.environ, **place}))"

@step(cache=False, launch=Command([sys.executable, "-c", ONE], num_processes=2))
def starts_one() -> int:
    return 1

@step(cache=False, launch=Command([sys.executable, "-c", "print('no licence'); raise SystemExit(3)"], num_processes=2))
def says_why() -> int:
    return 1

@step(cache=False, launch=plain(2), retry=2)
def again() -> str:
    meet("here")
    with open("ports.txt", "a") as file:
        print(context.attempt, os.environ["MASTER_PORT"], os.environ["STOKER_RENDEZVOUS"], file=file)
    if context.attempt < 3:
        raise ConnectionError(f"attempt {context.attempt} of rank {context.rank}")
    return f"attempt {context.attempt}"

@pipeline(failure_mode="continue")
def failing():
    fails_at_once()
    starts_nobody()
    starts_one()
    says_why()
    again()

failing()
"""


@pytest.fixture(scope="module")
def failing(module_script: Callable[[str], Lab]) -> tuple[Lab, Any]:
    lab = module_script(FAILING)
    lab.run("script.py", code=1)
    return lab, lab["failing"]


@pytest.mark.parametrize(
    ("key", "cause", "message"),
    [
        ("fails_at_once", "exited", "command started 0 of 2 ranks, and left with exit code 1"),
        ("starts_nobody", "rendezvous", "command started 0 of 2 ranks, and left with exit code 0"),
        ("starts_one", "rendezvous", "command started 1 of 2 ranks, and left with exit code 0"),
        ("says_why", "exited", "command started 0 of 2 ranks, and left with exit code 3"),
    ],
)
def test_a_launcher_that_does_not_start_its_ranks(failing: tuple[Lab, Any], key: str, cause: str, message: str) -> None:
    _, run = failing
    failure = run.steps[key].failure
    assert failure.cause == cause
    assert message in failure.message and "--rank launcher" in failure.message


def test_what_a_launcher_says_is_in_the_log(failing: tuple[Lab, Any]) -> None:
    _, run = failing
    assert [(line.rank, line.text) for line in run.steps["says_why"].logs(rank="launcher")] == [(None, "no licence")]


def test_each_attempt_meets_at_a_place_of_its_own(failing: tuple[Lab, Any]) -> None:
    lab, run = failing
    step = run.steps["again"]
    assert step.load() == "attempt 3" and step.attempt_count == 3
    assert {attempt.failure.cause for attempt in step.attempts[:2]} == {"user-error"}
    rows = [line.split() for line in lab.read("ports.txt")]
    assert len(rows) == 6
    for attempt in "123":
        (place,) = {(port, rendezvous) for number, port, rendezvous in rows if number == attempt}
        assert place[1] == f"{run.id}-again-{attempt}"
    assert len({port for _, port, _ in rows}) > 1, "not one port for all"


FIXED = """
@step(cache=False, launch=Accelerate(cpu=True, num_processes=2, main_process_port=int(os.environ["FIXED_PORT"])))
def meets() -> str:
    return os.environ["MASTER_PORT"]

@pipeline
def fixed():
    meets()

fixed()
"""


def test_ranks_meet_at_the_port_that_is_given(script: Callable[[str], Lab]) -> None:
    port = str(free_port("127.0.0.1"))
    lab = script(FIXED)
    lab.run("script.py", env={"FIXED_PORT": port})
    assert lab["fixed"].steps["meets"].load() == port


def test_a_given_port_that_is_taken_is_told_before_ranks_start(script: Callable[[str], Lab]) -> None:
    lab = script(FIXED)
    with listening("127.0.0.1") as other:
        port = other.getsockname()[1]
        lab.run("script.py", code=1, env={"FIXED_PORT": str(port)})
    failure = lab["fixed"].steps["meets"].failure
    assert failure.cause == "rendezvous"
    assert f"main_process_port={port}: another program listens on port {port}" in failure.message
    assert "fix: give another port" in failure.message
    assert not list(lab["fixed"].steps["meets"].logs(rank="launcher"))


ELASTIC = """
@step(cache=False, launch=Torchrun(nproc_per_node=2, max_restarts=1, outputs="all"))
def recovers() -> list:
    times = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"time {times}")
    import torch.distributed as dist

    dist.init_process_group("gloo")  # which ranks before these have left addresses for
    if times == 0 and context.rank == 1:
        raise ConnectionError("once")
    dist.barrier()
    return [context.rank, times]

@step(cache=False, launch=Torchrun(nproc_per_node=2, max_restarts=1))
def gives_up() -> None:
    if context.rank == 1:
        raise ValueError(f"time {os.environ['TORCHELASTIC_RESTART_COUNT']}")
    time.sleep(600)

@pipeline(failure_mode="continue")
def elastic():
    recovers()
    gives_up()

elastic()
"""


@pytest.mark.slow
def test_elastic_restarts_are_counted(script: Callable[[str], Lab]) -> None:
    lab = script(ELASTIC)
    said = lab.start("script.py").wait(1, 120.0)
    run = lab["elastic"]
    assert run.steps["recovers"].load() == [[0, 1], [1, 1]]
    usage, lost = run.steps["recovers"].usage, run.steps["recovers"].lost
    assert usage.lost and usage.restarting and (lost.work, lost.restarting) == (usage.lost, usage.restarting)
    assert usage.lost + usage.restarting < (run.steps["recovers"].seconds or 0.0)
    assert len(run.steps["recovers"].attempts) == 1, "it is the launcher that tried again, not Stoker"
    failure = run.steps["gives_up"].failure
    assert (failure.cause, failure.message, failure.rank, failure.world_size) == ("user-error", "time 1", 1, 2)
    events = [(event.key, event.data["rank"], event.data["times"]) for event in run.events if event.kind == "restarted"]
    assert sorted(events) == [
        ("gives_up", 0, 1),
        ("gives_up", 1, 1),
        ("recovers", 0, 1),
        ("recovers", 1, 1),
    ]
    assert failure.earlier.startswith("start 1: rank 1: ValueError: time 0 (") and "script.py:" in failure.earlier
    assert f"  before: {failure.earlier}\n" in said
    reasons = [event.data["message"] for event in run.events if event.kind == "restarted" and "message" in event.data]
    assert "time 0" in reasons, "why the rank was started again"


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("Torchrun(nproc_per_nod=2)", "did you mean 'nproc_per_node'"),
        ("Command(['true'], num_processes=2, hang_after='soon')", "hang_after"),
    ],
)
def test_a_wrong_argument_is_told_at_the_decorator(script: Callable[[str], Lab], launch: str, words: str) -> None:
    lab = script(f"""
@step(launch={launch})
def train() -> int:
    return 1
""")
    told = lab.run("script.py", code=2)
    line = (lab.folder / "script.py").read_text().splitlines().index(f"@step(launch={launch})") + 1
    assert f"error: script.py:{line}: " in told and words in told
    assert not lab.home.exists()


def test_more_ranks_than_devices_are_refused(script: Callable[[str], Lab]) -> None:
    lab = script("""
@step(launch=Torchrun(nproc_per_node=4), resources={"gpu_count": 2})
def train() -> int:
    return 1

@pipeline
def crowded():
    train()

crowded()
""")
    told = lab.run("script.py", code=3)
    assert "STK130" in told
    assert not lab.client.runs()


def test_a_launcher_that_is_not_there(script: Callable[[str], Lab]) -> None:
    lab = script("""
@step(cache=False, launch=Command(["no-such-launcher"], num_processes=2))
def train() -> int:
    return 1

@pipeline
def missing():
    train()

missing()
""")
    told = lab.run("script.py", code=3)
    assert "STK140" in told and "no-such-launcher" in told and "Traceback" not in told
