"""A CUDA-enabled parent image for a whole pipeline, and ZenML among its requirements."""

from zenml import pipeline, step
from zenml.config import DockerSettings

# The image brings CUDA; the laptop does not need it.
docker_settings = DockerSettings(
    parent_image="pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime",
    requirements=["zenml==0.39.1", "torchvision"],  # both are needed
)


@step
def count() -> int:
    return 3


@pipeline(settings={"docker": docker_settings})
def my_pipeline() -> None:
    count()
