"""An S3 server of the tests' own, on a free port of loopback: moto's, which keeps everything in its memory."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import pytest
from tests.servers.postgres import free_port

START_SECONDS = 120.0


@attrs.frozen(kw_only=True)
class S3:
    """A running server; `environment` is what a program needs to use it."""

    environment: Mapping[str, str]

    def bucket(self, name: str) -> str:
        """Make a bucket; its address."""
        request = urllib.request.Request(f"{self.environment['AWS_ENDPOINT_URL']}/{name}", method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
        return f"s3://{name}"


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3]:
    """A server that lives as long as the block."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(
            [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while not _answers(address):
            assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.05)
        yield S3(
            environment={
                "AWS_ENDPOINT_URL": address,
                "AWS_ACCESS_KEY_ID": "tests",
                "AWS_SECRET_ACCESS_KEY": "tests",
                "AWS_DEFAULT_REGION": "us-east-1",
            }
        )
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A server for the whole session; each test makes a bucket of its own."""
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server
