"""Flows as they are run: transitions, artifacts, joins, switches, failures, in processes of their own."""

from __future__ import annotations

from typing import Any

import pytest

SHAPES = """
from stoker.flow import FlowSpec, Parameter, current, resources, step

class Shapes(FlowSpec):
    \"\"\"Every way to go on.\"\"\"

    lr = Parameter("lr", default=0.1, help="the rate")

    @resources(memory=32000, cpu=4, gpu=1)
    @step
    def start(self):
        assert current.pathspec == f"Shapes/{current.run_id}/start/start"
        self.items = ["a", "b", "c"]
        self.x = [1]
        self.untouched = {"deep": [1, 2]}
        self.next(self.left, self.right)

    @step
    def left(self):
        self.x.append(2)
        self.only_left = "l"
        self.next(self.meet)

    @step
    def right(self):
        self.y = len(self.x)
        self.next(self.meet)

    @step
    def meet(self, inputs):
        assert inputs.left.x == [1, 2] and inputs.right.x == [1], [i.x for i in inputs]
        assert "only_left" in inputs.left and "only_left" not in inputs.right
        self.x = inputs.left.x
        self.merge_artifacts(inputs)
        assert (self.only_left, self.y, self.untouched["deep"]) == ("l", 1, [1, 2])
        self.next(self.outer, foreach="items")

    @step
    def outer(self):
        assert self.items[self.index] == self.input
        self.inner_items = tuple(range(self.index + 1))
        self.next(self.inner, foreach="inner_items")

    @step
    def inner(self):
        outer, inner = self.foreach_stack()
        assert outer == (outer[0], 3, "abc"[outer[0]]), outer
        assert inner == (self.index, outer[0] + 1, self.input)
        self.word = f"{outer[2]}{self.input}"
        self.next(self.after)

    @step
    def after(self):
        self.word += "!"
        self.next(self.inner_join)

    @step
    def inner_join(self, inputs):
        self.words = [found.word for found in inputs]
        self.merge_artifacts(inputs, include=["untouched"])
        assert [found.index for found in inputs] == list(range(len(inputs)))
        self.next(self.outer_join)

    @step
    def outer_join(self, inputs):
        self.words = [word for found in inputs for word in found.words]
        self.merge_artifacts(inputs, include=["untouched"])
        assert not hasattr(self, "items")
        self.turns = 0
        self.next(self.turn)

    @step
    def turn(self):
        self.turns += 1
        self.way = "again" if self.turns < 4 else "done"
        self.next({"again": self.turn, "done": self.end}, condition="way")

    @step
    def end(self):
        print("lr", self.lr, self.words, self.turns)

if __name__ == "__main__":
    Shapes()
"""


@pytest.fixture
def shapes(project: Any) -> Any:
    return project.write({"shapes.py": SHAPES})


def test_every_way_to_go_on(shapes: Any) -> None:
    finished = shapes.run("shapes.py", "run", "--lr", "0.5", "--tag", "x", "--run-id-file", "id")
    run = shapes.client().runs(pipeline="Shapes")[0]
    assert (shapes.folder / "id").read_text() == run.id
    assert run.status == "succeeded" and "x" in run.tags and run.parameters["lr"] == 0.5
    end = run.steps["end"]
    assert end.outputs["words"].load() == ["a0!", "b0!", "b1!", "c0!", "c1!", "c2!"]
    assert [line.text for line in end.logs()] == [f"lr 0.5 {end.outputs['words'].load()} 4"]
    assert run.steps["turn#4"].outputs["turns"].load() == 4
    # An artifact that nobody changed is the one that the first step saved.
    first = run.steps["start"].outputs["untouched"].digest
    assert end.outputs["untouched"].digest == first
    assert run.steps["inner[2][1]"].outputs["word"].load() == "c1"
    assert run.steps["inner[2]"].count == 3 and run.steps["outer"].count == 3
    assert run.steps["outer"].status == run.steps["inner[2]"].status == "succeeded"
    # The request is a hint here, and what became of it is said.
    assert run.steps["start"].receipt.verdict == "cpu-fallback"
    assert "32GB" in finished.stderr and "cpu-fallback" in finished.stderr


def test_the_same_by_stoker_run_and_in_this_process(shapes: Any) -> None:
    shapes.stoker("run", "shapes.py", "--lr", "2", "--with", "retry:times=1", "--max-workers", "1")
    shapes.run("shapes.py", "run", "--debug")
    newest, older = shapes.client().runs(pipeline="Shapes")
    assert newest.parameters["lr"] == 0.1 and older.parameters["lr"] == 2.0
    assert {run.status for run in (newest, older)} == {"succeeded"}
    assert newest.steps["end"].outputs["words"].digest == older.steps["end"].outputs["words"].digest


def test_plan_shows_every_step(shapes: Any) -> None:
    told = shapes.stoker("plan", "shapes.py").stdout
    assert "inner_join" in told and "shapes.py" in told


FAILING = """
import os
import signal
from stoker.flow import FlowSpec, catch, current, retry, step, timeout

class Failing(FlowSpec):
    @step
    def start(self):
        self.items = list(range(4))
        self.next(self.work, foreach="items")

    @catch(var="problem")
    @retry(times=1)
    @step
    def work(self):
        self.tries = current.retry_count
        if self.input == 1:
            raise ValueError("no one")
        if self.input == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.input == 3 and current.retry_count == 0:
            raise ValueError("at first")
        self.next(self.gather)

    @step
    def gather(self, inputs):
        self.problems = [found.problem for found in inputs]
        self.tries = [found.tries if "tries" in found else None for found in inputs]
        self.next(self.slow)

    @catch(var="late")
    @timeout(seconds=1)
    @step
    def slow(self):
        import ctypes
        ctypes.PyDLL(None).sleep(600)  # holds the interpreter: no signal handler runs
        self.next(self.end)

    @step
    def end(self):
        assert self.late.cause == "timed-out", self.late

if __name__ == "__main__":
    Failing()
"""


def test_failures_are_caught_however_they_come(project: Any) -> None:
    finished = project.write({"failing.py": FAILING}).run("failing.py", "run")
    run = project.client().runs()[0]
    assert run.status == "succeeded", finished.stderr
    problems = run.steps["end"].outputs["problems"].load()
    assert problems[0] is None and problems[3] is None
    assert problems[1].type == "builtins.ValueError" and problems[1].message == "no one"
    assert "no one" in problems[1].traceback
    assert problems[2].cause == "killed" and problems[2].type.endswith("FailureHandledByCatch")
    assert problems[2].step == "work"
    assert run.steps["end"].outputs["tries"].load() == [0, 1, None, 1], "what it had when it failed stays"
    assert "no one" in project.run("failing.py", "logs", "work/work[1]", "--stderr").stdout
    assert run.steps["work[1]"].status == "succeeded" and len(run.steps["work[1]"].attempts) == 2


BROKEN = """
import os
from stoker.flow import FlowSpec, Parameter, step

def note(word):
    with open("ran", "a") as file:
        file.write(word + chr(10))

class Broken(FlowSpec):
    n = Parameter("n", default=3)

    @step
    def start(self):
        note("start")
        self.items = list(range(self.n))
        self.next(self.work, foreach="items")

    @step
    def work(self):
        note(f"work {self.input}")
        if self.input == self.n - 1 and not os.path.exists("mended"):
            raise RuntimeError("not yet")
        self.made = self.input * 10
        self.next(self.gather)

    @step
    def gather(self, inputs):
        note("gather")
        self.made = [found.made for found in inputs]
        self.next(self.end)

    @step
    def end(self):
        note("end")
        assert not os.path.exists("late")

if __name__ == "__main__":
    Broken()
"""


def test_resume_goes_on_where_it_stopped(project: Any) -> None:
    project.write({"broken.py": BROKEN, "late": ""})

    def ran() -> list[str]:
        path = project.folder / "ran"
        lines = path.read_text().splitlines()
        path.unlink()
        return list(lines)

    project.run("broken.py", "run", "--max-workers", "1", code=1)
    first = project.client().runs()[0]
    assert first.status == "failed" and first.steps["work"].status == "failed"
    assert first.steps["work[2]"].failure.message == "not yet"
    (project.folder / "mended").touch()
    ran()
    project.run("broken.py", "resume", code=1)
    assert ran() == ["work 2", "gather", "end"]
    # `stoker resume` goes on with the run itself. What a foreach took is from its first task to its last, also where
    # the run was resumed in the middle of it, or after its end.
    (project.folder / "late").unlink()
    second = project.client().runs()[0]
    before = second.steps["work"]
    project.stoker("resume", second.id)
    assert ran() == ["end"]
    second = project.client().run(second.id)
    assert second.status == "succeeded" and second.steps["end"].outputs["made"].load() == [0, 10, 20]
    assert (second.steps["work"].started, second.steps["work"].ended) == (before.started, before.ended)
    project.stoker("resume", first.id)
    assert ran() == ["work 2", "gather", "end"]
    after = project.client().run(first.id).steps["work"]
    assert after.status == "succeeded" and after.started <= after[0].started


def test_decorators_of_the_command_line_stay_when_a_run_goes_on(project: Any) -> None:
    project.write({"broken.py": BROKEN})
    project.run("broken.py", "run", "--max-workers", "1", "--n", "1", "--with", "retry:times=2", code=1)
    run = project.client().runs()[0]
    assert len(run.steps["work[0]"].attempts) == 3
    project.stoker("resume", run.id, code=1)
    assert len(project.client().runs()[0].steps["work[0]"].attempts) == 6
    project.run("broken.py", "resume", "--with", "retry:times=1", code=1)
    # `resume` is a run of its own, with other decorators; `stoker resume` adds to the run that failed.
    again = project.client().runs()[0]
    assert again.origin == run.id and len(again.steps["work[0]"].attempts) == 2
    assert len(run.refresh().steps["work[0]"].attempts) == 6


def test_wide(project: Any) -> None:
    project.write({"broken.py": BROKEN})
    (project.folder / "mended").write_text("")
    project.run("broken.py", "run", "--n", "150", "--quiet")
    run = project.client().runs()[0]
    assert run.steps["end"].outputs["made"].load() == [10 * place for place in range(150)]
    assert project.run("broken.py", "run", "--n", "20", "--max-num-splits", "10", code=1).stderr.count("max-num-splits")


@pytest.mark.long
def test_ten_thousand(project: Any) -> None:
    project.write({"broken.py": BROKEN})
    (project.folder / "mended").write_text("")
    project.run("broken.py", "run", "--n", "10000", "--quiet", timeout=600)
    run = project.client().runs()[0]
    assert run.steps["end"].outputs["made"].load() == [10 * place for place in range(10_000)]
    assert run.steps["work"].count == 10_000 and run.steps["work[9999]"].status == "succeeded"


SMALL = """
from stoker.flow import FlowSpec, Parameter, step

class Small(FlowSpec):
    most = 3
    who = Parameter("who", default="you")

    @step
    def start(self):
        self.limit = 4
        self.seen = [self.who]
        self.next(self.end)

    @step
    def end(self):
        assert self.limit == 4 and self.most == 3, self.limit
        self.seen.append("end")
        del self.limit
        try:
            self.who = "me"
        except AttributeError as error:
            print(error)

class Other(Small):
    pass
"""


def test_a_file_without_a_main_block(project: Any) -> None:
    project.write({"small.py": SMALL})
    project.stoker("run", "small.py:Small", "--who", "me", "--with", "retry")
    run = project.client().runs()[0]
    assert run.steps["end"].outputs["seen"].load() == ["me", "end"]
    assert "limit" not in run.steps["end"].outputs, "what is deleted ends there"
    assert "cannot be set" in next(iter(run.steps["end"].logs())).text
    project.stoker("run", "small.py:Other")
    assert "several flows: Other, Small" in project.stoker("run", "small.py", code=2).stderr
    assert "--who" in project.stoker("run", "small.py:Small", "--help").stdout


def test_settings_of_one_step_from_the_command_line(project: Any) -> None:
    project.write({"small.py": SMALL + "\nif __name__ == '__main__':\n    Other()\n"})
    refused = project.run("small.py", "run", "--set", "steps.end.resources.cpu_count=4000", code=3).stderr
    assert "STK101" in refused, "what the command line asks for is no hint"
    assert "no step 'ende'" in project.run("small.py", "run", "--set", "steps.ende.timeout=3", code=2).stderr
    plan = project.stoker("plan", "small.py", "--who", "x", "--with", "timeout:seconds=5", "--explain").stdout
    assert "timeout   5s" in plan and "--with timeout:seconds=5" in plan


MISTAKES = {
    "missing": ("self.nothing", "has no artifact 'nothing'"),
    "own": ("self._transition = 1", "is the flow's own"),
    "named": ("self.name = 'x'", "self.name is the flow's own"),
    "over": ("self.end = 1", "self.end is a step"),
    "deletes": ("del self.nothing", "no such artifact"),
    "generates": ("self.letters = (one for one in 'abc')", "'letters'"),
    "locks": ("self.lock = threading.Lock()", "'lock'"),
    "switch": ("self.way = 3", "the switch has no such case"),
    "unset": ("", "foreach='items', but self.items was not set"),
    "empty": ("self.items = []", "is empty"),
    "keyed": ("self.items = {'a': 1}", "is a dict, which has keys and values"),
}
"""step → (what stands in it, what is said of it)"""
FOREACHES = ("unset", "empty", "keyed")
ENDS = """
    @step
    def one(self):
        self.next(self.meet)

    @step
    def two(self):
        self.next(self.meet)

    @step
    def meet(self, inputs):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Mistakes()
"""


def test_mistakes_at_run_time_are_said_and_other_branches_go_on(project: Any) -> None:
    goes = ", ".join(f"self.{name}" for name in MISTAKES)
    text = "import threading\nfrom stoker.flow import FlowSpec, step\n\nclass Mistakes(FlowSpec):\n"
    text += f"    @step\n    def start(self):\n        self.next({goes})\n"
    for name, (body, _) in MISTAKES.items():
        on = "{1: self.one, 2: self.two}, condition='way'" if name == "switch" else "self.meet"
        if name in FOREACHES:
            on = f"self.{name}_each, foreach='items'"
            text += f"    @step\n    def {name}_each(self):\n        self.next(self.{name}_join)\n"
            text += f"    @step\n    def {name}_join(self, inputs):\n        self.next(self.meet)\n"
        text += f"    @step\n    def {name}(self):\n        {body or 'pass'}\n        self.next({on})\n"
    (project.folder / "mistakes.py").write_text(text + ENDS)
    finished = project.run("mistakes.py", "run", "--failure-mode", "continue", code=1)
    run = project.client().runs()[0]
    assert run.status == "failed"
    for name, (_, said) in MISTAKES.items():
        assert said in run.steps[name].failure.message, name
    assert "keep list(…) of it" in finished.stderr and "instead of self.lock" in finished.stderr


def test_an_interrupted_run_goes_on(project: Any) -> None:
    import os
    import signal
    import subprocess
    import sys
    import time

    text = """
    import os, time
    from stoker.flow import FlowSpec, step

    class Slow(FlowSpec):
        @step
        def start(self):
            self.x = 1
            self.next(self.wait)

        @step
        def wait(self):
            open("waits", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            self.next(self.end)

        @step
        def end(self):
            assert self.x == 1

    if __name__ == "__main__":
        Slow()
    """
    project.write({"slow.py": text})
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        (project.folder / "waits").unlink(missing_ok=True)
        words = ["run"] if number == signal.SIGINT else ["resume"]
        process = subprocess.Popen(
            [sys.executable, "slow.py", *words],
            cwd=project.folder,
            env={**os.environ, "STOKER_HOME": str(project.home)},
        )
        deadline = time.monotonic() + 60
        while not (project.folder / "waits").exists():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(60) == code
    (project.folder / "go").touch()
    project.run("slow.py", "resume", "--tag", "t")
    run = project.client().runs()[0]
    # Ctrl-C ended the first run, which the second repeats; that one's driver was killed, and the third repeats it.
    assert run.status == "succeeded" and run.origin is not None and "t" in run.tags
    second = project.client().run(run.origin)
    assert (second.status, second.sessions) == ("interrupted", 1) and second.origin is not None
    first = project.client().run(second.origin)
    assert (first.status, first.sessions, len(first.steps["start"].attempts)) == ("cancelled", 1, 1)
    assert run.steps["start"].cached_from == f"{second.id}/start" and len(project.client().runs()) == 3
    assert project.stoker("resume", second.id).returncode == 0, "it can still go on itself"
