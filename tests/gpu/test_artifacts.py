"""Values that lie on a device, from step to step: they are read where there is a device, and where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.gpu.conftest import Machine, needs

pytestmark = pytest.mark.gpu

VALUES = """
    from typing import Annotated, Any

    from stoker import pipeline, step
    from stoker.config import ResourceSettings

    GPU = dict(resources=ResourceSettings(gpu_count=1), cache=False)


    @step(**GPU)
    def trained() -> tuple[Annotated[Any, "tensor"], Annotated[Any, "weights"], Annotated[Any, "nested"]]:
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4).to("cuda")
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        nested = {"optimizer": optimizer.state_dict(), "half": torch.ones(3, device="cuda", dtype=torch.bfloat16)}
        return torch.arange(10, device="cuda"), model.state_dict(), nested


    @step(cache=False)
    def on_the_cpu(tensor: Any, weights: Any, nested: Any) -> list:
        import torch

        assert not torch.cuda.is_available()
        model = torch.nn.Linear(8, 4)
        model.load_state_dict(weights)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(nested["optimizer"])
        return [int(tensor.sum()), float(nested["half"].float().sum()), len(optimizer.state)]


    @step(**GPU)
    def on_the_gpu(tensor: Any, weights: Any, nested: Any) -> list:
        import torch

        model = torch.nn.Linear(8, 4).to("cuda")
        model.load_state_dict(weights)
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.load_state_dict(nested["optimizer"])
        model(torch.ones(2, 8, device="cuda")).sum().backward()
        optimizer.step()
        return [int(tensor.to("cuda").sum()), next(model.parameters()).device.type, len(optimizer.state)]


    @pipeline
    def passing():
        tensor, weights, nested = trained()
        on_the_cpu(tensor, weights, nested)
        on_the_gpu(tensor, weights, nested)


    if __name__ == "__main__":
        passing()
"""


JAX = """
    from typing import Any

    from stoker import pipeline, step
    from stoker.config import ResourceSettings

    GPU = dict(resources=ResourceSettings(gpu_count=1), cache=False)


    @step(**GPU)
    def made() -> Any:
        import cupy
        import jax.numpy as jnp

        return {"jax": jnp.arange(10.0), "cupy": cupy.arange(5)}


    @step(**GPU)
    def taken(values: Any) -> list:
        return [float(values["jax"].sum()), int(values["cupy"].sum())]


    @pipeline
    def passing():
        taken(made())


    if __name__ == "__main__":
        passing()
"""


def test_tensors(gpu: Machine, done: Callable[..., Any]) -> None:
    """CUDA tensors, weights and an optimizer's state: read on the CPU without a device, and put on one again."""
    run = done(VALUES)
    assert run.steps["on_the_cpu"].load() == [45, 3.0, 2]
    assert run.steps["on_the_gpu"].load() == [45, "cuda", 2]


def test_arrays_of_jax_and_cupy(gpu: Machine, done: Callable[..., Any]) -> None:
    """Arrays of JAX and CuPy inside a dictionary, from one step with a GPU to the next."""
    needs("jax", "cupy")
    assert done(JAX).steps["taken"].load() == [45.0, 10]
