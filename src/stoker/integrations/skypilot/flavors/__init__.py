"""ZenML's SkyPilot flavors: each is `stoker.config.SkypilotSettings` for one cloud.

ZenML has a module for each, `skypilot_orchestrator_aws_vm_flavor`; by these paths, too, this module is imported.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final, Mapping

from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.errors import SettingsError, nearest

LAUNCH: Final = ("retry_until_up", "idle_minutes_to_autostop", "down")
"""What `launch_settings` may say: arguments of `sky.launch` that are fields of the settings, too."""


def settings_of_cloud(
    cloud: str, *, stream_logs: bool = True, launch_settings: Mapping[str, Any] | None = None, **fields: Any
) -> SkypilotSettings:
    """Settings of steps on one cloud. `stream_logs=True` is what always happens, and False is refused."""
    if stream_logs is not True:
        fields["stream_logs"] = stream_logs  # refused in words, as in `SkypilotSettings`
    for name, value in (launch_settings or {}).items():
        if name not in LAUNCH:
            raise SettingsError(f"launch_settings: there is no '{name}'{nearest(name, LAUNCH)}")
        fields.setdefault(name, value)
    return SkypilotSettings(cloud=cloud, **fields)


SkypilotAWSOrchestratorSettings = partial(settings_of_cloud, "aws")
SkypilotAzureOrchestratorSettings = partial(settings_of_cloud, "azure")
SkypilotGCPOrchestratorSettings = partial(settings_of_cloud, "gcp")
SkypilotKubernetesOrchestratorSettings = partial(settings_of_cloud, "kubernetes")
SkypilotLambdaOrchestratorSettings = partial(settings_of_cloud, "lambda")

__all__ = [
    "SkypilotAWSOrchestratorSettings",
    "SkypilotAzureOrchestratorSettings",
    "SkypilotGCPOrchestratorSettings",
    "SkypilotKubernetesOrchestratorSettings",
    "SkypilotLambdaOrchestratorSettings",
]

for _cloud in ("aws", "azure", "gcp", "kubernetes", "lambda"):
    sys.modules[f"{__name__}.skypilot_orchestrator_{_cloud}_vm_flavor"] = sys.modules[__name__]
