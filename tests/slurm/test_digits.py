"""The digits, as they stand among the examples, on a cluster: as a pipeline and as a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.servers.slurm import Cluster


@pytest.mark.long  # its steps, fan-out and flow: test_slurm_runs.py and test_slurm_flows.py, without torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("example", "arguments", "jobs"),
    [
        ("digits.py", ["--rates", "0.1,0.3"], 7),
        ("digits_flow.py", ["run", "--rates", "[0.1, 0.3]", "--epochs", "5"], 5),
    ],
)
def test_digits(example: str, arguments: list[str], jobs: int, alone: Any, cluster: Cluster, repository: Path) -> None:
    alone.write({example: (repository / "examples" / example).read_text()})
    before = len(cluster.jobs())
    said = alone.run(example, *arguments, timeout=500.0)
    assert "best learning rate: 0." in said.stdout + said.stderr
    assert len(cluster.jobs()) == before + jobs, "each step and each element was a job"
