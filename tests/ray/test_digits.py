"""The digits, as they stand among the examples, on a cluster: as a pipeline and as a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.long  # its steps, fan-out and flow: test_runs.py and test_flows.py, without torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("digits.py", ["--rates", "0.1,0.3"]),
        ("digits_flow.py", ["run", "--rates", "[0.1, 0.3]", "--epochs", "5"]),
    ],
)
def test_digits(example: str, arguments: list[str], raying: Any, repository: Path) -> None:
    code = (repository / "examples" / example).read_text()
    raying.write({example: code})
    said = raying.run(example, *arguments, timeout=500.0)
    assert "best learning rate: 0." in said.stdout + said.stderr
    run = raying.client().runs()[0]
    assert run.status == "succeeded" and run.stack == "ray"


@pytest.mark.long  # that a step joins its own cluster: test_steps.py
@pytest.mark.timeout(600)
def test_trials_and_workers_of_ray_inside_steps(raying: Any, repository: Path) -> None:
    code = (repository / "examples" / "ray_tune.py").read_text()
    raying.write({"ray_tune.py": code})
    done = raying.run("ray_tune.py", "--workers", "2", timeout=500.0)
    assert "weight 3.00" in done.stdout, done.stdout + done.stderr
    assert raying.client().run("last").steps["best_rate"].output.load() == 0.4
