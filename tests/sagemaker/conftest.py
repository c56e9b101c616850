"""Fixtures of the tests of SageMaker."""

from tests.sagemaker.account import sagemaker_account  # noqa: F401  # a fixture
from tests.wheels import all_in_used_homes  # noqa: F401  # a fixture for every test
