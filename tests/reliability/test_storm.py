"""A sample of the storm (`make storm`): runs are killed by seeded schedules, and nothing of them is left."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.reliability.storm import BEHAVIOURS, ENDS, LAUNCHERS, VICTIMS, play, schedule_of, summary

SAMPLE = 4
"""Schedules; with `--long` all of `SCHEDULES`."""
SCHEDULES = 60
LIGHT = {"none": 1, "command": 1}
"""Launchers that do not import torch: the others take seconds of CPU for each schedule."""

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs Linux's /proc")


def test_a_sample_of_the_storm(tmp_path: Path, long_form: bool) -> None:
    count = SCHEDULES if long_form else SAMPLE
    with ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda seed: play(schedule_of(seed, LIGHT), scratch=tmp_path), range(count)))
    assert [row for row in rows if row["wrong"]] == []
    kills = sum(sum(row["killed"].values()) for row in rows)
    assert kills >= count and f"{kills} kills" in summary(rows)


def test_the_same_seed_is_the_same_schedule_and_all_kinds_are_drawn() -> None:
    schedules = [schedule_of(seed, LAUNCHERS) for seed in range(500)]
    assert schedules == [schedule_of(seed, LAUNCHERS) for seed in range(500)]
    assert {schedule.launcher for schedule in schedules} == {*LAUNCHERS}
    assert {schedule.behaviour for schedule in schedules} == {*BEHAVIOURS}
    assert {schedule.end for schedule in schedules} == {*ENDS}
    assert {whom for schedule in schedules for _, whom in schedule.kills} == {*VICTIMS}
