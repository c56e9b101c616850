"""An account of the tests' own: the double of SageMaker, and moto's S3, CloudWatch, IAM and STS behind it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.servers.postgres import free_port

from stoker.backends.sagemaker.client import SagemakerClient
from stoker.backends.sagemaker.settings import SagemakerSettings

START_SECONDS = 120.0
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
class SagemakerAccount:
    """A running account; `environment` is what a program needs to use it."""

    address: str
    environment: Mapping[str, str]

    def client(self) -> SagemakerClient:
        """Stoker's own client."""
        return SagemakerClient(SagemakerSettings(region="us-east-1", endpoint_url=self.address))

    def control(self, **words: Any) -> Any:
        """Tell the double something; the calls and jobs that it has."""
        request = urllib.request.Request(f"{self.address}/double", json.dumps(words).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def bucket(self, name: str) -> str:
        """Make a bucket; its address."""
        request = urllib.request.Request(f"{self.address}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return f"s3://{name}"

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
    address = f"http://127.0.0.1:{(port := free_port())}"
    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.sagemaker.server", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
            env=dict(os.environ),
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(address):
            assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield SagemakerAccount(address=address, environment=environment)
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/double", b"{}", timeout=5).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def sagemaker_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SagemakerAccount]:
    """An account for the whole session; each test makes a bucket of its own."""
    with running(tmp_path_factory.mktemp("sagemaker")) as account:
        yield account
