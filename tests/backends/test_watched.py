"""What a watcher reports of its jobs' places, and of the jobs that it leaves."""

from __future__ import annotations

import select
import time
from typing import Any, Mapping, Sequence

import pytest
from tests.steps import planned_step

from stoker.backends.base.platforms import JobReport
from stoker.backends.base.watched import JobWatcher, _left_text
from stoker.core.plan import Job, JobStatus
from stoker.core.protocol import JOB

UP = b'\x1estoker {"kind": "up", "time": 2.0, "data": {"host": "n1"}}\n'
STEP = planned_step(where="train.py:7")
DONE = JobStatus(state="succeeded")
LATER = time.time() + 86_400


class Scripted:
    """A platform that reports of its one job what a test says, a report at each look.

    It stands for the moments between two looks, which no real platform shows in a given order.
    """

    def __init__(self, reports: Sequence[JobReport]) -> None:
        self._reports = list(reports)

    def find(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        return {}

    def send(self, jobs: Sequence[Job]) -> Mapping[str, Any]:
        return {job.name: job.name for job in jobs}

    def look(self, handles: Mapping[str, Any]) -> Mapping[str, JobReport]:
        return {name: self._reports.pop(0) for name in handles if self._reports}

    def end(self, handles: Mapping[str, Any], *, grace: float) -> None: ...

    def forget(self, handle: Any) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("reports", "states"),
    [
        pytest.param(
            [JobReport(output=[(0, "stdout", UP)]), JobReport(status=DONE)],
            [("sent", None), ("running", "n1")],
            id="the worker says it",
        ),
        pytest.param(
            [JobReport(running=True), JobReport(output=[(0, "stdout", UP)]), JobReport(status=DONE)],
            [("sent", None), ("running", None), ("placed", "n1")],
            id="the queue knew earlier that it runs",
        ),
        pytest.param(
            [JobReport(running=True), JobReport(output=[(0, "stdout", UP)], status=DONE)],
            [("sent", None), ("running", None), ("placed", "n1")],
            id="it ended at once",
        ),
        pytest.param(
            [JobReport(running=True), JobReport(facts={"node": "n1"}), JobReport(status=DONE)],
            [("sent", None), ("running", None), ("placed", "n1")],
            id="the queue says it later",
        ),
        pytest.param(
            [JobReport(facts={"node": "n1"}, status=DONE)],
            [("sent", None), ("placed", "n1")],
            id="it ended before it was seen to run",
        ),
        pytest.param(
            [
                JobReport(running=True, facts={"node": "n1"}),
                JobReport(output=[(0, "stdout", UP)]),
                JobReport(status=DONE),
            ],
            [("sent", None), ("running", "n1")],
            id="nothing new",
        ),
        pytest.param(
            [JobReport(output=[(0, "stdout", UP)]), JobReport(facts={"node": "n[1-2]"}), JobReport(status=DONE)],
            [("sent", None), ("running", "n1"), ("placed", "n[1-2]")],
            id="the platform knows more nodes than the first worker",
        ),
        pytest.param(
            [
                JobReport(running=True, facts={"node": "n0"}),
                JobReport(message="it is started again"),
                JobReport(output=[(0, "stdout", UP)], running=True),
                JobReport(status=DONE),
            ],
            [("sent", None), ("running", "n0"), ("running", "n1")],
            id="it was started again elsewhere",
        ),
    ],
)
def test_the_node_of_a_job_is_reported_whenever_it_becomes_known(
    reports: list[JobReport], states: list[tuple[str, str | None]]
) -> None:
    watcher = JobWatcher(Scripted(reports))
    watcher.submit(Job(name="a", run="r", key="train", attempt=1, step=STEP, inputs={}))
    events, ended = [], False
    while not ended:
        select.select(list(watcher.wakeups()), [], [], 30)
        news = watcher.poll()["a"]
        events += [event.data for event in news.events if event.note == JOB]
        ended = news.state == "succeeded"
    watcher.close()
    assert [(event["state"], event.get("node")) for event in events] == states


@pytest.mark.parametrize(
    ("reports", "running", "ended"),
    [
        pytest.param(
            [JobReport(message="full"), JobReport(status=JobStatus(state="failed", started=LATER, ended=LATER + 5))],
            LATER,
            LATER + 5,
            id="it began and ended between two looks",
        ),
        pytest.param(
            [JobReport(status=JobStatus(state="failed", started=1.0, ended=LATER))],
            None,
            LATER,
            id="it began in the second in which it was sent",
        ),
        pytest.param(
            [JobReport(output=[(0, "stdout", UP)]), JobReport(status=JobStatus(state="failed", ended=1.0))],
            2.0,
            2.0,
            id="it ended in the second in which it began",
        ),
    ],
)
def test_times_that_only_the_platform_knows_are_reported(
    reports: list[JobReport], running: float | None, ended: float
) -> None:
    began = time.time()
    watcher = JobWatcher(Scripted(reports))
    watcher.submit(Job(name="a", run="r", key="train", attempt=1, step=STEP, inputs={}))
    events, news = [], JobStatus(state="running")
    while news.state != "failed":
        select.select(list(watcher.wakeups()), [], [], 30)
        news = watcher.poll()["a"]
        events += [event.data for event in news.events if event.note == JOB]
    watcher.close()
    assert [event["state"] for event in events] == ["sent", "running"]
    assert events[1]["time"] == (events[0]["time"] if running is None else running)
    assert news.ended == ended and began <= events[0]["time"]


@pytest.mark.parametrize(
    ("jobs", "doubtful", "text"),
    [
        ([], [], "no job of its own is known to be there"),
        ([{"job": "73", "key": "train"}], [], "job 73 (train) may still run there"),
        ([], [{"job": "a submission with the comment 4f12"}], "a submission with the comment 4f12 may still run there"),
        (
            [{"job": "73", "key": "load"}, {"job": "a step that waits for job 73", "key": "train"}],
            [],
            "2 jobs: 73 (load), a step that waits for job 73 (train) may still run there",
        ),
        ([{"job": str(id)} for id in range(7)], [], "7 jobs: 0, 1, 2, 3, 4, … may still run there"),
    ],
)
def test_jobs_that_are_left_are_named(jobs: list[Any], doubtful: list[Any], text: str) -> None:
    assert _left_text("Slurm's controller", jobs, doubtful) == (
        f"the driver leaves without waiting for Slurm's controller: {text}"
    )
