"""`stoker plan` for an account that cannot be asked anything: what is not known of it refuses no step."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.programs import ORDINARY, asking

STACK = """
stack = "sagemaker"
[stacks.sagemaker]
artifact_store = "s3://bucket/store"
[stacks.sagemaker.orchestrator]
flavor = "sagemaker"
region = "{region}"
endpoint_url = "http://127.0.0.1:9"
image = "{image}"
role = "arn:aws:iam::123456789012:role/training"
"""


@pytest.mark.parametrize(
    ("region", "image"),
    [
        ("us-gov-west-1", "123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/train@sha256:" + 64 * "0"),
        *(
            pytest.param(region, f"123456789012.{host}/train:1", marks=pytest.mark.long)
            for region, host in (
                ("us-east-1", "dkr.ecr.us-east-1.amazonaws.com"),
                ("eusc-de-east-1", "dkr.ecr.eusc-de-east-1.amazonaws.eu"),
                ("us-west-2", "dkr-ecr.us-west-2.on.aws"),
            )
        ),
    ],
)
def test_an_account_that_does_not_answer_refuses_nothing(project: Any, region: str, image: str) -> None:
    program = asking(*ORDINARY, 'accelerators="trainium:16", nodes=2', 'cpu_count=8, spot=True, disk="200GB"')
    project.write({"train.py": program, "stoker.toml": STACK.format(region=region, image=image)})
    done = project.stoker("plan", "train.py", "--json", code=None)
    errors = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr
