"""A GPU that is really out of memory: told as such, and cured by a ladder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note

pytestmark = pytest.mark.gpu

TOO_MUCH = """
    from stoker import pipeline, step
    from stoker.config import ResourceSettings


    @step(resources=ResourceSettings(gpu_count=1), cache=False)
    def train() -> int:
        import torch

        total = torch.cuda.mem_get_info()[1]
        return torch.empty(2 * total, dtype=torch.uint8, device="cuda").numel()


    @pipeline
    def training():
        train()


    if __name__ == "__main__":
        training()
"""

LADDER = """
    from stoker import cleanup_memory, pipeline, step
    from stoker.config import Halve, ResourceSettings, Retry


    @step(
        resources=ResourceSettings(gpu_count=1),
        retry=Retry(on_oom=[Halve("batch_size", times=3)]),
        cache=False,
    )
    def train(batch_size: int = 64) -> dict:
        import torch

        # 64 is 1.2 times the device's memory, 32 is 0.6 of it.
        one = torch.cuda.mem_get_info()[1] * 6 // 5 // 64
        batch = torch.empty(batch_size * one, dtype=torch.uint8, device="cuda")
        size = batch.numel()
        del batch
        freed = cleanup_memory()
        return {"batch_size": batch_size, "bytes": size, "freed": freed.devices["torch cuda:0"]}


    @pipeline
    def training():
        train()


    if __name__ == "__main__":
        training()
"""


def test_out_of_memory(gpu: Machine, done: Callable[..., Any]) -> None:
    """torch.cuda.OutOfMemoryError is `gpu-oom`, with torch's own words and the line of the user's code."""
    failure = done(TOO_MUCH, code=1).steps["train"].failure
    assert failure.cause == "gpu-oom"
    assert "out of memory" in failure.message
    assert "OutOfMemoryError" in failure.traceback
    assert "torch.empty(2 * total" in failure.traceback
    assert failure.retryable == "elsewhere"


def test_ladder(gpu: Machine, done: Callable[..., Any], note: Note) -> None:
    """Halving the batch cures it, and `cleanup_memory()` gives back what torch kept."""
    step = done(LADDER).steps["train"]
    first, second = step.attempts
    assert first.failure.cause == "gpu-oom"
    assert [str(change) for change in second.changes] == ["batch_size 64 → 32"]
    told = step.load()
    assert told["batch_size"] == 32
    assert told["freed"] >= told["bytes"]
    note("ladder", first_seconds=first.seconds, second_seconds=second.seconds, freed=told["freed"])
