"""What happens to a job between two polls: nothing of it is lost."""

from __future__ import annotations

from itertools import permutations

import pytest

from stoker.backends.base.channel import Updates
from stoker.core.devices import Lease
from stoker.core.plan import JobStatus, LogLine

PIECES = (
    JobStatus(state="running"),
    JobStatus(state="running", lease=Lease(ticket="t")),
    JobStatus(state="running", started=7.0),
)


@pytest.mark.parametrize("pieces", list(permutations(PIECES)))
def test_a_step_that_began_between_two_polls_has_its_devices_and_its_time(pieces: tuple[JobStatus, ...]) -> None:
    news = Updates()
    for piece in pieces:
        news.put("a", piece)
    news.lines["a"] = [LogLine(time=1.0, stream="stdout", text="x")]
    found = news.take()["a"]
    assert (found.state, found.started, found.lease) == ("running", 7.0, Lease(ticket="t"))
    assert [line.text for line in found.lines] == ["x"]
    assert news.take() == {}


def test_an_end_is_taken_as_it_is_but_for_the_start() -> None:
    news = Updates()
    news.put("a", JobStatus(state="running", started=7.0))
    news.put("a", JobStatus(state="failed", cause="killed"))
    assert news.take()["a"] == JobStatus(state="failed", cause="killed", started=7.0)
    news.put("a", JobStatus(state="running", started=7.0))
    news.put("a", JobStatus(state="succeeded", started=8.0))
    assert news.take()["a"] == JobStatus(state="succeeded", started=8.0)
