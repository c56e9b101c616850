"""What steps log of themselves reaches the store, from every process of a step, while it runs and when it is killed."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.distributed.conftest import SPAWN

from stoker.core.errors import UsageError
from stoker.worker.metrics import log_metadata, log_metrics

STEPS = """
    import os
    import sys
    import threading
    import time

    from stoker import context, log_metadata, log_metrics, pipeline, step
    from stoker.config import Command


    @step(cache=False)
    def many():
        def log(name):
            for at in range(500):
                log_metrics({name: at / 7}, step=at)

        threads = [threading.Thread(target=log, args=(f"thread{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        children = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                log(f"child{number}")
                os._exit(0)
            children.append(child)
        for thread in threads:
            thread.join()
        for child in children:
            os.waitpid(child, 0)
        log_metrics({"loss": 0.5})
        log_metrics({"loss": float("nan"), "lr": 1})
        log_metadata({"data": {"rows": 3}})


    @step
    def kept() -> int:
        log_metrics({"score": 4.0})
        return 1


    @step(cache=False)
    def each(number: int):
        log_metrics({"number": number})


    @step(launch=Command([sys.executable, "spawn.py"], num_processes=2), cache=False)
    def ranks():
        for at in range(3):
            log_metrics({"loss": at + 10 * context.rank}, step=at)


    @pipeline
    def all_of_them():
        many()
        kept()
        each.map([3, 4])
        ranks()


    @pipeline
    def again():
        kept()


    @step(cache=False)
    def killed():
        log_metrics({"loss": 1.0})
        log_metrics({"loss": 2.0})
        os.kill(os.getpid(), 9)


    @pipeline
    def dies():
        killed()


    @step(cache=False)
    def waits(folder: str):
        log_metrics({"loss": 7.0}, step=3)
        while not os.path.exists(folder + "/go"):
            time.sleep(0.02)
        log_metrics({"loss": 8.0}, step=4)


    @pipeline
    def lives(folder: str):
        waits(folder)


    @step(cache=False)
    def wrong(kind: str):
        if kind == "text":
            log_metrics({"loss": "high"})
        elif kind == "many":
            log_metrics({"loss": [1.0, 2.0]})
        elif kind == "name":
            log_metrics({3: 1.0})
        elif kind == "fact":
            log_metadata({"model": object()})
        else:
            log_metadata({"text": "x" * 20000})


    @pipeline(failure_mode="continue")
    def refused():
        for kind in ("text", "many", "name", "fact", "long"):
            wrong.with_options(id=kind)(kind)
"""


@pytest.fixture(scope="module")
def logged(module_lab: Any) -> Any:
    module_lab.write("spawn.py", SPAWN).write("train.py", STEPS).run("stoker", "run", "train.py:all_of_them")
    return module_lab


def test_threads_and_forks_lose_nothing(logged: Any) -> None:
    metrics = logged["all_of_them"].steps["many"].metrics
    for name in [*(f"thread{number}" for number in range(4)), *(f"child{number}" for number in range(3))]:
        assert [(point.step, point.value) for point in metrics[name].points] == [(at, at / 7) for at in range(500)]
    assert metrics["loss"].count == 2 and metrics["loss"].odd is not None and metrics["loss"].odd.step == 1
    assert [point.step for point in metrics["lr"].points] == [0.0]
    assert metrics.facts == {"data": {"rows": 3}}
    frame = metrics["thread0"].frame()
    assert list(frame.columns) == ["step", "time", "value"] and len(frame) == 500
    with pytest.raises(KeyError, match=r"no metric 'los'.*loss"):
        metrics["los"]


def test_each_rank_and_each_element_has_its_own(logged: Any) -> None:
    run = logged["all_of_them"]
    loss = run.steps["ranks"].metrics["loss"]
    assert loss.ranks == (0, 1)
    assert [point.value for point in loss.points] == [0, 1, 2]
    assert [point.value for point in loss.rank(1).points] == [10, 11, 12]
    with pytest.raises(UsageError, match="rank 5 logged no loss"):
        loss.rank(5)
    assert [element.metrics["number"].last for element in run.steps["each"]] == [3.0, 4.0]
    assert list(run.metrics) == ["many", "kept", "each[0]", "each[1]", "ranks"]


def test_commands_show_them(logged: Any) -> None:
    shown = logged.run("stoker", "show", "last")
    assert "thread3" in shown and "nan at step 1" in shown
    text = logged.run("stoker", "metrics", "last", "ranks", "--rank", "1")
    assert "12" in text and "10" in text
    document = json.loads(logged.run("stoker", "metrics", "last", "--json"))
    assert document["ranks"]["metrics"]["loss"]["ranks"] == [0, 1]
    assert document["many"]["facts"] == {"data": {"rows": 3}}
    rows = list(csv.DictReader(io.StringIO(logged.run("stoker", "metrics", "last", "ranks", "--csv"))))
    assert [(row["rank"], row["at"], float(row["value"])) for row in rows] == [
        *(("0", str(at), float(at)) for at in range(3)),
        *(("1", str(at), float(at + 10)) for at in range(3)),
    ]
    assert "--csv prints points" in logged.run("stoker", "metrics", "last", "--csv", "--json", code=2)
    assert not [name for name in os.listdir(logged.home / "scratch") if name.startswith("metrics")]


def test_a_cached_step_has_those_of_the_step_that_made_its_result(logged: Any) -> None:
    first = logged["all_of_them"].id
    logged.run("stoker", "run", "train.py:again")
    step = logged["again"].steps["kept"]
    assert (step.status, step.metrics["score"].last) == ("cached", 4.0)
    assert "score" in logged.run("stoker", "metrics", "last", "--against", first)


def test_what_was_logged_before_a_kill_is_there(logged: Any) -> None:
    logged.run("stoker", "run", "train.py:dies", code=1)
    step = logged["dies"].steps["killed"]
    assert step.cause == "killed"
    assert [point.value for point in step.metrics["loss"].points] == [1.0, 2.0]
    assert [point.value for point in step.attempts[0].metrics["loss"].points] == [1.0, 2.0]


def test_they_are_there_while_the_step_runs_and_when_the_driver_dies(logged: Any) -> None:
    driver = logged.start("stoker", "run", "train.py:lives", "--folder", str(logged.folder))

    def values() -> list[float]:
        runs = logged.client.runs(pipeline="lives")
        steps = runs[0].steps if runs else {}
        metrics = steps["waits"].metrics if "waits" in steps else {}
        return [point.value for point in metrics["loss"].points] if metrics else []

    driver.until(lambda: values() == [7.0])
    driver.signal(signal.SIGKILL)
    driver.wait(-signal.SIGKILL)
    assert values() == [7.0]


WRONG = {
    "text": "'loss' is str and no number",
    "many": "'loss' is list and no number",
    "name": "the name 3 is int",
    "fact": "'model' is object, which JSON lacks",
    "long": "'text' has 20,002 characters",
}


def test_what_is_no_number_is_refused_at_the_call(logged: Any) -> None:
    logged.run("stoker", "run", "train.py:refused", code=1)
    for kind, words in WRONG.items():
        assert words in logged["refused"].steps[kind].message


def test_outside_a_step_both_say_where_they_belong() -> None:
    for call, name in ((log_metrics, "log_metrics"), (log_metadata, "log_metadata")):
        with pytest.raises(UsageError, match=f"{name} is called where no step runs"):
            call({"loss": 1.0})


FORKS = """
import os, signal, sys, threading, time
from stoker.worker import metrics

document = {"metrics": sys.argv[1], "run": "run", "key": "train", "attempt": 1}
opened = metrics._Writer._open
inside = threading.Event()

def slow(writer, document):
    inside.set()
    time.sleep(0.5)
    opened(writer, document)

metrics._Writer._open = slow
thread = threading.Thread(target=metrics._writer.count, args=(document, {"loss": 1.0}))
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)  # what hangs fails
    metrics._writer.count(document, {"loss": 2.0})
    os._exit(0)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_fork_while_another_thread_logs_hangs_nobody(tmp_path: Any) -> None:
    argv = [sys.executable, "-W", "ignore", "-c", FORKS, str(tmp_path)]
    subprocess.run(argv, check=True, timeout=120)
    (file,) = tmp_path.iterdir()
    assert sorted(json.loads(line)[3]["loss"] for line in file.read_text().splitlines()) == [1.0, 2.0]
