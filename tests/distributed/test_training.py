"""Real training: the same loss on any number of ranks, Accelerate's own test script, `run_with_accelerate`, whose other
order of decorators is in tests/integrations/test_huggingface.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Lab

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_the_same_loss_on_one_two_and_four_ranks(lab: Lab, repository: Path) -> None:
    lab.write("ddp_digits.py", (repository / "examples" / "ddp_digits.py").read_text(encoding="utf-8"))
    losses = {}
    for ranks in (1, 2, 4):
        many = f"steps.train.launch.num_processes={ranks}"
        lab.start("stoker", "run", "ddp_digits.py", "--set", many, "--no-cache").wait(0, 180.0)
        run = lab["ddp_digits"]
        losses[ranks] = run.steps["train"].outputs["losses"].load()
        assert any(f"on {ranks} ranks" in line.text for line in run.steps["train"].logs())
    assert losses[1][-1] < losses[1][0] / 2, "it learns"
    for ranks in (2, 4):
        assert losses[ranks] == pytest.approx(losses[1], rel=1e-3), f"{ranks} ranks"


SLOWER = """
@step(cache=False)
def tensors() -> dict:
    import torch

    return {"weights": torch.arange(12.0).reshape(3, 4), "epoch": 3}

@step(cache=False, launch=Torchrun(nproc_per_node=2, outputs="all"))
def train(tensors: dict, *, scale: float = 2.0) -> dict:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    done = torch.zeros(1)
    while not done:
        if context.rank == 1:
            time.sleep(0.3)  # its data are slow
        model(torch.ones(2, 4)).sum().backward()
        done = torch.tensor([float(Path("seen").exists())])
        dist.broadcast(done, src=0)
    found = torch.tensor([float(context.rank + 1)])
    dist.all_reduce(found)
    dist.destroy_process_group()
    return {"sum": found.item(), "rank": context.rank, "of": context.world_size, "scale": scale,
            "weights": tensors["weights"].sum().item(), "id": os.environ["TORCHELASTIC_RUN_ID"]}

@pipeline
def slower():
    train(tensors=tensors(), scale=3.0)

slower()
"""


def test_ranks_of_torchrun_are_seen_while_they_run_and_give_their_values(script: Callable[[str], Lab]) -> None:
    lab = script(SLOWER)
    process = lab.start("script.py")
    deadline = time.monotonic() + 120
    found: list[Any] = [{"slowest": "", "ranks": [{"batches": 0}]}]
    slowest = "rank 1 slowest, others waited up to "
    while not (found[0]["slowest"].startswith(slowest) and found[0]["ranks"][0]["batches"]):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)
        found = json.loads(lab.look("top", "--json"))["steps"] or found
    drawn = lab.run("stoker", "top", "--once")
    (lab.folder / "seen").touch()
    process.wait(0, 120.0)
    first, second = found[0]["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1) and first["waits"] > second["waits"]
    assert first["batches"] > 0 and first["memory"] > 50_000_000
    assert re.search(r"^ +1 +[\d.]+ +[\d.]+ MB +\d+% +\d+ .* train$", drawn, re.MULTILINE), drawn
    assert "slower" in drawn and " train: rank 1 slowest, others waited up to " in drawn
    step = lab["slower"].steps["train"]
    waits = step.usage.rank_waits
    assert waits[0] > 2 * waits[1], "waits in the backward pass are counted"
    values = step.load()
    assert [(one["rank"], one["of"], one["sum"], one["scale"]) for one in values] == [(0, 2, 3, 3), (1, 2, 3, 3)]
    assert {one["weights"] for one in values} == {66.0}
    assert {one["id"] for one in values} == {f"{lab['slower'].id}-train-1"}, "its rendezvous is this attempt's alone"


ACCELERATE = """
from stoker.integrations.huggingface import run_with_accelerate

@run_with_accelerate(cpu=True, num_processes=2)
@step(cache=False)
def its_own_tests() -> str:
    from accelerate.test_utils.scripts import test_script

    test_script.main()
    return "passed"

@step(cache=False)
@run_with_accelerate
def bare_below(x: int) -> list:
    return seen(x)

@run_with_accelerate(cpu=True, num_processes=2, outputs="all", mixed_precision="bf16")
@step(cache=False)
def above(x: int, *, word: str = "default") -> list:
    return [*seen(x), word]

@run_with_accelerate(cpu=True, num_processes=2)
@step(cache=False)
def second_rank_fails(x: int) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator()
    if accelerator.process_index == 1:
        raise ValueError(f"rank {accelerator.process_index} had {x}")
    accelerator.wait_for_everyone()

def seen(x):
    from accelerate import Accelerator

    accelerator = Accelerator()
    found = [x, accelerator.process_index, accelerator.num_processes, accelerator.device.type,
             accelerator.mixed_precision, context.rank]
    accelerator.wait_for_everyone()  # a rank that leaves early closes connections that others still open
    accelerator.end_training()
    return found

@pipeline(failure_mode="continue")
def accelerated():
    if os.environ.get("ITS_OWN"):
        its_own_tests()
        second_rank_fails(5)
    bare_below(2)
    above(x=4, word="given")

accelerated()
"""


@pytest.fixture(scope="module")
def accelerated(module_script: Callable[[str], Lab], long_form: bool) -> Any:
    lab = module_script(ACCELERATE)
    lab.start("script.py", env={"ITS_OWN": "1"} if long_form else {}).wait(int(long_form), 280.0)
    return lab["accelerated"]


@pytest.mark.long
def test_accelerates_own_script_passes_as_a_step(accelerated: Any) -> None:
    step = accelerated.steps["its_own_tests"]
    assert step.load() == "passed"
    texts = [line.text for line in step.logs(rank=0)]
    assert "**Initialization**" in texts
    assert "Distributed environment: DistributedType.MULTI_CPU  Backend: gloo" in texts and "Num processes: 2" in texts


def test_bare_it_is_one_process(accelerated: Any) -> None:
    assert accelerated.steps["bare_below"].load() == [2, 0, 1, "cpu", "no", 0]


def test_with_arguments_it_does_what_they_say(accelerated: Any) -> None:
    assert accelerated.steps["above"].load() == [[4, rank, 2, "cpu", "bf16", rank, "given"] for rank in (0, 1)]


@pytest.mark.long
def test_no_traceback_is_lost(accelerated: Any) -> None:
    failure = accelerated.steps["second_rank_fails"].failure
    assert (failure.cause, failure.message, failure.rank) == ("user-error", "rank 1 had 5", 1)
    assert 'raise ValueError(f"rank {accelerator.process_index} had {x}")' in failure.traceback
