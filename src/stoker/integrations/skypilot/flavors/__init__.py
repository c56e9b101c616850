"""ZenML's SkyPilot flavors: each is `stoker.config.SkypilotSettings` for one cloud."""

from stoker.integrations.skypilot.flavors.skypilot_orchestrator_aws_vm_flavor import SkypilotAWSOrchestratorSettings
from stoker.integrations.skypilot.flavors.skypilot_orchestrator_azure_vm_flavor import SkypilotAzureOrchestratorSettings
from stoker.integrations.skypilot.flavors.skypilot_orchestrator_gcp_vm_flavor import SkypilotGCPOrchestratorSettings
from stoker.integrations.skypilot.flavors.skypilot_orchestrator_kubernetes_vm_flavor import (
    SkypilotKubernetesOrchestratorSettings,
)
from stoker.integrations.skypilot.flavors.skypilot_orchestrator_lambda_vm_flavor import (
    SkypilotLambdaOrchestratorSettings,
)

__all__ = [
    "SkypilotAWSOrchestratorSettings",
    "SkypilotAzureOrchestratorSettings",
    "SkypilotGCPOrchestratorSettings",
    "SkypilotKubernetesOrchestratorSettings",
    "SkypilotLambdaOrchestratorSettings",
]
