"""Ranks that do not work together: worlds of one, launchers that start no rank, ports that are taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.conftest import Lab

from stoker.worker.cluster import listening

WORLDS = """
def alone():
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

@step(cache=False, launch=forked())
def both_main() -> None:
    from accelerate import PartialState

    PartialState()

@step(cache=False, launch=plain(2))
def caught() -> None:
    try:
        alone()
    except Exception:
        print("nobody hears of it")

@step(cache=False, launch=forked(one_world=False))
def apart() -> None:
    import accelerate

    alone()

@pipeline(failure_mode="continue", max_parallel=2)
def worlds():
    both_main()
    caught()
    apart()

worlds()
"""


@pytest.fixture(scope="module")
def worlds(module_script: Callable[[str], Lab]) -> Any:
    lab = module_script(WORLDS)
    lab.start("script.py").wait(1)
    return lab["worlds"]


def test_a_world_of_one_fails_where_it_is_made(worlds: Any) -> None:
    failure = worlds.steps["both_main"].failure
    assert failure.cause == "wrong-world"
    assert "accelerate counts 1 rank here, and 2 were started" in failure.message
    assert "Accelerate(cpu=True" in failure.message and "one_world=False" in failure.message
    assert "PartialState()" in failure.traceback and "in both_main" in failure.traceback


def test_a_caught_error_does_not_hide_it(worlds: Any) -> None:
    failure = worlds.steps["caught"].failure
    assert failure.cause == "wrong-world"
    assert "torch.distributed counts 1 rank here, and 2 were started" in failure.message


def test_ranks_that_are_apart_on_purpose_succeed(worlds: Any) -> None:
    assert worlds.steps["apart"].status == "succeeded"


STARTS = """
WAITS = "import time; time.sleep(600)"
ONE = f'''
import os, subprocess, sys
place = dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
subprocess.Popen(sys.argv[1:], env={{**os.environ, **place}})
{WAITS}
'''

def starter(code):
    return Command([sys.executable, "-c", code], num_processes=2, start_timeout="3s", hang_after=None)

@step(cache=False, launch=starter(WAITS))
def none_starts() -> None: ...

@step(cache=False, launch=starter(ONE))
def one_starts() -> None:
    time.sleep(600)

@step(cache=False, launch=Torchrun(nproc_per_node=2, master_port=int(os.environ.get("TAKEN", 1))))
def port_taken() -> None: ...

@pipeline(failure_mode="continue")
def starts():
    none_starts()
    one_starts()
    port_taken()

starts()
"""


def test_a_launcher_that_does_not_start_its_ranks_has_a_deadline(script: Callable[[str], Lab], alive: Any) -> None:
    lab = script(STARTS)
    with listening("127.0.0.1") as other:
        port = other.getsockname()[1]
        lab.start("script.py", env={"TAKEN": str(port)}).wait(1)
    failures = {key: step.failure for key, step in lab["starts"].steps.items()}
    none, one, taken = failures["none_starts"], failures["one_starts"], failures["port_taken"]
    assert (none.cause, one.cause, taken.cause) == ("not-started", "not-started", "rendezvous")
    assert none.message == "command started none of 2 ranks within its start_timeout of 3.0 s; missing: 0, 1"
    assert one.message == "command started 1 of 2 ranks within its start_timeout of 3.0 s; missing: 0"
    assert "--rank launcher" in none.advice
    assert f"port {port} of this machine: pid {os.getpid()}, " in taken.message
