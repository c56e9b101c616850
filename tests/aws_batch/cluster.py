"""An account of the tests' own: S3, CloudWatch, and AWS Batch with one queue whose containers a Docker engine runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.aws import AwsServer, serving
from tests.servers.baseimage import PREFIX, VERSION
from tests.servers.containers import BASE_IMAGE, Engine

from stoker.backends.aws_batch.client import BatchClient
from stoker.backends.aws_batch.settings import BatchSettings

QUEUE = "cpu-q"
PACKAGES = "/usr/lib/python3/dist-packages" if PREFIX == "usr" else f"/{PREFIX}/lib/python{VERSION}/site-packages"
"""Where Python in the image looks for what others installed."""
STACK = """
stack = "batch"
[stacks.batch]
artifact_store = "{store}"
[stacks.batch.orchestrator]
flavor = "batch"
queues = ["cpu-q"]
queue = "cpu-q"
image = "{image}"
host_volumes = {{"{libraries}" = "{packages}"}}
[stacks.batch.settings.docker]
parent_image = "{image}"
skip_build = true
environment = {{AWS_ACCESS_KEY_ID = "tests", AWS_SECRET_ACCESS_KEY = "tests"}}
"""


@attrs.frozen(kw_only=True)
class BatchAccount(AwsServer):
    """A running account."""

    def client(self) -> BatchClient:
        """Stoker's own client."""
        return BatchClient(BatchSettings(region="us-east-1", endpoint_url=self.address))

    def stack(self, name: str) -> str:
        """The text of a stoker.toml whose stack is this account, with a bucket of its own."""
        return STACK.format(
            store=self.bucket(name), image=BASE_IMAGE, libraries=sysconfig.get_path("purelib"), packages=PACKAGES
        )

    def live(self) -> list[Mapping[str, Any]]:
        """The jobs with Stoker's tag that are not over."""
        client = self.client()
        ids = [str(row["jobId"]) for row in client.named(QUEUE, "*")]
        rows = client.jobs(ids).values()
        client.close()
        return [row for row in rows if row["status"] not in ("SUCCEEDED", "FAILED") and "stoker" in row.get("tags", {})]


@contextlib.contextmanager
def running(folder: Path, engine: Engine) -> Iterator[BatchAccount]:
    """An account that lives as long as the block."""
    command = [sys.executable, "-m", "tests.aws_batch.server"]
    environment = {**engine.environment, "MOTO_DOCKER_NETWORK_MODE": "host"}
    with serving(BatchAccount, command, folder, environment=environment) as account:
        _make_queue(account)
        yield account


def _make_queue(account: BatchAccount) -> None:
    """A compute environment and a queue."""
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "tests")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "tests")
    client = account.client()
    document = json.dumps({"Version": "2012-10-17", "Statement": []})
    role = client.call("iam", "create_role", RoleName="batch", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    environment = client.call(
        "batch",
        "create_compute_environment",
        computeEnvironmentName="cpu",
        type="UNMANAGED",
        state="ENABLED",
        serviceRole=role,
    )
    client.call(
        "batch",
        "create_job_queue",
        jobQueueName=QUEUE,
        state="ENABLED",
        priority=1,
        computeEnvironmentOrder=[{"order": 1, "computeEnvironment": environment["computeEnvironmentArn"]}],
    )
    client.close()


@pytest.fixture(scope="session")
def batch_account(engine: Engine, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchAccount]:
    """An account for the whole session; each test makes a bucket of its own."""
    assert importlib.util.find_spec("docker") is not None
    with running(tmp_path_factory.mktemp("aws"), engine) as account:
        yield account
