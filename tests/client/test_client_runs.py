"""Finding runs, how they stand, and what can be done with them."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest

from stoker.client import Client, Run
from stoker.client.client import LATEST
from stoker.core.errors import NotFound, UsageError
from stoker.report.following import RunWatch
from stoker.report.terminal import Terminal
from stoker.run.driver import new_id
from stoker.store.batch import RowBatch
from stoker.store.rows import EventRow, StepProgress


def ids(runs: list[Run]) -> list[str]:
    return [run.id for run in runs]


def dead_pid() -> int:
    """The pid of a process that was, and is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert not psutil.pid_exists(process.pid)
    return process.pid


def driver(**fields: Any) -> dict[str, Any]:
    here = {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}
    return {**here, **fields}


# Listing


def test_newest_first_in_pages(book: Any) -> None:
    made = [book.run() for _ in range(7)]
    assert ids(book.client.runs()) == made[::-1]
    assert ids(book.client.runs(limit=3)) == made[:3:-1]
    assert ids(book.client.runs(limit=3, offset=5)) == made[1::-1]
    assert book.client.runs(limit=0) == []
    for _ in range(60):
        book.run()
    assert len(book.client.runs()) == 50
    assert len(book.client.runs(limit=None)) == 67


def test_pages_stay_the_same_while_runs_are_added(book: Any) -> None:
    made = [book.run(created=1_763_894_400.123456789 - 5 + number) for number in range(5)]  # finer than a datetime
    first = book.client.runs(limit=2)
    book.run(created=1_763_894_500.0)
    assert ids(book.client.runs(limit=2, before=first[-1])) == made[2:0:-1]
    assert book.client.runs(before=book.client.run(made[0])) == []


def test_filters(book: Any) -> None:
    train = book.run(pipeline="train", tags=("nightly", "v1"))
    other = book.run(pipeline="other", tags=("nightly",), status="failed")
    both = book.run(pipeline="train", status="failed")
    assert ids(book.client.runs(pipeline="train")) == [both, train]
    assert ids(book.client.runs(status="failed")) == [both, other]
    assert ids(book.client.runs(tag="nightly")) == [other, train]
    assert ids(book.client.runs(tag="night")) == []
    assert ids(book.client.runs(pipeline="train", status="failed")) == [both]
    cluster = book.run(pipeline="train", stack="cluster")
    assert ids(book.client.runs(stack="cluster")) == [cluster]
    assert ids(book.client.runs(text="NIGHT")) == [other, train]
    running = book.run(status="running", stack="cluster")
    assert ids(book.client.runs(status="running", stack="cluster", before=book.client.run(book.run()))) == [running]


def test_since(book: Any) -> None:
    now = time.time()
    old = book.run(created=now - 7200)
    new = book.run(created=now - 60)
    assert ids(book.client.runs(since="1h")) == [new]
    assert ids(book.client.runs(since=3600)) == [new]
    assert ids(book.client.runs(since=timedelta(hours=3))) == [new, old]
    assert ids(book.client.runs(since=datetime.fromtimestamp(now - 3600, timezone.utc))) == [new]
    assert ids(book.client.runs(since=datetime.fromtimestamp(now - 3600))) == [new]  # noqa: DTZ006 as people write it


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"status": "finished"}, "no run is ever 'finished'"),
        ({"status": "suceeded"}, "did you mean 'succeeded'"),
        ({"limit": -1}, "limit=-1"),
        ({"offset": -1}, "offset=-1"),
        ({"since": "yesterday"}, "duration"),
    ],
)
def test_wrong_filters(book: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        book.client.runs(**arguments)


def test_running_and_interrupted_are_told_apart_and_paged(book: Any) -> None:
    pid = dead_pid()
    alive = [book.run(status="running") for _ in range(3)]
    dead = [book.run(status="running", driver=driver(pid=pid)) for _ in range(450)]
    book.run()
    assert ids(book.client.runs(status="running")) == alive[::-1]
    assert ids(book.client.runs(status="running", limit=1, offset=1)) == [alive[1]]
    assert ids(book.client.runs(status="interrupted", limit=2, offset=400)) == [dead[49], dead[48]]
    assert len(book.client.runs(status="interrupted", limit=None)) == 450


# One run


def test_by_id_prefix_and_latest(book: Any) -> None:
    book.run("abc111")
    book.run("abd222")
    assert book.client.run("abc111").id == "abc111"
    assert book.client.run("abc").id == "abc111"
    assert {book.client.run(name).id for name in LATEST} == {"abd222"}
    with pytest.raises(NotFound, match="several runs: abd222, abc111"):
        book.client.run("ab")
    with pytest.raises(NotFound, match="did you mean 'abc111'"):
        book.client.run("abc112")
    with pytest.raises(NotFound):
        book.client.run("")


def test_no_id_begins_with_a_name_of_the_newest() -> None:
    assert set(LATEST) == {"latest", "last"}
    assert not any("l" in new_id(2e9 + number) for number in range(1000))


def test_no_runs_yet(book: Any) -> None:
    assert book.client.runs() == []
    for name in LATEST:
        with pytest.raises(NotFound, match="no runs yet"):
            book.client.run(name)


def test_facts(book: Any) -> None:
    id = book.run(
        parameters={"lr": 0.1, "names": ["a"]},
        tags=("x",),
        stack="local",
        source="train.py:14",
        failure_mode="continue",
        sessions=2,
        error="the disk is full",
        status="failed",
    )
    run = book.client.run(id)
    assert (run.pipeline, run.status, run.stack, run.source) == ("training", "failed", "local", "train.py:14")
    assert (run.parameters, run.tags, run.failure_mode) == ({"lr": 0.1, "names": ["a"]}, ("x",), "continue")
    assert (run.sessions, run.error, run.seconds) == (2, "the disk is full", 2.5)
    assert run.created.timestamp() == 1_700_000_001.0
    assert run.started is not None and run.started.utcoffset() == run.started.astimezone().utcoffset()
    assert repr(run) == f"<Run {id} of 'training': failed after 2.5 s>"


def test_as_dict_is_json(book: Any) -> None:
    id = book.run(parameters={"lr": 0.1}, tags=("x",))
    book.step(id, "load", position=0)
    book.step(id, "train", position=1, status="failed", cause="user-error")
    document = json.loads(json.dumps(book.client.run(id).as_dict()))
    assert [step["key"] for step in document["steps"]] == ["load", "train"]
    assert document["seconds"] == 2.5
    assert document["created"].startswith("20") and "T" in document["created"]
    assert datetime.fromisoformat(document["created"]).utcoffset() is not None
    assert "steps" not in book.client.run(id).as_dict(steps=False)


def test_events(book: Any) -> None:
    id = book.run()
    book.write(EventRow(run_id=id, seq=0, time=5.0, kind="retry", key="train", data={"attempt": 1}))
    (event,) = book.client.run(id).events
    assert (event.kind, event.key, event.data) == ("retry", "train", {"attempt": 1})
    assert event.time.timestamp() == 5.0
    assert json.loads(json.dumps(event.as_dict()))["kind"] == "retry"


# Who drives it


def test_a_driver_that_lives(book: Any) -> None:
    assert book.client.run(book.run(status="running")).status == "running"
    # The heartbeat is not asked while the process is there: a machine may sleep for an hour.
    assert book.client.run(book.run(status="running", heartbeat=1.0)).status == "running"
    assert book.client.run(book.run(status="running", driver=driver(started=None))).status == "running"


def test_a_driver_that_is_dead(book: Any) -> None:
    run = book.client.run(book.run(status="running", driver=driver(pid=dead_pid())))
    assert run.status == "interrupted"
    assert run.as_dict()["status"] == "interrupted"


def test_a_driver_that_nobody_has_reaped(book: Any) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = psutil.Process(process.pid).create_time()
    run = book.client.run(book.run(status="running", driver=driver(pid=process.pid, started=started)))
    assert run.status == "running"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert run.status == "interrupted"
    process.communicate()
    assert run.status == "interrupted"


def test_a_pid_that_another_process_has_now(book: Any) -> None:
    earlier = psutil.Process().create_time() - 1000
    old = book.run(status="running", driver=driver(started=earlier), heartbeat=time.time() - 30)
    assert book.client.run(old).status == "interrupted"
    # The same, but its heart beats: the clock was set, and with it the start that the kernel reports.
    beating = book.run(status="running", driver=driver(started=earlier), heartbeat=time.time())
    assert book.client.run(beating).status == "running"


def test_a_driver_on_another_host(book: Any) -> None:
    now = time.time()
    elsewhere = driver(host="another-host", pid=1)
    assert book.client.run(book.run(status="running", driver=elsewhere, heartbeat=now - 30)).status == "running"
    assert book.client.run(book.run(status="running", driver=elsewhere, heartbeat=now - 90)).status == "interrupted"
    assert book.client.run(book.run(status="running", driver=elsewhere, heartbeat=None)).status == "interrupted"
    assert book.client.run(book.run(status="running", driver={}, heartbeat=now)).status == "running"


# Doing something


def test_refresh_reads_again(book: Any) -> None:
    id = book.run(status="running", token="t")
    run = book.client.run(id)
    assert len(run.steps) == 0
    book.step(id, "load")
    book.store.records.set_run(id, "t", status="succeeded", ended=run.created.timestamp() + 1)
    assert (run.status, len(run.steps)) == ("running", 0)
    assert run.refresh() is run
    assert (run.status, len(run.steps), run.seconds) == ("succeeded", 1, 1.0)


def test_wait_until_the_end(book: Any) -> None:
    id = book.run(status="running", token="t")
    run = book.client.run(id)
    assert run.wait(timeout=0).status == "running"
    assert run.wait(timeout="10ms").status == "running"
    ending = threading.Timer(0.05, lambda: book.store.records.set_run(id, "t", status="failed", ended=1.0))
    ending.start()
    assert run.wait(timeout=30).status == "failed"
    ending.join()
    assert run.wait().status == "failed"


def test_wait_ends_when_the_driver_dies(book: Any) -> None:
    assert book.client.run(book.run(status="running", driver=driver(pid=dead_pid()))).wait().status == "interrupted"


def test_cancel_asks_the_driver(book: Any) -> None:
    id = book.run(status="running")
    run = book.client.run(id)
    assert run.cancel()
    assert book.store.records.run(id).asked == "cancel"
    assert run.cancel(now=True)
    assert book.store.records.run(id).asked == "now"
    assert run.status == "running"


def test_cancel_where_nobody_listens(book: Any) -> None:
    assert not book.client.run(book.run()).cancel()
    assert not book.client.run(book.run(status="running", driver=driver(pid=dead_pid()))).cancel()


def test_delete(book: Any) -> None:
    id = book.run()
    book.step(id, "load", outputs={"output": 1})
    book.lines(id, "load", 1, "hello")
    run = book.client.run(id)
    book.client.delete(run)
    assert book.client.runs() == []
    assert book.store.records.steps(id) == []
    assert book.store.logs.attempts(id, "load") == []
    book.client.delete(run)
    with pytest.raises(NotFound):
        book.client.delete(id)


def test_delete_refuses_what_runs(book: Any) -> None:
    id = book.run(status="running")
    with pytest.raises(UsageError, match=f"stoker cancel {id}"):
        book.client.delete(id)
    interrupted = book.run(status="running", driver=driver(pid=dead_pid()))
    book.client.delete(interrupted)
    assert ids(book.client.runs()) == [id]


# The client itself


def test_opens_the_stack_when_it_is_needed(stoker_home: Path) -> None:
    client = Client()
    assert not stoker_home.exists()
    assert client.runs() == []
    assert (stoker_home / "stoker.db").is_file()
    client.close()
    assert client.runs() == []
    client.close()


def test_an_unknown_stack(stoker_home: Path) -> None:
    with pytest.raises(NotFound, match="no stack called 'nowhere'"):
        Client("nowhere").runs()


def test_stack_or_store(book: Any) -> None:
    with pytest.raises(UsageError, match="not both"):
        Client("local", store=book.store)
    Client(store=book.store).close()
    assert book.client.runs() == []


def test_from_the_front_door() -> None:
    import stoker

    assert stoker.Client is Client


def test_what_a_run_waited_is_counted_from_its_jobs_and_leases_alone(book: Any) -> None:
    """Not from when the driver learns of it: jobs tell their own start, and are looked at every few seconds."""
    id = book.run(created=100.0, ended=120.0)
    book.step(id, "load", started=100.0, ended=102.0)
    book.step(id, "train", started=107.0, ended=112.0)
    book.step(id, "test", started=112.0, ended=119.0)
    book.step(id, "map", started=112.0, ended=119.0, count=2)
    told = [
        (101.0, "job", "train", {"state": "sent", "time": 101.0}),
        (101.5, "waiting", "train", {"message": "pending (Resources)"}),
        (109.0, "job", "train", {"state": "running", "time": 107.0}),
        (111.0, "leased", "train", {"devices": []}),
        (112.5, "job", "train", {"state": "ended", "time": 112.0}),
        (113.0, "waiting", "test", {"message": "1 H100"}),
        (114.0, "waiting", "test", {"message": "1 H100; 1 before it"}),
        (112.5, "waiting", "map[0]", {"message": "1 H100"}),
        (112.5, "waiting", "map[1]", {"message": "1 H100"}),
        (117.0, "leased", "test", {"devices": []}),
        (116.0, "leased", "map[1]", {"devices": []}),
    ]
    book.write(
        *(
            EventRow(run_id=id, seq=seq, time=time, kind=kind, key=key, data={"attempt": 1, **data})
            for seq, (time, kind, key, data) in enumerate(told)
        )
    )
    run = book.client.run(id)
    # train from 102, when load has ended, to 107; test and map from 113, since test ran before, to 116.
    assert run.queue_seconds == 5.0 + 3.0
    assert run.active_seconds == 20.0 - 8.0
    assert run.queue_seconds_since(105.0) == 2.0 + 3.0
    assert [wait[1] for wait in run.placements["train"][0].waits] == ["pending (Resources)"]


def test_a_run_whose_first_elements_had_devices_at_once_did_not_only_wait(book: Any) -> None:
    id = book.run(created=100.0, ended=113.0)
    book.step(id, "map", started=100.0, ended=113.0, count=2)
    told = [(100.0, "leased", "map[0]"), (100.5, "waiting", "map[1]"), (106.5, "leased", "map[1]")]
    data = {"attempt": 1, "message": "1 H100"}
    book.write(
        *(
            EventRow(run_id=id, seq=seq, time=time, kind=kind, key=key, data=data)
            for seq, (time, kind, key) in enumerate(told)
        )
    )
    assert (book.client.run(id).queue_seconds, book.client.run(id).active_seconds) == (0.0, 13.0)


def test_what_a_job_ran_before_it_was_started_again_is_no_part_of_what_it_waited(book: Any) -> None:
    id = book.run(created=100.0, ended=130.0)
    book.step(id, "train", started=117.0, ended=130.0)
    told = [
        (100.0, "job", {"state": "sent", "time": 100.0}),
        (101.0, "job", {"state": "running", "time": 101.0, "node": "n1"}),
        (111.0, "waiting", {"message": "BeginTime"}),
        (112.0, "waiting", {"message": "Resources"}),
        (117.5, "job", {"state": "running", "time": 117.0, "node": "n2"}),
        (118.0, "job", {"state": "running", "time": 118.0, "node": "n2"}),
        (130.0, "job", {"state": "ended", "time": 130.0}),
    ]
    book.write(
        *(
            EventRow(run_id=id, seq=seq, time=time, kind=kind, key="train", data={"attempt": 1, **data})
            for seq, (time, kind, data) in enumerate(told)
        )
    )
    run = book.client.run(id)
    (placement,) = run.placements["train"]
    assert (placement.queue_seconds, placement.run_seconds, placement.node) == (1.0 + 6.0, 13.0, "n2")
    assert run.queue_seconds == 1.0 + 6.0


def test_a_fan_out_fails_with_the_message_of_its_first_failed_element(book: Any) -> None:
    id = book.run(status="failed")
    book.step(id, "map", status="failed", cause="user-error", count=3)
    for index, message in ((2, "a later one"), (1, "no such file"), (0, "")):
        status = "failed" if message else "succeeded"
        book.step(id, f"map[{index}]", parent="map", idx=index, status=status, message=message)
    assert book.store.records.first_failures([id]) == {id: ("map", "user-error", "no such file")}
    statement = book.store.records._sql["failed_element"]
    plan = " ".join(
        str(row) for row in book.store.records.database.rows(f"EXPLAIN QUERY PLAN {statement}", (id, "map"))
    )
    assert "USING INDEX elements" in plan, plan


def test_a_fan_out_that_is_over_does_not_run_by_what_the_driver_said_before(book: Any) -> None:
    id = book.run(status="running", active={"train[1]": [1, 5.0]})
    book.step(id, "train", status="running", count=2, started=1.0)
    terminal = Terminal(io.StringIO())
    watch = RunWatch(book.store, book.client.run(id), terminal)
    watch.look()
    assert terminal.progress.rows["train"].status == "running"
    for index in range(2):
        book.step(id, f"train[{index}]", parent="train", idx=index, attempts=1)
    batch = RowBatch()
    batch.change(StepProgress(run_id=id, key="train", status="succeeded", started=1.0, ended=6.0, count=2))
    assert book.store.records.write(batch)
    for look in (watch, RunWatch(book.store, book.client.run(id), Terminal(io.StringIO()))):
        look.look()
        assert look._terminal.progress.rows["train"].status == "succeeded"
