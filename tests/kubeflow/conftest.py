"""Fixtures of the tests with Kubeflow Pipelines: an endpoint that runs pipelines by KFP's own local runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubeflow.endpoint import Endpoint
from tests.kubernetes.server.cluster import cluster, cluster_server  # noqa: F401  # fixtures
from tests.servers.s3 import s3_server  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    """An endpoint on loopback; what it started is ended."""
    with Endpoint(tmp_path / "kubeflow") as running:
        yield running
