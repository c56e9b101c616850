"""Twelve trainings on four GPUs: eight that need one and four that need two, packed so that no two share a device.

Three ways to look at it:

    stoker run examples/four_gpus.py --simulate 4xH100-80GB     # also on a laptop: the GPUs are pretended
    stoker run examples/four_gpus.py                            # on a machine that has them
    stoker gpu last                                             # what each step did with its devices
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from stoker import pipeline, step
from stoker.config import ResourceSettings

SECONDS = 0.4
"""How long a training takes at least."""


def fit(rate: float) -> dict[str, Any]:
    """Fit a line by gradient descent, and say where and when."""
    started = time.time()
    random = np.random.default_rng(0)
    points = random.normal(size=(2000, 8))
    truth = np.arange(8.0)
    weights = np.zeros(8)
    while time.time() < started + SECONDS:
        weights -= rate * points.T @ (points @ (weights - truth)) / len(points)
    loss = float(np.mean((points @ (weights - truth)) ** 2))
    # What CUDA would see: the devices of this step's lease, by UUID, and no others.
    devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return {"rate": rate, "loss": loss, "devices": devices, "started": started, "ended": time.time()}


@step(resources=ResourceSettings(gpu_count=1), cache=False)
def small(rate: float) -> dict[str, Any]:
    """A training on one GPU."""
    return fit(rate)


@step(resources=ResourceSettings(gpu_count=2), cache=False)
def large(rate: float) -> dict[str, Any]:
    """A training on two."""
    return fit(rate)


@step(cache=False)
def timeline(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> int:
    """Draw who had which device when; the number of devices that were used."""
    trainings = [*((training, "─") for training in one), *((training, "═") for training in two)]
    begin = min(training["started"] for training, _ in trainings)
    whole = max(training["ended"] for training, _ in trainings) - begin
    rows: dict[str, list[str]] = {}
    held: dict[str, list[tuple[float, float]]] = {}
    for training, mark in trainings:
        first, last = (int(60 * (training[name] - begin) / whole) for name in ("started", "ended"))
        for device in training["devices"]:
            row = rows.setdefault(device, [" "] * 61)
            row[first:last] = ["╶", *mark * (last - first - 2), "╴"]
            held.setdefault(device, []).append((training["started"], training["ended"]))
    for device in sorted(rows):
        print(f"{device[-12:]} │{''.join(rows[device])}│")
    for device, times in held.items():
        for (_, end), (start, _) in zip(sorted(times), sorted(times)[1:]):
            assert end <= start, f"two trainings held {device} at once"
    best = min((training for training, _ in trainings), key=lambda training: training["loss"])
    print(f"{len(trainings)} trainings in {whole:.1f} s; the best rate is {best['rate']}")
    return len(rows)


@pipeline
def four_gpus() -> None:
    """Search a learning rate on every device that there is."""
    one = small.map([0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002])
    two = large.map([0.3, 0.15, 0.08, 0.03])
    timeline(one, two)


if __name__ == "__main__":
    four_gpus()
