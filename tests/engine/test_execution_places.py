"""Steps and classes are found wherever a person defines them; what a process has imported, how it collects garbage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

VALUES = """
import dataclasses
from pathlib import Path

import numpy as np
import torch

from stoker import pipeline, step

class Model:
    def __init__(self, weights):
        self.weights = weights

    def predict(self, x):
        return x * self.weights

@dataclasses.dataclass(frozen=True)
class Score:
    name: str
    value: float

@step
def train(rate: float) -> Model:
    return Model(rate * 2)

@step
def score(model: Model) -> Score:
    assert type(model) is Model, type(model)
    return Score("double", model.predict(10))

@step
def report(score: Score, models: list[Model], default: Score = Score("none", 0.0)) -> Path:
    assert isinstance(score, Score) and isinstance(models[0], Model)
    path = Path("report.txt")
    path.write_text(f"{score} {default}")
    return path

@step
def read(report: Path) -> str:
    return report.read_text()

@step
def array() -> np.ndarray:
    return np.arange(3_000_000, dtype=np.int16).reshape(-1, 3)

@step
def spoil(array: np.ndarray, model: Model) -> int:
    "Changes what it was given: nobody else may notice."
    model.weights = -1
    array[:] = 0
    return int(array.sum())

@step
def after_all(array: np.ndarray, model: Model, spoilt: int) -> int:
    return int(array[-1, -1]) + int(model.weights * 1000)

@step
def state() -> dict[str, torch.Tensor]:
    return torch.nn.Linear(2, 1).state_dict()

@step
def use(state: dict[str, torch.Tensor]) -> list[int]:
    layer = torch.nn.Linear(2, 1)
    layer.load_state_dict(state)
    return list(layer.weight.shape)

@pipeline
def values():
    model = train(0.5)
    scored = score(model)
    path = report(scored, [model])
    read(path)
    big = array()
    spoilt = spoil(big, model)
    after_all(big, model, spoilt)
    use(state())

if __name__ == "__main__":
    run = values()
    assert isinstance(run.steps["train"].load(), Model)
    assert run.steps["score"].load() == Score("double", 10.0)
    Path("report.txt").unlink()
    print("text:", run.steps["read"].load(), run.steps["report"].load().read_text())
"""


@pytest.fixture(scope="module")
def values(module_lab: Any) -> Any:
    module_lab.write("values.py", VALUES)
    module_lab.said = module_lab.run("values.py")
    return module_lab


def test_classes_of_the_script_go_from_step_to_step_and_back(values: Any) -> None:
    text = "Score(name='double', value=10.0) Score(name='none', value=0.0)"
    assert f"text: {text} {text}" in values.said
    types = {key: step.outputs["output"].type for key, step in values["values"].steps.items()}
    assert types["train"] == "values.Model"
    assert types["score"] == "values.Score"


def test_arrays_and_state_dicts_go_from_step_to_step(values: Any) -> None:
    steps = values["values"].steps
    assert steps["array"].outputs["output"].shape == (1_000_000, 3)
    assert steps["use"].load() == [1, 2]
    assert sorted(steps["state"].load()) == ["bias", "weight"]


def test_a_step_that_changes_its_inputs_changes_them_for_nobody_else(values: Any) -> None:
    steps = values["values"].steps
    assert steps["spoil"].load() == 0
    last = int(steps["array"].load()[-1, -1])
    assert last != 0
    assert steps["after_all"].load() == last + 1000


def test_a_script_without_a_main_guard_runs_once(lab: Any) -> None:
    lab.write(
        "bare.py",
        """
        import os
        from stoker import pipeline, step

        with open("imported", "a") as file:
            file.write(f"{__name__}\\n")

        @step
        def one() -> int:
            return os.getpid()

        @step
        def other(x: int) -> int:
            return x

        @pipeline
        def bare():
            other(one())

        run = bare()
        print("pids", run.steps["one"].load() != os.getpid(), len(run.steps))

        if __name__ != "__main__":
            raise AssertionError("the worker went on behind the pipeline's call")
        """,
    )
    said = lab.run("bare.py")
    assert "pids True 2" in said
    assert lab.read("imported").count("__main__") == 1
    assert set(lab.read("imported")) == {"__main__", "bare"}
    assert len(lab.client.runs()) == 1


def test_steps_of_a_package_with_relative_imports(lab: Any) -> None:
    lab.write("pkg/__init__.py", "")
    lab.write("pkg/sizes.py", "WIDTH = 3\n")
    lab.write("pkg/kinds.py", "class Net:\n    def __init__(self, width):\n        self.width = width\n")
    lab.write(
        "pkg/steps.py",
        """
        from stoker import step
        from .kinds import Net
        from .sizes import WIDTH

        @step
        def build() -> Net:
            return Net(WIDTH)
        """,
    )
    lab.write(
        "pkg/train.py",
        """
        from stoker import pipeline, step
        from .kinds import Net
        from .steps import build

        class Local(Net):
            pass

        @step
        def widen(net: Net) -> Local:
            assert type(net) is Net
            return Local(net.width + 1)

        @pipeline
        def training():
            widen(build())

        if __name__ == "__main__":
            run = training()
            print("made", type(run.steps["widen"].load()), run.steps["widen"].load().width)
        """,
    )
    lab.write(
        "use.py",
        "from pkg.train import training\nrun = training()\nprint(run.steps['widen'].status)\n",
    )
    said = lab.run("-m", "pkg.train")
    assert "made" in said and ".Local'> 4" in said
    steps = lab["training"].steps
    assert steps["widen"].outputs["output"].type == "pkg.train.Local"
    assert steps["build"].outputs["output"].type == "pkg.kinds.Net"
    # Imported instead of run, it is the same code: nothing runs again.
    assert "cached" in lab.run("use.py").splitlines()[-1]


FRESH = """
import os, sys
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(isolation="fresh")
def plain(number: int) -> bool:
    there = "numpy" in sys.modules
    import numpy
    return there

@step(isolation="fresh")
def careful(number: int) -> list:
    there = "numpy" in sys.modules
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import numpy
    return [there, len(os.listdir("/proc/self/task"))]

@step(isolation="fresh", environment={"OPENBLAS_NUM_THREADS": "1"})
def told() -> list:
    there = "numpy" in sys.modules
    import numpy
    return [there, len(os.listdir("/proc/self/task"))]

@step(isolation="fresh")
def broken() -> None:
    import numpy
    raise ValueError("no result")

@step(resources=ResourceSettings(accelerators="H100"))
def held() -> list:
    there = [name for name in ("numpy", "torch") if name in sys.modules]
    import numpy, torch
    return [there, torch.cuda.is_initialized()]

@pipeline(cache=False)
def fresh(holds: bool = True):
    first = plain(0)
    plain.with_options(after=first, id="again")(1)
    if holds:
        careful(0)
        told()
        held()

if __name__ == "__main__":
    fresh(holds="--holds" in sys.argv)
"""


def test_a_fresh_process_finds_what_its_step_imported_before(lab: Any) -> None:
    """From the second process of a step on; never where the step sets variables before it imports."""
    lab.write("fresh.py", FRESH)

    def seen(*words: str) -> dict[str, Any]:
        lab.run("fresh.py", *words, env={"STOKER_SIMULATE": "1xH100"})
        return {key: step.output.load() for key, step in lab["fresh"].steps.items()}

    learned = {"plain": False, "again": True}
    first = {**learned, "careful": [False, 1], "told": [False, 1], "held": [[], False]}
    assert seen("--holds") == first
    assert seen("--holds") == {**first, "plain": True, "held": [["numpy", "torch"], False]}
    file = Path(lab.home) / "imports.json"
    assert sorted(json.loads(file.read_text()).values()) == [["numpy"], ["numpy", "torch"]]
    for damaged in ('["nonsense"]', '{"a": 1, "b": ["os"]}'):
        file.write_text(damaged)
        assert seen() == learned, "what is damaged in the file is learned again"
    assert ["numpy"] in json.loads(file.read_text()).values()


COLLECTED = """
import gc
import os
from stoker import pipeline, step

DYNAMIC = "DYNAMIC" in os.environ
gc.set_threshold(*map(int, os.environ["THRESHOLDS"].split(",")))

@step(cache=False)
def threshold() -> int:
    return gc.get_threshold()[0] if gc.isenabled() else 0

@pipeline(dynamic=DYNAMIC)
def training():
    print("body", gc.get_threshold()[0])
    threshold()

if __name__ == "__main__":
    run = training()
    print("step", run.steps["threshold"].output.load())
    print("after", *gc.get_threshold())
"""


def lines(folder: Path, **variables: str) -> list[str]:
    script = folder / "train.py"
    script.write_text(COLLECTED, encoding="utf-8")
    environment = {"STOKER_HOME": str(folder / "home"), "PATH": "/usr/bin:/bin", **variables}
    finished = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()


def test_the_collector_is_left_as_its_user_set_it(tmp_path: Path) -> None:
    assert lines(tmp_path, THRESHOLDS="600,9,8") == ["body 20000", "step 600", "after 600 9 8"]
    assert lines(tmp_path, THRESHOLDS="500,9,8", DYNAMIC="1") == ["body 500", "step 500", "after 500 9 8"]
    assert lines(tmp_path, THRESHOLDS="0,9,8")[-1] == "after 0 9 8"
