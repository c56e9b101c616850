"""What a program, a notebook and the flow's own command line see of runs."""

from __future__ import annotations

import asyncio
import io
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import UsageError
from stoker.flow import (
    DataArtifact,
    Flow,
    Metaflow,
    Run,
    Runner,
    Step,
    Task,
    default_metadata,
    default_namespace,
    get_metadata,
    get_namespace,
    metadata,
    namespace,
)
from stoker.flows import cli_show, exceptions

FLOW = """
import sys
import parts.beside
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
        self._private = self.again = b"x" * 9_000
        self.twice, self.text = [self.again] * 2, "é" * 9_000
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


@pytest.fixture(scope="module")
def once(module_project: Any) -> Any:
    """A flow after two runs of Ann's, the second with options."""
    module_project.write({"seen.py": FLOW, "parts/beside.py": "x = 1\n", "parts/__init__.py": ""})
    for options in (("--tag", "first"), ("--n_items", "3", "--grid", "[1, 2]", "--tag", "mine")):
        module_project.run("seen.py", "run", *options, env={"STOKER_USER": "ann"})
    return module_project


@pytest.fixture(autouse=True)
def _ann(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ann looks, in her namespace."""
    monkeypatch.setenv("STOKER_USER", "ann")
    default_namespace()
    yield
    default_namespace()
    default_metadata()


@pytest.fixture
def seen(once: Any, within: Any) -> Any:
    return within(once.write({"seen.py": FLOW, "parts/beside.py": "x = 1\n"}))


def first_run() -> Run:
    """The run without options."""
    return list(Flow("Seen"))[-1]


@pytest.mark.usefixtures("seen")
def test_views() -> None:
    run = Flow("Seen").latest_successful_run
    assert run is not None and run.successful and run.finished and "mine" in run.user_tags
    assert run.data.y == 1 and run.data.grid == [1, 2]
    assert [step.id for step in run] == ["end", "meet", "node", "gang", "gather", "work", "start"]
    work = Step(f"{run.pathspec}/work")
    assert [task.id for task in work] == ["work[2]", "work[1]", "work[0]"]
    assert [task.data.y for task in work] == [4, 2, 0] and [task.index for task in work] == [2, 1, 0]
    start = Task(f"{run.pathspec}/start/start")
    assert (start.stdout, start.stderr) == ("hello\n", "trouble\n")
    assert len(start["_private"].data) == 9_000 and "items" in start and start["items"].data == [0, 1, 2]
    assert DataArtifact(f"{start.pathspec}/items").sha == start["items"].sha
    assert sorted(found.id for found in start) == ["again", "grid", "items", "more", "n-items", "text", "twice"]
    nodes = list(run["node"].in_order())
    assert [task.id for task in nodes] == ["node[0]", "node[1]"] and [task.data.z for task in nodes] == [0, 1]
    assert [task.stdout for task in nodes] == ["node 0\n", "node 1\n"]
    with pytest.raises(AttributeError, match="did you mean 'items'"):
        _ = start.data.item
    with pytest.raises(KeyError, match="has no step 'ende'"):
        _ = run["ende"]


@pytest.mark.usefixtures("seen")
def test_namespaces_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_USER", "bob")
    default_namespace()
    with pytest.raises(exceptions.MetaflowNamespaceMismatch, match="in namespace"):
        Flow("Seen")
    with pytest.raises(exceptions.MetaflowNotFound, match="no run of a flow 'Sen', did you mean 'Seen'"):
        Flow("Sen")
    namespace("user:ann")
    assert get_namespace() == "user:ann"
    run = first_run()
    namespace("user:bob")
    assert not run.is_in_namespace() and run["end"].task is not None, "what was found stays"
    with pytest.raises(exceptions.MetaflowNamespaceMismatch):
        Run(run.pathspec)
    namespace(None)
    assert "Seen" in [flow.id for flow in Metaflow()] and run.is_in_namespace() and not Flow("Seen").tags
    run.add_tag(["a", "b"])
    run.replace_tag("a", "user:c")
    assert run.user_tags == {"first", "b", "user:c"} and run.system_tags == {"user:ann"}
    assert Run(run.pathspec).tags == run.tags == run["end"].task.tags
    run.replace_tags(["b", "user:c"], ["b", "user:ann"])
    assert run.user_tags == {"first", "b"}, "a tag that is removed and added is there, and a system tag is no user's"
    other, set_tags = Run(run.pathspec), type(run._run.store.records).set_tags

    def set_between(records: Any, id: str, tags: Any, *, expected: Any) -> bool:
        """Somebody else gives a tag before these are written, and takes it off when they are."""
        monkeypatch.setattr(type(records), "set_tags", set_tags)
        other.add_tag("between")
        assert not set_tags(records, id, tags, expected=expected)
        monkeypatch.setattr(type(records), "set_tags", set_and_undo)
        return False

    def set_and_undo(records: Any, id: str, tags: Any, *, expected: Any) -> bool:
        done = set_tags(records, id, tags, expected=expected)
        monkeypatch.setattr(type(records), "set_tags", set_tags)
        other.remove_tags(["between", "mine"])
        return done

    monkeypatch.setattr(type(run._run.store.records), "set_tags", set_between)
    run.add_tag("mine")
    assert run.user_tags == {"first", "b", "between", "mine"} and other.user_tags == {"first", "b"}
    run = Run(run.pathspec)
    refused: list[tuple[list[Any], list[Any], str]] = [
        (["b", "user:ann"], [], "'user:ann' was not given by a person"),
        ([], [], "no tags to remove and none to add"),
        ([], [""], "is empty"),
        ([], ["x" * 501], "has 501 characters"),
        ([], [b"x"], "is bytes"),
        ([4], [], "is int"),
        ([], ["\udcff"], "is not UTF-8"),
        ([], [str(number) for number in range(50)], "would have 52 tags"),
    ]
    for removed, added, message in refused:
        with pytest.raises(exceptions.MetaflowTaggingError, match=message):
            run.replace_tags(removed, added)
    assert run.user_tags == {"first", "b"}
    assert [found.id for found in Flow("Seen").runs("b", "first")] == [run.id] and not list(Flow("Seen").runs("a"))
    assert [step.id for step in run.steps("b")] == [step.id for step in run] and not list(run.steps("a"))


def test_tags_from_the_command_line(seen: Any) -> None:
    def tag(*words: str, code: int = 0) -> Any:
        return seen.run("seen.py", "tag", *words, code=code)

    second, first = Flow("Seen")
    first.remove_tag("b")
    tag("add", "--run-id", first.id, "x", "y")
    tag("replace", "--run-id", first.id, "--remove", "x", "--remove", "y", "--add", "z", "--add", "late")
    assert Run(first.pathspec).user_tags == {"first", "z", "late"}
    tag("remove", "--run-id", first.id, "z")
    flat = tag("list", "--flat", "--hide-system-tags", "--run-id", first.id)
    assert flat.stdout == "" and flat.stderr.splitlines()[1:] == ["first", "late"]
    assert "user:ann" in tag("list", "--run-id", second.id).stdout
    by_tag = tag("list", "--all", "--group-by-tag").stdout.splitlines()
    assert next(line.split() for line in by_tag if "user:ann" in line) == ["user:ann", "run", second.id, first.id]
    by_run = [line.split() for line in tag("list", "--all", "--group-by-run", "--hide-system-tags").stdout.splitlines()]
    assert [second.id, "mine", "person"] in by_run and [first.id, "late", "person"] in by_run
    assert "--remove OLD --add NEW" in tag("replace", "--add", "x", code=2).stderr
    assert "was not given by a person" in tag("remove", "user:ann", code=2).stderr
    first.remove_tag("late")


@pytest.mark.usefixtures("seen")
def test_where_tasks_came_from_and_go() -> None:
    run = first_run()
    ways = {
        task.id: ([one.id for one in task.parent_tasks], [one.id for one in task.child_tasks])
        for step in run
        for task in step
    }
    assert ways == {
        "start": ([], ["work[0]", "work[1]"]),
        "work[0]": (["start"], ["gather"]),
        "work[1]": (["start"], ["gather"]),
        "gather": (["work[0]", "work[1]"], ["gang"]),
        "gang": (["gather"], ["node[0]", "node[1]"]),
        "node[0]": (["gang"], ["meet"]),
        "node[1]": (["gang"], ["meet"]),
        "meet": (["node[0]", "node[1]"], ["end"]),
        "end": (["meet"], []),
    }
    assert [step.id for step in run["end"].parent_steps] == ["gather", "meet"], "as the flow says, not the run"
    assert [step.id for step in run["start"].child_steps] == ["work"]
    paths = {task.id: task.metadata_dict.get("foreach-execution-path") for step in run for task in step}
    assert (paths["work[1]"], paths["node[1]"], paths["meet"]) == ("start:1", "gang:1", None)
    control = run["node"].control_task
    assert control is not None and control.id == "node[0]" and run["work"].control_task is None
    assert control.metadata_dict["internal_task_type"] == "control_task"
    assert (run.parent.id, run.path_components[0], control.parent.parent.pathspec) == ("Seen", "Seen", run.pathspec)
    assert run.end_task is not None and run.end_task.id == "end"
    assert run.finished_at is not None and run.created_at <= run["work"].created_at <= run.finished_at
    assert get_metadata() == metadata("local") == "stack@local"
    with pytest.raises(UsageError, match="none of Stoker's"):
        metadata("service@https://example.com")


LOOPS = """
from stoker.flow import FlowSpec, catch, retry, step

class Loops(FlowSpec):
    @step
    def start(self):
        self.rows = [0, 1]
        self.next(self.row, foreach="rows")

    @step
    def row(self):
        self.cells = [0, 1]
        self.next(self.cell, foreach="cells")

    @step
    def cell(self):
        self.next(self.cells_join)

    @step
    def cells_join(self, inputs):
        self.next(self.rows_join)

    @step
    def rows_join(self, inputs):
        self.turns = 0
        self.next(self.turn)

    @step
    def turn(self):
        self.turns += 1
        self.more = self.turns < 3
        self.next({True: self.turn, False: self.flaky}, condition="more")

    @retry(times=1)
    @catch(var="failure")
    @step
    def flaky(self):
        from stoker.flow import current
        print("attempt", current.retry_count)
        raise KeyError("nothing")
        self.next(self.end)

    @step
    def end(self):
        raise KeyError("Something")

if __name__ == "__main__":
    Loops()
"""


def test_loops_attempts_and_failures(seen: Any) -> None:
    seen.write({"loops.py": LOOPS}).run("loops.py", "run", code=1)
    run = Flow("Loops").latest_run
    assert run is not None and not run.successful and Flow("Loops").latest_successful_run is None
    cell = next(task for task in run["cell"] if task.id == "cell[1][0]")
    assert [task.id for task in cell.parent_tasks] == ["row[1]"]
    assert [task.id for task in cell.child_tasks] == ["cells_join[1]"]
    assert cell.metadata_dict["foreach-execution-path"] == "start:1,row:0"
    assert [[before.id for before in task.parent_tasks] for task in run["turn"]] == [
        ["turn#2"],
        ["turn"],
        ["rows_join"],
    ]
    flaky = run["flaky"].task
    assert [task.id for task in flaky.parent_tasks] == ["turn#3"]
    assert flaky.exception is None and flaky.data.failure.exception == "'nothing'"
    assert flaky.data.failure.type == "builtins.KeyError" and "line" in flaky.data.failure.stacktrace
    assert [one.value for one in flaky.metadata if one.type == "attempt"] == ["0", "1"], "the last one is caught"
    assert (flaky.stdout, flaky.current_attempt) == ("attempt 1\n", 1)
    first = Task(flaky.pathspec, attempt=0)
    assert first.stdout == "attempt 0\n" and [text for _, text in first.loglines("stdout")] == ["attempt 0"]
    assert first.exception.type == "builtins.KeyError" and first.finished and not first.successful and not list(first)
    assert first.metadata_dict == {
        "attempt": "0",
        "attempt_ok": "False",
        "python_version": ".".join(map(str, sys.version_info[:3])),
    }
    logs = seen.run("loops.py", "logs", f"{run.id}/flaky", "--stdout", "--attempt", "0")
    assert logs.stdout == "attempt 0\n"
    for attempt in (-1, "x"):
        with pytest.raises(exceptions.MetaflowNotFound, match="is not the number of an attempt"):
            Task(flaky.pathspec, attempt=attempt)
    end = run.end_task
    assert end is not None and "KeyError" in str(end.exception) and end.exception.exception == "'Something'"


@pytest.mark.usefixtures("seen")
def test_every_view_can_be_pickled() -> None:
    run = first_run()
    task = run["start"].task
    views = [run.parent, run, run["start"], task, Task(task.pathspec, attempt=0), task["items"], task.data]
    for view in views:
        again = pickle.loads(pickle.dumps(view))
        assert (repr(again), type(again)) == (repr(view), type(view))
    assert pickle.loads(pickle.dumps(task["items"])).data == [0, 1]
    stored = pickle.dumps(run)
    namespace("user:nobody")
    assert pickle.loads(stored).tags == run.tags, "it is looked for where it was found"
    for wrong in (lambda: Run("Seen"), lambda: Task("Seen/1/start"), lambda: DataArtifact("Seen")):
        with pytest.raises(exceptions.MetaflowInvalidPathspec, match="names no"):
            wrong()


def test_the_code_of_a_run(seen: Any) -> None:
    seen.write({"seen.py": "changed since", "parts/beside.py": "changed since"})
    code = Flow("Seen").latest_run["start"].task.code
    assert code.flowspec == FLOW.lstrip() and code.info == {"script": "seen.py", "flow_name": "Seen"}
    assert sorted(code.tarball.getnames()) == ["parts/__init__.py", "parts/beside.py", "seen.py"]
    with code.extract() as folder:
        assert Path(folder, "parts", "beside.py").read_text() == "x = 1\n"


def test_dump_to_a_file(seen: Any) -> None:
    run = Flow("Seen").latest_run
    assert run is not None

    def dumped(*words: str) -> Any:
        done = seen.run("seen.py", "--quiet", "dump", "--file", "values", *words)
        assert done.stdout == done.stderr == ""
        return pickle.loads((seen.folder / "values").read_bytes())

    assert dumped(f"{run.id}/work", "--include", "y") == {
        "/".join((run.id, "work", f"work[{index}]")): {"y": 2 * index} for index in range(3)
    }
    values = dumped("--private", "start", "--exclude", "grid,items,text,more")[f"{run.id}/start/start"]
    assert values == {"n-items": 3, "_private": b"x" * 9_000, "again": b"x" * 9_000, "twice": [b"x" * 9_000] * 2}
    assert dumped("start", "--include", "nothing") == {f"{run.id}/start/start": {}}
    assert not (seen.folder / ".values.part").exists()
    shown = seen.run("seen.py", "dump", "start", "--include", "again,text", "--max-value-size", "9").stdout
    assert "again = b'xxxxxx…" in shown and "text = 'ééééééé…" in shown


def test_values_of_many_gigabytes_in_a_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        """Refuses what the pickler in C refuses, at a size that a test can have."""

        def __init__(self, file: Any, protocol: int) -> None:
            self.file = file

        def dump(self, value: Any) -> None:
            self.file.write(b"half of it")
            raise OverflowError("serializing a bytes object larger than 4 GiB requires pickle protocol 4 or higher")

    monkeypatch.setattr(cli_show.pickle, "Pickler", Refusing)
    long = b"long" * 50
    value = {"bytes": [long, long, bytearray(b"b")], "text": "é\udcff" * 50, "more": (1, None, {"x"})}
    file = io.BytesIO()
    cli_show._write_value(value, file)
    file.write(pickle.STOP)
    again = pickle.loads(file.getvalue())
    assert again == value and again["bytes"][0] is again["bytes"][1]


def test_looking_from_the_command_line(seen: Any) -> None:
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


def test_runner(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.write({"seen.py": FLOW, "parts/beside.py": "", "parts/__init__.py": ""})
    script = str(project.folder / "seen.py")
    with Runner(script) as runner:
        first = runner.run(n_items=1, tags=["by-runner"])
        assert (first.status, first.returncode) == ("successful", 0)
        assert "by-runner" in first.run.tags and first.run["work"].task.data.y == 0
        assert "succeeded" in capsys.readouterr().err
    bad = Runner(script, show_output=False).run(n_items="many")
    assert bad.status == "failed" and bad.returncode == 2 and "n-items" in bad.stderr

    async def go() -> tuple[str, list[str]]:
        async with Runner(script, show_output=False) as runner:
            started = await runner.async_run(n_items=2, grid={"b": 2})
            assert started.run.id == started.run_id
            lines = [line async for _, line in started.stream_log("stderr")]
            await started.wait(timeout=60)
            return started.status, lines

    status, lines = asyncio.run(go())
    assert status == "successful" and any("Seen succeeded" in line for line in lines)
