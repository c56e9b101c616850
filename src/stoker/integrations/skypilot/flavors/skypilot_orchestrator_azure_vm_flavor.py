"""`SkypilotAzureOrchestratorSettings`, where ZenML has it."""

from stoker.integrations.skypilot.flavors import SkypilotAzureOrchestratorSettings

__all__ = ["SkypilotAzureOrchestratorSettings"]
