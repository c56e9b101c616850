"""Programs that are run on more than one platform, and what their tests know of them."""

from __future__ import annotations

SQUARES = """
from stoker import context, pipeline, step
from stoker.config import Retry

@step(cache=False, environment={"WHO": "you"})
def load() -> list[int]:
    import os, sys
    print("hello", os.environ["WHO"], os.environ.get("HF_TOKEN", "alone"))
    print("on stderr", file=sys.stderr)
    return [1, 2, 3, 4]

@step(cache=False, retry=Retry(2))
def square(x: int) -> int:
    if x == 3 and context.attempt == 1:
        raise ValueError("not yet")
    return x * x

@step(cache=False)
def total(parts: list[int]) -> int:
    return sum(parts)

@pipeline
def squares():
    total(square.map(load()))

if __name__ == "__main__":
    squares()
"""
"""A fan-out of which one element fails once; its total is 30."""
WAITS = """
import os, time
from pathlib import Path
from stoker import pipeline, step
from stoker.config import Retry

def place(name):
    return Path(os.environ["MARKS"], name)

def mark(name):
    with open(place(name), "a") as file:
        file.write("x")

@step(cache=False)
def begin() -> int:
    mark("begin")
    return 1

@step(cache=False)
def waits(x: int) -> int:
    mark("waits")
    while not place("go").exists():
        time.sleep(0.05)
    return x + 1

@step(cache=False)
def after(x: int) -> int:
    mark("after")
    return x + 1

@pipeline
def long():
    after(waits(begin()))

if __name__ == "__main__":
    long()
"""
"""Three steps that leave marks in the folder MARKS, of which the second waits there for `go`; the last one's is 3."""
LEARN = """
import os, sys, time

import helper
from stoker import context, pipeline, step
from stoker.config import ResourceSettings, Torchrun

@step
def make(n: int) -> list[int]:
    print("made in", os.getcwd())
    print("a word aside", file=sys.stderr)
    return helper.numbers(n)

@step(cache=False, timeout="TIMEOUT", retry=1)
def train(numbers: list[int]) -> int:
    saved = context.checkpoint_dir / "epoch"
    if saved.exists():
        return sum(numbers) + int(saved.read_text())
    print("first attempt", flush=True)
    while not context.should_stop:
        time.sleep(0.05)
    saved.write_text("100")
    raise SystemExit("saved in time")

@step(
    cache=False,
    resources=ResourceSettings(nodes=2, gpu_count=2, cpu_count=0.5),
    launch=Torchrun(nproc_per_node=2, outputs="all"),
)
def ranks() -> dict:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([context.rank + 1])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"rank": context.rank, "node": context.node, "sum": int(total)}

@step(cache=False)
def wait(flag: str) -> str:
    print("waiting", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return "seen"

@pipeline
def long(flag: str):
    return wait(flag)
"""
"""A step that a timeout ends once and that goes on from its checkpoint, a gang, and one that waits for a file."""
LEARNED = """
if __name__ == "__main__":
    if sys.argv[1] == "learn":
        run = learn()
        print("total", run.steps["train"].output.load(), "ranks", run.steps["ranks"].output.load())
    elif sys.argv[1] in globals():
        globals()[sys.argv[1]]()
    else:
        long(sys.argv[1])
"""
"""The end of a program that begins with `LEARN` and has a pipeline `learn`; others are called by their names."""
HELPER = """
def numbers(n):
    return list(range(n))
"""
"""helper.py beside `LEARN`."""
