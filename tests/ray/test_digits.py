"""The digits, as they stand among the examples, on a cluster: as a pipeline and as a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.raycluster import TOKEN, RayCluster

STACK = """
stack = "ray"
[stacks.ray]
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY"}}
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("example", "arguments"),
    [
        ("digits.py", ["--rates", "0.1,0.3"]),
        ("digits_flow.py", ["run", "--rates", "[0.1, 0.3]", "--epochs", "5"]),
    ],
)
def test_digits(example: str, arguments: list[str], project: Any, ray_cluster: RayCluster, repository: Path) -> None:
    code = (repository / "examples" / example).read_text()
    project.write({example: code, "stoker.toml": STACK.format(address=ray_cluster.dashboard)})
    said = project.run(example, *arguments, env={"TOKEN_OF_RAY": TOKEN}, timeout=500.0)
    assert "best learning rate: 0." in said.stdout + said.stderr
    run = project.client().runs()[0]
    assert run.status == "succeeded" and run.stack == "ray"
