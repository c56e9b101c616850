"""What ZenML's and Metaflow's guides show for accelerators, with only the framework's name renamed in the imports.

The guides' `...` in a signature is left out, and what a pipeline of `...` calls is added; nothing else is changed. Each
is also migrated by `stoker migrate` from its original, and planned then.
"""

from __future__ import annotations

from typing import Any

import pytest

from stoker.migrate.rewrite import migrate_source

OFFLINE = {"DOCKER_HOST": "unix:///nowhere.sock", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_COLOR": "1"}
STACK = '[stacks.box]\norchestrator = "docker"\n'
BODY = """

@step
def something():
    ...

"""
IMAGE = """
from zenml import pipeline, step
from zenml.config import DockerSettings
{body}
docker_settings = DockerSettings({settings})

@pipeline(settings={{"docker": docker_settings}})
def my_pipeline():
    something()
"""
CUDA = "pytorch/pytorch:1.12.1-cuda11.3-cudnn8-runtime"
IMAGES = {
    "parent": (f'parent_image="{CUDA}"', f"FROM {CUDA}", ()),
    "system": (
        (
            '\n    parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",\n'
            '    python_package_installer_args={"system": None},\n'
            '    requirements=["zenml", "accelerate", "torchvision"]\n'
        ),
        "FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
        ("--system", "zenml", "accelerate", "torchvision"),
    ),
}
RESOURCES = """
from zenml.config import ResourceSettings
from zenml import pipeline, step

@step(settings={"resources": ResourceSettings(cpu_count=8, gpu_count=2, memory="8GB")})
def training_step() -> ...:
    # train a model
    ...

@pipeline
def my_pipeline():
    training_step()
"""
CLEANUP = """
import gc
import torch
from zenml import pipeline, step

def cleanup_memory() -> None:
    while gc.collect():
        torch.cuda.empty_cache()

@step
def training_step():
    cleanup_memory()
    # train a model

@pipeline
def my_pipeline():
    training_step()

if __name__ == "__main__":
    my_pipeline()
"""
ACCELERATE = """
from zenml import step, pipeline
from zenml.integrations.huggingface.steps import run_with_accelerate

@run_with_accelerate(num_processes=4, multi_gpu=True)
@step
def training_step(some_param: int):
    # your training code is below
    ...

@pipeline
def training_pipeline(some_param: int = 3):
    training_step(some_param)
"""
FLOW = """
from metaflow import FlowSpec, step, resources

class GPUFlow(FlowSpec):

    @resources(memory=32000, cpu=4, gpu=1)
    @step
    def start(self):
        from my_script import my_gpu_routine
        my_gpu_routine()
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == '__main__':
    GPUFlow()
"""
FOUR = ("--simulate", "4xH100-80GB")


def renamed(text: str) -> str:
    return text.replace("from zenml", "from stoker").replace("from metaflow import", "from stoker.flow import")


def migrated(text: str) -> str:
    return migrate_source(text.encode(), "train.py").after.decode()


@pytest.fixture(params=[renamed, migrated])
def written(request: pytest.FixtureRequest, project: Any) -> Any:
    """Writes a snippet, renamed or migrated, as `train.py`."""

    def write(text: str) -> Any:
        return project.write({"stoker.toml": STACK, "train.py": request.param(text)})

    write.renamed = request.param is renamed  # type: ignore[attr-defined]
    return write


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_with_cuda(image: str, written: Any) -> None:
    settings, parent, words = IMAGES[image]
    project = written(IMAGE.format(body=BODY, settings=settings))
    shown = project.stoker("plan", "train.py", "--stack", "box", "--render", env=OFFLINE).stdout
    assert parent in shown
    for word in words:
        assert word in shown or (word.startswith("zenml") and not written.renamed), word


@pytest.mark.parametrize("text", [RESOURCES, CLEANUP, FLOW])
def test_a_new_name_is_all_that_these_get(text: str) -> None:
    """So that one form of them has to be run below."""
    assert migrated(text) == renamed(text)


def test_resources(project: Any) -> None:
    project.write({"train.py": renamed(RESOURCES)})
    assert "2 GPUs" in project.stoker("plan", "train.py", *FOUR, "--set", "resources.cpu_count=1").stdout


@pytest.mark.long  # torch takes seconds; `tests/worker` has what clears the cache
def test_clearing_the_cache(project: Any) -> None:
    pytest.importorskip("torch")
    project.write({"train.py": renamed(CLEANUP)}).run("train.py")


def test_run_with_accelerate(written: Any) -> None:
    text = ACCELERATE.replace("multi_gpu=True", "multi_gpu=True, main_process_port=29511")
    shown = written(text).stoker("plan", "train.py", *FOUR, "--explain").stdout
    assert "launch.num_processes = 4" in shown and "launch.arguments.multi_gpu = true" in shown
    # As the troubleshooting tells.
    assert "launch.arguments.main_process_port = 29511" in shown
    assert "gpu_count = 4" in shown
    if written.renamed:
        assert "one for each process, by multi_gpu=True of train.py" in shown
        assert "STK148 translated" in shown and "gets 4 GPUs on each node" in shown


def test_processes_that_each_need_a_gpu_are_refused_without(project: Any) -> None:
    project.write({"train.py": renamed(ACCELERATE)})
    fewer = project.stoker("plan", "train.py", *FOUR, "--set", "steps.training_step.resources.gpu_count=2", code=3)
    assert "STK130" in fewer.stdout
    refused = project.stoker("plan", "train.py", code=3)
    assert "STK103" in refused.stdout


def test_a_flow_with_a_gpu(project: Any) -> None:
    project.write({"train.py": renamed(FLOW), "my_script.py": "def my_gpu_routine():\n    print('routine')\n"})
    finished = project.run("train.py", "run")
    assert "routine" in finished.stdout + finished.stderr
