"""What goes into settings, and the stacks: `from stoker.config import ResourceSettings, Retry, Torchrun`.

Names are imported when they are first used, so that the settings of a platform cost nothing where nobody names it. How
stacks are found and read is `stoker.stacks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.backends.aws_batch.settings import BatchSettings
    from stoker.backends.docker.settings import ContainerSettings
    from stoker.backends.kubeflow.settings import KubeflowSettings
    from stoker.backends.kubernetes.settings import KubernetesPodSettings, KubernetesSettings
    from stoker.backends.local.settings import LocalSettings
    from stoker.backends.ray.settings import RaySettings
    from stoker.backends.sagemaker.settings import SagemakerSettings
    from stoker.backends.skypilot.settings import SkypilotSettings
    from stoker.backends.slurm.settings import SlurmSettings
    from stoker.core.data import DataCache
    from stoker.core.docker import DockerSettings
    from stoker.core.ladder import Alternative, Halve, Scale
    from stoker.core.packages import PackageSettings
    from stoker.core.resources import Monitor, ResourceSettings
    from stoker.core.secret import Secret
    from stoker.core.settings import Launch, Retry
    from stoker.launchers.accelerate import Accelerate
    from stoker.launchers.deepspeed import DeepSpeed
    from stoker.launchers.jax import Jax
    from stoker.launchers.mpi import MPI
    from stoker.launchers.registry import Command
    from stoker.launchers.torchrun import Torchrun
    from stoker.stacks import Component, Stack, load, stacks

__all__ = [
    "MPI",
    "Accelerate",
    "Alternative",
    "BatchSettings",
    "Command",
    "Component",
    "ContainerSettings",
    "DataCache",
    "DeepSpeed",
    "DockerSettings",
    "Halve",
    "Jax",
    "KubeflowSettings",
    "KubernetesPodSettings",
    "KubernetesSettings",
    "Launch",
    "LocalSettings",
    "Monitor",
    "PackageSettings",
    "RaySettings",
    "ResourceSettings",
    "Retry",
    "SagemakerSettings",
    "Scale",
    "Secret",
    "SkypilotSettings",
    "SlurmSettings",
    "Stack",
    "Torchrun",
    "load",
    "stacks",
]

_HOMES = {
    "Accelerate": "stoker.launchers.accelerate",
    "Alternative": "stoker.core.ladder",
    "BatchSettings": "stoker.backends.aws_batch.settings",
    "Command": "stoker.launchers.registry",
    "Component": "stoker.stacks",
    "ContainerSettings": "stoker.backends.docker.settings",
    "DataCache": "stoker.core.data",
    "DeepSpeed": "stoker.launchers.deepspeed",
    "DockerSettings": "stoker.core.docker",
    "Halve": "stoker.core.ladder",
    "Jax": "stoker.launchers.jax",
    "KubeflowSettings": "stoker.backends.kubeflow.settings",
    "KubernetesPodSettings": "stoker.backends.kubernetes.settings",
    "KubernetesSettings": "stoker.backends.kubernetes.settings",
    "Launch": "stoker.core.settings",
    "LocalSettings": "stoker.backends.local.settings",
    "MPI": "stoker.launchers.mpi",
    "Monitor": "stoker.core.resources",
    "PackageSettings": "stoker.core.packages",
    "RaySettings": "stoker.backends.ray.settings",
    "ResourceSettings": "stoker.core.resources",
    "Retry": "stoker.core.settings",
    "SagemakerSettings": "stoker.backends.sagemaker.settings",
    "Scale": "stoker.core.ladder",
    "Secret": "stoker.core.secret",
    "SkypilotSettings": "stoker.backends.skypilot.settings",
    "SlurmSettings": "stoker.backends.slurm.settings",
    "Stack": "stoker.stacks",
    "Torchrun": "stoker.launchers.torchrun",
    "load": "stoker.stacks",
    "stacks": "stoker.stacks",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'stoker.config' has no attribute '{name}'")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
