from zenml import pipeline, step
from zenml.config import ResourceSettings
from zenml.integrations.kubernetes.flavors.kubernetes_orchestrator_flavor import KubernetesOrchestratorSettings
from zenml.integrations.kubernetes.pod_settings import KubernetesPodSettings

kubernetes_settings = KubernetesOrchestratorSettings(
    service_account_name="zenml",
    pod_settings=KubernetesPodSettings(
        node_selectors={"cloud.google.com/gke-nodepool": "ml-pool"},
        tolerations=[{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        volume_mounts=[{"name": "data", "mountPath": "/mnt/data"}],
        scheduler_name="custom",
        image_pull_secrets=["regcred"],
        additional_pod_spec_args={"hostname": "trainer"},
    ),
    ttl_seconds_after_finished=300,
    pod_stop_grace_period=60,
)


@step(settings={"resources": ResourceSettings(cpu_count=2, gpu_count=1, memory="16GB")})
def train() -> float:
    return 0.9


@pipeline(settings={"orchestrator": kubernetes_settings})
def training():
    train()


if __name__ == "__main__":
    training()
