"""What a pipeline's body becomes: nodes, bindings, keys; and what it must not do with outputs."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest

from stoker import pipeline, step
from stoker.core.errors import GraphError, ParameterError, UsageError
from stoker.core.graph import Constant, Entries, FromStep, Graph, GraphNode, Many, upstream


@step
def load() -> Annotated[list[int], "numbers"]:
    return [1]


@step
def split(numbers: list[int], part: float = 0.5) -> tuple[Annotated[list[int], "train"], Annotated[int, "count"]]:
    return numbers, 2


@step
def train(numbers: list[int], lr: float = 0.1) -> dict[str, Any]:
    return {}


@step
def text() -> str:
    return ""


@step
def merge(items: list[Any], names: dict[str, Any] | None = None, **more: int) -> None: ...


@step
def loose(value) -> Any:  # type: ignore[no-untyped-def]
    return value


@step
def save(folder: Path, *, deep: bool = False) -> None: ...


def traced(body: Any, **options: Any) -> Graph:
    return pipeline(name="flow", **options)(body).trace()


def nodes(body: Any, **options: Any) -> dict[str, GraphNode]:
    return {node.key: node for node in traced(body, **options).nodes}


def plain(binding: Any) -> Any:
    """A binding for comparison: constants as they are, outputs as "step.output"."""
    if isinstance(binding, Constant):
        return binding.value
    if isinstance(binding, FromStep):
        return f"{binding.node}.{binding.output}"
    if isinstance(binding, Many):
        return [plain(item) for item in binding.items]
    assert isinstance(binding, Entries)
    return {name: plain(item) for name, item in binding.items.items()}


def bindings(node: GraphNode) -> dict[str, Any]:
    return {name: plain(binding) for name, binding in node.bindings.items()}


def refused(body: Any, kind: type[Exception], words: str) -> Any:
    with pytest.raises(kind, match=words) as caught:
        traced(body)
    return caught.value


def test_calls_become_nodes_in_order() -> None:
    @pipeline
    def flow(lr: float = 0.5) -> None:
        numbers, count = split(load())
        train(numbers, lr=lr)
        loose(count)

    graph = flow.trace(lr=2)
    assert [node.key for node in graph.nodes] == ["load", "split", "train", "loose"]
    assert [bindings(node) for node in graph.nodes] == [
        {},
        {"numbers": "load.numbers", "part": 0.5},
        {"numbers": "split.train", "lr": 2},
        {"value": "split.count"},
    ]
    assert graph.parameters == {"lr": 2}
    assert graph.nodes[1].step is split.spec
    assert graph.nodes[1].where.startswith(("test_tracing.py:", "tests/pipelines/test_tracing.py:"))
    assert [upstream(node) for node in graph.nodes] == [[], ["load"], ["split"], ["split"]]


def test_several_outputs_are_like_a_tuple() -> None:
    def body() -> None:
        both = split(load())
        assert len(both) == 2
        loose(both[0])
        loose(both[-1])
        loose(both["count"])  # type: ignore[call-overload]
        loose(both)
        merge([*both])

    found = nodes(body)
    assert bindings(found["loose"]) == {"value": "split.train"}
    assert bindings(found["loose_2"]) == {"value": "split.count"}
    assert bindings(found["loose_3"]) == {"value": "split.count"}
    assert bindings(found["loose_4"]) == {"value": ["split.train", "split.count"]}
    assert bindings(found["merge"])["items"] == ["split.train", "split.count"]
    refused(lambda: split(load())["trian"], GraphError, "step 'split' has no output 'trian', did you mean 'train'")  # type: ignore[call-overload]
    refused(
        lambda: save(split(load())), GraphError, r"takes folder: .*Path, step 'split' gives 2 outputs \(train, count\)"
    )  # type: ignore[arg-type]


def test_outputs_inside_lists_tuples_and_dicts() -> None:
    def body() -> None:
        a = train(load())
        merge([a, 3, [a, {"x": a}]], names={"a": a, "b": [1, a], "c": 2})
        merge((a, a), more=1)
        merge([1, 2], names={"x": 1})

    found = nodes(body)
    out = "train.output"
    assert bindings(found["merge"]) == {
        "items": [out, 3, [out, {"x": out}]],
        "names": {"a": out, "b": [1, out], "c": 2},
    }
    assert bindings(found["merge_2"]) == {"items": [out, out], "names": None, "more": 1}
    assert isinstance(found["merge_3"].bindings["items"], Constant)


def test_outputs_in_places_that_no_worker_could_fill() -> None:
    refused(lambda: loose({text()}), GraphError, "value is a set with a step's output in it\n  fix: use a list")
    refused(lambda: loose({1: text()}), GraphError, "a dict of outputs with the key 1\n  fix: use texts as keys")
    refused(lambda: pickle.dumps(text()), GraphError, "cannot be put inside an object")
    refused(lambda: copy.copy(text()), GraphError, "cannot be put inside an object")


def test_named_tuples_of_outputs() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    found = nodes(lambda: loose(Pair(text(), 2)))
    assert bindings(found["loose"]) == {"value": ["text.output", 2]}


def test_what_the_body_does_to_a_list_later_does_not_matter() -> None:
    def body() -> None:
        items: list[Any] = []
        inner = {"x": items}
        loose(items)
        loose(inner)
        items.append(1)
        loose(items)

    found = nodes(body)
    assert [bindings(node) for node in found.values()] == [{"value": []}, {"value": {"x": []}}, {"value": [1]}]


def test_a_list_that_holds_itself_is_left_alone() -> None:
    items: list[Any] = []
    items.append(items)
    assert "loose" in nodes(lambda: loose(items))


def test_arrays_are_constants_as_they_are() -> None:
    array = np.arange(3)
    constant = nodes(lambda: loose(array))["loose"].bindings["value"]
    assert isinstance(constant, Constant)
    assert constant.value is array


def test_keys() -> None:
    @step
    def train_2() -> None: ...

    def body() -> None:
        train([1])
        train_2()
        train([1])
        train([1])
        train.with_options(id="last")([1])
        train.with_options(name="tune")([1])
        train.with_options(name="tune")([1])

    assert list(nodes(body)) == ["train", "train_2", "train_3", "train_4", "last", "tune", "tune_2"]

    def twice() -> None:
        train.with_options(id="x")([1])
        train.with_options(id="x")([2])

    error = refused(twice, GraphError, r"two steps have the id 'x' \(the other is called at .*test_tracing\.py:\d+\)")
    assert "give one of them another id=" in error.fix


def test_the_key_of_an_option_is_not_taken_twice() -> None:
    def body() -> None:
        train.with_options(id="train_2")([1])
        train([1])
        train([1])

    assert list(nodes(body)) == ["train_2", "train", "train_3"]


def test_after() -> None:
    def body() -> None:
        done = merge([])
        both = split(load())
        train.with_options(after=done)([1])
        train.with_options(after=[done, "load", both, both["count"]])([1])  # type: ignore[call-overload]

    found = nodes(body)
    assert found["train"].after == ("merge",)
    assert found["train_2"].after == ("merge", "load", "split", "split")
    refused(lambda: train.with_options(after=3)([1]), UsageError, "after=3 is neither a step's result nor its key")
    refused(
        lambda: train.with_options(after="load")([1]), GraphError, "waits for 'load', which is not in this pipeline"
    )


def test_with_options_adds_up() -> None:
    def hook() -> None: ...

    other = train.with_options(retry=2, on_failure=hook).with_options(retry=3, id="x")
    (node,) = nodes(lambda: other([1])).values()
    assert [layer.values for layer in node.layers] == [{"retry": {"times": 2}}, {"retry": {"times": 3}}]
    assert node.hooks == {"on_failure": hook}
    assert node.key == "x"
    assert train.with_options(name="tune").spec.layers == train.spec.layers


def test_a_path_is_made_of_a_text() -> None:
    assert bindings(nodes(lambda: save("data"))["save"]) == {"folder": Path("data"), "deep": False}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: train(), r"test_tracing\.py:\d+: step 'train' needs numbers: list\[int\]\n  fix: give numbers=…"),
        (lambda: train([1], number=2), r"step 'train' has no parameter 'number', did you mean 'numbers'\?"),
        (lambda: train([1], 2, 3), r"step 'train' takes 2 arguments by position \(numbers, lr\), 3 given"),
        (lambda: save("x", True), r"takes 1 argument by position \(folder\), 2 given"),
        (lambda: train([1], numbers=[2]), "step 'train' got numbers twice, by position and by name"),
        (lambda: train([1], lr="abc"), r"test_tracing\.py:\d+: step 'train': lr takes float, got 'abc' \(str\)"),
        (lambda: merge([], extra="x"), r"step 'merge': extra takes int, got 'x' \(str\)"),
        (lambda: train([text(), "x"]), r"step 'train': numbers\[1\] takes int, got 'x'|takes numbers\[0\]"),
        (lambda: save([text()]), "folder takes .*Path, got a list of outputs"),
    ],
)
def test_wrong_arguments(body: Any, words: str) -> None:
    with pytest.raises((ParameterError, GraphError), match=words):
        traced(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: train(text()), r"step 'train' takes numbers: list\[int\], step 'text' gives output: str"),
        (lambda: train([text()]), r"step 'train' takes numbers\[0\]: int, step 'text' gives output: str"),
        (lambda: train([1], lr=load()), r"step 'train' takes lr: float, step 'load' gives numbers: list\[int\]"),
    ],
)
def test_outputs_that_never_fit(body: Any, words: str) -> None:
    assert "a step between them that converts" in refused(body, GraphError, words).fix


def test_nothing_is_no_input() -> None:
    error = refused(lambda: loose(merge([])), GraphError, "is given the end of step 'merge', which returns nothing")
    assert ".with_options(after=…)" in error.fix


def _with(value: Any) -> None:
    with value:
        pass


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (list, "cannot be iterated over"),
        (lambda x: [*x], "cannot be iterated over"),
        (lambda x: 3 in x, "cannot be iterated over"),
        (bool, "cannot decide an if or a while"),
        (lambda x: not x, "cannot decide an if or a while"),
        (len, "has no length yet"),
        (lambda x: x[0], "cannot be indexed"),
        (lambda x: x(), "cannot be called"),
        (lambda x: f"{x}", "cannot be put into a text"),
        (int, "is no number yet"),
        (lambda x: range(x), "is no number yet"),
        (lambda x: x + 1, "cannot be calculated with"),
        (lambda x: 1 - x, "cannot be calculated with"),
        (lambda x: -x, "cannot be calculated with"),
        (lambda x: x > 0.5, "cannot be compared"),
        (lambda x: x == 1, "cannot be compared"),
        (lambda x: x.mean(), "has no attribute 'mean' yet"),
        (lambda x: setattr(x, "y", 1), "cannot be changed"),
        (_with, "cannot be used in a with"),
    ],
)
def test_an_output_has_no_value_yet(use: Any, words: str) -> None:
    error = refused(lambda: use(load()), GraphError, f"output 'numbers' of step 'load' {words}")
    assert "its value is not known while the pipeline is traced" in error.message
    assert error.fix.startswith("do it inside a step, call .map(…)")
    assert "@pipeline(dynamic=True)" in error.fix
    assert "test_tracing.py:" in error.where


def test_an_output_can_be_looked_at_and_hashed() -> None:
    def body() -> None:
        one, other = load(), load()
        assert repr(one) == "<output 'numbers' of step 'load': not known before the pipeline runs>"
        assert len({one, other}) == 2
        assert not hasattr(one, "__array__")

    traced(body)


def test_outputs_stay_in_their_pipeline() -> None:
    kept: list[Any] = []
    traced(lambda: kept.append(load()))
    error = refused(
        lambda: train(kept[0]), GraphError, "is given output 'numbers' of step 'load' of another pipeline's run"
    )
    assert "Client()" in error.fix
    refused(
        lambda: train.with_options(after=kept[0])([1]), GraphError, "after= names output 'numbers'.* of another run"
    )
    with pytest.raises(GraphError, match="cannot be iterated over"):
        train(list(kept[0]))


def test_a_pipeline_without_steps() -> None:
    error = refused(lambda: None, GraphError, "calls no step")
    assert "@step" in error.fix


def test_a_pipeline_cannot_be_traced_inside_another() -> None:
    @pipeline
    def inner() -> None:
        load()

    refused(lambda: inner.trace(), GraphError, "pipeline 'inner' is traced inside a pipeline\n  fix: call it")


def test_an_error_of_the_body_ends_the_trace() -> None:
    def body() -> None:
        load()
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        traced(body)
    assert load() == [1], "outside again"


def test_pipeline_arguments_are_checked() -> None:
    @pipeline
    def flow(lr: float, folder: Path = Path("x"), **more: int) -> None:
        loose([lr, folder, more])

    graph = flow.trace(1, folder="y", extra=3)  # type: ignore[arg-type]
    assert graph.parameters == {"lr": 1, "folder": Path("y"), "extra": 3}
    with pytest.raises(
        ParameterError, match=r"test_tracing\.py:\d+: pipeline 'flow': lr takes float, got 'abc' \(str\)"
    ):
        flow.trace("abc")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="pipeline 'flow' needs lr: float"):
        flow.trace()  # type: ignore[call-arg]


# Pipelines inside pipelines


def _hook() -> None: ...


def _other_hook() -> None: ...


@pipeline(retry=2, failure_mode="continue", on_failure=_hook, on_success=_hook)
def inner(numbers: list[int], lr: float = 0.1) -> Any:
    return train(numbers, lr=lr)


def test_a_nested_pipeline_is_traced_inline() -> None:
    def body() -> None:
        first = inner(load())
        second = inner([1], lr=0.2)
        merge([first, second])

    found = nodes(body)
    assert list(found) == ["load", "inner.train", "inner_2.train", "merge"]
    assert bindings(found["inner.train"]) == {"numbers": "load.numbers", "lr": 0.1}
    assert bindings(found["merge"])["items"] == ["inner.train.output", "inner_2.train.output"]


def test_a_nested_pipelines_settings_are_weaker_than_its_steps() -> None:
    special = train.with_options(retry=5)

    @step(retry=3, on_failure=_other_hook)
    def own() -> None: ...

    @pipeline(retry=2, failure_mode="continue", on_failure=_hook, on_success=_hook)
    def middle() -> None:
        special([1])
        own()
        inner([1])

    found = nodes(lambda: (middle(), train([1])))
    assert list(found) == ["middle.train", "middle.own", "middle.inner.train", "train"]
    assert found["train"].step is train.spec
    values = {key: [layer.values for layer in (*node.step.layers, *node.layers)] for key, node in found.items()}
    retry = {times: {"retry": {"times": times}} for times in (2, 3, 5)}
    assert values["middle.train"] == [retry[2], retry[5]], "what is for a whole run is not for a step"
    assert values["middle.own"] == [retry[2], retry[3]]
    assert values["middle.inner.train"] == [retry[2], retry[2]]
    assert found["middle.own"].step.hooks == {"on_failure": _other_hook, "on_success": _hook}
    assert found["middle.train"].step.hooks == {"on_failure": _hook, "on_success": _hook}


def test_nested_ids_and_names() -> None:
    @pipeline
    def named() -> None:
        train.with_options(id="x")([1])

    assert list(nodes(lambda: (named(), named(), load.with_options(name="named")()))) == [
        "named.x",
        "named_2.x",
        "named",
    ]


def test_nested_arguments_are_checked() -> None:
    refused(
        lambda: inner(text()), GraphError, r"pipeline 'inner' takes numbers: list\[int\], step 'text' gives output: str"
    )
    refused(lambda: inner([1], lr="x"), ParameterError, "pipeline 'inner': lr takes float, got 'x'")
    refused(lambda: inner(), ParameterError, "pipeline 'inner' needs numbers")
    assert "inner.train" in nodes(lambda: inner([split(load())[1]]))


def test_a_dynamic_pipeline_in_a_static_one() -> None:
    @pipeline(dynamic=True)
    def lively() -> None:
        load()

    error = refused(lambda: lively(), GraphError, "pipeline 'lively' is dynamic and is called in 'flow', which is not")
    assert "@pipeline(dynamic=True)" in error.fix


def test_a_pipeline_that_calls_itself() -> None:
    @pipeline
    def again() -> None:
        load()
        again()

    with pytest.raises(GraphError, match=r"more than 50 pipelines inside each other\n  fix: let 'again' call"):
        again.trace()

    @pipeline
    def halves(n: int) -> None:
        load()
        if n > 1:
            halves(n // 2)

    assert [node.key for node in halves.trace(4).nodes] == ["load", "halves.load", "halves.halves.load"]
