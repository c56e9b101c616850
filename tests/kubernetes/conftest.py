"""Fixtures of the tests with Kubernetes: a cluster that is started once, and is empty for each test."""

from tests.kubernetes.server.cluster import cluster, cluster_server  # noqa: F401  # fixtures
