"""How often a checkpoint is due: never far from the best interval of a scan, whatever is lost."""

from __future__ import annotations

import random

import pytest

from stoker.core.cadence import LossRate, best_interval, loss_rate
from stoker.core.resources import ResourceSettings

HOUR = 3600.0


def time_of(interval: float, *, cost: float, between: float, work: float, restart: float, seeds: int) -> float:
    """Mean seconds of a training that saves after each interval and is lost at random, back to its last checkpoint."""
    total = 0.0
    for seed in range(seeds):
        draw, now, done = random.Random(seed), 0.0, 0.0
        lost_at = draw.expovariate(1 / between)
        while done < work:
            part = min(interval, work - done)
            end = now + part + (cost if done + part < work else 0.0)
            if lost_at < end:
                now = lost_at + restart
                lost_at = now + draw.expovariate(1 / between)
            else:
                now, done = end, done + part
        total += now
    return total / seeds


@pytest.mark.parametrize(
    ("cost", "between"), [(5.0, HOUR), (60.0, 6 * HOUR), (60.0, HOUR), (300.0, 2 * HOUR), (600.0, HOUR)]
)
def test_no_interval_of_a_scan_is_much_better(cost: float, between: float) -> None:
    """Within 1 % of the whole training's time, where what is lost and saved is up to half of it."""
    chosen = best_interval(cost, between)
    scan = {
        factor: time_of(chosen * factor, cost=cost, between=between, work=40 * HOUR, restart=120.0, seeds=60)
        for factor in (0.1, 0.25, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0, 10.0)
    }
    assert scan[1.0] <= 1.01 * min(scan.values())
    assert min(scan[0.1], scan[10.0]) > 1.05 * scan[1.0], "the scan can tell"


def test_where_a_checkpoint_costs_more_than_is_saved_there_is_none_between_losses() -> None:
    assert best_interval(2 * HOUR, HOUR) == HOUR


@pytest.mark.parametrize(
    ("resources", "losses", "hours", "between", "words"),
    [
        ({}, 3, 18.0, 6.0, "one loss in 6h (3 losses in 18h of attempts there)"),
        ({"spot": True, "nodes": 4}, 0, 0.0, 6.0, "no attempt there is known: as long as Google's preemptible"),
        ({"gpu_count": 8, "nodes": 2}, 0, 50.0, 3167.0, "none in 2d 2h of attempts there: as the GPUs that trained"),
        ({"spot": True}, 0, 90.0, 90.0, "(none in 3d 18h of attempts there)"),
    ],
)
def test_what_is_taken_for_the_rate_of_losses(
    resources: dict[str, object], losses: int, hours: float, between: float, words: str
) -> None:
    rate = loss_rate(ResourceSettings(**resources), losses, hours * HOUR)
    assert rate.between / HOUR == pytest.approx(between, rel=1e-3)
    assert words in str(rate)
    assert isinstance(rate, LossRate)
