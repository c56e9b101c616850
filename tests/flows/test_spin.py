"""`spin`: one task of an earlier run on its own, with the code as it is now; it is kept only where that is asked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import NotFound
from stoker.flow import Flow, Runner, Step, Task, namespace
from stoker.flows import namespaces

FLOW = """
import os
from stoker.flow import FlowSpec, Parameter, current, step

class Spun(FlowSpec):
    rate = Parameter("rate", default=0.5)

    @step
    def start(self):
        print("start", self.rate)
        self.outer = ["a", "b"]
        self.big = b"x" * 100_000
        self.next(self.left, self.right)

    @step
    def left(self):
        self.side = "l"
        self.next(self.meet)

    @step
    def right(self):
        self.side = "r"
        self.next(self.meet)

    @step
    def meet(self, inputs):
        print("meet", inputs.left.side, inputs.right.side, len(inputs.left.big))
        self.merge_artifacts(inputs, exclude=["side"])
        self.next(self.spread, foreach="outer")

    @step
    def spread(self):
        self.inner = list(range(self.index + 1))
        self.next(self.piece, foreach="inner")

    @step
    def piece(self):
        print("piece", self.foreach_stack(), len(self.big), self.rate, current.task_id, current.origin_run_id)
        self.made = f"{self.foreach_stack()[0][2]}{self.input}"
        self.next(self.inner_join)

    @step
    def inner_join(self, inputs):
        print("inner_join", [found.made for found in inputs])
        self.made = [found.made for found in inputs]
        self.next(self.outer_join)

    @step
    def outer_join(self, inputs):
        self.turns = 0
        self.next(self.turn)

    @step
    def turn(self):
        print("turn", self.turns)
        self.turns += 1
        self.way = "again" if self.turns < 3 else "done"
        self.next({"again": self.turn, "done": self.gang}, condition="way")

    @step
    def gang(self):
        self.next(self.node, num_parallel=2)

    @step
    def node(self):
        with open(f"node{current.parallel.node_index}", "w") as file:
            file.write(str(current.parallel.num_nodes))
        self.place = current.parallel.node_index
        self.next(self.last)

    @step
    def last(self, inputs):
        print("last", [found.place for found in inputs])
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Spun()
"""
COUNTS = """
SELECT (SELECT count(*) FROM runs) AS runs, (SELECT count(*) FROM steps) AS steps,
(SELECT count(*) FROM cache) AS cache, (SELECT count(*) FROM outputs) AS outputs
"""


@pytest.fixture(scope="module")
def once(module_project: Any) -> Any:
    """A flow with every kind of task, after its only run."""
    module_project.write({"spun.py": FLOW}).run("spun.py", "run", "--rate", "0.25", "--quiet")
    return module_project


@pytest.fixture
def spun(once: Any, within: Any) -> Any:
    (once.folder / "stoker.toml").unlink(missing_ok=True)
    return within(once.write({"spun.py": FLOW}))


@pytest.fixture(autouse=True)
def _own_namespace() -> Any:
    yield
    namespaces.default_namespace()


def origin(spun: Any) -> str:
    """The id of the run that is spun from."""
    return str(spun.client().runs(pipeline="Spun")[-1].id)


def files(home: Path) -> dict[str, bytes]:
    """What the artifacts and logs of a home hold, by path."""
    found = [path for name in ("artifacts", "logs", "checkpoints", "spins") for path in (home / name).rglob("*")]
    return {str(path.relative_to(home)): path.read_bytes() for path in found if path.is_file()}


def test_kinds_of_tasks(spun: Any) -> None:
    id = origin(spun)
    for path, told in (
        (f"Spun/{id}/turn/turn#3", "turn 2"),
        (f"{id}/last", "last [0, 1]"),
    ):
        finished = spun.run("spun.py", "spin", path)
        assert f"│ {told}\n" in finished.stderr, finished.stderr
    for name in ("node0", "node1"):
        (spun.folder / name).unlink()
    spun.run("spun.py", "spin", "node")
    assert [(spun.folder / name).read_text() for name in ("node0", "node1")] == ["2", "2"]
    # In this process, too, so that a breakpoint works.
    told = spun.run("spun.py", "spin", "piece", "--debug").stdout
    assert f"piece [(0, 2, 'a'), (0, 1, 0)] 100000 0.25 piece[0][0] {id}" in told


def test_nothing_of_it_is_kept(spun: Any) -> None:
    rows, before = spun.rows(COUNTS), files(spun.home)
    finished = spun.run("spun.py", "spin", "meet", "--run-id-file", "id")
    assert "nothing of it was kept" in finished.stderr and "│ meet l r 100000\n" in finished.stderr
    assert spun.rows(COUNTS) == rows
    assert files(spun.home) == {**before, "spins/door": b""}
    with pytest.raises(NotFound):
        spun.client().run((spun.folder / "id").read_text())


def test_code_is_as_it_is_now_and_the_rest_as_it_was(spun: Any) -> None:
    text = FLOW.replace('print("turn", self.turns)', 'print("TURN", self.turns, self.rate, self.more, helper())')
    text = text.replace("default=0.5)", 'default=0.75)\n    more = Parameter("more", default="new")')
    spun.write({"spun.py": text.replace("class Spun", "def helper():\n    return 'helped'\n\nclass Spun", 1)})
    # Where the stack has its steps does not matter: a spin is here.
    spun.write({"stoker.toml": FAR})
    finished = spun.run("spun.py", "spin", "turn", "--stack", "far")
    assert "TURN 0 0.25 new helped" in finished.stderr and "runs here, in no image" in finished.stderr


FAR = """
[stacks.far]
orchestrator = "docker"

[stacks.far.settings.docker]
requirements = ["no-such-package"]
"""


def test_a_step_that_the_run_did_not_come_to_yet(project: Any) -> None:
    text = FLOW.replace('print("meet"', 'raise ValueError("not yet")\n        print("meet"')
    project.write({"spun.py": text}).run("spun.py", "run", "--quiet", code=1)
    origin = project.client().runs()[0].id
    assert "not yet" in project.run("spun.py", "spin", "meet", code=1).stderr
    refused = project.run("spun.py", "spin", "piece", code=2).stderr
    assert f"run {origin} did not come to step 'piece': task 'meet' failed" in refused and "resume" in refused
    project.write({"spun.py": FLOW})
    assert "meet l r" in project.run("spun.py", "spin", "meet").stderr


def test_other_artifacts(spun: Any) -> None:
    spun.write({"mine.py": 'ARTIFACTS = {"made": "Z", "turns": 7, "rate": 9.5, "big": b"yy"}'})
    mine = ("--artifacts-module", "mine.py")
    assert "inner_join ['Z', 'Z']" in spun.run("spun.py", "spin", "inner_join/inner_join[1]", *mine).stderr
    told = spun.run("spun.py", "spin", "piece", *mine).stderr
    assert "100000" not in told and " 2 9.5 piece" in told
    spun.write({"bad.py": "1 / 0", "none.py": "x = 1", "own.py": 'ARTIFACTS = {"_transition": 1}'})
    for file, message in (
        ("bad.py", "ZeroDivisionError"),
        ("none.py", "has no dict ARTIFACTS"),
        ("own.py", "is the flow's own"),
        ("missing.py", "there is no such Python file"),
    ):
        assert message in spun.run("spun.py", "spin", "turn", "--artifacts-module", file, code=2).stderr


def test_what_is_kept_can_be_looked_at(spun: Any) -> None:
    newest = origin(spun)
    cache = spun.rows("SELECT * FROM cache")
    finished = spun.run("spun.py", "spin", "piece/piece[1][0]", "--persist", "--run-id-file", "id")
    id = (spun.folder / "id").read_text()
    assert f"Task('Spun/{id}/piece/piece[1][0]')" in finished.stderr
    assert f"│ piece [(1, 2, 'b'), (0, 2, 0)] 100000 0.25 piece[1][0] {newest}\n" in finished.stderr
    task = Task(f"Spun/{id}/piece/piece[1][0]")
    assert task.successful and task.data.made == "b0" and task.data.rate == 0.25 and len(task.data.big) == 100_000
    assert "piece[1][0]" in task.stdout
    latest, first = Flow("Spun.spin").latest_run, Flow("Spun").latest_run
    assert latest is not None and first is not None
    assert (latest.id, first.id) == (id, newest)
    assert [found.id for found in Step(f"Spun.spin/{id}/piece")] == ["piece[1][0]"]
    assert "made = 'b0'" in spun.run("spun.py", "dump", f"{id}/piece").stdout
    assert "piece[1][0]" in spun.run("spun.py", "logs", f"{id}/piece").stdout
    spun.run("spun.py", "card", "view", f"{id}/piece", "--output", "page.html")
    assert "piece[1][0]" in (spun.folder / "page.html").read_text()
    assert spun.rows("SELECT * FROM cache") == cache
    # It is no run of the flow: that is not resumed, and not spun again.
    resumed = spun.run("spun.py", "resume", "end").stderr
    assert f"repeats run {newest}" in resumed
    spun.client().delete(spun.client().runs(pipeline="Spun")[0].id)
    assert "is a spin itself" in spun.run("spun.py", "spin", f"{id}/piece", code=2).stderr


DECORATED = """
import os
import time
from stoker.flow import FlowSpec, Markdown, cache, card, catch, current, environment, kubernetes, resources
from stoker.flow import retry, step, timeout

class Decorated(FlowSpec):
    @step
    def start(self):
        self.fail = False
        self.next(self.piece)

    @card
    @catch(var="problem")
    @retry(times=3)
    @environment(vars={"WORD": "word"})
    @resources(gpu=1, cpu=1000)
    @kubernetes
    @step
    def piece(self):
        with open("tries", "a") as file:
            file.write("x")
        current.card.append(Markdown("# a *heading*"))
        print("piece", os.environ["WORD"], len(current.devices))
        if self.fail:
            raise ValueError("asked to")
        self.next(self.slow)

    @cache
    @timeout(seconds=1)
    @step
    def slow(self):
        if os.environ.get("SLOW"):
            time.sleep(600)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Decorated()
"""


def test_decorators(project: Any) -> None:
    project.write({"decorated.py": DECORATED, "fail.py": 'ARTIFACTS = {"fail": True}'})
    project.run("decorated.py", "run", "--without", "kubernetes", "--quiet")
    cache = project.rows("SELECT * FROM cache")
    assert len(cache) == 1
    (project.folder / "tries").unlink()
    finished = project.run("decorated.py", "spin", "piece", "--simulate", "1xH100", "--persist")
    assert "piece word 1" in finished.stderr, "the GPU that is there is leased"
    assert "without @kubernetes, @retry" in finished.stderr
    (task,) = Flow("Decorated.spin").latest_run["piece"]  # type: ignore[index]
    assert task.data.problem is None and task._run.steps["piece"].receipt is not None
    project.run("decorated.py", "card", "view", f"{task._run.id}/piece", "--output", "page.html")
    assert "a <em>heading</em>" in (project.folder / "page.html").read_text()
    (project.folder / "tries").unlink()
    failed = project.run("decorated.py", "spin", "piece", "--artifacts-module", "fail.py", code=1)
    assert "ValueError: asked to" in failed.stderr and "@catch catches nothing" in failed.stderr
    assert (project.folder / "tries").read_text() == "x"
    slow = project.run("decorated.py", "spin", "slow", env={"SLOW": "1"}, code=1).stderr
    assert "timed-out" in slow, "its time counts, and its cached result does not"
    project.run("decorated.py", "spin", "slow", "--persist")
    assert project.rows("SELECT * FROM cache") == cache
    bare = project.run("decorated.py", "spin", "piece", "--skip-decorators", code=1).stderr
    assert "there in steps with @card only" in bare and "@environment" in bare


def test_what_is_refused_says_what_to_do(spun: Any) -> None:
    id = origin(spun)
    for words, told in (
        ([], "spin takes one step"),
        (["turn", "gang"], "spin takes one step"),
        (["trun"], "did you mean 'turn'"),
        (["nowhere/turn"], "there is no run 'nowhere'"),
        ([f"{id}/turn/gang"], "names no task of step 'turn'"),
        (["turn/turn#9"], "did you mean 'turn#3' or 'turn#2'"),
        (["node/node[1]"], f"spin {id}/node/node"),
        (["turn", "--rate", "3"], "parameters are those of the earlier run"),
        (["turn", "--persist", "--no-persist"], "are both given"),
        (["turn", "--namespace", "user:bob"], "has not been run yet in namespace 'user:bob'"),
        (["turn", "--set", "steps.trun.timeout=3"], "no step 'trun'"),
    ):
        finished = spun.run("spun.py", "spin", *words, code=2)
        assert told in finished.stderr, (words, finished.stderr)
    spun.write({"other.py": FLOW.replace("Spun", "Other")})
    never = spun.run("other.py", "spin", "turn", code=2).stderr
    assert "Other has not been run yet" in never and "`run` the flow once" in never
    assert "is of 'Spun', not of 'Other'" in spun.run("other.py", "spin", f"{id}/turn", code=2).stderr
    assert "--artifacts-module" in spun.run("spun.py", "spin", "--help").stdout
    renamed = FLOW.replace("def turn(", "def round(").replace("self.turn)", "self.round)")
    spun.write({"spun.py": renamed.replace("self.turn,", "self.round,")})
    gone = spun.run("spun.py", "spin", "round", code=2).stderr
    assert "task 'outer_join' went on to step 'turn', which the flow no longer has" in gone


def test_runner(spun: Any) -> None:
    script = str(spun.folder / "spun.py")
    spun.write({"mine.py": 'ARTIFACTS = {"turns": 7}'})
    with Runner(script, show_output=False, cwd=str(spun.folder)) as runner:
        passing = runner.spin("piece/piece[1][1]", persist=False)
        assert (passing.status, passing.returncode) == ("successful", 0) and "piece [(1, 2, 'b')" in passing.stderr
        with pytest.raises(NotFound, match="nothing of the task was kept"):
            _ = passing.task
        bad = runner.spin("trun")
        assert bad.status == "failed"
        with pytest.raises(NotFound, match="has not begun"):
            _ = bad.task

    async def go() -> Any:
        async with Runner(script, show_output=False, cwd=str(spun.folder)) as runner:
            kept = await runner.async_spin("turn", artifacts_module="mine.py", persist=True)
            await kept.wait(timeout=120)
            return kept.task

    task = asyncio.run(go())
    assert task.data.turns == 8 and task.stdout == "turn 7\n"
    namespace(None)


def test_what_a_killed_spin_leaves_goes_with_the_next(spun: Any) -> None:
    spun.write({"spun.py": FLOW.replace('print("turn"', 'wait()\n        print("turn"') + WAITS})
    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        (spun.folder / "waits").unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "spun.py", "spin", "turn"],
            cwd=spun.folder,
            env={**os.environ, "STOKER_HOME": str(spun.home)},
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 120
        while not (spun.folder / "waits").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=120) == code
        left = [path for path in (spun.home / "spins").iterdir() if path.is_dir()]
        assert len(left) == (1 if number == signal.SIGKILL else 0)


WAITS = """
def wait():
    import time
    open("waits", "w").close()
    time.sleep(600)
"""
