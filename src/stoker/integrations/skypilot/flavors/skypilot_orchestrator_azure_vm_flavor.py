"""`SkypilotAzureOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.integrations.skypilot.settings import settings_of_cloud

SkypilotAzureOrchestratorSettings = partial(settings_of_cloud, "azure")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotAzureOrchestratorSettings"]
