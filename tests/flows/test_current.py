"""What a flow knows of itself: `current`, its graph, its configs, before the run begins and while it runs."""

from __future__ import annotations

import json
from typing import Any

from stoker.flow import current

LOOKING = """
import json
from stoker.flow import (
    Config, FlowSpec, Parameter, catch, config_expr, current, environment, project, resources, retry, step
)
from stoker.flow.exception import (
    MetaflowException, MissingInMergeArtifactsException, UnhandledInMergeArtifactsException
)

OUTSIDE = (current.flow_name, current.run_id, current.pathspec, current.get("task_id", "none"), current.task)

def greeting(context):
    return f"{current.flow_name} of {current.project_name}: {context.configs.sizes.small} {context.parameter_name}"

def content(context):
    return {"small": 1, "deep": [{"large": 2}], "asks": {"cpu": 1}}

def refused(call, kind):
    try:
        call()
    except kind as error:
        return type(error).__name__
    raise AssertionError(f"{kind} was expected")

@project(name=config_expr("'p' + str(sizes.small)"))
class Looking(FlowSpec):
    LIMIT = 7
    sizes = Config("sizes", default_value=content)
    upper = Config("upper", default=lambda context: f"{context.flow_name}.txt", parser=lambda text: {"text": text})
    greeting = Parameter("greeting", default=greeting)
    rate = Parameter("rate", default=0.5)

    @resources(**sizes.asks)
    @environment(vars={"LARGE": config_expr("json.dumps(sizes.deep)")})
    @step
    def start(self):
        "First of all."
        import os
        assert OUTSIDE == (None, None, None, "none", None)
        assert self.greeting == "Looking of p1: 1 greeting", self.greeting
        assert current.parameter_names == ["greeting", "rate", "sizes", "upper"]
        assert current.tags == {"mine"} and current.project_flow_name.startswith("p1.user.")
        assert json.loads(os.environ["LARGE"]) == [{"large": 2}] and self.upper.text == "as it is"
        assert json.dumps(self.sizes) == json.dumps(content(None)) and self.sizes == content(None)
        refused(lambda: self.sizes.update(small=3), TypeError)
        refused(lambda: self.merge_artifacts([]), MetaflowException)
        node = self._graph[self._current_step]
        assert (node.type, node.out_funcs, node.doc, node.num_args) == ("split", ["left", "right"], "First of all.", 1)
        assert [node.name for node in self._graph] == sorted(node.name for node in self._graph)
        self.kept, self.rows = 1, "ab"
        self.next(self.left, self.right)

    @step
    def left(self):
        self.side = "left"
        self.next(self.row, foreach="rows")

    @step
    def row(self):
        frame, = self._foreach_stack
        self.frame = tuple(frame)
        self.next(self.rows_met)

    @step
    def rows_met(self, inputs):
        assert self._graph["rows_met"].split_parents == ["start", "left"] and not self._foreach_stack
        assert self._graph["row"].is_inside_foreach and self._graph["left"].matching_join == "rows_met"
        self.frames = [found.frame for found in inputs]
        self.merge_artifacts(inputs, include=["side", "kept"])
        self.next(self.met)

    @catch(var="failure")
    @retry(times=1)
    @step
    def right(self):
        self.side, self.half = "right", current.retry_count
        raise KeyError("gone")
        self.next(self.met)

    @step
    def met(self, inputs):
        assert refused(lambda: self.merge_artifacts(inputs), MetaflowException) == "UnhandledInMergeArtifactsException"
        missing = lambda: self.merge_artifacts(inputs, include=["never"])
        assert refused(missing, MissingInMergeArtifactsException) and not hasattr(self, "kept")
        refused(lambda: self.merge_artifacts(inputs, include=["kept"], exclude=["side"]), MetaflowException)
        self.merge_artifacts(inputs, exclude=["side"])
        self.graph = current.graph
        self.same = current.task.pathspec == current.pathspec and current.run.id == current.run_id
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Looking()
"""


def test_a_flow_knows_itself(project: Any) -> None:
    assert (current.flow_name, current.tempdir, current.is_parallel) == (None, None, False)
    project.write({"looking.py": LOOKING, "Looking.txt": "as it is"}).run("looking.py", "run", "--tag", "mine")
    outputs = {name: out.load() for name, out in project.client().runs()[0].steps["end"].outputs.items()}
    assert outputs["frames"] == [("row", "rows", 2, 0, "a"), ("row", "rows", 2, 1, "b")]
    assert outputs["same"] and outputs["half"] == 1 and outputs["failure"].type == "builtins.KeyError"
    graph = outputs["graph"]
    assert json.loads(json.dumps(graph)) == graph
    assert graph["graph_structure"] == ["start", [["left", [["row"]], "rows_met"], ["right"]], "met", "end"]
    left = {name: graph["steps"]["left"][name] for name in ("type", "next", "foreach_artifact", "matching_join")}
    assert list(left.values()) == ["split-foreach", ["row"], "rows", "rows_met"]
    assert [item["name"] for item in graph["constants"]] == ["LIMIT"]
    assert {"name": "sizes", "type": "Config"} in graph["parameters"]


def test_variables_stand_for_options_before_the_command(project: Any) -> None:
    text = """
    from stoker.flow import FlowSpec, current, step

    class Short(FlowSpec):
        @step(start=True, end=True)
        def only(self):
            print("hello")
            if current.retry_count < 2:
                raise ValueError("again")

    if __name__ == "__main__":
        Short()
    """
    project.write({"short.py": text})
    loud = project.run(
        "short.py", "--pylint", "--no-quiet", "--tag", "t", "run", env={"METAFLOW_DECOSPECS": "retry:times=2"}
    )
    assert "t" in project.client().runs()[0].tags
    quiet = project.run("short.py", "run", "--with", "retry:times=2", env={"STOKER_QUIET": "1"})
    assert "only │ hello" in loud.stderr and "only │ hello" not in quiet.stderr
    for words, env, message in (
        (["run"], {"METAFLOW_DEFAULT_DATASTORE": "s3"}, "artifact_store"),
        (["run"], {"METAFLOW_METADATA": "service"}, "--metadata=service"),
        (["--datastore-root", "s3://b", "run"], {}, "--stack NAME"),
        (["step", "only"], {}, "`spin STEP`"),
    ):
        assert message in project.run("short.py", *words, code=2, env=env).stderr
