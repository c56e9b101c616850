"""What a step tells other libraries is logged as metrics, too, and their own files have it as well."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import SettingsError
from stoker.core.metrics import MetricBook
from stoker.core.settings import TRACKED
from stoker.settings.options import OPTIONS
from stoker.worker.context import enter
from stoker.worker.metrics import MetricFiles
from stoker.worker.tracking import LIBRARIES, Tracked, tracking

TRAIN = """
    from torch.utils.tensorboard import SummaryWriter

    from stoker import pipeline, step


    def write(folder):
        with SummaryWriter(folder) as writer:
            for number in range(5):
                writer.add_scalar("loss", number / 2, number)
            writer.add_scalars("acc", {"train": 0.5, "test": 0.25}, global_step=7)
            writer.add_scalar("broken", "x" if folder == "texts" else 1.0, 0)
            writer.add_text("remark", "no number")
        return folder


    @step(cache=False, track="tensorboard")
    def tracked():
        write("tracked")


    @step(cache=False)
    def untracked():
        write("untracked")


    @pipeline
    def curves():
        tracked()
        untracked()
"""


def test_a_writer_of_tensorboard_writes_both(project: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    project.write({"train.py": TRAIN})
    project.stoker("run", "train.py")
    steps = project.client().run("last").steps
    metrics = steps["tracked"].metrics
    assert [(point.step, point.value) for point in metrics["loss"].points] == [(at, at / 2) for at in range(5)]
    assert {name: metrics[name].points[0].step for name in ("acc/train", "acc/test")} == {"acc/train": 7, "acc/test": 7}
    assert set(metrics) == {"loss", "acc/train", "acc/test", "broken"}
    assert not steps["untracked"].metrics
    for folder in ("tracked", "untracked"):
        events = EventAccumulator(str(Path(project.folder) / folder)).Reload()
        assert [event.value for event in events.Scalars("loss")] == [at / 2 for at in range(5)]


MLFLOW = """
    class MlflowClient:
        tracking_uri = "file:./mlruns"

        def log_metric(self, run_id, key, value, step=None):
            pass

        def set_tag(self, run_id, key, value):
            if run_id == "refused":
                raise RuntimeError("no rights")
            with open("tags", "a") as file:
                print(run_id, key, value, file=file)
"""
MODEL = """
    from typing import Annotated

    from mlflow.tracking.client import MlflowClient
    from stoker import Artifact, Model, pipeline, step


    def tell(run):
        client = MlflowClient()
        for at in range(2):
            client.log_metric(run, "auc", 0.5, step=at)


    @step(cache=False, track="mlflow")
    def train() -> Annotated[int, Artifact("net")]:
        tell("first")
        return 1


    @step(cache=False, track="mlflow")
    def check(net: int, run: str) -> None:
        tell(run)


    @pipeline(model=Model("churn", metadata={"kind": "small"}))
    def training(run: str):
        check(train(), run)
"""


@pytest.mark.parametrize("run", ["second", "refused"])
def test_a_model_and_mlflow_name_each_other(project: Any, run: str) -> None:
    """MLflow here is a class with its names; the real one was tried by hand."""
    files = {"mlflow/__init__.py": "", "mlflow/tracking/__init__.py": "", "mlflow/tracking/client.py": MLFLOW}
    project.write({**files, "train.py": MODEL})
    project.stoker("run", "train.py", "--run", run)
    done = project.client().run("last")
    assert project.client().model("churn").metadata == {"kind": "small", "mlflow": f"file:./mlruns {run}"}
    assert done.steps["train"].metrics.facts == {"mlflow": "file:./mlruns first"}
    assert done.steps["check"].metrics["auc"].count == 2
    told = {"first": f"first stoker.step {done.id}/train", "second": f"second stoker.step {done.id}/check"}
    tags = (project.folder / "tags").read_text().splitlines()
    assert tags == [told["first"], *([told["second"]] if run == "second" else [])]


def test_a_word_that_is_none_is_refused(project: Any) -> None:
    assert set(LIBRARIES) == set(TRACKED)
    parse = OPTIONS["track"].parse
    assert parse("mlflow") == ("mlflow",) and parse(["wandb", "wandb", "mlflow"]) == ("wandb", "mlflow")
    assert parse(None) == ()
    with pytest.raises(SettingsError, match=r"'tensorbord' cannot be tracked.*tensorboard"):
        parse("tensorbord")
    with pytest.raises(SettingsError, match="no list of libraries"):
        parse(3)
    project.write({"train.py": TRAIN.replace('track="tensorboard"', 'track="tensorbord"')})
    assert "tensorbord" in project.stoker("plan", "train.py", code=2).stderr


def test_a_call_that_fails_fails_as_it_did_and_methods_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is one of the test's: real ones do not fail when they are asked to."""

    class Run:
        url = "https://wandb.example/run/7"

        def log(self, data: dict[str, Any], step: int | None = None) -> str:
            if step == 2:
                raise ValueError("the library's own")
            return "logged"

    library = types.ModuleType("library")
    library.Run = Run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "library", library)

    def broken(call: Any) -> None:
        raise RuntimeError("of ours")

    plain = Run.log
    document = {"run": "r", "key": "train", "attempt": 1, "metrics": str(tmp_path / "metrics")}
    tracked = [Tracked("library", "Run", "log", LIBRARIES["wandb"][0].log)]
    monkeypatch.setitem(LIBRARIES, "library", tracked)  # type: ignore[arg-type]
    monkeypatch.setitem(LIBRARIES, "broken", [Tracked("library", "Run", "log", broken)])  # type: ignore[arg-type]
    with enter(document), tracking(["library", "broken"]):
        assert Run().log({"loss": 1.0, "deep": {"x": 2, "name": "a"}}, step=1) == "logged"
        with pytest.raises(ValueError, match="the library's own"):
            Run().log({"loss": 5.0}, 2)
        with pytest.raises(TypeError):
            Run().log()  # type: ignore[call-arg]
    assert Run.log is plain
    book = MetricBook()
    book.add(MetricFiles(document["metrics"]).read("r/train/1", over=True))
    logged = {name: [json.loads(json.dumps(value)) for value in one.values] for (name, _), one in book.series.items()}
    assert logged == {"loss": [1.0, 5.0], "deep/x": [2.0]}
    assert book.facts == {"wandb": Run.url}
