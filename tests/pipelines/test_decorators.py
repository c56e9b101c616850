"""What `@step` and `@pipeline` accept, what they refuse and with which words, and what functions keep."""

from __future__ import annotations

import functools
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Callable

import pytest

import stoker
from stoker import pipeline, step
from stoker.config import ResourceSettings, Retry
from stoker.core import request
from stoker.core.errors import GraphError, ParameterError, SettingsError, UsageError
from stoker.core.request import NotTheDriver, RunRequest
from stoker.pipelines.functional import Pipeline, Step

if TYPE_CHECKING:
    from nowhere import Tensor


@step
def double(value: int) -> int:
    """Twice the value."""
    return value * 2


@step
def shapes(x: Tensor) -> Annotated[Tensor, "features"]:
    return x


@step
def later(x: int) -> Later:
    return Later()


class Later: ...


@pipeline
def training(lr: float = 0.1, *, epochs: int = 3) -> None:
    """Train."""
    double(epochs)


def test_a_step_outside_a_pipeline_is_its_function() -> None:
    assert double(4) == 8
    assert double.map([1, 2]) == [2, 4]
    assert isinstance(double, Step)
    assert (double.name, double.__name__, double.__doc__) == ("double", "double", "Twice the value.")
    assert double.__wrapped__ is double.function  # type: ignore[attr-defined]
    assert str(inspect.signature(double)) == "(value: 'int') -> 'int'"
    assert repr(double).startswith("<step 'double' of ")


def test_plain_map_is_the_same_as_the_pipelines() -> None:
    @step
    def power(base: int, exponent: int) -> int:
        return base**exponent

    assert power.map([2, 3], exponent=2) == [4, 9]
    assert power.map([2, 3], [2, 1]) == [4, 3]
    assert power.map(base=2, exponent=stoker.each([1, 2])) == [2, 4]
    with pytest.raises(ParameterError, match="differ in length"):
        power.map([2, 3], [1])
    with pytest.raises(ParameterError, match="are missing"):
        power.map(base=2)


def test_submit_outside_a_pipeline() -> None:
    with pytest.raises(UsageError, match=r"submit\(…\) outside a pipeline\n  fix: call the step like a function"):
        double.submit(1)


def _outputs(function: Callable[..., Any]) -> tuple[list[tuple[str, str]], bool]:
    spec = step(function).spec
    return [(output.name, output.type) for output in spec.outputs], spec.unpack


def test_outputs_of_a_return_annotation() -> None:
    def none() -> None: ...
    def one() -> int: ...
    def named() -> Annotated[int, "count"]: ...
    def several() -> tuple[Annotated[int, "count"], str]: ...
    def numbers() -> tuple[int, ...]: ...
    def bare() -> tuple: ...  # type: ignore[type-arg]
    def empty() -> tuple[()]: ...
    def nothing_said(): ...  # type: ignore[no-untyped-def]
    def whole() -> Annotated[tuple[int, str], "pair"]: ...

    assert _outputs(none) == ([], False)
    assert _outputs(one) == ([("output", "int")], False)
    assert _outputs(named) == ([("count", "int")], False)
    assert _outputs(several) == ([("count", "int"), ("output_1", "str")], True)
    assert _outputs(numbers) == ([("output", "tuple[int, ...]")], False)
    assert _outputs(bare) == ([("output", "tuple")], False)
    assert _outputs(empty)[1] is False
    assert _outputs(nothing_said) == ([("output", "Any")], False)
    assert _outputs(whole) == ([("pair", "tuple[int, str]")], False)


def test_outputs_with_bad_names() -> None:
    def twice() -> tuple[Annotated[int, "a"], Annotated[int, "a"]]: ...
    def clash() -> tuple[Annotated[int, "output_1"], int]: ...
    def blank() -> Annotated[int, ""]: ...

    for function in (twice, clash):
        with pytest.raises(GraphError, match="two outputs are called"):
            step(function)
    with pytest.raises(GraphError, match="an output has an empty name"):
        step(blank)


def test_annotations_that_only_a_type_checker_knows() -> None:
    assert [(found.name, found.type) for found in shapes.spec.outputs] == [("features", "Tensor")]
    assert shapes.spec.inputs[0].type == "Tensor"


def test_a_class_that_is_defined_further_down() -> None:
    @pipeline
    def flow() -> None:
        later(1)

    assert later.spec.outputs[0].type == "Later"
    node = flow.trace().nodes[0]
    assert node.step.outputs[0].type == f"{__name__}.Later"


def test_inputs() -> None:
    def function(a: int, b, *, c: str = "x", **rest: float) -> None: ...  # type: ignore[no-untyped-def]

    found = step(function).spec.inputs
    assert [(one.name, one.type, one.required) for one in found] == [
        ("a", "int", True),
        ("b", "Any", True),
        ("c", "str", False),
    ]


def _generator() -> Any:
    yield 1


async def _coroutine() -> None: ...


async def _async_generator() -> Any:
    yield 1


def _stars(*values: int) -> None: ...


def _positional(a: int, /) -> None: ...


class _Holder:
    def method(self) -> None: ...
    @staticmethod
    def static() -> None: ...


@pytest.mark.parametrize("decorator", [step, pipeline])
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_generator, "on _generator, a generator: what it yields could not be kept\n  fix: collect it into a list"),
        (_async_generator, "a generator"),
        (_coroutine, "an async function\n  fix: write a plain function that calls asyncio.run"),
        (_stars, r"takes \*values; its arguments must have names"),
        (_positional, "takes a by position only"),
        (_Holder, r"on class _Holder\n  fix: put @(step|pipeline) on a function"),
        (_Holder.method, r"on a method, _Holder\.method\n.*hand over what it needs of self as parameters"),
        (_Holder.static, "on a method"),
        (staticmethod(_stars), "on a method"),
        (functools.partial(_stars), "on partial, which is no Python function"),
        (len, "which is no Python function"),
        (3, "on int, which is no Python function"),
        (double, "on <step 'double'"),
        (training, "on <pipeline 'training'"),
    ],
)
def test_what_cannot_be_decorated(decorator: Any, function: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        decorator(function)
    assert __file__.rpartition("/")[2] in caught.value.where


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(UsageError, match="@step has no option 'retires', did you mean 'retry'"):
        step(retires=3)(double.function)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="@pipeline has no option 'taggs', did you mean 'tags'"):
        pipeline(taggs=[])(training.function)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match=r"step 'double'\.with_options has no option 'ids', did you mean 'id'"):
        double.with_options(ids="x")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="on_failure='mail' is not a function"):
        step(on_failure="mail")(double.function)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="on_failure=None is not a function"):
        double.with_options(on_failure=None)  # type: ignore[typeddict-item]


def test_bad_names() -> None:
    for name in ("", "a.b", "a[0]", "a/b", 3):
        with pytest.raises(UsageError, match="cannot be the name of a step"):
            step(name=name)(double.function)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="cannot be the id of a step"):
            double.with_options(id=name)  # type: ignore[typeddict-item]
    with pytest.raises(UsageError, match="is not a list of texts"):
        pipeline(tags="nightly")(training.function)


def test_settings_become_layers_that_know_their_place() -> None:
    here = os.path.basename(__file__)

    @step(retry=Retry(2), settings={"resources": ResourceSettings(gpu_count=2)}, timeout="1h")
    def heavy() -> None: ...

    (layer,) = heavy.spec.layers
    assert layer.values == {"resources": {"gpu_count": 2}, "retry": {"times": 2}, "timeout": 3600.0}
    assert layer.level == "step"
    assert layer.origin.endswith(" @step")
    assert here in layer.origin
    assert double.spec.layers == ()

    @pipeline(cache=False, failure_mode="continue", max_parallel=2, tags=["a"], stack="team", name="flow")
    def flow() -> None:
        heavy.with_options(retry=1)()

    (layer,) = flow.layers
    assert layer.values == {"cache": False, "failure_mode": "continue", "max_parallel": 2}
    assert layer.level == "pipeline"
    assert layer.origin.endswith(" @pipeline")
    assert (flow.name, flow.tags, flow.stack, flow.dynamic) == ("flow", ("a",), "team", False)
    (node,) = flow.trace().nodes
    assert node.layers[0].values == {"retry": {"times": 1}}
    assert node.layers[0].origin.endswith(" with_options")


def test_settings_errors_name_the_place() -> None:
    with pytest.raises(SettingsError, match=r"test_decorators\.py:\d+ @step: .*resources.*'gpus'"):

        @step(settings={"resources": {"gpus": 2}})
        def heavy() -> None: ...

    with pytest.raises(SettingsError, match="for a whole pipeline, not for one step"):

        @step(settings={"max_parallel": 2})
        def other() -> None: ...


def test_pipelines_with_options() -> None:
    def told() -> None: ...

    other = training.with_options(name="night", tags=("x",), stack="team", retry=2, on_success=told)
    assert isinstance(other, Pipeline)
    assert (other.name, other.tags, other.stack) == ("night", ("x",), "team")
    assert other.layers[0].values == {"retry": {"times": 2}}
    assert other.hooks == {"on_success": told}
    assert (training.name, training.tags, training.layers) == ("training", (), ())


def test_pipeline_parameters_for_a_command_line() -> None:
    found = training.parameters
    assert list(found) == ["lr", "epochs"]
    assert (found["lr"].annotation, found["lr"].default, found["lr"].required) == (float, 0.1, False)
    assert training.bind({"lr": "3e-4"}) == {"lr": 3e-4, "epochs": 3}
    with pytest.raises(ParameterError, match="pipeline 'training': lr: expected float, got 'abc'"):
        training.bind({"lr": "abc"})
    with pytest.raises(ParameterError, match="pipeline 'training' has no parameter 'epoch', did you mean 'epochs'"):
        training.bind({"epoch": 3})


class _Driver:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, RunRequest]] = []

    def __call__(self, pipeline: Any, arguments: Any, request: RunRequest) -> str:
        self.calls.append((pipeline, arguments, request))
        return "the run"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    found = _Driver()
    monkeypatch.setattr("stoker.run.start.run", found)
    return found


def test_calling_a_pipeline_hands_it_to_the_driver(driver: _Driver) -> None:
    assert training(0.5) == "the run"
    ((called, arguments, asked),) = driver.calls
    assert called is training
    assert arguments == {"lr": 0.5}, "defaults are filled in after the command line has had its say"
    assert asked == RunRequest()


def test_a_request_of_the_command_line_is_handed_on(driver: _Driver) -> None:
    wanted = RunRequest(stack="team", debug=True)
    token = request.REQUEST.set(wanted)
    try:
        training()
    finally:
        request.REQUEST.reset(token)
    assert driver.calls[0][2] == wanted


def test_wrong_arguments_never_reach_the_driver(driver: _Driver) -> None:
    with pytest.raises(
        ParameterError, match=r"test_decorators\.py:\d+: pipeline 'training': lr takes float, got 'abc'"
    ):
        training("abc")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"takes 1 argument by position \(lr\), 2 given"):
        training(0.1, 3)  # type: ignore[call-arg]
    assert not driver.calls


def test_a_worker_that_imports_the_module_starts_no_run(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "WORKER", True)
    with pytest.raises(NotTheDriver):
        training()
    assert not issubclass(NotTheDriver, Exception)
    assert not driver.calls
    assert [node.key for node in training.trace().nodes] == ["double"]


def test_steps_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(double)) is double
    assert pickle.loads(pickle.dumps(training)) is training


def test_the_public_face() -> None:
    assert stoker.__all__ == sorted(stoker.__all__, key=lambda name: (name.islower(), name))
    assert {"step", "pipeline", "Client"} <= set(dir(stoker))
    assert stoker.step is step
    with pytest.raises(AttributeError, match="module 'stoker' has no attribute 'stepp'"):
        _ = stoker.stepp  # type: ignore[attr-defined]


def test_the_version_is_the_packages(repository: Path) -> None:
    assert f'version = "{stoker.__version__}"' in (repository / "pyproject.toml").read_text()


TYPED = """
from stoker import pipeline, step

@step
def double(value: int) -> int:
    return value * 2

@step(retry=2, resources={"gpu_count": 1})
def text(value: int) -> str:
    return str(value)

@pipeline(max_parallel=2)
def flow(n: int = 1) -> None:
    reveal_type(double(n))
    reveal_type(text.with_options(id="x", cache=False)(double(n)))
    double("a")
    text(n, 3)
    reveal_type(double.submit(n).result())

@step(retires=2)
def wrong() -> None: ...
"""


@pytest.mark.slow  # a type checker's start
@pytest.mark.xdist_group("mypy")  # the second of two finds the types of the first in the cache
def test_type_checkers_see_the_functions_signatures(tmp_path: Path, repository: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", str(tmp_path / "typed.py")],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    told = finished.stdout
    assert told.count('Revealed type is "int"') + told.count('Revealed type is "builtins.int"') == 2, told
    assert 'Revealed type is "str"' in told or 'Revealed type is "builtins.str"' in told
    assert 'incompatible type "str"; expected "int"' in told
    assert "Too many arguments" in told
    assert "retires" in told or "No overload variant" in told


def test_a_lambda_is_asked_for_a_name() -> None:
    with pytest.raises(UsageError, match="a lambda has no name") as refused:
        step(lambda: 1)
    assert "with def" in str(refused.value)
