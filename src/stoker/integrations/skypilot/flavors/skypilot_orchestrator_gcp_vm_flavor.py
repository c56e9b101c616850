"""`SkypilotGCPOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.backends.skypilot.settings import SkypilotSettings

SkypilotGCPOrchestratorSettings = partial(SkypilotSettings, cloud="gcp")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotGCPOrchestratorSettings"]
