"""`.map`: what is iterated over, what is fixed, and what its result is given to."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pytest

from stoker import each, pipeline, step
from stoker.core.errors import GraphError, ParameterError
from stoker.core.graph import Constant, FromStep, GraphNode, Many


@step
def files() -> list[str]:
    return []


@step
def number() -> int:
    return 1


@step
def two() -> tuple[Annotated[int, "left"], Annotated[int, "right"]]:
    return 1, 2


@step
def read(file: str, times: int = 1) -> Annotated[int, "size"]:
    return 1


@step
def halves(size: int) -> tuple[Annotated[int, "low"], Annotated[int, "high"]]:
    return 1, 2


@step
def total(sizes: list[int]) -> int:
    return sum(sizes)


@step
def touch(file: str) -> None: ...


def nodes(body: Any) -> dict[str, GraphNode]:
    return {node.key: node for node in pipeline(name="flow")(body).trace().nodes}


def refused(body: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        nodes(body)


def test_over_a_list_that_is_known_at_run_time() -> None:
    node = nodes(lambda: read.map(files()))["read"]
    assert node.mapped == ("file",)
    assert node.bindings["file"] == FromStep(node="files", output="output")
    times = node.bindings["times"]
    assert isinstance(times, Constant)
    assert times.value == 1


def test_over_a_plain_list() -> None:
    for items in (["a", "b"], ("a", "b"), iter("ab"), np.array(["a", "b"])):
        binding = nodes(lambda items=items: read.map(items, times=2))["read"].bindings["file"]
        assert isinstance(binding, Constant)
        assert binding.value == ["a", "b"]
    assert nodes(lambda: read.map([]))["read"].mapped == ("file",)


def test_side_by_side_and_by_name() -> None:
    assert nodes(lambda: read.map(["a"], [1]))["read"].mapped == ("file", "times")
    assert nodes(lambda: read.map(times=each([1]), file=each(["a"])))["read"].mapped == ("file", "times")
    assert nodes(lambda: read.map(file="a", times=each([1, 2])))["read"].mapped == ("times",)
    assert nodes(lambda: read.map(each(["a"]), times=3))["read"].mapped == ("file",)


def test_a_list_with_outputs_in_it() -> None:
    node = nodes(lambda: halves.map([number(), 3]))["halves"]
    assert isinstance(node.bindings["size"], Many)
    assert node.mapped == ("size",)
    assert isinstance(nodes(lambda: halves.map(two()))["halves"].bindings["size"], Many)


def test_a_mapped_result_is_a_list_for_a_step_and_elements_for_a_map() -> None:
    def body() -> None:
        sizes = read.map(files())
        total(sizes)
        low, high = halves.map(sizes)
        total(low)
        total.with_options(after=touch.map(files()))([1])
        read.map(["x"], times=high)

    found = nodes(lambda: _without_last(body))
    assert found["total"].bindings["sizes"] == FromStep(node="read", output="size")
    assert found["total"].mapped == ()
    assert found["halves"].bindings["size"] == FromStep(node="read", output="size")
    assert found["halves"].mapped == ("size",)
    assert found["total_2"].bindings["sizes"] == FromStep(node="halves", output="low")
    assert found["total_3"].after == ("touch",)


def _without_last(body: Any) -> None:
    """The last call hands a list where one number is wanted."""
    with pytest.raises(GraphError, match=r"step 'read' takes times: int, step 'halves' gives high: list\[int\]"):
        body()


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (
            lambda: read.map(),
            ParameterError,
            r"step 'read'\.map\(…\) has nothing to iterate over\n  fix: give the list",
        ),
        (lambda: read.map(file="a"), ParameterError, "has nothing to iterate over"),
        (lambda: read.map("abc"), ParameterError, r"is mapped over file, which is no list but 'abc' \(str\)"),
        (lambda: read.map({"a": 1}), ParameterError, "is mapped over file, which is no list but"),
        (lambda: read.map(3), ParameterError, "is mapped over file, which is no list but 3"),
        (lambda: read.map(["a", 3]), ParameterError, r"step 'read': file takes str, got 3 \(int\)"),
        (lambda: read.map(["a", "b"], [1]), ParameterError, "differ in length: file has 2, times has 1"),
        (lambda: halves.map(number()), GraphError, "is mapped over output 'output' of step 'number', which is int"),
        (lambda: halves.map(files()), GraphError, "step 'halves' takes size: int, step 'files' gives output: str"),
        (lambda: halves.map(touch.map(["a"])), GraphError, "is given the end of step 'touch', which returns nothing"),
        (lambda: halves(read.map(files())), GraphError, r"takes size: int, step 'read' gives size: list\[int\]"),
        (lambda: read(each(["a"])), ParameterError, r"file=each\(…\) in a plain call\n  fix: call \.map"),
        (lambda: read.map(["a"], tims=1), ParameterError, "has no parameter 'tims', did you mean 'times'"),
        (lambda: read.submit("a"), GraphError, r"\.submit\(…\) in a pipeline that is not dynamic"),
    ],
)
def test_what_cannot_be_mapped(body: Any, kind: type[Exception], words: str) -> None:
    refused(body, kind, words)
