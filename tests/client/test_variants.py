"""What each element of a fan-out was given beside what it logged, in runs of every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project

from stoker import Client
from stoker.client.variants import element_variants, plain_values
from stoker.report.runreport import LARGEST, run_report

PIPELINES = """
    import sys

    from stoker import log_metrics, pipeline, step

    class Model:
        pass

    @step
    def grid(count: int) -> list:
        known = {"api_token": "hush-hush-hush"}
        return [{"rate": 0.1 * (1 + n), **known, "deep": {"widths": [n, n]}} for n in range(count)]

    @step
    def fit(config: dict, points: int) -> dict:
        for number in range(points):
            names = ("loss", "accuracy", "margin")[: 1 if points < 100 else 3]
            log_metrics({name: config["rate"] * (number * 7919 % 101) + len(name) for name in names}, step=number)
        return {"loss": config["rate"], "model": "small"}

    @step
    def score(result: dict, kind: str, model: Model) -> None:
        if kind != "c":
            log_metrics({"score": result["loss"]})

    @step(cache=False)
    def one(rate: float) -> None:
        log_metrics({"loss": rate})

    @pipeline
    def static(count: int = 3, points: int = 5):
        fitted = fit.map(grid(count), points=points)
        score.map(fitted, ["a", "b", "c"] * (count // 3), [Model() for _ in range(count)])

    @pipeline(dynamic=True)
    def dynamic():
        one.map([0.1, 0.2])
        configs = grid(3)
        fit.map(configs, points=2)
        fit.map([{"rate": 0.5, "deep": {}}, configs[2]], points=2)

    if __name__ == "__main__":
        dynamic() if "dynamic" in sys.argv else static(*map(int, sys.argv[1:]))
"""
FLOW = """
    from stoker import log_metrics
    from stoker.flow import FlowSpec, step

    class Sweep(FlowSpec):
        @step
        def start(self):
            self.rates = [{"rate": 0.1}, {"rate": 0.2}]
            self.next(self.outer, foreach="rates")

        @step
        def outer(self):
            self.names = [f"{self.input['rate']} {name}" for name in ("x", "y")]
            self.next(self.inner, foreach="names")

        @step
        def inner(self):
            log_metrics({"length": len(self.input)})
            self.next(self.after)

        @step
        def after(self):
            log_metrics({"later": 1.0})
            self.next(self.joined)

        @step
        def joined(self, inputs):
            self.next(self.both)

        @step
        def both(self, inputs):
            self.next(self.end)

        @step
        def end(self):
            pass

    if __name__ == "__main__":
        Sweep()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    made = Project(tmp_path / "project", tmp_path / "home")
    return made.write({"forms.py": PIPELINES, "flow.py": FLOW})


def given(step: Any, run: Any) -> list[dict[str, Any]]:
    return [dict(one.given) for one in element_variants(run.store, step)]


def test_elements_have_what_they_were_given_and_what_was_logged_where_they_are_cached(project: Project) -> None:
    project.run("forms.py")
    project.run("forms.py")
    first, run = reversed(Client().runs())
    assert run.steps["fit"].status == "cached"
    assert (
        list(run.metrics) == list(first.metrics) == [*(f"fit[{index}]" for index in range(3)), "score[0]", "score[1]"]
    )
    assert run.metrics["fit[2]"]["loss"].last == first.metrics["fit[2]"]["loss"].last
    fits = given(run.steps["fit"], run)
    assert fits[1] == {"config.rate": 0.2, "config.api_token": "***", "config.deep.widths": "[1, 1]"}
    # Of an upstream element its result; what is pickled is no plain value, and is not loaded.
    assert given(run.steps["score"], run)[2]["kind"] == "c"
    assert set(given(run.steps["score"], run)[2]) == {"result.loss", "result.model", "kind"}
    shown = json.loads(project.stoker("metrics", run.id, "fit", "--json").stdout)
    assert shown["fit[1]"]["given"] == fits[1] and shown["fit[1]"]["metrics"]["loss"]["count"] == 5
    lines = project.stoker("metrics", run.id, "score").stdout.splitlines()
    assert lines[0].split()[:3] == ["step", "given", "metric"] and "kind=b" in lines[2] and len(lines) == 4
    assert "kind=c" in lines[3] and lines[3].rstrip().endswith("kind=c"), "one that logged nothing has its line"


def test_a_flows_elements_have_their_foreachs_item(project: Project) -> None:
    project.run("flow.py", "run")
    (run,) = Client().runs()
    assert given(run.steps["outer"], run) == [{"input.rate": 0.1}, {"input.rate": 0.2}]
    for name in ("inner", "after"):
        assert given(run.steps[f"{name}[1]"], run) == [{"input": "0.2 x"}, {"input": "0.2 y"}]


def test_elements_of_a_dynamic_pipeline_have_what_its_body_gave_them(project: Project) -> None:
    project.run("forms.py", "dynamic")
    (run,) = Client().runs()
    assert given(run.steps["one"], run) == [{"rate": 0.1}, {"rate": 0.2}]
    assert [one["config.rate"] for one in given(run.steps["fit"], run)] == [0.1, 0.2, pytest.approx(0.3)]
    second = given(run.steps["fit_2"], run)
    assert second[0] == {"config.rate": 0.5} and second[1]["config.rate"] == pytest.approx(0.3)


def test_a_report_of_many_elements_is_small(project: Project) -> None:
    project.run("forms.py", "252", "300")
    (run,) = Client().runs()
    page = run_report(run.store, run)
    assert len(page.encode()) < LARGEST
    assert page.count("coloured by config.rate") == 1 and page.count("<figure") >= 3
    assert page.count('<tr data-name="fit[') >= 25 and "200 of 252 are drawn" in page


def test_values_are_plain_and_bounded() -> None:
    values = {"a": {"b": True, "c": None}, "text": "x" * 500, "many": {str(n): n for n in range(100)}}
    found = plain_values(values)
    assert found["a.b"] is True and "a.c" not in found and len(str(found["text"])) == 200 and len(found) == 24
