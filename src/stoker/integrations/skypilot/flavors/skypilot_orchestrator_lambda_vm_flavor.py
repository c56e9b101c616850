"""`SkypilotLambdaOrchestratorSettings`, where ZenML has it."""

from stoker.integrations.skypilot.flavors import SkypilotLambdaOrchestratorSettings

__all__ = ["SkypilotLambdaOrchestratorSettings"]
