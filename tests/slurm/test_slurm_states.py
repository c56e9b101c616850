"""Rows as Slurm prints them, and what follows from them: those of a real 22.05, and of other versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.backends.slurm.states import STATES, JobRow, compact, end_status, sacct_rows, scontrol_rows, squeue_rows
from stoker.backends.slurm.task import LATE, LOST, PlacedOrder, SlurmJob
from stoker.core.status import CAUSES

QUEUE = """\
12_3|RUNNING|2031-01-31T10:00:00|5ca1ab1e|n1|main|None
12_[4-9%2]|PENDING|N/A|5ca1ab1e||main|JobArrayTaskLimit
13|PENDING|2031-01-31T12:00:00|(null)||main|ReqNodeNotAvail, UnavailableNodes:n[1-2]
14|CANCELLED+|N/A|other|n1|main|None
15|SHINY_NEW|N/A||n2|main|a|b
no row at all
"""
JOB = (
    "JobId=17 ArrayJobId=12 ArrayTaskId=3 JobName=stoker-x UserId=root(0) Priority=1 JobState=FAILED "
    "Reason=JobLaunchFailure Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:9 "
    "RunTime=00:00:05 TimeLimit=01:00:00 StartTime=2031-01-31T10:00:00 EndTime=2031-01-31T10:00:05 Partition=main "
    "AllocNode:Sid=0.0.0.0:1 NodeList=n[1-2] Command=/a/JobState=COMPLETED Comment=5ca1ab1e \n"
)
ACCOUNTS = (
    "12_3|CANCELLED by 1000|0:15|01:00:00|2031-01-31T10:00:00|2031-01-31T10:00:05|n1\n"
    "18|OUT_OF_MEMORY|0:125|UNLIMITED|2031-01-31T10:00:00|Unknown|None assigned\n18.batch|x|y\n"
)
TEN = 1_927_620_000.0
"""2031-01-31T10:00:00 in UTC."""


def test_rows_of_the_queue() -> None:
    found = {row.id: row for row in squeue_rows(QUEUE)}
    assert list(found) == ["12_3", "12_[4-9%2]", "13", "14", "15"]
    assert (found["12_3"].stage, found["12_3"].comment, found["12_3"].nodes) == ("running", "5ca1ab1e", "n1")
    assert found["12_3"].partition == "main"
    assert found["13"].reason == "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    assert (found["14"].state, found["14"].stage) == ("CANCELLED", "over")
    assert found["15"].stage == "running", "a state that nobody knows is a job that is still there"
    assert found["15"].reason == "a|b"


def test_a_job_as_the_controller_shows_it() -> None:
    (row,) = scontrol_rows(JOB)
    assert (row.id, row.state, row.reason) == ("12_3", "FAILED", "JobLaunchFailure")
    assert (row.code, row.signal, row.nodes, row.limit) == (0, 9, "n[1-2]", "01:00:00")
    assert (row.began, row.ended) == (TEN, TEN + 5)
    (row,) = scontrol_rows(JOB.replace("NodeList=n[1-2]", "NodeList=(null)"))
    assert (row.began, row.ended) == (None, TEN + 5), "of one that was cancelled before, StartTime is that moment"
    assert list(scontrol_rows("slurm_load_jobs error: Invalid job id specified\n")) == []


def test_a_job_in_the_accounts() -> None:
    cancelled, killed = sacct_rows(ACCOUNTS)
    assert (cancelled.id, cancelled.state, cancelled.by) == ("12_3", "CANCELLED", "1000")
    assert (killed.state, killed.code, killed.signal, killed.limit, killed.nodes) == ("OUT_OF_MEMORY", 0, 125, "", "")
    assert (cancelled.began, cancelled.ended, killed.began, killed.ended) == (TEN, TEN + 5, None, None)


def test_a_number_that_is_none_of_slurms_is_not_read() -> None:
    [row] = sacct_rows(f"12|FAILED|{'9' * 5000}:0|01:00:00|x|x|n1\n")
    assert (row.state, row.code, row.signal) == ("FAILED", None, 0)
    [row] = sacct_rows("12|FAILED|4294967295:64|01:00:00|x|x|n1\n")
    assert (row.code, row.signal) == (4294967295, 64)


@pytest.mark.parametrize("state", [state for state, (stage, _) in STATES.items() if stage == "over"])
def test_every_end_has_a_cause_of_ours(state: str) -> None:
    status = end_status(JobRow(id="12", state=state, nodes="n1", code=3, limit="01:00:00"), "last words", memory=0)
    assert status.state == "failed"
    assert status.cause in CAUSES
    assert state in status.message or state in ("CANCELLED", "OUT_OF_MEMORY")
    assert "12" in status.message or state == "OUT_OF_MEMORY"


@pytest.mark.parametrize(
    ("row", "errors", "cause", "words"),
    [
        (JobRow(id="1", state="OUT_OF_MEMORY", signal=125), "", "host-oom", "limit is 1GiB: Slurm says OUT_OF_MEMORY"),
        (
            JobRow(id="1", state="FAILED", reason="JobLaunchFailure", signal=9),
            "a\nslurmstepd-n1: error: Exceeded job memory limit\n",
            "host-oom",
            "Exceeded job memory limit",
        ),
        (
            JobRow(id="1", state="FAILED", signal=9),
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.batch.",
            "host-oom",
            "oom-kill event",
        ),
        (
            JobRow(id="1", state="FAILED", code=127),
            "script.sh: line 9: /x/python: No such file or directory\n",
            "worker-lost",
            "exit code 127; it wrote: script.sh: line 9: /x/python: No such file or directory",
        ),
        (JobRow(id="1", state="FAILED", signal=11, reason="None"), "", "worker-lost", "FAILED, signal 11"),
        (
            JobRow(id="1", state="TIMEOUT", limit="01:00:00"),
            "",
            "timed-out",
            "the limit of 01:00:00 that Slurm was given for its time (TIMEOUT): the setting time_limit gives",
        ),
        (JobRow(id="1", state="DEADLINE"), "", "timed-out", "its deadline (DEADLINE): options.deadline"),
        (JobRow(id="1", state="CANCELLED", by="1000"), "", "killed", "was cancelled by user 1000, not by Stoker"),
        (JobRow(id="1", state="NODE_FAIL", nodes="n3"), "", "node-lost", "a node of job 1 failed on n3"),
    ],
)
def test_how_an_end_is_told(row: JobRow, errors: str, cause: str, words: str) -> None:
    status = end_status(row, errors, memory=1 << 30)
    assert status.cause == cause
    assert words in status.message


def test_tasks_as_commands_take_them() -> None:
    assert compact({"12": {0, 1, 2, 7}, "13": set(), "14": {3}}) == ["12_[0-2,7]", "13", "14_[3]"]


def task(**given: Any) -> SlurmJob:
    return SlurmJob(id="12", folder="/f", job_folder="/f/0", nodes=1, memory=0, batch=True, **given)


def result(**given: Any) -> dict[str, bytes]:
    whole = {"job": "j", "ok": False, "outputs": {}, "cause": "", "start": 1.0, "end": 2.0, "cpu": 0.0, **given}
    return {"/f/0/result.json": json.dumps(whole).encode()}


GOOD = result(ok=True)
STOPPED = result(cause="cancelled")


def row(state: str, **given: Any) -> JobRow:
    return JobRow(id="12", state=state, **given)


def test_a_result_that_was_ended_from_outside_waits_for_slurms_word() -> None:
    one = task()
    one.note_row(row("RUNNING"), 0.0)
    one.read(STOPPED, 1.0)
    assert one.status(1.0) is None and one.wants == "row"
    one.note_row(row("COMPLETING"), 2.0)
    assert one.status(2.0) is None
    one.note_row(row("TIMEOUT"), 3.0)
    assert one.status(3.0) is None and one.wants == "details"
    one.details = row("TIMEOUT", limit="01:00:00")
    status = one.status(3.0)
    assert status is not None and status.cause == "timed-out"


def test_a_row_from_before_the_worker_was_up_says_nothing_any_more() -> None:
    one = task()
    one.note_row(row("PENDING", reason="Priority"), 0.0)
    assert not one.runs
    one.read({"/f/0/out-0": b'\x1estoker {"kind": "up"}\n'}, 1.0)
    assert one.runs
    one.note_row(row("PENDING", reason="BeginTime"), 2.0)
    assert not one.runs, "it was put back into the queue"


@pytest.mark.parametrize(("up", "started"), [(False, TEN), (True, None)])
def test_what_slurm_alone_knows_has_slurms_times(up: bool, started: float | None) -> None:
    one = task(up_at=0.0 if up else None)
    one.note_row(row("CANCELLED"), 0.0)
    one.read({}, 1.0)
    one.details = row("CANCELLED", by="0", began=TEN, ended=TEN + 5)
    status = one.status(1.0)
    assert status is not None and (status.cause, status.started, status.ended) == ("killed", started, TEN + 5)


@pytest.mark.parametrize("exited", [{"code": None, "signal": 15}, {"code": 143, "signal": None}, {}])
def test_a_worker_that_was_ended_waits_for_slurms_word(exited: dict[str, Any]) -> None:
    one = task()
    one.note_row(row("RUNNING"), 0.0)
    one.read(result(exited=exited), 1.0)
    assert one.status(1.0) is None
    one.note_row(row("PREEMPTED"), 2.0)
    one.details = row("PREEMPTED")
    status = one.status(2.0)
    assert status is not None and status.cause == "preempted"


@pytest.mark.parametrize(
    ("wrote", "cause"), [(b"slurmstepd-n1: error: Exceeded job memory limit\n", "host-oom"), (b"", "worker-lost")]
)
def test_a_pools_worker_that_slurm_killed_explains_what_its_step_left(wrote: bytes, cause: str) -> None:
    """Slurm kills the processes of a job one by one: those that are left for a moment may still write a result."""
    one = task(order=PlacedOrder(number=0))
    one.note_row(row("RUNNING"), 0.0)
    one.read(result(exited={}), 1.0)
    one.note_row(row("FAILED"), 2.0)
    assert one.status(2.0) is None and one.wants == "details"
    one.errors += wrote
    one.details = row("FAILED", signal=9)
    status = one.status(2.0)
    assert status is not None and status.cause == cause


def test_the_result_of_a_start_that_slurm_repeats_does_not_count() -> None:
    one = task()
    one.note_row(row("RUNNING", start="a"), 0.0)
    one.read(STOPPED, 1.0)
    one.note_row(row("PENDING", reason="BeginTime"), 2.0)
    one.note_row(row("COMPLETING", start="a"), 2.0)
    one.note_row(row("PENDING", reason="BeginTime"), 2.0)
    assert one.status(2.0) is None
    assert [event.note for event in one.events] == ["requeued"]
    one.note_row(row("RUNNING", start="b"), 3.0)
    one.read(STOPPED, 3.0)
    assert one.status(3.0) is None, "it is still the old one"
    one.read(GOOD, 4.0)
    status = one.status(4.0)
    assert status is not None and status.state == "succeeded"


def test_a_program_that_ran_to_its_end_has_a_result_that_may_be_late() -> None:
    one = task()
    one.read({"/f/0/out-0": b'\x1estoker {"kind": "up"}\n'}, 0.0)
    one.note_row(row("COMPLETED"), 1.0)
    one.details = row("COMPLETED", code=0)
    assert one.status(1.0) is None
    one.read({}, 2.0)
    assert one.status(1.0 + LATE / 2) is None
    status = one.status(2.0 + LATE)
    assert status is not None and status.cause == "worker-lost"


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_what_ran_between_two_looks_is_looked_at_before_it_counts_as_lost(state: str) -> None:
    one = task()
    one.note_row(row("PENDING"), 0.0)
    one.note_row(row(state), 2.0)
    one.details = row(state, code=0)
    assert one.status(2.0) is None
    one.read(GOOD, 3.0)
    status = one.status(3.0)
    assert status is not None and status.state == "succeeded"


def test_a_job_that_nobody_mentions_is_unknown_before_it_is_lost() -> None:
    one = task()
    one.note_row(row("RUNNING"), 0.0)
    one.note_row(None, 1.0)
    assert one.status(1.0) is None and one.wants == "details"
    one.note_row(None, 2.0)
    assert one.status(LOST) is None
    late = one.status(2.0 + LOST)
    assert late is not None and late.cause == "worker-lost"
    one.read(GOOD, 3.0)
    found = one.status(3.0 + LOST)
    assert found is not None and found.state == "succeeded"


def test_what_we_ended_needs_no_word() -> None:
    one = task(ending=True)
    one.read(STOPPED, 1.0)
    status = one.status(1.0)
    assert status is not None and status.cause == "cancelled"


def test_a_program_that_never_began_is_not_waited_for() -> None:
    one = task()
    one.read({"/f/0/err-0": b"no python\n"}, 0.0)
    one.note_row(row("FAILED"), 1.0)
    one.details = row("FAILED", code=127)
    one.read({}, 2.0)
    status = one.status(2.0)
    assert status is not None and "no python" in status.message
