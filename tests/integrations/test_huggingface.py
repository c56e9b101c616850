"""`run_with_accelerate` above and below `@step`, bare and with arguments; and its misuse."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import pipeline, step
from stoker.config import Accelerate, Torchrun
from stoker.core.errors import SettingsError, UsageError
from stoker.core.settings import plain
from stoker.integrations.huggingface import run_with_accelerate


def launches(made: Any) -> list[dict[str, Any]]:
    """What the layers of a call to a step say of its launch."""

    @pipeline
    def one() -> None:
        made()

    (node,) = one.trace().nodes
    layers = (*node.step.layers, *node.layers)
    return [layer.values["launch"] for layer in layers if "launch" in layer.values]


@run_with_accelerate
@step
def above() -> int:
    return 1


@run_with_accelerate(num_processes=4, multi_gpu=True)
@step(timeout="2h")
def above_with_arguments() -> int:
    return 2


@step
@run_with_accelerate
def below() -> int:
    return 3


@step(timeout="2h")
@run_with_accelerate(cpu=True, num_processes=2)
def below_with_arguments() -> int:
    return 4


@pytest.mark.parametrize(
    ("made", "launch"),
    [
        (above, Accelerate()),
        (above_with_arguments, Accelerate(num_processes=4, multi_gpu=True)),
        (below, Accelerate()),
        (below_with_arguments, Accelerate(cpu=True, num_processes=2)),
    ],
)
def test_the_step_is_launched_so(made: Any, launch: Any) -> None:
    assert launches(made) == [plain(launch)]


def test_outside_a_pipeline_it_is_its_function() -> None:
    assert (above(), above_with_arguments(), below(), below_with_arguments()) == (1, 2, 3, 4)
    assert above.name == "above"


def test_what_it_says_is_a_setting_like_others() -> None:
    weaker = above_with_arguments.with_options(launch={"num_processes": 2})
    assert launches(weaker)[-1] == {"num_processes": 2, "processes_per_node": None}


def test_it_says_nothing_to_the_plain_step() -> None:
    @step
    def plainly() -> int:
        return 1

    run_with_accelerate(plainly)
    assert launches(plainly) == []


def test_an_unknown_argument_names_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'mixed_precision'"):
        run_with_accelerate(mixed_precison="bf16")


def form(error: pytest.ExceptionInfo[RuntimeError]) -> None:
    """The message shows the right form."""
    assert "@run_with_accelerate(num_processes=4, multi_gpu=True)\n    @step\n    def train(...)" in str(error.value)


def bare() -> int:
    return 1


@pytest.mark.parametrize(
    ("misuse", "said"),
    [
        (lambda: run_with_accelerate(above), "has a launcher already"),
        (lambda: run_with_accelerate(num_processes=2)(below), "has a launcher already"),
        (lambda: step(run_with_accelerate(run_with_accelerate(num_processes=2)(bare))), "bare twice"),
        (lambda: run_with_accelerate(num_processes=2)(3), "is not a step"),
        (lambda: run_with_accelerate("train"), "is not a step"),
        (lambda: run_with_accelerate(num_processes=2)(int), "is not a step"),
    ],
)
def test_misuse(misuse: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said) as error:
        misuse()
    form(error)
    assert isinstance(error.value, UsageError) and error.value.exit_code == 2


def test_beside_another_launch() -> None:
    with pytest.raises(UsageError, match="a decorator below it says how to launch"):

        @step(launch=Torchrun())
        @run_with_accelerate
        def train() -> None: ...


@pytest.mark.parametrize("way", [lambda train: run_with_accelerate(num_processes=2)(train), run_with_accelerate])
def test_as_a_function_inside_a_pipeline(way: Any) -> None:
    @step
    def train() -> int:
        return 1

    @pipeline
    def training() -> None:
        way(train)()

    with pytest.raises(RuntimeError, match="used as a function inside a pipeline, on train") as error:
        training.trace()
    form(error)
    assert "train.with_options(launch=Accelerate(" in str(error.value)


def test_on_a_step_that_is_called_already() -> None:
    @step
    def train() -> int:
        return 1

    @pipeline
    def training() -> None:
        run_with_accelerate(train())

    with pytest.raises(RuntimeError, match="has been called already") as error:
        training.trace()
    form(error)


def test_a_pipeline_may_import_a_module_of_such_steps(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "from stoker import step\nfrom stoker.integrations.huggingface import run_with_accelerate\n"
    text += "@run_with_accelerate(num_processes=2)\n@step\ndef train() -> int:\n    return 1\n"
    (tmp_path / "steps_of_a_late_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    @pipeline
    def training() -> None:
        from steps_of_a_late_import import train

        train()

    assert len(training.trace().nodes) == 1


def test_on_a_pipeline() -> None:
    @pipeline
    def training() -> None:
        above()

    with pytest.raises(RuntimeError, match="it is for a step"):
        run_with_accelerate(training)


def test_it_is_where_zenml_has_it() -> None:
    from stoker.integrations.huggingface import steps

    assert steps.run_with_accelerate is run_with_accelerate


MISUSED = {
    "inside": """
        from stoker import pipeline, step
        from stoker.integrations.huggingface.steps import run_with_accelerate

        @step
        def train(x: int) -> int:
            return x

        @pipeline
        def training():
            run_with_accelerate(train)(x=1)

        if __name__ == "__main__":
            training()
        """,
    "twice": """
        from stoker import pipeline, step
        from stoker.integrations.huggingface.steps import run_with_accelerate

        @run_with_accelerate(num_processes=2)
        @run_with_accelerate(cpu=True)
        @step
        def train() -> int:
            return 1

        @pipeline
        def training():
            train()

        if __name__ == "__main__":
            training()
        """,
}
TOLD = {
    "inside": "train.py:10: run_with_accelerate was used as a function inside a pipeline, on train.",
    "twice": "train.py:4: run_with_accelerate stands on",
}


@pytest.mark.parametrize("misuse", MISUSED)
def test_misuse_ends_the_program_with_its_message_alone(misuse: str, project: Any) -> None:
    project.write({"train.py": MISUSED[misuse]})
    # At the call it is Python that meets it; where a file is only read, `stoker run`.
    finished = project.run("train.py", code=2) if misuse == "inside" else project.stoker("run", "train.py", code=2)
    assert finished.stderr.startswith(f"error: {TOLD[misuse]}"), finished.stderr
    assert "@run_with_accelerate(num_processes=4, multi_gpu=True)\n    @step" in finished.stderr
    assert "Traceback" not in finished.stderr and "/stoker/" not in finished.stderr
