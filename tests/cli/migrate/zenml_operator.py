from __future__ import annotations

from typing import Annotated

import zenml
from zenml import ArtifactConfig, get_step_context, step as zstep
from zenml.client import Client
from zenml.config import StepRetryConfig
from zenml.enums import ExecutionMode
from zenml.logger import get_logger

logger = get_logger(__name__)


@zstep(retry=StepRetryConfig(max_retries=2, delay=1), enable_step_logs=True)
def load() -> Annotated[int, ArtifactConfig(name="count")]:
    context = get_step_context()
    logger.info("step %s of %s", context.step_run.name, get_step_context().pipeline_run.id)
    return 3


@zenml.step(step_operator="big", enable_cache=False)
def train(count: int) -> int:
    return count + 1


@zstep
def report() -> None:
    logger.info("done")


@zenml.pipeline(execution_mode=ExecutionMode.CONTINUE_ON_FAILURE)
def training():
    count = load()
    report(after=[count])
    train(count)


def latest():
    client = Client()
    return client.get_pipeline_run("latest")
