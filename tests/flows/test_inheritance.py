"""Steps, parameters and helpers from base classes, also of other files; and what clearing up leaves of a flow."""

from __future__ import annotations

from typing import Any

from stoker.flow import Run, default_namespace, namespace
from stoker.store.check import unreferenced

BASE = """
from stoker.flow import FlowSpec, Parameter, retry, step

class Base(FlowSpec):
    scale = Parameter("scale", default=2)
    factor = 10

    @step
    def start(self):
        self.x = self.times(1)
        self.next(self.middle)

    @step
    def middle(self):
        raise NotImplementedError

    @step
    def end(self):
        print("x", self.x)

    def times(self, value):
        return value * self.scale * self.factor

    @property
    def doubled(self):
        return self.x * 2
"""
CHILD = """
from shared.base import Base
from stoker.flow import Parameter, current, step

class Child(Base):
    more = Parameter("more", default=1)
    factor = 100

    @step
    def middle(self):
        self.x = self.doubled + self.more
        assert current.flow_name == "Child" and current.parameters.scale == self.scale
        self.next(self.end)

if __name__ == "__main__":
    Child()
"""


def test_a_base_in_a_package(project: Any) -> None:
    project.write({"shared/__init__.py": "", "shared/base.py": BASE, "child.py": CHILD})
    project.run("child.py", "run", "--scale", "3", "--more", "5")
    run = project.client().runs()[0]
    assert run.pipeline == "Child" and run.steps["end"].outputs["x"].load() == 605
    assert project.stoker("resume", run.id).returncode == 0


BIG = """
import numpy as np
from stoker.flow import FlowSpec, current, step

class Big(FlowSpec):
    @step
    def start(self):
        self.kept = np.arange(5000)
        self.items = [np.full(5000, value) for value in range(2)]
        self.next(self.each, foreach="items")

    @step
    def each(self):
        self.next(self.gang, num_parallel=2)

    @step
    def gang(self):
        self.mine = self.foreach_stack()[0][2] + current.parallel.node_index
        self.next(self.meet)

    @step
    def meet(self, inputs):
        self.mine = [found.mine for found in inputs]
        self.merge_artifacts(inputs, include=["kept"])
        self.next(self.all)

    @step
    def all(self, inputs):
        self.merge_artifacts(inputs, exclude=["mine"])
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Big()
"""


def test_clearing_up_leaves_what_a_run_made(project: Any) -> None:
    project.write({"big.py": BIG}).run("big.py", "run")
    client = project.client()
    unneeded = set(unreferenced(client.store))
    namespace(None)
    run = Run(f"Big/{client.runs()[0].id}")
    needed = {task["mine"].sha for task in run["gang"]} | {task["kept"].sha for task in run["each"]}
    assert len(needed) == 4 and not needed & unneeded
    project.stoker("gc")
    nodes = list(run["gang"])[::-1]
    assert [task.id for task in nodes] == ["gang[0][0]", "gang[0][1]", "gang[1][0]", "gang[1][1]"]
    assert [int(task.data.mine[0]) for task in nodes] == [0, 1, 1, 2]
    assert run.data is not None and len(run.data.kept) == 5000
    project.run("big.py", "resume", "all")
    default_namespace()
