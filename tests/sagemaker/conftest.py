"""Fixtures of the tests of SageMaker."""

from tests.sagemaker.account import sagemaker_account  # noqa: F401  # a fixture
