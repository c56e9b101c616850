"""Fixtures of the tests of AWS Batch."""

from tests.aws_batch.cluster import batch_account  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test
