"""`stoker plan` against an account that tells less than it might: what it does not say refuses no step."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from tests.aws_batch.test_queues import ENVIRONMENTS, queue
from tests.servers.awsmodel import service, thinned

PROGRAM = """
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(cpu_count=2, memory="4GiB"))
def load() -> int:
    return 1

@step(resources=ResourceSettings(accelerators="A100:8"))
def train(x: int) -> int:
    return x

@step(resources=ResourceSettings(gpu_count=1, gpu_memory="80GB"))
def score(x: int) -> int:
    return x

@step(resources=ResourceSettings(accelerators="trainium:4"))
def compile_it(x: int) -> int:
    return x

@step(resources=ResourceSettings(accelerators="A100:8", nodes=2), launch={"launcher": "single", "outputs": "all"})
def gang(x: int) -> int:
    return x

@pipeline
def training():
    x = train(load())
    score(x), compile_it(x), gang(x)

if __name__ == "__main__":
    training()
"""
STACK = """
stack = "batch"
[stacks.batch]
artifact_store = "s3://bucket/store"
[stacks.batch.orchestrator]
flavor = "batch"
region = "us-east-1"
endpoint_url = "{address}"
image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"
iam_role = "arn:aws:iam::123456789012:role/step"
execution_role = "arn:aws:iam::123456789012:role/execution"
"""


class Account(ThreadingHTTPServer):
    """Queues and compute environments, with what the dice leave of them."""

    dice: random.Random | None = None

    def answer(self, path: str) -> dict[str, Any]:
        """The answer to an operation."""
        names = ("cpu", "a100", "h100", "trn")
        rows = [queue(f"{name}-q", name, jobQueueArn=f"arn:{name}", priority=1) for name in names]
        answer = {"jobQueues": rows} if "queues" in path else {"computeEnvironments": ENVIRONMENTS}
        kind = "DescribeJobQueues" if "queues" in path else "DescribeComputeEnvironments"
        shape = service("batch").operation_model(kind).output_shape.members[next(iter(answer))].member  # type: ignore[union-attr]
        if self.dice is None:
            return answer
        return {name: [thinned(one, shape, self.dice) for one in rows] for name, rows in answer.items()}


class Handler(BaseHTTPRequestHandler):
    server: Account

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        known = self.path.startswith("/v1/describe")
        error = "<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>"
        data = json.dumps(self.server.answer(self.path)).encode() if known else error.encode()
        self.send_response(200 if known else 403)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    server = Account(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_an_account_does_not_say_refuses_nothing(project: Any, account: Account, seed: int | None) -> None:
    account.dice = None if seed is None else random.Random(seed)
    address = f"http://127.0.0.1:{account.server_port}"
    project.write({"train.py": PROGRAM, "stoker.toml": STACK.format(address=address)})
    done = project.stoker("plan", "train.py", "--json", code=None)
    document = json.loads(done.stdout)
    errors = [one for one in document["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr
