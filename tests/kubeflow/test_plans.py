"""`stoker plan` for an endpoint that tells nothing: what is not known of it refuses no step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.programs import ORDINARY, asking

STACK = """
stack = "kubeflow"
[stacks.kubeflow]
artifact_store = "s3://bucket/store"
[stacks.kubeflow.orchestrator]
flavor = "kubeflow"
host = "{host}"
image = "ghcr.io/team/train:1"
"""


@pytest.mark.parametrize("host", ["http://127.0.0.1:9", "https://pipelines.example.invalid/pipeline"])
def test_an_endpoint_that_does_not_answer_refuses_nothing(project: Any, host: str) -> None:
    program = asking(*ORDINARY, 'accelerators="tpu-v5e:4"', "cpu_count=8, spot=True")
    project.write({"train.py": program, "stoker.toml": STACK.format(host=host)})
    done = project.stoker("plan", "train.py", "--json", code=None)
    errors = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr
