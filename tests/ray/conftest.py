"""Fixtures of the tests with Ray: a cluster that is started once, and a bench for the backend."""

from tests.benches import bundle  # noqa: F401  # a fixture
from tests.ray.bench import bench, raying  # noqa: F401  # fixtures
from tests.servers.raycluster import ray_cluster  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test
