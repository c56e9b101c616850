"""Train on the digits with Hugging Face Accelerate: the same code on two CPU processes, one GPU, or many.

Run `python examples/accelerate_digits.py`. `run_with_accelerate` takes any argument of `accelerate launch`; it says the
same as `@step(launch=Accelerate(…))`. On a machine with GPUs ask for `resources={"gpu_count": 2}` and leave `cpu` and
`num_processes` away: there is one process for each GPU.
"""
# needs: demo, accelerate

from typing import Annotated

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from stoker import context, pipeline, step
from stoker.integrations.huggingface import run_with_accelerate

EPOCHS = 4
BATCH = 64  # of each process
SEED = 7


@step
def load() -> tuple[Annotated[np.ndarray, "images"], Annotated[np.ndarray, "labels"]]:
    """1,797 digits that scikit-learn ships: (1797, 64) float32 from 0 to 1, and (1797,) int64."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)


@run_with_accelerate(cpu=True, num_processes=2)
@step
def train(images: np.ndarray, labels: np.ndarray, rate: float = 0.3) -> Annotated[dict[str, object], "trained"]:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    accelerator = Accelerator()
    data = TensorDataset(torch.from_numpy(images.copy()), torch.from_numpy(labels.copy()))
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, BATCH, shuffle=True))
    for epoch in range(EPOCHS):
        right = torch.zeros(1)
        for x, y in batches:
            optimizer.zero_grad()
            found = model(x)
            accelerator.backward(nn.functional.cross_entropy(found, y))
            optimizer.step()
            right += (found.argmax(dim=1) == y).sum()
        accuracy = accelerator.reduce(right, reduction="sum").item() / len(data)
        if context.is_main:
            print(f"epoch {epoch + 1}: {accuracy:.1%} right, on {accelerator.num_processes} processes")
    weights = accelerator.unwrap_model(model).state_dict()
    accelerator.end_training()
    return {"accuracy": accuracy, "weights": weights, "processes": context.world_size}


@pipeline
def accelerate_digits():
    """Handwritten digits under Accelerate."""
    images, labels = load()
    train(images, labels)


if __name__ == "__main__":
    trained = accelerate_digits().steps["train"].load()
    print(f"accuracy while training: {trained['accuracy']:.3f} on {trained['processes']} processes")
