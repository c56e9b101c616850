"""What a run becomes: KFP's own schema, and what its own compiler makes of the same request."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import json_format
from kfp import dsl
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2

from stoker.backends.kubeflow import requests as kfp
from stoker.backends.kubeflow.settings import KubeflowSettings
from stoker.backends.kubernetes.request.pods import PodRequest, pod_template
from stoker.core.resources import ResourceSettings


def template(settings: dict[str, Any] | None = None, **resources: Any) -> dict[str, Any]:
    return pod_template(
        PodRequest(
            resources=ResourceSettings(**resources),
            settings=KubeflowSettings(**(settings or {})),
            image="registry.example/train:1",
            command=("python3", "-c", "print(1)"),
            environment={"A": "1"},
            labels={"stoker/run": "r"},
        )
    )


def mounted(volume: dict[str, Any], **mount: Any) -> dict[str, Any]:
    """The settings of a pod with one volume."""
    return {"volumes": [{"name": "v", **volume}], "volume_mounts": [{"name": "v", "mountPath": "/v", **mount}]}


SCRATCH: dict[str, Any] = {
    "name": "scratch",
    "ephemeral": {
        "volumeClaimTemplate": {
            "metadata": {"annotations": {"note": "x"}},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "5Gi"}},
                "storageClassName": "fast",
            },
        }
    },
}
EVERYTHING: dict[str, Any] = {
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 30}],
    "labels": {"team": "vision"},
    "annotations": {"note": "x"},
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "persistent_volume_claims": {"data": "/data"},
    "use_tmpfs": True,
    "tmpfs_size": 64,
    "env": [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "modes", "key": "mode"}}},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ],
    "volumes": [
        {"name": "hub", "secret": {"secretName": "hub"}},
        {"name": "modes", "configMap": {"name": "modes"}},
        SCRATCH,
    ],
    "volume_mounts": [
        {"name": "hub", "mountPath": "/hub"},
        {"name": "modes", "mountPath": "/modes"},
        {"name": "scratch", "mountPath": "/scratch"},
    ],
    "security_context": {"runAsUser": 1000},
    "pod_security_context": {"runAsUser": 7, "runAsGroup": 100, "runAsNonRoot": True},
    "pod_spec": {"activeDeadlineSeconds": 3600},
}


def test_all_that_can_be_said_is_in_the_schema() -> None:
    """Parsed strictly by KFP's own messages: a field that they lack raises."""
    full = template(EVERYTHING, gpu_count=2, accelerators="H100", cpu_count=4, memory="16GB", shared_memory="8GB")
    assert kfp.inexpressible(full) == []
    tasks = [
        kfp.PipelineTask(name="load", title="load", template=template(), retries=2),
        kfp.PipelineTask(name="train", title="train", template=full, after=["load"], retries=3),
        kfp.PipelineTask(name="score", title="score", template=template(), after=["train"], slots=3),
    ]
    spec, platform = kfp.pipeline_spec("digits", "by hand", tasks)
    parsed = json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
    assert set(parsed.root.dag.tasks) == {"load", "score", "train"}
    config = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    message = json_format.ParseDict(config, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
    assert message.node_selector.labels["pool"] == "gpu"
    assert {mount.mount_path for mount in message.pvc_mount} == {"/data"}
    assert {mount.medium for mount in message.empty_dir_mounts} == {"Memory"}
    assert {one.env_var for source in message.secret_as_env for one in source.key_to_env} == {"HF_TOKEN"}
    assert message.node_affinity, "the accelerator's type is a node's label"
    assert message.active_deadline_seconds == 3600
    [scratch] = message.generic_ephemeral_volume
    assert (scratch.mount_path, scratch.size, scratch.storage_class_name) == ("/scratch", "5Gi", "fast")
    assert scratch.metadata.annotations["note"] == "x" and not scratch.default_storage_class
    context = message.security_context
    assert (context.run_as_user, context.run_as_group, context.run_as_non_root) == (1000, 100, True), "the container's"
    container = spec["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert container["resources"]["accelerator"] == {
        "type": "nvidia.com/gpu",
        "count": "2",
        "resourceType": "nvidia.com/gpu",
        "resourceCount": "2",
    }


def test_the_same_as_kfps_own_compiler(tmp_path: Any) -> None:
    """Two steps and a request, written with KFP's SDK and by us."""
    import yaml
    from kfp import compiler, dsl

    @dsl.container_component  # type: ignore[untyped-decorator]
    def load():  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="registry.example/train:1", command=["python3", "-c", "print(1)"])

    @dsl.container_component  # type: ignore[untyped-decorator]
    def train():  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="registry.example/train:1", command=["python3", "-c", "print(1)"])

    @dsl.pipeline(name="digits", description="by hand")  # type: ignore[untyped-decorator]
    def digits():  # type: ignore[no-untyped-def]
        first = load().set_caching_options(False).set_retry(2, backoff_duration="5s", backoff_factor=1)
        second = train().after(first).set_caching_options(False).set_retry(3, backoff_duration="5s", backoff_factor=1)
        for task, cpu, memory in ((first, "100m", "256Mi"), (second, "4", "16G")):
            task.set_env_variable("A", "1").set_cpu_request(cpu).set_memory_request(memory)
        second.set_memory_limit("16G").set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)

    compiler.Compiler().compile(digits, str(tmp_path / "theirs.yaml"))
    theirs = next(yaml.safe_load_all((tmp_path / "theirs.yaml").read_text()))
    tasks = [
        kfp.PipelineTask(name="load", title="load", template=template(), retries=2),
        kfp.PipelineTask(
            name="train",
            title="train",
            template=template(cpu_count=4, memory="16GB", gpu_count=2),
            after=["load"],
            retries=3,
        ),
    ]
    ours, _ = kfp.pipeline_spec("digits", "by hand", tasks)
    for name in ("load", "train"):
        container = ours["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
        assert container.pop("args") == []
        their_retry = theirs["root"]["dag"]["tasks"][name]["retryPolicy"]
        assert their_retry.pop("backoffMaxDuration")  # KFP's own default
        their_task = theirs["root"]["dag"]["tasks"][name]
        assert ours["root"]["dag"]["tasks"][name] == their_task
        assert container == theirs["deploymentSpec"]["executors"][f"exec-{name}"]["container"], name
    for part in ("pipelineInfo", "schemaVersion", "components"):
        assert ours[part] == theirs[part], part
    # The installed SDK may be a later one: what it writes otherwise shows above.
    assert ours["sdkVersion"].partition("-")[0] == theirs["sdkVersion"].partition("-")[0] == "kfp"


@pytest.mark.parametrize(
    ("settings", "resources", "named"),
    [
        ({"priority_class": "high"}, {}, "priorityClassName"),
        ({"host_network": True}, {}, "hostNetwork"),
        ({"host_paths": {"/data": "/data"}}, {}, "volumes.hostPath"),
        ({"secrets": ["hub"]}, {}, "envFrom"),
        ({}, {"disk": "10GB"}, "resources.ephemeral-storage"),
        ({"efa": 4}, {"gpu_count": 8}, "resources.vpc.amazonaws.com/efa"),
        ({"overlay": {"spec": {"hostAliases": []}}}, {}, "hostAliases"),
        ({"overlay": {"metadata": {"finalizers": ["a/b"]}}}, {}, "metadata.finalizers"),
        (mounted({"secret": {"secretName": "hub", "defaultMode": 0o400}}), {}, "volumes.secret.defaultMode"),
        (mounted({"configMap": {"name": "m", "items": [{"key": "a", "path": "b"}]}}), {}, "volumes.configMap.items"),
        (mounted({"secret": {"secretName": "hub"}}, subPath="token"), {}, "volumeMounts.subPath"),
        (mounted({"persistentVolumeClaim": {"claimName": "d", "readOnly": True}}), {}, "volumes.persistentVolumeClaim"),
        (mounted({"persistentVolumeClaim": {"claimName": "d"}}, readOnly=True), {}, "volumeMounts.readOnly"),
        ({"pod_security_context": {"fsGroup": 100}}, {}, "securityContext.fsGroup"),
        ({"security_context": {"capabilities": {"add": ["SYS_PTRACE"]}}}, {}, "securityContext.capabilities"),
        (mounted({"ephemeral": {"volumeClaimTemplate": {"spec": {"volumeMode": "Block"}}}}), {}, "volumes.ephemeral.v"),
        (mounted({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}), {}, "volumes.ephemeral without accessModes"),
    ],
)
def test_what_kfp_has_no_words_for_is_named(settings: dict[str, Any], resources: dict[str, Any], named: str) -> None:
    missing = kfp.inexpressible(template(settings, **resources))
    assert any(one.startswith(named) for one in missing), missing


def volumes(**kinds: dict[str, Any]) -> dict[str, Any]:
    """The settings of a pod with these volumes, each mounted at its name."""
    return {
        "volumes": [{"name": name, **kind} for name, kind in kinds.items()],
        "volume_mounts": [{"name": name, "mountPath": f"/{name}"} for name in kinds],
    }


SECRET, CONFIG = {"secret": {"secretName": "hub"}}, {"configMap": {"name": "hub"}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (volumes(a=SECRET, b={"emptyDir": {}}), ""),
        (volumes(a=SECRET, b=SECRET), ""),  # twice the same volume, of which Kubernetes makes one
        (volumes(a=SECRET, b=CONFIG), "mounts the secret 'hub' and the config map 'hub'"),
        (volumes(hub={"emptyDir": {}}, b=CONFIG), "mounts the empty folder 'hub' and the config map 'hub'"),
        (
            {**volumes(a=SECRET), "persistent_volume_claims": {"hub": "/c"}},
            "mounts the claim 'hub' and the secret 'hub'",
        ),
        (volumes(a={"secret": {"secretName": "hub.example.com"}}), "mounts the secret 'hub.example.com'"),
        (volumes(a={"configMap": {"name": "x" * 64}}), f"mounts the config map '{'x' * 64}'"),
    ],
)
def test_volumes_that_get_a_name_which_is_refused(settings: dict[str, Any], said: str) -> None:
    """KFP's driver names a volume after the secret, config map or claim in it, and Kubernetes refuses such a pod."""
    wrong = kfp.badly_named(template(settings))
    assert [what for what, _ in wrong] == ([said] if said else [])


def test_names_are_unique() -> None:
    assert kfp.task_names(["train", "Train", "train[0]", "é"]) == {
        "train": "train",
        "Train": "train-2",
        "train[0]": "train-0",
        "é": "step",
    }


@pytest.mark.parametrize(
    "memory", ["1000000000", *(f"4{unit}" for unit in ("Ki", "M", "Mi", "G", "Gi", "T", "Ti", "P", "Pi", "E"))]
)
def test_amounts_are_the_numbers_that_kfp_makes_of_them(memory: str) -> None:
    """Endpoints before 2.4 read the numbers: cores, and 10^9 bytes."""

    @dsl.container_component  # type: ignore[untyped-decorator]
    def row():  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="registry.example/train:1", command=["true"])

    @dsl.pipeline(name="one")  # type: ignore[untyped-decorator]
    def pipeline():  # type: ignore[no-untyped-def]
        row().set_memory_limit(memory).set_cpu_limit("1500m").set_cpu_request("0.25")

    theirs = json_format.MessageToDict(pipeline.pipeline_spec)["deploymentSpec"]["executors"]["exec-row"]["container"]
    amounts = {"limits": {"cpu": "1500m", "memory": memory}, "requests": {"cpu": "0.25"}}
    task = kfp.PipelineTask(name="row", title="row", template=template({"pod_resources": amounts}), after=(), retries=0)
    ours = kfp.pipeline_spec("one", "", [task])[0]["deploymentSpec"]["executors"]["exec-row"]["container"]["resources"]
    for name, number in theirs["resources"].items():
        assert ours[name] == (pytest.approx(number) if isinstance(number, float) else number), name
