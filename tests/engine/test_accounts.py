"""What a receipt says of the place of an attempt: how long it waited there."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stoker.engine.accounts import Accounts, _placement
from stoker.engine.execution import StepExecution

SENT = {"state": "sent", "time": 100.0, "job": "job 12"}
RUNS = {"state": "running", "time": 101.0, "node": "n1"}
AGAIN = {"state": "running", "time": 117.0, "node": "n2"}


@pytest.mark.parametrize(
    ("told", "waited", "node"),
    [
        ([SENT, 100.5], None, None),
        ([SENT, 100.5, RUNS], 1.0, "n1"),
        ([SENT, RUNS, 111.0, 112.0, AGAIN], 1.0 + 6.0, "n2"),
    ],
    ids=["it waits", "it ran", "it was started again"],
)
def test_what_an_attempt_ran_before_it_was_started_again_is_no_part_of_its_wait(
    told: list[Any], waited: float | None, node: str | None
) -> None:
    """Moments are those in which it was said to wait."""
    accounts = Accounts(cast(Any, None), cast(Any, None))
    execution = StepExecution(cast(Any, None), {})
    for news in told:
        if isinstance(news, float):
            accounts.note_wait(execution, news)
        else:
            accounts.note_place(execution, news)
    fields = _placement(execution.facts)
    assert (fields["queue_seconds"], fields["placement"].get("node")) == (waited, node)
