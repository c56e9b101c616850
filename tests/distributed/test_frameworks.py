"""Frameworks that start processes by themselves, in steps with and without a launcher."""

from __future__ import annotations

from collections.abc import Callable

from tests.engine.conftest import Lab

RAY = """
import os
import subprocess
import threading

started = []

def init():
    started.append(subprocess.Popen(["sleep", "600"]))
    threading.Thread(target=watch, daemon=True).start()

def watch():
    started[0].wait()
    if is_initialized():
        os._exit(1)

def is_initialized():
    return bool(started)

def shutdown():
    started.pop().kill()
"""
"""Ray 2.60 as a driver's process has it: its core worker leaves with exit code 1 when the raylet is killed."""
CLUSTER = """
import subprocess

STUBBORN = "from signal import *; import time; signal(SIGTERM, SIG_IGN); print('there', flush=True); time.sleep(9)"

@step(cache=False)
def computes() -> int:
    import ray

    ray.init()
    other = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    return len(other.stdout.readline())

@pipeline
def cluster():
    computes()

cluster()
"""


def test_a_step_succeeds_that_leaves_its_own_ray_running(script: Callable[[str], Lab]) -> None:
    lab = script(CLUSTER)
    lab.write("ray.py", RAY)
    lab.run("script.py")
    assert lab["cluster"].steps["computes"].load() == len("there\n")


AGAIN = """
import subprocess

@step(cache=False)
def trains() -> list:
    '''As Lightning's Trainer does: the script again for each further device.'''
    places = [dict(LOCAL_RANK="1", WORLD_SIZE="2"), dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2")]
    started = [
        subprocess.run([sys.executable, *sys.argv], env={**os.environ, "INNER": "1", **place}, capture_output=True)
        for place in places
    ]
    return [(one.returncode, one.stderr.decode()) for one in started]

@step(cache=False)
def inner() -> int:
    return 1

@pipeline
def outer():
    trains()

@pipeline
def once():
    inner()

once() if os.environ.get("INNER") else outer()
"""


def test_a_script_that_is_started_again_as_a_rank_runs_no_pipeline(script: Callable[[str], Lab]) -> None:
    lab = script(AGAIN)
    lab.run("script.py")
    (refused, words), (first, _) = lab["outer"].steps["trains"].load()
    assert (refused, first) == (2, 0)
    assert "this program is rank 1 of 2 by LOCAL_RANK and WORLD_SIZE: each rank would run the pipeline" in words
    assert "launch=Torchrun(nproc_per_node=2)" in words and "unset LOCAL_RANK" in words
    assert sorted(run.pipeline for run in lab.client.runs()) == ["once", "outer"]


LIGHTNING = """
class Trainer:
    world_size = 1

    def fit(self):
        print("each rank alone")

    def test(self):
        return "tested"
"""
"""What a `Trainer` of one device is, in ranks of torchrun: it makes no world."""
TRAINS = """
@step(cache=False, launch=plain(2))
def fits() -> None:
    from lightning.pytorch.trainer.trainer import Trainer

    Trainer().fit()

@step(cache=False, launch=plain(2))
def tests() -> str:
    from lightning.pytorch.trainer.trainer import Trainer

    return Trainer().test()

@pipeline(failure_mode="continue")
def trainers():
    fits()
    tests()

trainers()
"""


def test_a_trainer_of_one_device_does_not_train_in_two_ranks(script: Callable[[str], Lab]) -> None:
    lab = script(TRAINS)
    for name in ("lightning/__init__.py", "lightning/pytorch/__init__.py", "lightning/pytorch/trainer/__init__.py"):
        lab.write(name, "")
    lab.write("lightning/pytorch/trainer/trainer.py", LIGHTNING)
    lab.run("script.py", code=1)
    failure = lab["trainers"].steps["fits"].failure
    assert failure.cause == "wrong-world"
    assert "Lightning's Trainer counts 1 rank here, and 2 were started" in failure.message
    assert 'Trainer(devices=2, num_nodes=1, strategy="ddp")' in failure.message
    assert not list(lab["trainers"].steps["fits"].logs()), "no rank has begun"
    assert lab["trainers"].steps["tests"].load() == "tested"
