"""The backends that there are, Stoker's own and those of other distributions (entry points "stoker.backends")."""

from __future__ import annotations

from typing import Final

from stoker.backends.base.backend import Backend
from stoker.core.plugins import Registry

BACKENDS: Final[Registry[Backend]] = Registry(
    group="stoker.backends",
    noun="backend",
    kind=Backend,
    builtin={
        "local": ("stoker.backends.local.registration:LOCAL", ""),
        "inline": ("stoker.backends.local.registration:INLINE", ""),
        "docker": ("stoker.backends.docker.registration:DOCKER", "docker"),
        "slurm": ("stoker.backends.slurm.registration:SLURM", ""),
        "kubeflow": ("stoker.backends.kubeflow.registration:KUBEFLOW", ""),
        "ray": ("stoker.backends.ray.registration:RAY", ""),
        "skypilot": ("stoker.backends.skypilot.registration:SKYPILOT", ""),
        "kubernetes": ("stoker.backends.kubernetes.registration:KUBERNETES", ""),
        "sagemaker": ("stoker.backends.sagemaker.registration:SAGEMAKER", "aws"),
        "batch": ("stoker.backends.aws_batch.registration:BATCH", "aws"),
    },
    aliases={"aws_batch": "batch"},
)
