"""What distributed steps cost: `python -m benchmarks.ranks WORK`; prints a line of JSON with `seconds`.

A step of two ranks that does nothing, and its floor, the bare launcher with an empty script; and for each way in which
a rank can fail, the time from its last breath to the step's failure. `evidence` is what the evidence of a rank costs a
training step of a millisecond, in percent of its CPU time.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

from stoker import context, pipeline, step
from stoker.config import Accelerate, Torchrun
from stoker.core.errors import RunFailed

RANKS = 3
HANG_AFTER = 5.0


@step(launch=Torchrun(nproc_per_node=2), cache=False)
def by_torchrun() -> None:
    return None


@step(launch=Accelerate(cpu=True, num_processes=2), cache=False)
def by_accelerate() -> None:
    return None


def exits() -> None:
    os._exit(7)


def raises() -> None:
    raise ValueError("the middle one")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    ctypes.string_at(0)


FAULTS: dict[str, Callable[[], None]] = {"raises": raises, "killed": killed, "exits": exits, "crashes": crashes}


@step(launch=Torchrun(nproc_per_node=RANKS), cache=False)
def fails(fault: str, folder: str) -> None:
    """The middle rank fails when all are there; the others wait for it for ever."""
    Path(folder, str(context.rank)).touch()
    if context.rank == 1:
        while len(os.listdir(folder)) < RANKS:
            time.sleep(0.01)
        Path(folder, "failed").write_text(str(time.time()))
        FAULTS[fault]()
    time.sleep(3600)


@step(launch=Torchrun(nproc_per_node=RANKS, hang_after=HANG_AFTER), cache=False)
def hangs(folder: str) -> None:
    """All ranks stand still from the moment that the last one notes."""
    Path(folder, "failed").write_text(str(time.time()))
    time.sleep(3600)


@pipeline
def torchrun() -> None:
    by_torchrun()


@pipeline
def accelerate() -> None:
    by_accelerate()


@pipeline
def failing(fault: str, folder: str) -> None:
    fails(fault, folder)


@pipeline
def hanging(folder: str) -> None:
    hangs(folder)


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def bare(*launcher: str) -> float:
    """Seconds of a launcher with an empty script and two processes."""
    script = Path(tempfile.mkdtemp()) / "empty.py"
    script.write_text("")
    command = [sys.executable, "-m", *launcher, str(script)]
    return timed(lambda: subprocess.run(command, check=True, capture_output=True))


def to_failure(fault: str) -> float:
    """Seconds from a rank's failure to the moment in which the step has failed, without the time of a hang."""
    folder = tempfile.mkdtemp()
    try:
        hanging(folder) if fault == "hangs" else failing(fault, folder)
    except RunFailed as error:
        (failed,) = error.run.steps.values()
    ended = failed.attempts[-1].ended.timestamp()
    since = ended - float(Path(folder, "failed").read_text())
    return since - HANG_AFTER if fault == "hangs" else since


def evidence() -> float:
    """Percent of the CPU time of a training step that its evidence takes, the least of many tries."""
    from stoker.worker.evidence import Trail, trail_file

    Trail(trail_file(tempfile.mkdtemp(), 0)).watch()  # it wraps what is imported next
    import torch
    import torch.distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    batch, loss = torch.ones(32, 128), torch.zeros(1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(8)))
    made, forward, reduce = (
        DistributedDataParallel.__init__,
        DistributedDataParallel.forward,
        torch.distributed.all_reduce,
    )
    recorded = DistributedDataParallel(copy.deepcopy(layers)), forward, reduce
    DistributedDataParallel.__init__ = made.__wrapped__
    plain = DistributedDataParallel(layers), forward.__wrapped__, reduce.__wrapped__
    least = {}
    for _ in range(100):
        for way in (plain, recorded):
            model, DistributedDataParallel.forward, reduce = way
            optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
            started = time.process_time()
            for _ in range(20):
                optimizer.zero_grad()
                value = model(batch).sum()
                value.backward()
                optimizer.step()
                loss[0] = value.detach()
                reduce(loss)
            least[way] = min(least.get(way, 1e9), (time.process_time() - started) / 20)
    print(
        f"a step takes {least[plain] * 1000:.2f} ms, {(least[recorded] - least[plain]) * 1e6:.1f} µs of it for evidence"
    )
    return (least[recorded] / least[plain] - 1) * 100


WORK: dict[str, Callable[[], float]] = {
    "evidence": evidence,
    "torchrun": lambda: timed(torchrun),
    "floor_torchrun": lambda: bare("torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    "accelerate": lambda: timed(accelerate),
    # `--cpu --num_processes 2` would start one process; so many does it start with --multi_gpu.
    "floor_accelerate": lambda: bare(
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes=2",
        "--num_machines=1",
        "--mixed_precision=no",
        "--dynamo_backend=no",
        "--main_process_port=0",
    ),
    **{fault: lambda fault=fault: to_failure(fault) for fault in (*FAULTS, "hangs")},
}


if __name__ == "__main__":
    print(json.dumps({"seconds": WORK[sys.argv[1]]()}))
