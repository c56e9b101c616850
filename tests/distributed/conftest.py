"""What the tests of distributed steps share: the labs of the engine's tests, and a small launcher without torch.

Starting torch takes seconds a rank, and torchrun as long again. So a test takes a real launcher where the launcher is
the point, `forked.py`, which imports torch once for all its ranks, where torch is, and `spawn.py` where what Stoker
does with ranks is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.engine.conftest import Lab, gone, lab

__all__ = ["gone", "lab"]

SPAWN = """
import os, subprocess, sys

count = int(os.environ["STOKER_PROCESSES_PER_NODE"])
places = [
    {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
     "GROUP_RANK": "0"}
    for rank in range(count)
]
ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, **place}) for place in places]
codes = [rank.wait() for rank in ranks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
"""A launcher of one's own, as `Command([sys.executable, "spawn.py"])`: waits for all its ranks, whatever they do."""

FORKED = """
import os, runpy, sys
import torch.distributed, torch.nn.parallel, torch.utils.data

count = int(os.environ["STOKER_PROCESSES_PER_NODE"])
node = int(os.environ["STOKER_NODE_RANK"])
worker = sys.argv[sys.argv.index("-m") + 1:]
ranks = []
for rank in range(count):
    ranks.append(os.fork())
    if ranks[-1] == 0:
        os.environ.update(RANK=str(node * count + rank), WORLD_SIZE=os.environ["STOKER_NUM_PROCESSES"],
                          LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(count), GROUP_RANK=str(node),
                          TORCHELASTIC_USE_AGENT_STORE="True")
        sys.argv = worker
        runpy.run_module(worker[0], run_name="__main__", alter_sys=True)
        sys.exit()
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if node == 0:
    store = torch.distributed.TCPStore(*address, is_master=True, wait_for_workers=False)  # as torchrun does
codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
"""The same with ranks that are forks of one process, as those of `accelerate.notebook_launcher` are."""

HEAD = """
import os
import sys
import time
from pathlib import Path

from stoker import context, pipeline, step
from stoker.config import Accelerate, Command, Torchrun

def plain(count, **more):
    return Command([sys.executable, "spawn.py"], num_processes=count, **more)

def forked(count=2, **more):
    return Command([sys.executable, "forked.py"], num_processes=count, **{"hang_after": "6s", **more})

def meet(name, count=None, folder=Path("meetings")):
    '''Wait until all ranks are here; without torch.'''
    place = folder / f"{context.run_id}-{context.step}-{context.attempt}-{name}"
    place.mkdir(parents=True, exist_ok=True)
    (place / str(context.rank)).touch()
    deadline = time.monotonic() + 60
    while len(list(place.iterdir())) < (count or context.world_size):
        assert time.monotonic() < deadline, f"rank {context.rank} waits for others in {name}"
        time.sleep(0.01)
"""
"""Begins every script."""


def scripted(made: Lab, text: str, name: str = "script.py") -> Lab:
    """The lab with the two launchers and a script that has `HEAD`."""
    made.write("spawn.py", SPAWN).write("forked.py", FORKED)
    return made.write(name, HEAD + text)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[[str], Lab]]:
    """A lab for one test, made from the text of its script."""
    made = Lab(tmp_path)
    yield lambda text: scripted(made, text)
    made.close()


@pytest.fixture(scope="module")
def module_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Lab]]:
    """A lab for all tests of a module, made from the text of their script."""
    made = Lab(tmp_path_factory.mktemp("lab"))
    yield lambda text: scripted(made, text)
    made.close()


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process is there; one that waits to be reaped is not."""

    def look(pid: int) -> bool:
        try:
            return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return look


@pytest.fixture
def error_of() -> Callable[[Any], Any]:
    """The error document of a step's last attempt, as the store has it."""

    def read(step: Any) -> Any:
        return step.attempts[-1]._row.error

    return read
