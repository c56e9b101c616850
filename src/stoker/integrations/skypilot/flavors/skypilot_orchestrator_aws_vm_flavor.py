"""`SkypilotAWSOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.backends.skypilot.settings import SkypilotSettings

SkypilotAWSOrchestratorSettings = partial(SkypilotSettings, cloud="aws")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotAWSOrchestratorSettings"]
