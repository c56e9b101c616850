"""A sample of the storm on the store (`make storm-store`): files of the home are damaged beside runs."""

from __future__ import annotations

from pathlib import Path

from tests.reliability.store_storm import SHARES, WHENS, play, reference_of, schedule_of, summary

SAMPLE = 2


def test_a_sample_of_the_storm(tmp_path: Path) -> None:
    reference = reference_of("pipeline", tmp_path)
    assert len(reference.repeatable) >= 5
    rows = [play(schedule_of(seed, {"pipeline": 1}), reference, tmp_path) for seed in range(SAMPLE)]
    assert [row["wrong"] for row in rows] == [""] * SAMPLE
    assert sum(sum(row["damages"].values()) for row in rows) >= SAMPLE
    assert f"| all | {SAMPLE} | 0 |" in summary(rows)


def test_the_same_seed_is_the_same_schedule_and_all_kinds_are_drawn() -> None:
    schedules = [schedule_of(seed, SHARES) for seed in range(300)]
    assert schedules == [schedule_of(seed, SHARES) for seed in range(300)]
    assert {schedule.program for schedule in schedules} == {*SHARES}
    assert {schedule.when for schedule in schedules} == {*WHENS}
