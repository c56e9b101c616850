"""`SkypilotLambdaOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.backends.skypilot.settings import SkypilotSettings

SkypilotLambdaOrchestratorSettings = partial(SkypilotSettings, cloud="lambda")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotLambdaOrchestratorSettings"]
