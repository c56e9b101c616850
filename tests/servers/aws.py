"""Servers that speak AWS over HTTP on a free port of loopback: moto's, or our own doubles with moto behind them. Each
keeps everything in its memory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
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
