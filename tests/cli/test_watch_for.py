"""`stoker watch-for`: one run for each version, however many watchers there are, and whoever of them dies."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from stoker.client import Client
from stoker.core.errors import UsageError
from stoker.store.schedules import Schedules

SCORE = """
    from stoker import pipeline, step


    @step(cache=False)
    def score(version: int) -> int:
        return version


    @pipeline
    def scoring(version: int):
        score(version)
"""
WORDS = ("--run", "score.py", "--version", "{version}", "--every", "200ms", "--claim-expires", "2s")


def watcher(stoker: Any, *words: str) -> subprocess.Popen[bytes]:
    program = "from stoker.cli.main import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "watch-for", *words, *WORDS],
        cwd=stoker.project.folder,
        env={**os.environ, "STOKER_HOME": str(stoker.project.home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """The watcher and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def begun(client: Client, number: int) -> None:
    """Wait until a watcher has said where it begins."""
    database = client.store.records.database
    while len(database.rows("SELECT source FROM firings WHERE occasion = 'beginning'")) < number:
        time.sleep(0.05)


def test_once_for_a_version_of_an_artifact(stoker: Any) -> None:
    stoker.project.write({"score.py": SCORE})
    client: Client = stoker.project.client()
    client.save_artifact([1], "clean")
    first = watcher(stoker, "artifact:clean", "--once")
    begun(client, 1)
    client.save_artifact([2], "clean")
    assert first.wait(timeout=120) == 0
    # One that starts later takes what came while none ran, and not what another one has.
    client.save_artifact([3], "clean")
    said = stoker("watch-for", "artifact:clean", "--once", *WORDS).stderr
    assert "watching artifact:clean, from 1 on" in said
    assert [run.parameters for run in client.runs()] == [{"version": 3}, {"version": 2}]
    newest = client.runs()[0]
    assert newest.cause == "artifact:clean runs scoring --version '{version}', version 3"
    assert stoker.json("show", newest.id)["cause"] == newest.cause


def test_a_promotion_starts_a_pipeline(stoker: Any) -> None:
    stoker.project.write({"score.py": SCORE})
    client: Client = stoker.project.client()
    models = [client.create_model_version("churn") for _ in range(3)]
    models[0].promote("production")
    first = watcher(stoker, "model:churn@production", "--once")
    begun(client, 1)
    models[1].promote("staging")
    models[2].promote("production")
    assert first.wait(timeout=120) == 0
    (run,) = client.runs()
    assert run.parameters == {"version": 3}
    assert run.cause.endswith("version 3 by promotion 3")


FLOWS = """
    from stoker.flow import FlowSpec, Parameter, step, trigger, trigger_on_finish


    class Flow(FlowSpec):
        of = Parameter("of", default="")

        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            pass


    class First(Flow):
        pass


    @trigger_on_finish(flow="team.main.First")
    class Second(Flow):
        pass


    @trigger(event="clean")
    class Third(Flow):
        pass


    @trigger(events=["clean", {"name": "raw"}])
    class Several(Flow):
        pass


    @trigger(event={"name": "clean", "parameters": {"of": "version"}})
    class Given(Flow):
        pass
"""


def test_flows_say_themselves_what_they_wait_for(stoker: Any) -> None:
    stoker.project.write({"flows.py": FLOWS})
    client: Client = stoker.project.client()
    watch = ("watch-for", "--once", "--every", "200ms", "--run")
    for flow, message in (
        ("Several", "Several waits for 2 things: artifact:clean, artifact:raw"),
        ("Given", "@trigger takes parameters from the event clean"),
        ("First", "First has no @trigger"),
    ):
        assert message in stoker(*watch, f"flows.py:{flow}", code=UsageError.exit_code).stderr
    schedules = Schedules(client.store.records.database)
    schedules.begin("artifact:clean runs Third", "0", now=time.time())
    client.save_artifact(2, "clean")
    stoker(*watch, "flows.py:Third")
    stoker("run", "flows.py:First", "--quiet")
    (seen,) = client.runs("First")
    assert seen.ended is not None
    schedules.begin("run:First runs Second --of '{run}'", str(int(seen.ended.timestamp() * 1000)), now=time.time())
    stoker("run", "flows.py:First", "--quiet")
    said = stoker(*watch, "flows.py:Second", "--of", "{run}").stderr
    assert "watching run:First, from 20" in said
    newest, before, *_, oldest = client.runs()
    assert [one.pipeline for one in (newest, before, oldest)] == ["Second", "First", "Third"]
    assert newest.parameters["of"] == before.id and newest.cause.endswith(f"run {before.id}")


def test_a_version_whose_run_cannot_begin_is_told_and_not_tried_for_ever(stoker: Any) -> None:
    stoker.project.write({"score.py": SCORE})
    client: Client = stoker.project.client()
    source = "artifact:clean runs scoring --version '{version}'"
    Schedules(client.store.records.database).begin(source, "0", now=time.time())
    client.save_artifact([1], "clean")
    # What the watcher imports is fine, and what the run imports is not.
    once = "import pathlib; pathlib.Path('seen').exists() and 1 / 0; pathlib.Path('seen').touch()\n"
    (stoker.project.folder / "score.py").write_text(once + (stoker.project.folder / "score.py").read_text())
    said = stoker("watch-for", "artifact:clean", "--once", *WORDS, code=2).stderr
    assert "ZeroDivisionError" in said
    assert "version 1: `stoker run` ended with code 2 before there was a run" in said
    firing = Schedules(client.store.records.database).firing(source, "version 1")
    assert firing is not None and firing.state == "failed"


def test_mistakes(stoker: Any) -> None:
    stoker.project.write({"score.py": SCORE})
    for words, message in (
        (["clean", "--run", "score.py"], "'clean' cannot be watched"),
        (["model:churn", "--run", "score.py"], "'model:churn' cannot be watched"),
        (["artifact:clean"], "no file is named that is to be run"),
        (["artifact:clean", "--run", "scor.py"], "there is no file scor.py, did you mean 'score.py'"),
        (["artifact:clean", "--run", "score.py", "--versoin", "{version}"], "did you mean '--version'"),
        (["--run", "score.py"], "nothing to watch is named, and scoring has no @trigger"),
    ):
        assert message in stoker("watch-for", *words, code=UsageError.exit_code).stderr


def test_watchers_that_are_killed_at_random_start_one_run_for_each_version(stoker: Any, tmp_path: Path) -> None:
    stoker.project.write({"score.py": SCORE})
    client: Client = stoker.project.client()
    draw = random.Random(7)
    watchers = [watcher(stoker, "artifact:clean") for _ in range(3)]
    try:
        begun(client, 1)
        versions = 6
        kills = 0
        for version in range(1, versions + 1):
            client.save_artifact([version], "clean")
            time.sleep(draw.uniform(0.0, 1.5))
            if version != versions:
                place = draw.randrange(len(watchers))
                kill(watchers[place])  # anywhere between looking, claiming and the end of the run
                kills += 1
                watchers[place] = watcher(stoker, "artifact:clean")
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline:
            runs = client.runs(limit=None)
            if len(runs) == versions and all(run.status != "running" for run in runs):
                break
            time.sleep(0.5)
        time.sleep(3.0)  # more than a claim lasts: whoever would start a second run has done so
    finally:
        for process in watchers:
            kill(process)
    runs = client.runs(limit=None)
    assert Counter(run.parameters["version"] for run in runs) == Counter(range(1, versions + 1))
    # A run whose driver was killed with its watcher is interrupted, as any run is: `stoker resume` goes on with it.
    assert {run.status for run in runs} <= {"succeeded", "interrupted"}
    assert kills == versions - 1
