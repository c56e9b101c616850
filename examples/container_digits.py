"""Train on digits in a container whose CUDA is proved to fit before anything is built.

Beside it stands a small pipeline that runs in any image as it is.

In this folder, where `stoker.toml` has a stack `containers`:

    stoker plan container_digits.py --stack containers --simulate "1xH100;driver=550.54.15"    # it would run
    stoker plan container_digits.py --stack containers --simulate "1xH100;driver=470.82.01"    # refused: STK203
    stoker plan container_digits.py --stack containers --simulate 1xH100 --render    # Dockerfiles and requests
    stoker run container_digits.py --stack containers                                # on a machine with a GPU

The driver of the second plan knows no CUDA 12, for which the torch of the image was built: the training would run, and
see no GPU. The same pipeline without containers, on any machine: `--simulate 1xH100 --set docker=null`.

`seven_segments` needs nothing but Python, so that it runs in any image that has one, as it is and without a GPU:

    stoker run container_digits.py:seven_segments --stack containers
    stoker run container_digits.py:seven_segments --stack containers --set docker.parent_image=my/image:1
"""
# needs: demo

import random
import sys
from typing import Annotated, Any

from stoker import context, pipeline, step
from stoker.config import DockerSettings, ResourceSettings

# Packages are imported inside the steps: each image has only those that its own steps need.

EPOCHS = 30
BATCH = 64
SEED = 7

CUDA = DockerSettings(
    parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    python_package_installer_args={"system": None},
    requirements=["torchvision"],
)
PLAIN = DockerSettings(requirements=["numpy", "scikit-learn"])
AS_IT_IS = DockerSettings(
    parent_image=f"python:{sys.version_info.major}.{sys.version_info.minor}-slim", skip_build=True
)


@step
def load() -> tuple[Annotated[dict[str, Any], "training"], Annotated[dict[str, Any], "validation"]]:
    """1,797 digits that scikit-learn ships, of which a fifth is held out."""
    import numpy as np
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.data))
    cut = len(order) * 4 // 5
    images, labels = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int64)
    parts = [{"images": images[rows], "labels": labels[rows]} for rows in (order[:cut], order[cut:])]
    return parts[0], parts[1]


@step(resources=ResourceSettings(gpu_count=1), settings={"docker": CUDA})
def train(training: dict[str, Any], rate: float) -> Annotated[dict[str, Any], "weights"]:
    """Two layers, on the GPU of the step's lease; the weights as arrays, which need no torch to be read."""
    import torch
    from torch import nn

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(SEED)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    images = torch.from_numpy(training["images"].copy()).to(device)
    labels = torch.from_numpy(training["labels"].copy()).to(device)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(images), device=device).split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1} on {device}: loss {loss.item():.4f}")
    return {name: weight.cpu().numpy() for name, weight in model.state_dict().items()}


@step
def evaluate(weights: dict[str, Any], validation: dict[str, Any]) -> Annotated[float, "accuracy"]:
    """In an image without torch: two layers are two products."""
    import numpy as np

    hidden = np.maximum(validation["images"] @ weights["0.weight"].T + weights["0.bias"], 0)
    guessed = (hidden @ weights["2.weight"].T + weights["2.bias"]).argmax(axis=1)
    return float((guessed == validation["labels"]).mean())


@pipeline(settings={"docker": PLAIN})
def container_digits(rate: float = 0.1):
    """Handwritten digits: the training in an image with CUDA, the rest in one without."""
    training, validation = load()
    evaluate(train(training, rate=rate), validation)


#            _        _   _        _   _   _   _   _
#           | |   |  _|  _| |_|  |_  |_    | |_| |_|
#           |_|   | |_   _|   |   _| |_|   | |_|   |
SEGMENTS = [
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
]


@step
def noisy(count: int, noise: float) -> list[dict[str, Any]]:
    """Digits of a display whose segments are now and then brighter or darker than they should be."""
    draw = random.Random(SEED)
    found = []
    for number in range(count):
        digit = number % 10
        found.append({"lit": [int(mark) + draw.gauss(0, noise) for mark in SEGMENTS[digit]], "digit": digit})
    return found


@step
def means(samples: list[dict[str, Any]]) -> list[list[float]]:
    """The mean of each digit's pictures."""
    of_digit = [[sample["lit"] for sample in samples if sample["digit"] == digit] for digit in range(10)]
    return [[sum(column) / len(column) for column in zip(*pictures)] for pictures in of_digit]


@step
def nearest(centres: list[list[float]], samples: list[dict[str, Any]]) -> Annotated[float, "accuracy"]:
    """How often the nearest mean is that of the right digit."""
    right = 0
    for sample in samples:
        far = [sum((a - b) ** 2 for a, b in zip(centre, sample["lit"])) for centre in centres]
        right += far.index(min(far)) == sample["digit"]
    accuracy = right / len(samples)
    print(f"{right} of {len(samples)} right, on Python {sys.version.split()[0]} as attempt {context.attempt}")
    return accuracy


@pipeline(settings={"docker": AS_IT_IS})
def seven_segments(count: int = 500, noise: float = 0.2):
    """Digits of a display, in an image that is used as it is."""
    samples = noisy(count, noise)
    nearest(means(samples), samples)


if __name__ == "__main__":
    run = container_digits()
    print(f"accuracy {run.steps['evaluate'].output.load():.3f}")
