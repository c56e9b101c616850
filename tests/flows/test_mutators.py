"""Mutators and decorators of one's own: what they change before a run, and what they do around a step."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stoker.core.errors import UsageError
from stoker.flow import (
    USER_SKIP_STEP,
    Config,
    FlowMutator,
    FlowSpec,
    MutableFlow,
    MutableStep,
    Parameter,
    StepMutator,
    UserStepDecorator,
    config_expr,
    environment,
    project,
    resources,
    retry,
    step,
    user_step_decorator,
)
from stoker.flows.decorators import notes_of
from stoker.flows.definition import FlowDefinition

MUTATED = """
import os
from stoker.flow import (
    Config, FlowMutator, FlowSpec, Parameter, StepMutator, checkpoint, config_expr, current, environment, resources,
    step, user_step_decorator,
)

@user_step_decorator
def timed(step_name, flow, inputs, attributes):
    yield
    flow.timed = attributes["word"]

class Add(FlowMutator):
    def init(self, word, times=1):
        self.word, self.times = word, times

    def pre_mutate(self, flow):
        flow.add_parameter("more", Parameter("more-words", default=3))
        assert flow.remove_parameter("less") and not flow.remove_parameter("least")
        for name, found in flow.steps:
            found.add_decorator("retry", deco_kwargs={"times": self.times})
        flow.start.add_decorator(timed, deco_kwargs={"word": self.word})
        flow.add_decorator("project:name=ours")

    def mutate(self, flow):
        for name, found in flow.steps:
            if found.has_decorator("checkpoint"):
                found.add_decorator(environment, deco_kwargs={"vars": {"ATTACHED": name}})

class Asked(StepMutator):
    def mutate(self, found):
        found.add_decorator(resources, deco_kwargs=found.flow.config["steps"][found.name])

@Add(config_expr("config.word"), times=2)
class Base(FlowSpec):
    config = Config("config", default="config.json")
    less = Parameter("less", default=1)

    @step
    def start(self):
        assert not hasattr(self, "less")
        self.less = "now an artifact"
        print("more", self.more, os.environ.get("ATTACHED"), current.project_name)
        self.next(self.middle)

class Mutated(Base):
    @Asked
    @step
    def middle(self):
        assert (self.timed, self.less) == (self.config.word, "now an artifact")
        print("word", self.timed)
        if os.path.exists("fail"):
            raise ValueError("as asked")
        self.next(self.end)

    @step
    def end(self):
        print("end", self.timed, os.environ.get("ATTACHED"))

if __name__ == "__main__":
    Mutated()
"""


def test_a_flow_that_its_mutators_change(project: Any) -> None:
    config = {"word": "first", "steps": {"middle": {"cpu": 1, "memory": 500}}}
    other = {"word": "second", "steps": {"middle": {"cpu": 1}}}
    project.write({"flow.py": MUTATED, "config.json": json.dumps(config), "other.json": json.dumps(other), "fail": ""})
    shown = project.run("flow.py", "show").stdout
    assert "@resources @retry" in shown
    help = project.run("flow.py", "run", "--help").stdout
    assert "--more-words" in help and "--less" not in help
    assert "it can run" in project.run("flow.py", "check").stdout
    plan = json.loads(project.stoker("plan", "flow.py", "--json").stdout)
    asked = next(step["settings"] for step in plan["steps"] if step["name"] == "middle")
    assert asked["resources"]["memory"] == 500 * 10**6 and asked["retry"]["times"] == 2
    project.run(
        "flow.py", "run", "--config", "config", "other.json", "--more-words", "5", "--with", "checkpoint", code=1
    )
    run = project.client().runs()[0]
    assert [line.text for line in run.steps["start"].logs()] == ["more 5 start ours"]
    assert len(run.steps["middle"].attempts) == 3
    # What is resumed has the configs and the decorators that it began with, whatever stands in the file by now.
    (project.folder / "fail").unlink()
    refused = project.run("flow.py", "resume", "--config", "config", "config.json", code=2)
    assert "stays as it was" in refused.stderr
    project.run("flow.py", "resume")
    run = project.client().runs()[0]
    assert [line.text for line in run.steps["end"].logs()] == ["end second end"]
    assert "word second" in project.run("flow.py", "spin", "middle").stderr


AROUND = """
import os
from stoker.flow import FlowSpec, USER_SKIP_STEP, UserStepDecorator, current, step, user_step_decorator

@user_step_decorator
def skip(step_name, flow, inputs, attributes):
    flow.items = [1, 2, 3]
    yield attributes.get("way", USER_SKIP_STEP)

@user_step_decorator
def instead(step_name, flow, inputs):
    def call(flow, inputs=None):
        flow.x = 1 if inputs is None else sum(found.x for found in inputs)
        return True
    yield call

@user_step_decorator
def forgiving(step_name, flow, inputs):
    try:
        yield
    except ValueError as error:
        flow.forgiven = str(error)

class Noted(UserStepDecorator):
    def init(self, *args, **words):
        self.words = words
    def pre_step(self, step_name, flow, inputs=None):
        flow.noted = [step_name, sorted(self.words)]
    def post_step(self, step_name, flow, exception=None):
        flow.noted = [*flow.noted, exception is None]
        return exception, None

class Around(FlowSpec):
    @skip
    @step
    def start(self):
        raise AssertionError
        self.next(self.each, foreach="items")

    @instead
    @step
    def each(self):
        raise AssertionError
        self.next(self.join)

    @instead
    @step
    def join(self, inputs):
        raise AssertionError
        self.next(self.gentle)

    @forgiving
    @Noted(a=1, b=2)
    @step
    def gentle(self):
        if os.environ.get("WORSE"):
            raise KeyError("not forgiven")
        raise ValueError("forgiven")
        self.next(self.choose)

    @skip
    @step
    def choose(self):
        self.next({"a": self.a, "b": self.b}, condition="which")

    @skip(way={"num_parallel": 2})
    @step
    def a(self):
        self.next(self.nodes, num_parallel=3)

    @step
    def b(self):
        raise AssertionError
        self.next(self.end)

    @step
    def nodes(self):
        self.n = current.parallel.num_nodes
        self.next(self.met)

    @step
    def met(self, inputs):
        self.n = [found.n for found in inputs]
        self.next(self.end)

    @step
    def end(self):
        print(self.n)

if __name__ == "__main__":
    Around.which = "a"
    Around()
"""


def test_decorators_that_skip_replace_and_forgive(project: Any) -> None:
    project.write({"flow.py": AROUND.replace("class Around(FlowSpec):", 'class Around(FlowSpec):\n    which = "a"')})
    project.run("flow.py", "run")
    run = project.client().runs()[0]
    assert [line.text for line in run.steps["end"].logs()] == ["[2, 2]"]
    gentle = run.steps["gentle"].outputs
    assert gentle["forgiven"].load() == "forgiven" and gentle["x"].load() == 3
    assert gentle["noted"].load() == ["gentle", ["a", "b"], False]
    failed = project.run("flow.py", "run", code=1, env={"WORSE": "1"})
    assert "not forgiven" in failed.stderr
    # On the command line, too: the last step has nothing to go on to.
    project.run("flow.py", "run", "--with", "Noted:c=3")
    run = project.client().runs()[0]
    assert run.steps["end"].outputs["noted"].load() == ["end", ["c"], True]
    assert run.steps["gentle"].outputs["noted"].load() == ["gentle", ["a", "b"], False]


# What is wrong is said before anything runs


@user_step_decorator
def around(step_name: str, flow: Any, inputs: Any, attributes: Any) -> Any:
    yield


class Early(FlowMutator):
    """Calls what it is given at `pre_mutate`, and `late` at `mutate`."""

    def init(self, early: Any = None, late: Any = None) -> None:
        self.early, self.late = early, late

    def pre_mutate(self, mutable_flow: MutableFlow) -> None:
        if self.early is not None:
            self.early(mutable_flow)

    def mutate(self, mutable_flow: MutableFlow) -> None:
        if self.late is not None:
            self.late(mutable_flow)


class Last(StepMutator):
    """Leaves its step without `@retry`."""

    def mutate(self, mutable_step: MutableStep) -> None:
        mutable_step.remove_decorator("retry")


def changed(early: Any = None, late: Any = None) -> FlowDefinition:
    """A flow that a mutator changes."""

    @Early(early, late)
    class Changed(FlowSpec):
        config = Config("config", default_value={"cpu": 1, "name": "ours"})
        alpha = Parameter("alpha", default=1)

        @around  # type: ignore[untyped-decorator]
        @retry(times=1)  # type: ignore[untyped-decorator]
        @step
        def start(self) -> None:
            self.next(self.end)

        @Last()
        @retry
        @environment(vars={"A": config_expr("config.cpu"), "B": [config.cpu]})  # type: ignore[untyped-decorator]
        @step
        def end(self) -> None:
            """The end."""

    return FlowDefinition(Changed)


def names(flow: FlowDefinition, step: str) -> list[str]:
    """A step's decorators."""
    return [note.name for note in flow.options[step].notes]


def test_what_a_mutator_sees_and_may_do() -> None:
    seen: dict[str, Any] = {}

    def early(flow: MutableFlow) -> None:
        seen["steps"] = [name for name, _ in flow.steps]
        seen["parameters"] = [name for name, _ in flow.parameters]
        seen["configs"] = dict(flow.configs)
        seen["alpha"], seen["config"] = flow.alpha.default, flow.config.cpu
        seen["specs"] = [spec[0] for spec in flow.start.decorator_specs]
        assert flow.end.has_decorator("retry") and not flow.end.has_decorator("catch")
        assert flow.start.add_decorator(retry, deco_kwargs={"times": 9}) is None, "what is there stays"
        assert flow.start.add_decorator("retry:times=4", duplicates=MutableStep.OVERRIDE).values["times"] == 4
        assert flow.start.remove_decorator("around") and not flow.start.remove_decorator("around")
        flow.start.add_decorator(around, deco_kwargs={"x": 1})
        assert flow.start.get_decorator_specs("around")[0][3] == {"x": 1}
        assert not flow.start.remove_decorator("around", deco_kwargs={"x": 2})
        assert flow.start.remove_decorator(f"{__name__}.around", deco_kwargs={"x": 1})
        flow.start.add_decorator('environment:vars={"A": 1, "B": 2}')
        name, _, args, words = flow.start.get_decorator_specs("environment")[0]
        assert flow.start.remove_decorator(name, args, words)
        flow.start.add_decorator("card:id=one")
        flow.start.add_decorator("card:id=two")
        flow.add_decorator(project, deco_kwargs={"name": "one"})
        flow.add_decorator("project", deco_kwargs={"name": "two"}, duplicates=flow.OVERRIDE)
        flow.add_parameter("alpha", Parameter("alpha", default=2), overwrite=True)
        flow.end.add_decorator(Last)
        flow.add_decorator(Early, deco_args=[lambda again: again.beta and None])
        flow.add_parameter("beta", Parameter("beta", default=config_free))

    config_free = 3
    flow = changed(early, lambda flow: flow.end.add_decorator(resources, deco_kwargs={"cpu": 2}))
    assert names(flow, "start") == ["card", "card", "retry"]
    assert names(flow, "end") == ["resources", "environment"]
    assert flow.options["end"].note("environment").values["vars"] == {"A": 1, "B": [1]}  # type: ignore[union-attr]
    assert (
        seen["steps"] == ["start", "end"] and seen["parameters"] == ["alpha"] and seen["specs"] == ["retry", "around"]
    )
    assert (seen["alpha"], seen["config"], seen["configs"]["config"].name) == (1, 1, "ours")
    assert flow.bind({}) == {"config": {"cpu": 1, "name": "ours"}, "alpha": 2, "beta": 3}
    assert flow.tags[1:] == ("project:two", f"project_branch:user.{flow.namespace.removeprefix('user:')}")
    # The class that was written is as it was.
    assert [found.name for found in notes_of(vars(flow.written)["start"])] == ["retry"]
    assert not hasattr(flow.written, "beta")


@pytest.mark.parametrize(
    ("early", "late", "said"),
    [
        (lambda flow: flow.nothing, None, "Early.pre_mutate of flow 'Changed' failed: AttributeError: .*'nothing'"),
        (lambda flow: 1 / 0, None, "failed: ZeroDivisionError"),
        (lambda flow: flow.start.add_decorator("retri"), None, "no decorator 'retri', did you mean 'retry'"),
        (lambda flow: flow.start.add_decorator("aroun"), None, "did you mean 'around'"),
        (lambda flow: flow.start.add_decorator(print), None, "is no decorator"),
        (lambda flow: flow.start.add_decorator("retry:times"), None, "is not word=value"),
        (lambda flow: flow.start.add_decorator("retry:times=1", deco_kwargs={"times": 2}), None, "has words, and"),
        (lambda flow: flow.start.add_decorator("retry", [3]), None, "words with names only"),
        (lambda flow: flow.start.add_decorator(project, deco_kwargs={"name": "x"}), None, "belongs on a flow's class"),
        (lambda flow: flow.start.add_decorator(Early), None, "belongs on a flow's class"),
        (lambda flow: flow.start.add_decorator(resources, deco_kwargs={"gpu": "two"}), None, "gpu"),
        (lambda flow: flow.start.add_decorator(retry, duplicates=MutableStep.ERROR), None, "@retry is there already"),
        (lambda flow: flow.start.add_decorator(retry, duplicates=7), None, "duplicates=7"),
        (lambda flow: flow.add_decorator(retry), None, "@retry belongs on a step"),
        (lambda flow: flow.add_decorator(Last), None, "@Last belongs on a step"),
        (lambda flow: flow.remove_decorator("Early"), None, "which runs already"),
        (lambda flow: flow.add_parameter("x", 3), None, "3 is no Parameter"),
        (lambda flow: flow.add_parameter("alpha", Parameter("alpha")), None, "has 'alpha' already"),
        (None, lambda flow: flow.add_parameter("x", Parameter("x")), "Early.mutate of flow .*too late in mutate"),
        (None, lambda flow: flow.remove_parameter("alpha"), "too late in mutate"),
        (None, lambda flow: flow.add_decorator("project:name=x"), "too late in mutate"),
        (None, lambda flow: flow.end.add_decorator(Last), "too late in mutate"),
        (None, lambda flow: flow.end.remove_decorator("Last"), "too late in mutate"),
    ],
)
def test_what_goes_wrong_names_the_mutator_and_its_line(early: Any, late: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        _ = changed(early, late).options
    assert re.match(r"\S*test_mutators.py:\d+: Early.", str(caught.value))


def test_where_decorators_of_ones_own_belong() -> None:
    with pytest.raises(UsageError, match="belongs on a flow's class"):
        Early()(print)
    with pytest.raises(UsageError, match="belongs on a step, above @step"):
        Last()(print)
    with pytest.raises(UsageError, match="above @step"):

        @step
        @Last
        def below() -> None:
            """A step under its mutator."""

    with pytest.raises(UsageError, match="is no generator"):
        user_step_decorator(id)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="takes 1 arguments"):

        @user_step_decorator
        def one(flow: Any) -> Any:
            yield

    class Silent(UserStepDecorator):
        """Takes nothing."""

    with pytest.raises(UsageError, match="has no init"):
        Silent(a=1).instantiate({})
    with pytest.raises(UsageError, match="takes words with names"):
        around(1).instantiate({})
    assert USER_SKIP_STEP == {}
