"""`SkypilotLambdaOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.integrations.skypilot.settings import settings_of_cloud

SkypilotLambdaOrchestratorSettings = partial(settings_of_cloud, "lambda")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotLambdaOrchestratorSettings"]
