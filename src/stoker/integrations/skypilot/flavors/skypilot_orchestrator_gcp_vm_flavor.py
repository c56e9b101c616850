"""`SkypilotGCPOrchestratorSettings`, where ZenML has it."""

from stoker.integrations.skypilot.flavors import SkypilotGCPOrchestratorSettings

__all__ = ["SkypilotGCPOrchestratorSettings"]
