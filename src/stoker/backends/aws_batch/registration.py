"""The decorator `@batch`, for flows that name it: there is no backend for AWS Batch yet."""

from __future__ import annotations

from typing import Final

from stoker.backends.aws_batch.settings import BatchSettings
from stoker.backends.base.backend import FlowDecorator

BATCH: Final = FlowDecorator(
    name="batch",
    title="AWS Batch",
    settings=BatchSettings,
    help="Run the step on AWS Batch; every word is checked and kept, and running is refused until it can be done.",
)
