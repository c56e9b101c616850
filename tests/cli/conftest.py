"""`stoker`: the command line in a process of its own, in the test's project."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

TRAIN = """
    from typing import Annotated

    from stoker import pipeline, step


    @step
    def load(count: int) -> list[int]:
        print("loading", count)
        return list(range(count))


    @step(resources={"cpu_count": 1}, retry=1, timeout="5m")
    def train(data: list[int], lr: float) -> Annotated[float, "model"]:
        print("training with", lr)
        return sum(data) * lr


    @step
    def square(number: int) -> int:
        return number * number


    @step
    def check(model: float, squares: list[int], broken: bool) -> None:
        if broken:
            raise ValueError("the model is no good")


    @pipeline
    def training(count: int, lr: float = 0.5, broken: bool = False):
        \"\"\"Train a small thing.\"\"\"
        data = load(count)
        model = train(data, lr=lr)
        check(model, square.map(data), broken=broken)


    if __name__ == "__main__":
        run = training(count=3)
        print("status", run.status)
"""


class CommandLine:
    """Runs `stoker …` in a project."""

    def __init__(self, project: Any) -> None:
        self.project = project

    def __call__(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """`stoker arguments…`; options as for `Project.command`."""
        found: subprocess.CompletedProcess[str] = self.project.stoker(*arguments, **options)
        return found

    def json(self, *arguments: str, **options: Any) -> Any:
        """What `stoker arguments… --json` prints, which must be JSON only."""
        return json.loads(self(*arguments, "--json", **options).stdout)


@pytest.fixture
def stoker(project: Any) -> CommandLine:
    """`stoker("runs", "--limit", "3")`; the project has a `train.py`."""
    project.write({"train.py": TRAIN})
    return CommandLine(project)
