"""Fixtures of the tests with containers: a worker's bundle, and a bench for the backend."""

from tests.benches import bundle  # noqa: F401  # a fixture
from tests.containers.bench import bench  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test
