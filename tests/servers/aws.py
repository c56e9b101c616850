"""Servers that speak AWS over HTTP on a free port of loopback: moto's, or our own doubles with moto behind them. Each
keeps everything in its memory."""

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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
from tests.servers.postgres import free_port

START_SECONDS = 120.0
REPOSITORY = Path(__file__).resolve().parents[2]


@attrs.frozen(kw_only=True)
class AwsServer:
    """A running server."""

    address: str
    program: subprocess.Popen[bytes]

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def bucket(self, name: str) -> str:
        """Make a bucket; its address."""
        request = urllib.request.Request(f"{self.address}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return f"s3://{name}"

    def control(self, **words: Any) -> Any:
        """Tell a double something; what it has counted."""
        request = urllib.request.Request(f"{self.address}/double", json.dumps(words).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def gone(self) -> bool:
        """Whether it has ended by itself; the next test gets another one."""
        return self.program.poll() is not None


Server = TypeVar("Server", bound=AwsServer)


@contextlib.contextmanager
def serving(
    kind: Callable[..., Server], command: list[str], folder: Path, *, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server that lives as long as the block: the command with `--port`. Its log is a file in the folder."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "log").open("wb") as output:
        program = subprocess.Popen(
            [*command, "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=REPOSITORY,
            env={**os.environ, **(environment or {})},
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(address):
            assert program.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield kind(address=address, program=program)
    finally:
        program.send_signal(signal.SIGTERM)
        try:
            program.wait(30)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


# What runs on AWS

PIPELINES = """
import os, sys, time

import helper
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step
def make(n: int) -> list[int]:
    print("made in", os.getcwd())
    print("a word aside", file=sys.stderr)
    return helper.numbers(n)

@step(cache=False)
def square(number: int) -> int:
    print("squares", number)
    return number**2

@step(cache=False, resources=ResourceSettings(nodes=2), launch={"launcher": "single", "outputs": "all"})
def ranks() -> dict:
    return {"rank": context.rank, "node": context.node, "of": context.world_size}

@step(cache=False)
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def learn(n: int = 2):
    return total(square.map(make(n)))

@step(step_operator="trainer", cache=False)
def train(number: int) -> str:
    return f"trained by {os.path.basename(os.environ['HOME'])} on {number}"

@pipeline
def mixed():
    return train(total([1, 2]))

@pipeline
def gang():
    ranks()

@step(cache=False)
def wait(folder: str, keep: str) -> int:
    open(os.path.join(folder, "begun-" + str(time.time_ns())), "w").close()
    print("waiting", flush=True)
    while not os.path.exists(os.path.join(folder, "go")):
        if context.should_stop:
            open(os.path.join(folder, "stopped"), "w").close()
            raise SystemExit("asked to stop")
        time.sleep(0.05)
    return 7

@pipeline
def long(folder: str, keep: str = ""):
    wait(folder, keep)

@step(cache=False)
def bad():
    raise ValueError("three is too much")

@pipeline
def wrong():
    bad()

@step(cache=False)
def talk(folder: str) -> int:
    for number in range(2500):
        print("before", number, "x" * 60)
    print(end="", flush=True)
    while not os.path.exists(os.path.join(folder, "go")):
        time.sleep(0.05)
    for number in range(12500):
        print("after", number)
    return 7

@pipeline
def talkative(folder: str):
    talk(folder)

if __name__ == "__main__":
    if sys.argv[1] == "learn":
        run = learn()
        print("total", run.steps["total"].output.load())
    elif sys.argv[1] == "mixed":
        print(mixed().steps["train"].output.load())
    elif sys.argv[1] == "gang":
        run = gang()
        print("ranks", run.steps["ranks"].output.load())
    elif sys.argv[1] == "wrong":
        wrong()
    elif sys.argv[1] == "talk":
        talkative(sys.argv[2])
    else:
        long(sys.argv[1])
"""
HELPER = """
def numbers(n):
    return list(range(1, n + 1))
"""
PATIENCE = 200.0


NAMED = """
from stoker import Secret, pipeline, step

@step(cache=False, environment={"HUB": Secret.named("hub"), "USER_OF_DB": Secret.named("db", "user")})
def use() -> None:
    pass

@pipeline
def named():
    use()

if __name__ == "__main__":
    named()
"""


def refuse_named_secrets(aws: Any) -> None:
    """Set secrets in AWS Secrets Manager and remove them; between, a job that would show them is not sent."""
    stacks = (aws.folder / "stoker.toml").read_text()
    name = stacks.split('stack = "')[1].partition('"')[0]
    stacks = stacks.replace(f"[stacks.{name}]", f'[stacks.{name}]\nsecrets = "secretsmanager:team/"')
    aws.write({"stoker.toml": stacks, "named.py": NAMED})
    words = {"hub": "hf_0123456789abcdefXYZ", "db": "anna-of-the-database"}
    aws.stoker("secret", "set", "hub", "-", input=words["hub"])
    aws.stoker("secret", "set", "db", "--field", "user", "-", input=words["db"])
    assert [one["name"] for one in json.loads(aws.stoker("secret", "list", "--json").stdout)] == ["db", "hub"]
    refused = aws.run("named.py", code=3, timeout=300.0)
    said = refused.stdout + refused.stderr
    assert "STK194" in said and "secret:named:db.user, secret:named:hub cannot reach it" in said
    assert not [word for word in words.values() if word in said]
    for secret in words:
        aws.stoker("secret", "rm", secret, "--yes")
    assert json.loads(aws.stoker("secret", "list", "--json").stdout) == []
    assert "secret:named:hub: neither" in aws.run("named.py", code=3, timeout=300.0).stderr


def started(aws: Any, folder: Any) -> subprocess.Popen[str]:
    """A driver whose step waits, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "train.py", str(folder)],
        cwd=aws.folder,
        env={**os.environ, "STOKER_HOME": str(aws.home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
