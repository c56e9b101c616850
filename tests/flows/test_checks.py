"""What is refused before anything runs: graphs that cannot run, by line, and decorators that make no sense."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import GraphError, ParameterError, SettingsError, StokerError, UsageError
from stoker.flows import transitions
from stoker.flows.definition import FlowDefinition, is_flow
from stoker.settings.options import step_settings

HEAD = "from stoker.flow import *\nclass F(FlowSpec):\n"


@pytest.fixture
def flow(tmp_path: Path) -> Callable[[str], FlowDefinition]:
    """A flow's definition from the body of its class; line 3 is the body's first."""

    def make(body: str) -> FlowDefinition:
        path = tmp_path / f"flow_{len(list(tmp_path.iterdir()))}.py"
        path.write_text(HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        assert is_flow(module.F)
        return FlowDefinition(module.F)

    return make


def steps(**bodies: str) -> str:
    """Steps from their bodies; `name__inputs` is a join."""
    text = ""
    for key, body in bodies.items():
        name, _, join = key.partition("__")
        text += f"@step\ndef {name}(self{', inputs' if join else ''}):\n    {body}\n"
    return text


TO_END = {"end": "pass"}
GRAPHS = {
    "no start": (steps(begin="self.next(self.end)", **TO_END), "no step 'start'"),
    "no end": (steps(start="self.next(self.a)", a="pass"), "no step 'end'"),
    "unknown step": (steps(start="self.next(self.ende)", **TO_END), "'ende', which is no step, did you mean 'end'"),
    "no next": (steps(start="self.next(self.a)", a="pass", **TO_END), "'a' does not say where it goes"),
    "unreachable": (steps(start="self.next(self.end)", a="self.next(self.end)", **TO_END), "'a' is never reached"),
    "end goes on": (steps(start="self.next(self.end)", end="self.next(self.start)"), "is the last, but goes to"),
    "not last": (steps(start="self.next(self.end); self.x = 1", **TO_END), "not its last statement"),
    "in an if": (steps(start="if self.x: self.next(self.end)", **TO_END), "not its last statement"),
    "no join": (
        steps(start="self.next(self.a, self.b)", a="self.next(self.c)", b="self.next(self.c)", c="self.next(self.end)")
        + steps(**TO_END),
        "'c' is reached from branch 'a' of 'start' and branch 'b' of 'start', but takes no inputs",
    ),
    "open foreach": (
        steps(start="self.next(self.a, foreach='x')", a="self.next(self.end)", **TO_END),
        "inside the splits of 'start': they are never joined",
    ),
    "join of nothing": (
        steps(start="self.next(self.a)", a__join="self.next(self.end)", **TO_END),
        "comes to it from no split",
    ),
    "two joins": (
        steps(start="self.next(self.a, self.b)", a="self.next(self.c)", b="self.next(self.d)")
        + steps(c__join="self.next(self.end)", d__join="self.next(self.end)", **TO_END),
        "are joined in 'c' and in 'd'",
    ),
    "empty split": (
        steps(start="self.next(self.a, foreach='x')", a__join="self.next(self.end)", **TO_END),
        "goes straight to the join",
    ),
    "different depths": (
        steps(start="self.next({1: self.a, 2: self.b}, condition='x')", a="self.next(self.c, foreach='y')")
        + steps(b="self.next(self.c)", c="self.next(self.d)", d__join="self.next(self.end)", **TO_END),
        "is reached inside",
    ),
    "circle": (
        steps(start="self.next(self.a)", a="self.next(self.b)", b="self.next({1: self.c, 2: self.end}, condition='x')")
        + steps(c="self.next(self.d)", d="self.next(self.c)", **TO_END),
        "circle that nothing ends: c, d",
    ),
    "gang goes on": (
        steps(start="self.next(self.a, num_parallel=2)", a="self.next(self.b)", b="self.next(self.c)")
        + steps(c__join="self.next(self.end)", **TO_END),
        "does not go straight to a join",
    ),
    "both forms": (steps(start="self.next(self.a, foreach='x', num_parallel=2)", **TO_END), "foreach and num_parallel"),
    "no form": (steps(start="self.next(self.a, forech='x')", **TO_END), "did you mean 'foreach'"),
    "switch without": (steps(start="self.next({1: self.end})", **TO_END), "one dict of steps and a condition"),
    "foreach of a value": (steps(start="self.next(self.end, foreach=[1])", **TO_END), "not the name of an attribute"),
    "a call": (steps(start="self.next(self.end())", **TO_END), "is given self.end()\n  fix: write self.next(self.end)"),
    "a text": (steps(start="self.next('end')", **TO_END), "write self.next(self.end)"),
    "no decorator": (steps(start="self.next(self.a)", **TO_END) + "def a(self): ...\n", "put @step on `def a(self):`"),
    "arguments": ("@step\ndef start(self, a, b):\n    self.next(self.end)\n" + steps(**TO_END), "takes 3 arguments"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_that_cannot_run(name: str, flow: Callable[[str], FlowDefinition]) -> None:
    body, message = GRAPHS[name]
    with pytest.raises(GraphError) as caught:
        _ = flow(body).graph
    assert message in str(caught.value)
    assert ".py:" in caught.value.where, "every problem has its line"


def test_the_line_is_the_right_one(flow: Callable[[str], FlowDefinition]) -> None:
    body = "@step\ndef start(self):\n    x = 1\n\n    self.next(\n        self.nowhere)\n" + steps(**TO_END)
    with pytest.raises(GraphError) as caught:
        _ = flow(body).graph
    assert caught.value.where.endswith(":7"), caught.value.where


def test_return_is_as_good_as_the_call_itself(flow: Callable[[str], FlowDefinition]) -> None:
    assert flow(steps(start="return self.next(self.end)", **TO_END)).graph.steps["start"].targets == ("end",)


def test_what_keeps_a_flow_from_running_is_refused(flow: Callable[[str], FlowDefinition], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has an __init__ of its own"):
        flow("def __init__(self):\n    self.x = 1\n" + steps(start="self.next(self.end)", **TO_END))
    flow("def __init__(self, *a):\n    super().__init__(*a)\n" + steps(start="self.next(self.end)", **TO_END))
    (tmp_path / "metaflow.py").write_text("class Current:\n    pass\ncurrent = Current()\n")
    found = flow(steps(start="self.next(self.end)", **TO_END))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        module = sys.modules[found.written.__module__]
        patch.setattr(module, "current", importlib.import_module("metaflow").current)
        with pytest.raises(GraphError, match="'current' of flow F is Metaflow's"):
            _ = found.graph
        sys.modules.pop("metaflow")


def test_start_and_end_may_have_other_names(flow: Callable[[str], FlowDefinition]) -> None:
    body = "@step(start=True)\ndef first(self):\n    self.next(self.last)\n@step(end=True)\ndef last(self):\n    pass\n"
    assert (flow(body).graph.start, flow(body).graph.end) == ("first", "last")


def decorated(*decorators: str) -> str:
    """A flow whose first step has the decorators."""
    return "\n".join(decorators) + "\n" + steps(start="self.next(self.end)", **TO_END)


DECORATORS = {
    "@resources(gpu='two')": "gpu",
    "@resources(gpu=-3)": "gpu",
    "@resources(gpu=0.5)": "share",
    "@resources(gpu=True)": "not a number",
    "@resources(memory='8 apples')": "memory",
    "@resources(memory=-1)": "not a size",
    "@resources(cpu='many')": "cpu",
    "@resources(gpus=1)": "did you mean 'gpu'",
    "@resources(accelerators='H1OO:8')": "no accelerator called",
    "@kubernetes(qos='BestEffort')": "Guaranteed",
    "@kubernetes(gpu_vendor='nvdia', gpu=1)": "nvidia",
    "@kubernetes(tolerations=[{'keys': 'x'}])": "did you mean 'key'",
    "@kubernetes(node_selector='pool')": "not key=value",
    "@batch(trainium='many')": "not a number of devices",
    "@batch(trainium=1, inferentia=1)": "inferentia=1 says again what trainium=1 says",
    "@batch(tpu=4)": 'accelerators="tpu-v5e:8"',
    "@kubernetes(accelerators='tpu-v5e:8')": "resources",
    "@batch(swappiness=200)": "more than 100",
    "@retry(times=-1)": "not a number of attempts",
    "@timeout(minutes=0)": "no time",
    "@environment(vars=['A'])": "does not map",
    "@catch(var='not ok')": "not the name of an attribute",
    "@secrets(sources='TOKEN')": "not a list",
    "@card(customize='yes')": "neither True nor False",
    "@card(timeout='soon')": "no number of seconds",
    "@gpu_profile(interval=0)": "not a time",
    "@checkpoint(load_policy='egaer')": '"fresh", "eager" or "none"',
    "@timeout(5)": "takes words with names",
    "@torchrun(nproc_per_node=0)": "not a number from 1",
    "@project(name='a')": "belongs on a flow's class",
    "@resources(cpu=1)\n@resources(cpu=2)": "is there twice",
}


@pytest.mark.parametrize("decorator", DECORATORS)
def test_values_are_checked_where_they_stand(decorator: str, flow: Callable[[str], FlowDefinition]) -> None:
    with pytest.raises(StokerError) as caught:
        flow(decorated(*decorator.split("\n")))
    assert DECORATORS[decorator] in str(caught.value)
    assert ".py:3" in caught.value.where or ".py:4" in caught.value.where
    assert caught.value.exit_code == 2


GB = 10**9
MERGED = {
    ("@resources(gpu=1)", "@kubernetes(gpu=4)"): {"gpu_count": 4},
    ("@resources(gpu=4)", "@kubernetes(gpu=1)"): {"gpu_count": 4},
    ("@resources(gpu=1)", "@batch(gpu=4)"): {"gpu_count": 4},
    # A default of one decorator is no request: only what is written counts.
    ("@resources(cpu=2)", "@kubernetes(memory=512)"): {"cpu_count": 2, "memory": 512 * 10**6},
    ("@resources(cpu=2)", "@batch(memory=512)"): {"cpu_count": 2, "memory": 512 * 10**6},
    ("@kubernetes(memory=512)",): {"memory": 512 * 10**6},
    ("@resources(shared_memory=10)", "@kubernetes(shared_memory=20)"): {"shared_memory": 20 * 2**20},
    ("@resources(memory=32000)",): {"memory": 32 * GB},
    ("@resources(memory='32GB')",): {"memory": 32 * GB},
    ("@resources(memory='32000')",): {"memory": 32 * GB},
    ("@resources(gpu=0)",): {"gpu_count": 0},
    ("@kubernetes(gpu=2, gpu_vendor='amd')",): {"gpu_count": 2, "gpu_vendor": "amd"},
    ("@kubernetes(gpu_vendor='amd')",): {},
    ("@batch(trainium=16)",): {"accelerators": ["trainium:16"]},
    ("@resources(accelerators='H100:8', nodes=2, gpu_memory='40GB')",): {
        "accelerators": ["nvidia-h100-80gb:8"],
        "nodes": 2,
        "gpu_memory": 40 * GB,
    },
}


@pytest.mark.parametrize("decorators", MERGED, ids=lambda value: " ".join(value))
def test_the_largest_of_all_decorators(decorators: tuple[str, ...], flow: Callable[[str], FlowDefinition]) -> None:
    for order in (decorators, decorators[::-1]):
        options = flow(decorated(*order)).options["start"]
        layers = [layer.values["resources"] for layer in options.layers if "resources" in layer.values]
        found = layers[0] if layers else {}
        wanted = MERGED[decorators]
        if "accelerators" in wanted:
            assert str(found["accelerators"][0]).split(":")[1] == wanted["accelerators"][0].split(":")[1]
            found, wanted = {**found, "accelerators": 0}, {**wanted, "accelerators": 0}
        assert found == wanted
        step_settings({"resources": layers[0]} if layers else {})


def test_words_that_have_no_order_must_agree(flow: Callable[[str], FlowDefinition]) -> None:
    with pytest.raises(SettingsError, match="say it once"):
        _ = flow(decorated("@resources(accelerators='H100:1')", "@batch(trainium=1)")).options
    with pytest.raises(UsageError, match="is to run on AWS Batch and on Kubernetes"):
        _ = flow(decorated("@batch", "@kubernetes")).options


def test_catch_needs_a_way_on_that_is_known(flow: Callable[[str], FlowDefinition]) -> None:
    body = "@catch\n" + steps(start="self.next({1: self.end}, condition='x')", **TO_END)
    with pytest.raises(UsageError, match="after a failure there is none"):
        _ = flow(body).options
    assert flow("@catch(var='x')\n" + steps(start="self.next(self.end)", **TO_END)).options["start"].catch == "x"


def test_with_attaches_where_it_is_lacking(flow: Callable[[str], FlowDefinition]) -> None:
    kind = flow(decorated("@resources(gpu=1)")).kind
    found = FlowDefinition(kind, attached=("resources:gpu=2,memory=8GB", "retry")).options
    assert found["start"].layers[0].values["resources"] == {"gpu_count": 1}
    assert found["end"].layers[0].values["resources"] == {"gpu_count": 2, "memory": 8 * GB}
    assert found["end"].layers[1].values["retry"] == {"times": 3, "delay": 0.0}
    with pytest.raises(UsageError, match="did you mean 'resources'"):
        _ = FlowDefinition(kind, attached=("resource:gpu=1",)).options
    with pytest.raises(SettingsError, match="gpu"):
        _ = FlowDefinition(kind, attached=("resources:gpu=two",)).options


def test_parameters(flow: Callable[[str], FlowDefinition]) -> None:
    body = """
    n = Parameter("n", default=3)
    names = Parameter("names", separator=",", default="a,b")
    grid = Parameter("grid", type=JSONType, default={"a": 1})
    must = Parameter("must-be", required=True)
    flag = Parameter("flag", default=False)
    made = Parameter("made", default=lambda context: context.parameter_name)
    """
    found = flow(textwrap.dedent(body) + steps(start="self.next(self.end)", **TO_END))
    assert found.bind({"must_be": "x", "flag": "yes"}) == {
        "must-be": "x",
        "flag": True,
        "n": 3,
        "names": ["a", "b"],
        "grid": {"a": 1},
        "made": "made",
    }
    for given, message in (
        ({}, "'must-be' is missing"),
        ({"must-be": "x", "n": "many"}, "expected int"),
        ({"must-be": "x", "m": 1}, "no parameter 'm'"),
        ({"must-be": "x", "grid": "{"}, "is not JSON"),
    ):
        with pytest.raises(ParameterError, match=message):
            found.bind(given)
    with pytest.raises(ParameterError, match="its default is a set"):
        flow('n = Parameter("n", default={1})\n' + steps(start="self.next(self.end)", **TO_END))


def test_every_step_of_a_base_is_there(flow: Callable[[str], FlowDefinition]) -> None:
    base = flow(steps(start="self.next(self.middle)", middle="self.next(self.end)", **TO_END)).kind
    assert list(transitions.steps_of(type("G", (base,), {}))) == ["start", "middle", "end"]
    assert list(transitions.steps_of(type("G", (base,), {"middle": 1}))) == ["start", "end"]


def test_what_a_platform_is_told_stands_in_the_plan(project: Any) -> None:
    text = HEAD + textwrap.indent(
        decorated(
            "@batch(image='a/b:1', queue='gpu', aws_batch_tags={'team': 'a'}, gpu=2, "
            "shared_memory=100, use_tmpfs=True, tmpfs_size=100)"
        ),
        "    ",
    )
    project.write({"f.py": text + "\nif __name__ == '__main__':\n    F()\n"})
    assert "stoker stacks setup batch" in project.run("f.py", "run", code=3).stderr
    stack = 'stack = "a"\n[stacks.a.step_operators.batch]\nflavor = "batch"\n'
    project.write({"stoker.toml": stack})
    assert not project.home.exists() or not list(project.home.rglob("*.jsonl"))
    import json

    plan = json.loads(project.stoker("plan", "f.py", "--json", code=None).stdout)
    (own,) = plan["steps"][0]["settings"]["backend"].values()
    assert own["image"] == "a/b:1" and own["queue"] == "gpu" and own["aws_batch_tags"] == {"team": "a"}
    assert plan["steps"][0]["settings"]["resources"]["gpu_count"] == 2
    assert "cpu-fallback" in project.run("f.py", "--without", "batch", "run", "--with", "resources:gpu=1").stderr
