"""Training of one rank under Accelerate in bf16, with a receipt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, Note

pytestmark = pytest.mark.gpu

TRAINING = """
    import time

    from stoker import context, pipeline, step
    from stoker.config import Accelerate, Monitor, ResourceSettings


    @step(
        resources=ResourceSettings(gpu_count=1),
        launch=Accelerate(mixed_precision="bf16"),
        monitor=Monitor(0.2),
        cache=False,
    )
    def train(seconds: float) -> dict:
        import torch
        from accelerate import Accelerator

        accelerator = Accelerator()
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2048, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1))
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
        x = torch.randn(4096, 2048, device=accelerator.device)
        y = x[:, :1] * 2
        losses, started, computed = [], time.monotonic(), ""
        while time.monotonic() < started + seconds:
            with accelerator.autocast():
                computed = str(torch.nn.functional.linear(x[:1], x[:1]).dtype)
                loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return {
            "device": accelerator.device.type,
            "precision": accelerator.mixed_precision,
            "computed": computed,
            "ranks": [accelerator.num_processes, context.world_size],
            "first": losses[0],
            "last": losses[-1],
            "steps": len(losses),
        }


    @pipeline
    def training():
        train(8.0)


    if __name__ == "__main__":
        training()
"""


def test_bf16(whole: Machine, done: Callable[..., Any], note: Note) -> None:
    """The rank computes in bf16 on the leased GPU, the loss falls, and the receipt is of the rank's work."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    if whole.device.capability is None or whole.device.capability < (8, 0):
        pytest.skip(f"{whole.device.model} does not compute in bf16")
    step = done(TRAINING).steps["train"]
    told, receipt = step.load(), step.receipt
    assert (told["device"], told["precision"], told["computed"]) == ("cuda", "bf16", "torch.bfloat16")
    assert told["ranks"] == [1, 1]
    assert told["last"] < told["first"]
    assert receipt.verdict == "used", receipt.evidence
    (use,) = receipt.devices
    note("bf16", steps=told["steps"], utilization_mean=use.utilization_mean, memory_peak=use.memory_peak)
