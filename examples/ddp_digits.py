"""Train on the digits with DistributedDataParallel: two processes that talk through gloo, on a laptop's CPUs.

Run `python examples/ddp_digits.py`. Each rank sees half of every batch, and the gradients are averaged, so that the
loss is the same for any number of ranks: `stoker run examples/ddp_digits.py --set steps.train.launch.num_processes=4`
gets there in another way, and to the same result. On a machine with GPUs add `resources={"gpu_count": 2}` and write
"nccl" for "gloo".
"""
# needs: demo

from typing import Annotated

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker import context, pipeline, step
from stoker.config import Torchrun

EPOCHS = 4
BATCH = 240  # of all ranks together; 2, 3 and 4 ranks share it evenly
SEED = 7


@step
def load() -> tuple[Annotated[np.ndarray, "images"], Annotated[np.ndarray, "labels"]]:
    """1,797 digits that scikit-learn ships: (1797, 64) float32 from 0 to 1, and (1797,) int64."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)


@step(launch=Torchrun(nproc_per_node=2))
def train(
    images: np.ndarray, labels: np.ndarray, rate: float = 0.5
) -> tuple[Annotated[dict[str, object], "weights"], Annotated[list[float], "losses"]]:
    """Every rank runs this; what rank 0 returns is the step's result."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # the same first weights and the same order of the data on every rank
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x, y = torch.from_numpy(images.copy()), torch.from_numpy(labels.copy())
    share = BATCH // context.world_size
    mine = slice(context.rank * share, (context.rank + 1) * share)
    losses = []
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(x))[: len(x) // BATCH * BATCH].split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows[mine]]), y[rows[mine]])
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / context.world_size)
        if context.is_main:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f} on {context.world_size} ranks")
    dist.destroy_process_group()
    return network.state_dict(), losses


@pipeline
def ddp_digits():
    """Handwritten digits on several processes."""
    images, labels = load()
    train(images, labels)


if __name__ == "__main__":
    run = ddp_digits()
    print("losses:", [round(loss, 4) for loss in run.steps["train"].outputs["losses"].load()])
