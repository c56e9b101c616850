"""Fixtures of the tests with Slurm: clusters of their own, and a bench for the backend."""

from tests.benches import bundle  # noqa: F401  # a fixture
from tests.servers.s3 import s3_server  # noqa: F401  # fixture
from tests.servers.slurm import accounted_cluster, slurm_cluster  # noqa: F401  # fixtures
from tests.servers.sshd import ssh_server  # noqa: F401  # fixture
from tests.slurm.bench import accounted, alone, bench, cluster, clustered, login_node, small  # noqa: F401  # fixtures
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test
