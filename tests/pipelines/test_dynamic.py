"""The body of a dynamic pipeline: real values, futures, and keys that are the same whenever it runs again."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from stoker import pipeline, step
from stoker.core.errors import GraphError
from stoker.core.graph import Constant, FromStep, GraphNode, Many
from stoker.pipelines.tracing import ACTIVE


@step
def number(value: int) -> int:
    return value


@step
def pair(value: int) -> tuple[Annotated[int, "low"], Annotated[int, "high"]]:
    return value, value + 1


@step
def nothing() -> None: ...


@step
def total(values: list[int]) -> int:
    return sum(values)


class Session:
    """Runs every node at once, in the body's own thread, the way a debugger would."""

    def __init__(self) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self.values: dict[tuple[str, str], Any] = {}
        self.asked: list[str] = []

    def submit(self, node: GraphNode) -> None:
        assert ACTIVE.get() is None, "a step that runs here is a plain function"
        self.nodes[node.key] = node
        inputs = {name: self._value(binding) for name, binding in node.bindings.items()}
        function, outputs = node.step.function, node.step.outputs
        if node.mapped:
            fixed = {name: value for name, value in inputs.items() if name not in node.mapped}
            columns = [[(name, value) for value in inputs[name]] for name in node.mapped]
            results = [function(**dict(row), **fixed) for row in zip(*columns)]
            for index, output in enumerate(outputs):
                found = [result[index] for result in results] if node.step.unpack else results
                self.values[node.key, output.name] = found
            return
        result = function(**inputs)
        for index, output in enumerate(outputs):
            self.values[node.key, output.name] = result[index] if node.step.unpack else result

    def result(self, key: str, output: str) -> Any:
        self.asked.append(f"{key}.{output}")
        return self.values[key, output]

    def wait(self, key: str) -> None:
        self.asked.append(key)

    def _value(self, binding: Any) -> Any:
        if isinstance(binding, Constant):
            return binding.value
        if isinstance(binding, FromStep):
            return self.values[binding.node, binding.output]
        assert isinstance(binding, Many)
        return [self._value(item) for item in binding.items]


def run(body: Any, **arguments: Any) -> tuple[Any, Session]:
    session = Session()
    return pipeline(name="flow", dynamic=True)(body).run_body(arguments, session), session


def test_calls_wait_and_give_real_values() -> None:
    def body(n: int) -> Any:
        value = number(n)
        assert value == 3
        low, high = pair(value)
        assert nothing() is None
        return [number(index) for index in range(low, high + 1)]

    returned, session = run(body, n=3)
    assert returned == [3, 4]
    assert list(session.nodes) == ["number", "pair", "nothing", "number_2", "number_3"]
    assert session.asked == ["number.output", "pair.low", "pair.high", "nothing", "number_2.output", "number_3.output"]


def test_the_keys_are_the_same_when_it_runs_again() -> None:
    def body() -> None:
        for _ in range(3):
            number(1)

    assert list(run(body)[1].nodes) == list(run(body)[1].nodes) == ["number", "number_2", "number_3"]


def test_futures_are_not_loaded_until_asked() -> None:
    def body() -> Any:
        first = number.submit(1)
        second = number.submit(first)
        both = pair.submit(second)
        low, high = both
        rest = total.submit([low, both["high"], both[1]])
        return rest.result(), both.result(), high.result()

    returned, session = run(body)
    assert returned == (5, (1, 2), 2)
    assert session.nodes["number_2"].bindings["value"] == FromStep(node="number", output="output")
    assert session.asked == ["total.output", "pair.low", "pair.high", "pair.high"]


def test_a_map_gives_a_future_of_the_list() -> None:
    def body() -> Any:
        sizes = number.map([1, 2, 3])
        pairs = pair.map(sizes)
        lows, _ = pairs
        after = nothing.with_options(after=pairs).submit()
        return total(sizes), sizes.result(), pairs.result(), total(lows), after.result()

    returned, session = run(body)
    assert returned == (6, [1, 2, 3], [(1, 2), (2, 3), (3, 4)], 6, None)
    assert session.nodes["pair"].mapped == ("value",)
    assert session.nodes["pair"].bindings["value"] == FromStep(node="number", output="output")
    assert session.nodes["nothing"].after == ("pair",)


def test_a_future_has_limits() -> None:
    def iterated() -> None:
        list(number.submit(1))

    with pytest.raises(GraphError, match=r"step 'number' has one output; .*\n  fix: iterate over \.result\(\)"):
        run(iterated)
    with pytest.raises(GraphError, match="step 'pair' has no output 'lwo', did you mean 'low'"):
        run(lambda: pair.submit(1)["lwo"])
    with pytest.raises(GraphError, match="which returns nothing"):
        run(lambda: number(nothing.submit()))  # type: ignore[arg-type]
    assert repr(run(lambda: number.submit(1))[0]) == "<future of output 'output' of step 'number'>"


def test_a_step_called_by_a_step_is_a_plain_function() -> None:
    @step
    def outer(value: int) -> int:
        return number(value) + 1

    returned, session = run(lambda: outer(1))
    assert returned == 2
    assert list(session.nodes) == ["outer"]


def test_pipelines_inside() -> None:
    @pipeline
    def static(value: int) -> Any:
        return number(value)

    @pipeline(dynamic=True, retry=2)
    def lively(value: int) -> Any:
        return number(value) + 1

    returned, session = run(lambda: static(1) + lively(2))
    assert returned == 4
    assert list(session.nodes) == ["static.number", "lively.number"]
    assert session.nodes["lively.number"].step.layers[0].values == {"retry": {"times": 2}}


def test_a_failure_is_raised_where_the_result_is_asked_for() -> None:
    class Failing(Session):
        def result(self, key: str, output: str) -> Any:
            raise RuntimeError(key)

    def body() -> str:
        future = number.submit(1)
        try:
            future.result()
        except RuntimeError as error:
            return f"caught {error}"
        return ""

    assert pipeline(dynamic=True)(body).run_body({}, Failing()) == "caught number"


def test_a_dynamic_pipeline_has_no_graph_before_it_runs() -> None:
    @pipeline(dynamic=True, retry=1)
    def lively(n: int = 2) -> None:
        number(n)

    graph = lively.trace()
    assert (graph.dynamic, graph.nodes, graph.parameters, graph.name) == (True, (), {"n": 2}, "lively")
    assert graph == graph
    assert graph.layers == lively.layers
