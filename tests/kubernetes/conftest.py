"""Fixtures of the tests with Kubernetes: a cluster that is started once, and is empty for each test."""

from typing import Any

import pytest
from tests.kubernetes.drivers import stack
from tests.kubernetes.server.cluster import LocalCluster, cluster, cluster_server  # noqa: F401  # fixtures


@pytest.fixture
def kube(project: Any, cluster: LocalCluster) -> Any:  # noqa: F811
    """A project whose stack is the cluster, and whose folders pods see."""
    return project.write({"stoker.toml": stack(cluster)})
