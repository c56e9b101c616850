"""`stoker plan` against an account that tells less than it might: what it does not say refuses no step."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import pytest
from tests.aws_batch.test_queues import ENVIRONMENTS, queue
from tests.servers.awsmodel import service, thinned
from tests.servers.loopback import Request, reply, serving

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


def answer(dice: random.Random | None, request: Request) -> None:
    """Queues and compute environments, with what the dice leave of them."""
    request.rfile.read(int(request.headers.get("Content-Length", 0)))
    if not request.path.startswith("/v1/describe"):
        error = "<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>"
        reply(request, 403, error.encode())
        return
    rows = [queue(f"{name}-q", name, jobQueueArn=f"arn:{name}", priority=1) for name in ("cpu", "a100", "h100", "trn")]
    is_queues = "queues" in request.path
    key, rows = ("jobQueues", rows) if is_queues else ("computeEnvironments", ENVIRONMENTS)
    kind = "DescribeJobQueues" if is_queues else "DescribeComputeEnvironments"
    shape: Any = service("batch").operation_model(kind).output_shape
    answers = rows if dice is None else [thinned(one, shape.members[key].member, dice) for one in rows]
    reply(request, 200, json.dumps({key: answers}).encode())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (None, 2))])
def test_what_an_account_does_not_say_refuses_nothing(
    project: Any, seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tests")
    with serving(partial(answer, None if seed is None else random.Random(seed))) as address:
        project.write({"train.py": PROGRAM, "stoker.toml": STACK.format(address=f"http://{address}")})
        done = project.stoker("plan", "train.py", "--json", code=None)
    document = json.loads(done.stdout)
    errors = [one for one in document["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr
