"""`@ray` and `--with ray:…` of class-style flows: where a step runs, and what it cannot mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.raycluster import TOKEN, RayCluster

STACK = """
stack = "both"

[stacks.both]
step_operators.cluster = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY"}}
"""
FLOW = """
import os
from stoker.flow import FlowSpec, ray, step

class Placed(FlowSpec):
    @step
    def start(self):
        self.here = "RAY_JOB_ID" in os.environ
        self.next(self.square)

    {decorator}
    @step
    def square(self):
        self.there = "RAY_JOB_ID" in os.environ
        self.next(self.end)

    @step
    def end(self):
        print("placed", self.here, self.there)

if __name__ == "__main__":
    Placed()
"""


def test_a_step_runs_on_the_cluster_that_its_decorator_names(project: Any, ray_cluster: RayCluster) -> None:
    stack = STACK.format(address=ray_cluster.dashboard)
    project.write({"flow.py": FLOW.format(decorator="@ray(cpu=1, gpu=1, gpu_fraction=0.5)"), "stoker.toml": stack})
    environment = {"TOKEN_OF_RAY": TOKEN}
    planned = project.stoker("plan", "flow.py", "--json", env=environment).stdout
    square = next(step for step in json.loads(planned)["steps"] if step["name"] == "square")
    assert square["settings"]["step_operator"] == "cluster"
    assert next(iter(square["settings"]["backend"].values()))["gpu_fraction"] == 0.5
    said = project.run("flow.py", "run", "--simulate", "4xH100", env=environment).stderr
    assert "placed False True" in said


def test_a_cluster_that_no_stack_names(project: Any, ray_cluster: RayCluster) -> None:
    project.write({"flow.py": FLOW.format(decorator="")})
    words = ("run", "--with", f"ray:address={ray_cluster.dashboard}")
    assert "placed True True" in project.run("flow.py", *words, env={"RAY_AUTH_TOKEN": TOKEN}).stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--with", "ray:gpu_fraction=2"], "gpu_fraction"),
        (["--with", "ray:gpu_fracton=0.5"], "did you mean 'gpu_fraction'"),
    ],
)
def test_what_a_decorator_cannot_mean_is_refused(arguments: list[str], words: str, project: Any) -> None:
    project.write({"flow.py": FLOW.format(decorator="")})
    assert words in project.run("flow.py", "run", *arguments, code=2).stderr
