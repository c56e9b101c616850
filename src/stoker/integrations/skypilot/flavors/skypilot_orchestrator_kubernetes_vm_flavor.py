"""`SkypilotKubernetesOrchestratorSettings`, where ZenML has it."""

from stoker.integrations.skypilot.flavors import SkypilotKubernetesOrchestratorSettings

__all__ = ["SkypilotKubernetesOrchestratorSettings"]
