"""What a run cost: known where a platform lists a price; else unknown where accelerators were held."""

from __future__ import annotations

from datetime import datetime, timezone

import attrs
import pytest
from tests.report.test_terminal import plan as plan_of

from stoker.client.placements import Placement
from stoker.core.findings import Finding
from stoker.core.plan import reporter_of
from stoker.plan.planner import with_rates
from stoker.ui.runview import cost_text, prices_of


def job(start: float, end: float | None) -> Placement:
    def moment(seconds: float | None) -> datetime | None:
        return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)

    return Placement(attempt=1, started=moment(start), ended=moment(end))


@pytest.mark.parametrize(
    ("prices", "placements", "held", "text"),
    [
        ({"train": 4.0}, {"train": [job(0, 1800), job(2000, 3800)]}, ["train"], "$4.00"),
        ({"train": 4.0}, {"train": [job(7200, None)]}, ["train"], "$8.00"),
        ({"embed": 1.5}, {"embed[0]": [job(0, 3600)], "embed[1]": [job(0, 3600)]}, [], "$3.00"),
        (
            {"train": 4.0},
            {"train": [job(0, 3600)], "test": [job(0, 9)]},
            ["train", "test[3]"],
            "$4.00, of test unknown",
        ),
        ({}, {"train": [job(0, 3600)]}, ["train"], "unknown"),
        ({"train": 4.0}, {"train": [attrs.evolve(job(0, 1), started=None)]}, [], ""),
        ({}, {}, [], ""),
    ],
)
def test_costs_in_words(
    prices: dict[str, float], placements: dict[str, list[Placement]], held: list[str], text: str
) -> None:
    assert cost_text(prices, placements, held, now=14_400) == text


def test_prices_are_those_of_the_plans_findings() -> None:
    plan = plan_of("train", "test")
    listed = Finding(code="STK323", level="info", what="p4d", where=reporter_of(plan.steps[0]).where, price=32.77)
    priced = attrs.evolve(plan, steps=tuple(with_rates(plan.steps, [listed], None)))
    assert prices_of(priced)["train"] == 32.77
    assert prices_of(None) == prices_of(plan) == {}
