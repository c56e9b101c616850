"""`--detach`: a run that goes on when who started it is gone."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.waiting import until

from stoker import Client
from stoker.core.errors import Away, UsageError
from stoker.run import detaching
from stoker.store.batch import RowBatch
from stoker.store.rows import RunRow, StepRow
from stoker.store.store import open_store

SECONDS = 120.0
PIPELINE = """
    import os
    import time

    from stoker import context, pipeline, step


    @step
    def wait(flag: str) -> str:
        print("waiting", flush=True)
        open("started", "a").write("x")
        while not os.path.exists(flag):
            time.sleep(0.02)
        return os.environ.get("WORD", "none")


    @step(resources={"accelerators": "H100"}, accelerator_policy="prefer")
    def shout(word: str) -> str:
        return f"{word.upper()} on {len(context.devices)}"


    @pipeline
    def waiting(flag: str = "go", mood: str = "calm"):
        shout(wait(flag))


    if __name__ == "__main__":
        run = waiting()
        open("status", "w").write(run.status)
"""
HOLD = """
    import os
    import time

    if "STOKER_DETACHED" in os.environ:
        open({folder!r} + "/held", "w").write(str(os.getpid()))
        while os.path.exists({folder!r} + "/hold"):
            time.sleep(0.02)
"""
"""A `sitecustomize`: no driver of a detached run begins while there is the file `hold`."""


class Detached:
    """A project whose detached runs begin when they are let go."""

    def __init__(self, stoker: Any) -> None:
        self.stoker = stoker
        self.folder: Path = stoker.project.folder
        self._site = self.folder / "site"
        stoker.project.write({"waiting.py": PIPELINE, "site/sitecustomize.py": HOLD.format(folder=str(self._site))})

    @property
    def environment(self) -> dict[str, str]:
        paths = [str(self._site), os.environ.get("PYTHONPATH", "")]
        holds = (self._site / "hold").exists()
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths))} if holds else {}

    def hold(self) -> None:
        """Let no driver begin."""
        (self._site / "hold").write_text("")

    def release(self) -> None:
        """Let them."""
        (self._site / "hold").unlink(missing_ok=True)

    def held(self) -> psutil.Process:
        """The driver that waits to begin."""
        file = self._site / "held"
        until(lambda: file.exists() and file.read_text())
        return psutil.Process(int(file.read_text()))

    def run(self, *argv: str, **options: Any) -> str:
        """`stoker run … --detach`; the run's id."""
        done = self.stoker("run", *argv, "--detach", env=self.environment, **options)
        id: str = done.stdout.split()[0]
        assert f"stoker show {id}" in done.stderr
        return id

    def shown(self, id: str) -> Any:
        return self.stoker.json("show", id)

    def end(self, id: str) -> Any:
        """The run once it does not run any more."""
        found = self.stoker.project.client().run(id).wait(SECONDS)
        assert found.status != "running", self.output(id)
        return found

    def output(self, id: str) -> str:
        """What its driver wrote."""
        path: Path = self.stoker.project.home / "logs" / id / "driver.out"
        return path.read_text()


@pytest.fixture
def detached(stoker: Any) -> Iterator[Detached]:
    made = Detached(stoker)
    yield made
    made.release()
    (made.folder / "go").write_text("")
    for run in made.stoker.project.client().runs(limit=None):
        run.cancel(now=True)
        run.wait(SECONDS)


def gone(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    return True


def test_the_run_goes_on_when_its_terminal_is_closed(detached: Detached) -> None:
    """Every process of the shell's session hears of the end, and dies of it."""
    shell = subprocess.Popen(
        ["sh", "-c", f"'{sys.executable}' waiting.py --detach && sleep 600"],
        cwd=detached.folder,
        env={**os.environ, "STOKER_HOME": str(detached.stoker.project.home)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    id = shell.stdout.readline().strip()
    assert id, "nothing was started"
    until((detached.folder / "started").exists)
    assert (detached.folder / "status").read_text() == "running", "the script went on"
    until(lambda: [one.name() for one in psutil.Process(shell.pid).children()] == ["sleep"])
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(one.pid) == shell.pid:
                one.send_signal(signal.SIGHUP)
    shell.communicate(timeout=SECONDS)
    assert detached.shown(id)["status"] == "running"
    (detached.folder / "go").write_text("")
    assert detached.end(id).status == "succeeded"
    shown = detached.shown(id)
    assert (shown["sessions"], shown["awaits"]) == (1, "")
    assert shown["started"] >= shown["created"]
    assert "waiting" in detached.output(id)


def test_before_its_driver_begins_a_run_is_running_and_can_be_cancelled(detached: Detached) -> None:
    detached.hold()
    id = detached.run("waiting.py")
    driver = detached.held()
    assert driver.terminal() is None
    assert os.getsid(driver.pid) == driver.pid
    shown = detached.stoker("show", id).stdout
    assert "running" in shown
    assert f"has not begun yet: process {driver.pid} of" in shown
    assert f"logs/{id}/driver.out" in shown
    output = detached.stoker.project.home / "logs" / id / "driver.out"
    assert stat.S_IMODE(output.stat().st_mode) == 0o600  # as all files of a home that is not shared
    (listed,) = detached.stoker.json("runs", "--status", "running")
    assert (listed["id"], listed["started"]) == (id, None)
    assert "its driver had not begun" in detached.stoker("cancel", id).stderr
    detached.release()
    until(lambda: gone(driver))
    assert "somebody was first" in detached.output(id)
    assert "Traceback" not in detached.output(id)
    shown = detached.shown(id)
    assert (shown["status"], shown["sessions"], shown["steps"]) == ("cancelled", 0, [])
    assert "never began" in detached.stoker("show", id).stdout


def test_a_run_is_deleted_before_its_driver_begins(detached: Detached) -> None:
    detached.hold()
    id = detached.run("waiting.py")
    driver = detached.held()
    detached.stoker("cancel", id)
    detached.stoker.project.client().delete(id)
    detached.release()
    until(lambda: gone(driver))
    assert detached.stoker.json("runs") == []


def test_a_person_takes_over_before_the_driver_begins(detached: Detached) -> None:
    detached.hold()
    id = detached.run("waiting.py", "--set", "steps.wait.environment.WORD=hush", "--simulate", "2xH100")
    driver = detached.held()
    (detached.folder / "go").write_text("")
    detached.stoker("resume", id)
    detached.release()
    until(lambda: gone(driver))
    assert "somebody was first" not in detached.output(id), "it has succeeded: nothing is to be said"
    run = detached.end(id)
    assert (run.status, run.sessions) == ("succeeded", 1)
    assert run.steps["shout"].load() == "HUSH on 1"
    assert (detached.folder / "started").read_text() == "x"


def test_a_driver_that_dies_before_it_begins_is_seen_and_replaced(detached: Detached) -> None:
    """What the run was started with holds, also where its run file is another one by now."""
    detached.hold()
    detached.stoker.project.write(
        {"run.yaml": "parameters: {mood: wild}\nsteps: {wait: {environment: {WORD: yell}}}\n"}
    )
    id = detached.run("waiting.py", "--config", "run.yaml", "--simulate", "2xH100")
    detached.stoker.project.write({"run.yaml": "steps: {wait: {environment: {WORD: other}}}\n"})
    driver = detached.held()
    driver.kill()
    until(lambda: detached.shown(id)["status"] == "interrupted")
    assert "ended before it began: process" in detached.stoker("show", id).stdout
    detached.release()
    (detached.folder / "go").write_text("")
    detached.stoker("resume", id)
    run = detached.end(id)
    assert run.steps["shout"].load() == "YELL on 1"
    assert run.parameters["mood"] == "wild"


def test_a_driver_that_dies_later_is_replaced_as_ever(detached: Detached) -> None:
    id = detached.run("waiting.py")
    until((detached.folder / "started").exists)
    row = detached.stoker.project.rows("SELECT driver FROM runs")[0]
    psutil.Process(json.loads(row["driver"])["pid"]).kill()
    until(lambda: detached.shown(id)["status"] == "interrupted")
    (detached.folder / "go").write_text("")
    detached.stoker("resume", id)
    assert (detached.end(id).status, detached.end(id).sessions) == ("succeeded", 2)


def test_what_it_was_started_with_holds(detached: Detached) -> None:
    (detached.folder / "go").write_text("")
    detached.stoker.project.write(
        {"run.yaml": "parameters: {mood: wild}\nsteps: {wait: {environment: {WORD: yell}}}\n"}
    )
    words = ["--config", "run.yaml", "--set", "steps.wait.environment.MORE=x", "--simulate", "2xH100"]
    words += ["--failure-mode", "continue", "--tag", "night", "--name", "tuesday", "--mood", "wild"]
    first = detached.end(detached.run("waiting.py", *words))
    assert first.steps["shout"].load() == "YELL on 1"
    assert (first.failure_mode, first.tags, first.pipeline) == ("continue", ("night",), "tuesday")
    assert first.parameters == {"flag": "go", "mood": "wild"}
    cached = detached.end(detached.run("waiting.py", *words))
    assert cached.steps["wait"].status == "cached"
    anew = detached.end(detached.run("waiting.py", *words, "--no-cache"))
    assert anew.steps["wait"].status == "succeeded"


DYNAMIC = """
    from stoker import pipeline, step


    @step
    def count(numbers: int) -> int:
        return numbers + 1


    @pipeline(dynamic=True)
    def growing(rounds: int = 1):
        found = 0
        for _ in range(rounds):
            found = count(found)


    if __name__ == "__main__":
        growing()
"""


def test_a_dynamic_pipeline(detached: Detached) -> None:
    detached.stoker.project.write({"growing.py": DYNAMIC})
    id = detached.run("growing.py", "--rounds", "3", "--set", "timeout=1h")
    run = detached.end(id)
    assert run.status == "succeeded", detached.output(id)
    assert [step.load() for step in run.steps.values()] == [1, 2, 3]


def test_a_driver_that_cannot_begin_says_why(detached: Detached) -> None:
    detached.stoker.project.write({"growing.py": DYNAMIC})
    detached.hold()
    id = detached.run("growing.py")
    driver = detached.held()
    detached.stoker.project.write({"growing.py": DYNAMIC.replace("def growing", "def shrinking")})
    detached.release()
    until(lambda: gone(driver))
    shown = detached.shown(id)
    assert shown["status"] == "failed"
    assert "has no 'growing'" in shown["error"]
    detached.stoker.project.write({"growing.py": DYNAMIC})
    detached.stoker("resume", id)
    assert detached.end(id).status == "succeeded"


FLOW = """
    import os

    from stoker.flow import FlowSpec, Parameter, current, step


    class Greet(FlowSpec):
        word = Parameter("word", default="hello")

        @step
        def start(self):
            self.who = ["a", "b", "c"]
            self.tags, self.space = sorted(current.tags), current.namespace
            self.next(self.greet, foreach="who")

        @step
        def greet(self):
            self.said = f"{self.word} {self.input} {os.environ.get('WORD', 'none')}"
            self.next(self.join)

        @step
        def join(self, inputs):
            self.all = [one.said for one in inputs]
            self.merge_artifacts(inputs, include=["tags", "space"])
            self.next(self.end)

        @step
        def end(self):
            pass


    if __name__ == "__main__":
        Greet()
"""


@pytest.mark.parametrize("way", ["python", "stoker run"])
def test_a_flow(detached: Detached, way: str) -> None:
    detached.stoker.project.write({"flow.py": FLOW})
    words = ["--with", 'environment:vars={"WORD": "there"}', "--max-workers", "1", "--tag", "night"]
    words += ["--namespace", "team", "--max-num-splits", "5", "--word", "bye", "--run-id-file", "id", "--detach"]
    if way == "python":
        done = detached.stoker.project.run("flow.py", "run", *words)
    else:
        done = detached.stoker("run", "flow.py", *words)
    id = done.stdout.strip()
    assert (detached.folder / "id").read_text() == id
    run = detached.end(id)
    assert run.status == "succeeded", detached.output(id)
    end = run.steps["join"].outputs
    assert end["all"].load() == ["bye a there", "bye b there", "bye c there"]
    assert end["tags"].load() == ["night"]
    assert end["space"].load() == "team"
    assert run.sessions == 1


IN_NO_FILE = """
from stoker import pipeline, step
from stoker.core.request import REQUEST, RunRequest

@step
def one() -> int:
    return 1

@pipeline(dynamic={dynamic})
def alone():
    one()

REQUEST.set(RunRequest(detach=True))
print(alone().status)
"""


def test_a_pipeline_in_no_file(detached: Detached) -> None:
    """As in a notebook: steps travel as bytes, a body that has to run again cannot."""
    project = detached.stoker.project
    done = project.command([sys.executable, "-c", IN_NO_FILE.format(dynamic=False)])
    id, status = done.stdout.split()
    assert status == "running"
    assert detached.end(id).steps["one"].load() == 1
    refused = project.command([sys.executable, "-c", IN_NO_FILE.format(dynamic=True)], code=1)
    assert "'alone' is dynamic and in no file" in refused.stderr
    assert len(detached.stoker.json("runs")) == 1


def test_what_is_refused_is_refused_here(detached: Detached) -> None:
    for argv, code, words in (
        (["--debug"], 2, "--debug runs every step in this process, which --detach leaves"),
        (["--set", "steps.wiat.timeout=3"], 2, "there is no step 'wiat'"),
        (["--set", "steps.wait.resources.gpu_count=7"], 3, "GPU"),
    ):
        assert words in detached.stoker("run", "waiting.py", *argv, "--detach", code=code).stderr
    assert detached.stoker.json("runs") == []


def test_a_flow_is_resumed_detached(detached: Detached) -> None:
    """What the new run takes from its origin, its driver takes there."""
    project = detached.stoker.project
    project.write({"flow.py": FLOW}).run("flow.py", "run", "--word", "bye")
    id = project.run("flow.py", "resume", "join", "--detach").stdout.strip()
    run = detached.end(id)
    assert (run.status, run.steps["greet[1]"].cached_from) == ("succeeded", f"{run.origin}/greet[1]")
    assert run.steps["join"].status == "succeeded" and run.parameters["word"] == "bye"


@pytest.mark.parametrize(
    ("begun", "error", "status"),
    [
        (False, Away("the platform does not answer"), "failed"),
        (True, Away("the platform does not answer"), "running"),
        (True, UsageError("there is no such function"), "failed"),
        (True, KeyboardInterrupt(), "cancelled"),
    ],
)
def test_what_becomes_of_a_run_whose_driver_cannot_start(
    stoker_home: Path, begun: bool, error: BaseException, status: str
) -> None:
    records = open_store(home=str(stoker_home)).records
    records.create_run(RunRow(id="r", pipeline="p", created=0.0, token="t"))
    with pytest.raises(type(error)), detaching.record_failure(records, "r", "t", begun=begun):
        raise error
    row = records.run("r")
    assert row.status == status
    assert row.error == (str(error) or "KeyboardInterrupt")


@pytest.mark.parametrize(
    ("starts", "settled", "lived", "again"),
    [(1, 2, 3.0, 2), (5, 2, 3.0, None), (5, 1, 3.0, 1), (5, 2, detaching.QUICK + 1, 1)],
    ids=["quick", "too often", "a step ended", "it drove for a while"],
)
def test_a_driver_that_ends_again_and_again_gives_its_run_up(
    stoker_home: Path, starts: int, settled: int, lived: float, again: int | None
) -> None:
    store = open_store(home=str(stoker_home))
    job = {"place": "Slurm job 12", "token": "t", "starts": starts, "since": 1000.0, "settled": settled}
    row = RunRow(id="r", pipeline="p", created=0.0, token="t2", heartbeat=1000.0 + lived, driver={"pid": 1, "job": job})
    store.records.create_run(row)
    batch = RowBatch()
    for position, name in enumerate("ab"):
        batch.step(StepRow(run_id="r", key=name, name=name, position=position, status="succeeded"))
    store.records.write(batch, run_id="r", token="t2")
    detachment = detaching.Detachment(token="t", job="Slurm job 12")
    assert detaching.holds(row, detachment)
    next_start = detaching.started_again(store, row, detachment)
    assert (next_start.starts if next_start else None) == again
    run = Client(store=store).run("r")
    if again is None:
        assert run.status == "interrupted"
        assert "its driver ended 5 times in a row" in run.error and "driver.out" in run.error
        assert not detaching.holds(store.records.run("r"), detachment), "no later start takes it"


def test_a_run_that_somebody_else_drove_or_cancelled_is_left_alone(stoker_home: Path) -> None:
    store = open_store(home=str(stoker_home))
    job = {"place": "Slurm job 12", "token": "t", "starts": 1, "since": 0.0, "settled": 0}
    mine = RunRow(id="r", pipeline="p", created=0.0, token="t2", driver={"pid": 1, "job": job})
    store.records.create_run(mine)
    detachment = detaching.Detachment(token="t", job="Slurm job 12")
    assert store.records.request_end("r", "cancel"), "while nobody drove it"
    assert detaching.started_again(store, store.records.run("r"), detachment) is None
    assert store.records.run("r").status == "cancelled"
    assert detaching.started_again(store, store.records.run("r"), detachment) is None
    assert store.records.take_over("r", expected=store.records.run("r").token, token="t3", driver={"pid": 2})
    assert not detaching.holds(store.records.run("r"), detachment)
