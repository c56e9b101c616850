"""Flows whose steps run on a cluster: all of them, or those that say so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.slurm import Cluster

FLOW = """
import os
from stoker.flow import FlowSpec, step, resources, slurm

class Sum(FlowSpec):
    @step
    def start(self):
        self.numbers = [1, 2, 3]
        print("job", os.environ.get("SLURM_JOB_NAME", "none"))
        self.next(self.square, foreach="numbers")

    {decorator}
    @step
    def square(self):
        self.result = self.input ** 2
        print("job", os.environ.get("SLURM_JOB_NAME", "none"), "in", os.environ.get("SLURM_JOB_PARTITION"))
        self.next(self.join)

    @step
    def join(self, inputs):
        self.total = sum(one.result for one in inputs)
        self.next(self.end)

    @step
    def end(self):
        print("total", self.total)

if __name__ == "__main__":
    Sum()
"""
HERE_AND_THERE = """
stack = "both"

[stacks.both]
step_operators.cluster = {flavor = "slurm", partition = "short"}
"""


def test_a_cluster_that_no_stack_names(project: Any, cluster: Cluster) -> None:
    project.write({"flow.py": FLOW.replace("{decorator}", "@slurm(partition='short')")})
    said = project.run("flow.py", "run", "--with", "slurm:partition=short").stderr
    assert ("total 14" in said, said.count("job none"), said.count("in short")) == (True, 0, 3)


def test_a_step_of_a_flow_runs_on_the_cluster_that_its_decorator_names(project: Any, cluster: Cluster) -> None:
    decorator = "@slurm(partition='main', cpu=2, gpu=1)"
    project.write({"flow.py": FLOW.replace("{decorator}", decorator), "stoker.toml": HERE_AND_THERE})
    said = project.run("flow.py", "run", "--simulate", "4xV100").stderr
    assert "total 14" in said
    assert "job none" in said, "the first step runs here"
    assert said.count("job Sum/square in main") == 3, "the decorator beats the stack"


def test_a_decorators_words_are_in_the_plan(project: Any, cluster: Cluster) -> None:
    decorator = "@slurm(time_limit='20m', options={'nice': 5}, gpu=2)"
    project.write({"flow.py": FLOW.replace("{decorator}", decorator), "stoker.toml": HERE_AND_THERE})
    steps = json.loads(project.stoker("plan", "flow.py", "--json").stdout)["steps"]
    square = next(step for step in steps if step["name"] == "square")
    assert square["settings"]["step_operator"] == "cluster"
    own = square["settings"]["backend"]["step_operator"]
    assert own == {"partition": "short", "time_limit": 1200.0, "options": {"nice": "5"}}
    assert square["settings"]["resources"]["gpu_count"] == 2
    assert all(step["settings"]["step_operator"] is None for step in steps if step["name"] != "square")


@pytest.mark.parametrize(
    ("arguments", "stack", "words"),
    [
        (["--with", "slurm:partiton=gpu"], HERE_AND_THERE, "did you mean 'partition'"),
        (["--with", "slurm:time_limit=soon"], HERE_AND_THERE, "is not a duration"),
        (["--with", "slurm:partition=gpu", "--with", "batch:queue=q"], HERE_AND_THERE, "keep one of the two"),
    ],
)
def test_what_a_decorator_cannot_mean_is_refused(arguments: list[str], stack: str, words: str, project: Any) -> None:
    project.write({"flow.py": FLOW.replace("{decorator}", ""), "stoker.toml": stack})
    refused = project.run("flow.py", "run", *arguments, code=2)
    assert words in refused.stderr
