"""The backends that there are, Stoker's own and those of other distributions (entry points "stoker.backends"); and the
platforms that Stoker has no backend for, by the names under which people look for them, with the way that works."""

from __future__ import annotations

from typing import Final, Mapping

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


_WAYS: Final[Mapping[str, str]] = {
    "Vertex AI": "run steps on GKE (flavor 'kubernetes'), or on GCP by SkyPilot (flavor 'skypilot', infra='gcp')",
    "Azure ML": "run steps on AKS (flavor 'kubernetes'), or on Azure by SkyPilot (flavor 'skypilot', infra='azure')",
    "Modal": "run steps on a cluster (flavor 'kubernetes'), or on any cloud by SkyPilot (flavor 'skypilot')",
}
"""The platform → the way that works."""
_NAMES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("vertex", "vertexai", "gcpvertex", "vertexaitraining"), "Vertex AI"),
    **dict.fromkeys(("azureml", "azuremachinelearning"), "Azure ML"),
    "modal": "Modal",
}
PAGE: Final = "docs/dev/adding/backend.md"


def refusal(name: str) -> str:
    """Why there is no backend of this name, and the way that works, in one sentence; empty for any other name."""
    title = _NAMES.get(name.lower().replace("-", "").replace("_", "").replace(" ", ""))
    if title is None:
        return ""
    return f"there is no backend for {title}: {_WAYS[title]}; how to write one is in {PAGE}"
