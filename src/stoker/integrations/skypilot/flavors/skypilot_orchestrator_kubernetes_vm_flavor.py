"""`SkypilotKubernetesOrchestratorSettings`, where ZenML has it."""

from functools import partial

from stoker.backends.skypilot.settings import SkypilotSettings

SkypilotKubernetesOrchestratorSettings = partial(SkypilotSettings, cloud="kubernetes")
"""Settings of steps on one cloud; the fields are those of `SkypilotSettings`."""

__all__ = ["SkypilotKubernetesOrchestratorSettings"]
