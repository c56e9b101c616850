"""An S3 server of the tests' own: moto's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.aws import AwsServer, serving

S3 = AwsServer


@contextlib.contextmanager
def running(folder: Path) -> Iterator[S3]:
    """A server that lives as long as the block."""
    with serving(S3, [str(Path(sys.executable).with_name("moto_server")), "--host", "127.0.0.1"], folder) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A server for the whole session; each test makes a bucket of its own."""
    with running(tmp_path_factory.mktemp("s3")) as server:
        yield server
