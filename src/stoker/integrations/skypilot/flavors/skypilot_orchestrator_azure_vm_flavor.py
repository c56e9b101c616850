"""`SkypilotAzureOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.backends.skypilot.settings import SkypilotSettings

SkypilotAzureOrchestratorSettings = partial(SkypilotSettings, cloud="azure")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotAzureOrchestratorSettings"]
