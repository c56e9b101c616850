"""Train a small classifier on real handwritten digits: four learning rates at once, the best one wins.

Run `python examples/digits.py`, and run it again: everything is cached. Change `EPOCHS`, or the body of `accuracy`, and
exactly the steps that depend on it run again. `stoker run examples/digits.py --rates 0.1,0.3` tries other rates.
"""
# needs: demo

import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import nn

from stoker import pipeline, step

EPOCHS = 40
BATCH = 64
SEED = 7


def network() -> nn.Module:
    """8 × 8 pixels in, ten digits out."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> float:
    with torch.no_grad():
        predicted = model(torch.from_numpy(images.copy())).argmax(dim=1).numpy()
    return float((predicted == labels).mean())


@step
def load() -> tuple[Annotated[np.ndarray, "images"], Annotated[np.ndarray, "labels"]]:
    """1,797 digits that scikit-learn ships: (1797, 64) float32 from 0 to 1, and (1797,) int64."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)


@step
def split(
    images: np.ndarray, labels: np.ndarray, held_out: float
) -> tuple[Annotated[dict[str, np.ndarray], "training"], Annotated[dict[str, np.ndarray], "validation"]]:
    order = np.random.default_rng(SEED).permutation(len(images))
    cut = int(len(images) * (1 - held_out))
    parts = [{"images": images[rows], "labels": labels[rows]} for rows in (order[:cut], order[cut:])]
    return parts[0], parts[1]


@step
def train(
    rate: float, training: dict[str, np.ndarray], validation: dict[str, np.ndarray]
) -> Annotated[dict[str, object], "candidate"]:
    torch.set_num_threads(1)  # one core is what a step counts for unless it asks for more
    torch.manual_seed(SEED)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    images, labels = torch.from_numpy(training["images"].copy()), torch.from_numpy(training["labels"].copy())
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        if epoch % 10 == 9:
            print(f"rate {rate}: epoch {epoch + 1}, loss {loss.item():.4f}")
    score = accuracy(model, validation["images"], validation["labels"])
    return {"rate": rate, "accuracy": score, "weights": model.state_dict()}


@step
def choose(candidates: list[dict[str, object]]) -> Annotated[dict[str, object], "best"]:
    for candidate in candidates:
        print(f"rate {candidate['rate']}: accuracy {candidate['accuracy']:.3f}")
    return max(candidates, key=lambda candidate: candidate["accuracy"])


@step
def evaluate(
    best: dict[str, object], validation: dict[str, np.ndarray]
) -> tuple[Annotated[float, "accuracy"], Annotated[np.ndarray, "confusion"]]:
    model = network()
    model.load_state_dict(best["weights"])
    with torch.no_grad():
        predicted = model(torch.from_numpy(validation["images"].copy())).argmax(dim=1).numpy()
    confusion = np.zeros((10, 10), dtype=np.int64)
    np.add.at(confusion, (validation["labels"], predicted), 1)
    return accuracy(model, validation["images"], validation["labels"]), confusion


@step
def picture(confusion: np.ndarray, best: dict[str, object]) -> Annotated[Path, "picture"]:
    """The confusion matrix as a PNG; true digits down, predicted ones across."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5), layout="constrained")
    axes.imshow(confusion, cmap="Blues")
    for (true, predicted), count in np.ndenumerate(confusion):
        if count:
            colour = "white" if count > confusion.max() / 2 else "black"
            axes.text(predicted, true, str(count), ha="center", va="center", color=colour)
    axes.set(xticks=range(10), yticks=range(10), xlabel="predicted", ylabel="true")
    axes.set_title(f"{confusion.trace()} of {confusion.sum()} right, learning rate {best['rate']}")
    path = Path(tempfile.mkdtemp()) / "confusion.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


@pipeline
def digits(rates: list[float] = [0.003, 0.03, 0.1, 0.3], held_out: float = 0.2):  # noqa: B006 never changed
    """Handwritten digits: train at several learning rates, keep the best."""
    images, labels = load()
    training, validation = split(images, labels, held_out=held_out)
    candidates = train.map(rates, training=training, validation=validation)
    best = choose(candidates)
    _, confusion = evaluate(best, validation)
    picture(confusion, best)


if __name__ == "__main__":
    run = digits()
    best = run.steps["choose"].output.load()
    print(f"best learning rate: {best['rate']}, accuracy {best['accuracy']:.3f}")
    print(f"confusion matrix:   {run.steps['picture'].output.load()}")
