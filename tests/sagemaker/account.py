"""An account of the tests' own: the double of SageMaker, and moto's S3, CloudWatch, IAM and STS behind it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from tests.servers.aws import AwsServer, serving

from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.settings import SagemakerSettings

ROLE = "arn:aws:iam::123456789012:role/training"
IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"
STACK = """
stack = "{name}"
[stacks.sagemaker]
artifact_store = "{store}"
[stacks.sagemaker.orchestrator]
flavor = "sagemaker"
role = "{role}"
image = "{image}"
[stacks.mixed]
artifact_store = "{store}"
orchestrator = {{ flavor = "local" }}
step_operators.trainer = {{ flavor = "sagemaker", role = "{role}", image = "{image}" }}
"""


@attrs.frozen(kw_only=True)
class SagemakerAccount(AwsServer):
    """A running account."""

    def client(self) -> SagemakerClient:
        """Stoker's own client."""
        return SagemakerClient(SagemakerSettings(region="us-east-1", endpoint_url=self.address))

    def stacks(self, store: str, name: str = "sagemaker") -> str:
        """The text of a stoker.toml with two stacks: SageMaker as the orchestrator, and as a step operator."""
        return STACK.format(name=name, store=store, role=ROLE, image=IMAGE)

    def live(self) -> list[str]:
        """The jobs that are not over."""
        rows = self.control()["jobs"]
        return [name for name, row in rows.items() if row["TrainingJobStatus"] in ("InProgress", "Stopping")]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[SagemakerAccount]:
    """An account that lives as long as the block."""
    with serving(SagemakerAccount, [sys.executable, "-m", "tests.sagemaker.server"], folder) as account:
        yield account


@pytest.fixture(scope="session")
def sagemaker_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SagemakerAccount]:
    """An account for the whole session; each test makes a bucket of its own."""
    with running(tmp_path_factory.mktemp("sagemaker")) as account:
        yield account
