"""`SkypilotAWSOrchestratorSettings`, where ZenML has it."""

from stoker.integrations.skypilot.flavors import SkypilotAWSOrchestratorSettings

__all__ = ["SkypilotAWSOrchestratorSettings"]
