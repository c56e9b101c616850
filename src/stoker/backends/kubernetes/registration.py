"""The decorator `@kubernetes`, for flows that name it: there is no backend for Kubernetes yet."""

from __future__ import annotations

from typing import Final

from stoker.backends.base.backend import RESOURCES, FlowDecorator
from stoker.backends.kubernetes.settings import KubernetesSettings

KUBERNETES: Final = FlowDecorator(
    name="kubernetes",
    title="Kubernetes",
    settings=KubernetesSettings,
    resources=RESOURCES,
    help="Run the step on Kubernetes; every word is checked and kept, and running is refused until it can be done.",
)
