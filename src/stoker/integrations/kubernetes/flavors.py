"""ZenML's names for the settings of steps on Kubernetes: each is `stoker.config.KubernetesSettings`, whose fields have
the names of theirs too."""

from stoker.backends.kubernetes.settings import KubernetesSettings

KubernetesOrchestratorSettings = KubernetesSettings
KubernetesStepOperatorSettings = KubernetesSettings

__all__ = ["KubernetesOrchestratorSettings", "KubernetesStepOperatorSettings"]
