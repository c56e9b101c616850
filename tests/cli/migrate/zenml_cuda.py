import gc, torch

from zenml import pipeline, step
from zenml.config import (
    DockerSettings,  # the image
    PythonPackageInstaller,
    ResourceSettings,
)

docker = DockerSettings(
    parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    python_package_installer=PythonPackageInstaller.UV,
    python_package_installer_args={"system": None},
    requirements=["zenml", "torchvision"]
)

def cleanup_memory():
    while gc.collect():
        torch.cuda.empty_cache()

@step(settings={
    "resources": ResourceSettings(cpu_count=8, gpu_count=2, memory="16GB")
}, enable_cache=False)
def training_step(rate: float):
    ...  # heavy training logic

@pipeline(settings={"docker": docker})
def my_gpu_pipeline(rate: float = 0.1):
    training_step(rate)
