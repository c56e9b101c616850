"""A team's flows as they are in a repository: a package with relative imports, a base class, configs, mutators, common
decorators, cards, a second flow and a script that reads both. They run unchanged, and migrated."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from stoker.migrate.rewrite import migrate_source

FILES = {
    "churn/__init__.py": 'from .settings import TEAM\n\n__all__ = ["TEAM"]\n',
    "churn/settings.py": """
import json

TEAM = "growth"


def parse(text):
    settings = json.loads(text)
    settings["rates"] = [rate * settings["scale"] for rate in settings["rates"]]
    return settings
""",
    "churn/base.py": """
from metaflow import Config, FlowSpec, Parameter, config_expr, current, project

from .settings import TEAM, parse


@project(name=config_expr("churn.project"))
class BaseFlow(FlowSpec):
    settings = Config("churn", default="config/churn.json", parser=parse)
    limit = Parameter("limit", default=settings.limit, help="customers that are looked at")
    CODES = {str(number): number for number in range(2000)}

    def describe(self):
        return f"{TEAM}/{current.project_name}/{self.settings.model.kind}"
""",
    "churn/decorators.py": """
from functools import wraps

from metaflow import resources, retry, user_step_decorator


@user_step_decorator
def audited(step_name, flow, inputs=None, attributes=None):
    flow.audit = getattr(flow, "audit", ()) + (step_name,) if inputs is None else (step_name,)
    yield


def standard(function):
    return retry(times=2, minutes_between_retries=0)(resources(cpu=1, memory=256)(function))


def counted(method):
    @wraps(method)
    def call(self, *args):
        call.calls += 1
        return method(self, *args)

    call.calls = 0
    return call
""",
    "churn/mutators.py": """
from metaflow import FlowMutator, StepMutator


class report(FlowMutator):
    def init(self, *args, **kwargs):
        self.kind = kwargs.get("kind", "default")

    def pre_mutate(self, mutable_flow):
        for name, config in mutable_flow.configs:
            assert name == "churn" and config.model.kind
        for name, step in mutable_flow.steps:
            if name == "end":
                step.add_decorator("card", deco_kwargs={"type": self.kind}, duplicates=step.ERROR)


class with_variables(StepMutator):
    def mutate(self, mutable_step):
        variables = dict(mutable_step.flow.settings.variables)
        mutable_step.add_decorator("environment", deco_kwargs={"vars": variables})
""",
    "metaflow_extensions/churn/plugins/cards/churn/__init__.py": """
from metaflow.cards import MetaflowCard


class ChurnCard(MetaflowCard):
    type = "churn"
    ALLOW_USER_COMPONENTS = True

    def __init__(self, options={}, components=[], graph=None, **kwargs):
        self._parts = components

    def render(self, task):
        return f"<h1>{task.data.best[0]:.2f} of {task.pathspec.split('/')[0]}</h1>{len(self._parts)}"


CARDS = [ChurnCard]
""",
    "churn/features.py": """
import csv
import io
from dataclasses import dataclass


@dataclass
class Customer:
    name: str
    months: int
    left: bool


def read(text, limit):
    rows = list(csv.DictReader(io.StringIO(text)))[:limit]
    return [Customer(row["name"], int(row["months"]), row["left"] == "yes") for row in rows]
""",
    "churn/models/__init__.py": "from .mean import MeanModel\n",
    "churn/models/mean.py": """
from ..features import Customer


class MeanModel:
    def __init__(self, rate):
        self.rate = rate

    def fit(self, customers):
        assert all(isinstance(one, Customer) for one in customers)
        self.base = sum(one.left for one in customers) / len(customers)
        return self

    @property
    def error(self):
        return abs(self.rate - self.base)
""",
    "config/churn.json": '{"project": "churn_rate", "limit": 4, "scale": 0.5, "rates": [0.4, 1.0, 1.6], '
    '"model": {"kind": "mean"}, "variables": {"CHURN_MODE": "test"}}',
    "config/other.json": '{"project": "churn_rate", "limit": 2, "scale": 1, "rates": [0.1], "model": {"kind": "mean"}, '
    '"variables": {}}',
    "data/customers.csv": "name,months,left\na,1,yes\nb,2,no\nc,3,yes\nd,4,no\ne,5,no\n",
    "train.py": """
import os

from metaflow import IncludeFile, Parameter, current, step
from metaflow.cards import Markdown

from churn.base import BaseFlow
from churn.decorators import audited, counted, standard
from churn.features import read
from churn.models import MeanModel
from churn.mutators import report, with_variables


@report(kind="churn")
class Train(BaseFlow):
    data = IncludeFile("data", default="data/customers.csv")
    broken = Parameter("broken", default="no")

    @audited
    @step
    def start(self):
        self.customers = read(self.data, self.limit)
        self.rates = list(self.settings.rates)
        self.next(self.fit, foreach="rates")

    @standard
    @with_variables
    @step
    def fit(self):
        self.model = self.made(self.input)
        self.mode = os.environ["CHURN_MODE"]
        if os.path.exists(self.broken):
            raise RuntimeError("the model is broken")
        self.next(self.choose)

    @counted
    def made(self, rate):
        return MeanModel(rate).fit(self.customers)

    @audited
    @step
    def choose(self, inputs):
        self.merge_artifacts(inputs, include=["customers", "mode"])
        self.best = min((one.model.error, one.model) for one in inputs)[:1] + tuple(
            sorted(one.model.rate for one in inputs)
        )
        self.next(self.end)

    @step
    def end(self):
        current.card.append(Markdown("done"))
        print(self.describe(), self.best, self.mode)


if __name__ == "__main__":
    Train()
""",
    "score.py": """
from churn.base import BaseFlow
from metaflow import Flow, step


class Score(BaseFlow):
    @step
    def start(self):
        run = Flow("Train").latest_successful_run
        self.trained, self.model = run.id, run["fit"].task.data.model
        self.next(self.end)

    @step
    def end(self):
        self.score = round(self.model.error, 2)


if __name__ == "__main__":
    Score()
""",
    "report.py": """
import sys

from metaflow import Flow, Run, namespace
from metaflow.cards import get_cards
from metaflow.exception import MetaflowNotFound

namespace(None)
run = Flow("Train").latest_successful_run
assert run.data.best == (0.0, 0.2, 0.5, 0.8), run.data.best
assert run.data.audit == ("choose",) and run["start"].task.data.audit == ("start",)
assert [task.data.mode for task in run["fit"]] == ["test"] * 3
assert run["end"].task.data.CODES["1999"] == 1999 and "CODES" in run["end"].task
assert get_cards(run["end"].task, type="churn")[0].get() == "<h1>0.00 of Train</h1>1"
assert {"nightly", "project:churn_rate"} <= run.tags, run.tags
first = Run("/".join(run["start"].task.origin_pathspec.split("/")[:2]))
assert not first.successful and first.id != run.id
run.add_tag("checked")
try:
    Run("Train/none")
except MetaflowNotFound:
    print("reported", run.id)
""",
}


@pytest.mark.parametrize("form", ["unchanged", "migrated"])
def test_a_teams_flows_move_over(project: Any, form: str) -> None:
    project.write({**FILES, "broken": "yes"})
    command = [sys.executable]
    if form == "migrated":
        for name, text in FILES.items():
            if name.endswith(".py") and not name.startswith("metaflow_extensions"):
                done = migrate_source(text.lstrip("\n").encode(), name)
                assert not done.by_hand
                project.write({name: done.after.decode()})
    else:
        command += ["-m", "stoker.flow"]

    def call(*words: str, code: int = 0) -> str:
        ran = project.command([*command, *words], code=code)
        return str(ran.stdout + ran.stderr)

    call("train.py", "check")
    failed = call("train.py", "run", "--broken", "broken", "--tag", "nightly", code=1)
    assert "the model is broken" in failed
    (project.folder / "broken").unlink()
    assert "growth/churn_rate/mean (0.0, 0.2, 0.5, 0.8) test" in call("train.py", "resume", "--tag", "nightly")
    assert "reported" in call("report.py")
    assert "checked" in call("train.py", "tag", "list")
    call("score.py", "--config", "churn", "config/other.json", "run", "--limit", "3")
    assert "score" in call("score.py", "dump", "end", "--include", "score")
