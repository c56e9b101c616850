"""What a program, a notebook and the flow's own command line see of runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import UsageError
from stoker.flow import DataArtifact, Flow, Metaflow, Run, Runner, Step, Task, get_namespace, namespace
from stoker.flows import client as flowspaces
from stoker.flows import exceptions as exception

FLOW = """
import sys
from stoker.flow import FlowSpec, JSONType, Parameter, step

class Seen(FlowSpec):
    \"\"\"A flow to look at.\"\"\"

    grid = Parameter("grid", type=JSONType, default='{"a": 1}')
    n = Parameter("n-items", default=2)

    @step
    def start(self):
        \"\"\"Makes the items.\"\"\"
        print("hello")
        print("trouble", file=sys.stderr)
        self.items = list(range(self.n))
        self._private = 1
        self.next(self.work, foreach="items")

    @step
    def work(self):
        self.y = self.input * 2
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.y = [found.y for found in inputs]
        self.next({True: self.gang, False: self.end}, condition="more")

    more = True

    @step
    def gang(self):
        self.next(self.node, num_parallel=2)

    @step
    def node(self):
        from stoker.flow import current
        print("node", current.parallel.node_index)
        self.z = current.parallel.node_index
        self.next(self.meet)

    @step
    def meet(self, inputs):
        self.y = sum(found.z for found in inputs)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Seen()
"""


@pytest.fixture
def seen(project: Any) -> Iterator[Any]:
    project.write({"seen.py": FLOW})
    yield project
    flowspaces.default_namespace()


def test_views(seen: Any) -> None:
    seen.run("seen.py", "run", "--n_items", "3", "--grid", "[1, 2]", "--tag", "mine")
    run = Flow("Seen").latest_successful_run
    assert run is not None and run.successful and run.finished and "mine" in run.user_tags
    assert run.data.y == 1 and run.data.grid == [1, 2]
    assert [step.id for step in run] == ["end", "meet", "node", "gang", "gather", "work", "start"]
    work = Step(f"{run.pathspec}/work")
    assert [task.id for task in work] == ["work[0]", "work[1]", "work[2]"]
    assert [task.data.y for task in work] == [0, 2, 4] and [task.index for task in work] == [0, 1, 2]
    start = Task(f"{run.pathspec}/start/start")
    assert (start.stdout, start.stderr) == ("hello\n", "trouble\n")
    assert start["_private"].data == 1 and "items" in start and start["items"].data == [0, 1, 2]
    assert DataArtifact(f"{start.pathspec}/items").sha == start["items"].sha
    assert sorted(found.id for found in start) == ["grid", "items", "n-items"]
    nodes = list(run["node"])
    assert [task.id for task in nodes] == ["node[0]", "node[1]"] and [task.data.z for task in nodes] == [0, 1]
    assert [task.stdout for task in nodes] == ["node 0\n", "node 1\n"]
    with pytest.raises(AttributeError, match="did you mean 'items'"):
        _ = start.data.item
    with pytest.raises(KeyError, match="has no step 'ende'"):
        _ = run["ende"]


def test_namespaces_and_tags(seen: Any) -> None:
    seen.run("seen.py", "run", env={"STOKER_USER": "ann"})
    with pytest.raises(exception.MetaflowNamespaceMismatch, match="in namespace"):
        Flow("Seen")
    with pytest.raises(exception.MetaflowNotFound, match="no run of a flow 'Sen', did you mean 'Seen'"):
        Flow("Sen")
    namespace("user:ann")
    assert get_namespace() == "user:ann"
    run = Flow("Seen").latest_run
    assert run is not None
    run.add_tags(["a", "b"])
    run.replace_tag("a", "c")
    assert run.user_tags == {"b", "c"} and Run(run.pathspec).tags == run.tags
    with pytest.raises(UsageError, match="was not given by a person"):
        run.remove_tag("user:ann")
    assert [found.id for found in Flow("Seen").runs("c")] == [run.id] and not list(Flow("Seen").runs("a"))
    namespace(None)
    assert [flow.id for flow in Metaflow()] == ["Seen"]
    seen.run("seen.py", "tag", "add", "late", env={"STOKER_USER": "ann"})
    assert "late" in seen.run("seen.py", "tag", "list", env={"STOKER_USER": "ann"}).stdout


def test_looking_from_the_command_line(seen: Any) -> None:
    seen.run("seen.py", "run")
    shown = seen.run("seen.py", "show").stdout
    assert "A flow to look at." in shown and "Makes the items." in shown and "work for each of self.items" in shown
    dot = seen.run("seen.py", "output-dot").stdout
    assert '"start" -> "work"' in dot and 'label="False"' in dot
    assert "y = 2" in seen.run("seen.py", "dump", "work/work[1]").stdout
    assert seen.run("seen.py", "logs", "start", "--stderr").stdout == "trouble\n"
    assert seen.run("seen.py", "logs", "node/node[1]").stdout == "node 1\n"
    assert "did you mean" in seen.run("seen.py", "dump", "stat", code=2).stderr
    assert "--n-items" in seen.run("seen.py", "run", "--help").stdout
    assert "checked" in seen.run("seen.py", "check").stdout
    assert "fix: stoker plan seen.py --json" in seen.run("seen.py", "plan", "--json", code=2).stderr
    assert "fix: stoker watch latest" in seen.run("seen.py", "watch", "latest", code=2).stderr
    assert "there is no command 'argo-workflows'" in seen.run("seen.py", "argo-workflows", "create", code=2).stderr
    assert "did you mean '--n-items'" in seen.run("seen.py", "run", "--n-item", "3", code=2).stderr


def test_runner(seen: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(seen.folder / "seen.py")
    with Runner(script) as runner:
        first = runner.run(n_items=1, tags=["by-runner"])
        assert (first.status, first.returncode) == ("successful", 0)
        assert "by-runner" in first.run.tags and first.run["work"].task.data.y == 0
        assert "succeeded" in capsys.readouterr().err
    bad = Runner(script, show_output=False).run(n_items="many")
    assert bad.status == "failed" and bad.returncode == 2 and "n-items" in bad.stderr


def test_runner_in_the_background(seen: Any) -> None:
    async def go() -> tuple[str, list[str]]:
        async with Runner(str(seen.folder / "seen.py"), show_output=False) as runner:
            started = await runner.async_run(n_items=2, grid={"b": 2})
            assert started.run.id == started.run_id
            lines = [line async for _, line in started.stream_log("stderr")]
            await started.wait(timeout=60)
            return started.status, lines

    status, lines = asyncio.run(go())
    assert status == "successful" and any("Seen succeeded" in line for line in lines)
    assert Path(os.environ["STOKER_HOME"]).exists()
