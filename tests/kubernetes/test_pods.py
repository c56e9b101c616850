"""The pods of representative requests: exact, and valid by the OpenAPI schemas that Kubernetes publishes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import kubernetes_validate
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubernetes.server.schemas import flaws
from tests.kubernetes.server.volumes import expanded

from stoker.backends.aws import instances
from stoker.backends.kubernetes.explain import nodelabels
from stoker.backends.kubernetes.request.accelerators import accelerator_request
from stoker.backends.kubernetes.request.pods import (
    PodMount,
    PodRequest,
    admission,
    companions,
    cpu_quantity,
    merged,
    pod_template,
    quantity,
    shared_memory,
)
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.accelerators import MODELS
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ("1.28", "1.34", "1.37")
"""Of the API, from the oldest that is in use to the newest that the schemas are there for."""
NEVER_RUN = "Made from this project's documentation, and valid as far as it is Kubernetes' own; it was never run."
ZENML = {
    "node_selectors": {"pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}],
    "resources": {"requests": {"cpu": "2"}, "limits": {"nvidia.com/gpu": "1"}},
    "annotations": {"team": "ml"},
    "labels": {"kind": "training"},
    "volumes": [{"name": "data", "hostPath": {"path": "/data"}}],
    "volume_mounts": [{"name": "data", "mountPath": "/data"}],
    "host_ipc": True,
    "scheduler_name": "other",
    "image_pull_secrets": ["regcred"],
    "env": [{"name": "HF_HOME", "value": "/data/hf"}],
    "env_from": [{"secretRef": {"name": "hub"}}],
    "container_security_context": {"runAsNonRoot": True},
    "security_context": {"fsGroup": 1000},
    "additional_pod_spec_args": {"shareProcessNamespace": True},
}
METAFLOW = {
    "image": "team/train:1",
    "image_pull_policy": "Always",
    "image_pull_secrets": "a,b",
    "service_account": "trainer",
    "secrets": "hub,db",
    "node_selector": "pool=gpu,zone=a",
    "namespace": "ml",
    "tolerations": [{"key": "gpu", "operator": "Exists", "toleration_seconds": 60, "effect": "NoExecute"}],
    "labels": {"team": "ml"},
    "annotations": {"owner": "me"},
    "use_tmpfs": True,
    "tmpfs_tempdir": True,
    "tmpfs_size": 512,
    "tmpfs_path": "/fast",
    "persistent_volume_claims": {"data": "/data", "cache": "/cache"},
    "port": 8080,
    "compute_pool": "a100",
    "executable": "python3.11",
    "hostname_resolution_timeout": 300,
    "qos": "Guaranteed",
    "extended_resources": {"vpc.amazonaws.com/efa": "2"},
    "security_context": {"runAsUser": 1000, "capabilities": {"add": ["SYS_PTRACE"]}},
}
RACK = "cloud.provider.com/topology-rack"

OWN_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            ]
        }
    }
}

REQUESTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "sizes": ({"cpu_count": 1.5, "memory": "16GiB", "disk": "50GB", "shared_memory": "2GiB"}, {}),
    "guaranteed": ({"cpu_count": 4, "memory": "8GB"}, {"qos": "Guaranteed"}),
    "gpus": ({"gpu_count": 2, "memory": "64GB"}, {}),
    "h100": ({"accelerators": "H100:8", "cpu_count": 64, "memory": "1TB"}, {"efa": 32}),
    "alternatives": ({"accelerators": ["H100", "A100-80GB", "A100"], "gpu_count": 4}, {}),
    "memory-of-gpus": ({"gpu_count": 1, "gpu_memory": "40GB"}, {}),
    "slice": ({"accelerators": "A100-80GB/1g.10gb"}, {}),
    "slice-single": ({"accelerators": "A100-80GB/1g.10gb"}, {"mig_strategy": "single"}),
    "amd": ({"accelerators": "MI300X:8"}, {}),
    "gaudi": ({"accelerators": "Gaudi:8"}, {}),
    "trainium": ({"accelerators": "trainium:16", "extended": {"hugepages-2Mi": 1 << 30}}, {}),
    "tpu": ({"accelerators": "tpu-v5e:8"}, {}),
    "tpu-slice": ({"accelerators": "tpu-v5p:4", "nodes": 4}, {}),
    "intel": ({"gpu_count": 1, "gpu_vendor": "intel"}, {"resource_names": {"intel": "gpu.intel.com/i915"}}),
    "claim": ({"accelerators": ["H100:8", "A100-80GB:4"]}, {"device_class": "gpu.nvidia.com"}),
    "own-labels": ({"accelerators": "H100"}, {"accelerators": {"H100": {"pool": "h100"}}}),
    "spot": ({"accelerators": "L4", "spot": True}, {}),
    "on-demand": ({"accelerators": "L4", "spot": False}, {"affinity": OWN_AFFINITY}),
    "gang": (
        {"accelerators": "H100:8", "nodes": 4},
        {"topology": RACK, "host_network": True, "extended_resources": {"rdma/ib": "8"}},
    ),
    "metaflow": ({"cpu_count": 4, "memory": "16GB", "gpu_count": 1}, METAFLOW),
    "zenml": ({}, {"pod_settings": ZENML, "service_account_name": "zenml", "ttl_seconds_after_finished": 60}),
    "everything": (
        {"gpu_count": 1},
        {
            "config_maps": ["conf"],
            "env": {"TOKEN": {"valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}},
            "priority_class": "high",
            "runtime_class": "nvidia",
            "pod_security_context": {"runAsNonRoot": True},
            "privileged": True,
            "grace_period": "2m",
            "host_paths": ["/shared"],
            "overlay": {
                "metadata": {"annotations": {"sidecar.istio.io/inject": "false"}},
                "spec": {
                    "containers": [{"name": "step", "stdin": True}, {"name": "proxy", "image": "proxy:1"}],
                    "enableServiceLinks": None,
                },
            },
        },
    ),
    "kueue": ({"accelerators": "H100:8", "nodes": 2}, {"queue": "ml", "queue_priority": "high", "topology": RACK}),
    "volcano": ({"accelerators": "H100:8", "nodes": 2}, {"queue": "ml", "queueing": "volcano"}),
    "coscheduling": ({"accelerators": "H100:8", "nodes": 2}, {"queueing": "coscheduling", "topology": RACK}),
}


def request(resources: Mapping[str, Any], settings: Mapping[str, Any]) -> PodRequest:
    wanted = ResourceSettings(**resources)
    return PodRequest(
        resources=wanted,
        settings=KubernetesSettings(**settings),
        image="team/train:1",
        command=("python3", "-c", "pass"),
        environment={"WORD": "a b"},
        labels={"stoker/run": "digits-1", "stoker/request": "0123456789abcdef"},
        mounts=[
            PodMount(name="stoker-job", source={"secret": {"secretName": "digits-train-x7k2"}}, path="/stoker/job")
        ],
        nodes=wanted.get("nodes", 1),
        name="digits-train-x7k2",
    )


def objects(asked: PodRequest) -> list[dict[str, Any]]:
    """What the API server would be sent, with as little around the template as it takes."""
    added = admission(asked)
    spec: dict[str, Any] = {"backoffLimit": 0, "template": pod_template(asked)}
    if added.suspend is not None:
        spec["suspend"] = added.suspend
    metadata = {"name": asked.name, **({"labels": dict(added.labels)} if added.labels else {})}
    return [*companions(asked), {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}]


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_as_objects(name: str) -> None:
    """Exact, and taken by the published schemas, strictly: a server would drop a field that the API does not have."""
    things = objects(request(*REQUESTS[name]))
    made: dict[str, Any] = {"objects": things}
    if name in ("kueue", "volcano", "coscheduling"):
        made = {"note": NEVER_RUN, **made}
    text = json.dumps(made, indent=1) + "\n"
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    # Claims of resource.k8s.io/v1 are there since 1.34.
    since = (1, 34) if any(thing["apiVersion"] == "resource.k8s.io/v1" for thing in things) else (0,)
    for thing in things:
        if thing["kind"] == "PodGroup":  # of a project of its own
            assert flaws(f"PodGroup.{thing['apiVersion'].partition('/')[0]}", thing) == []
            continue
        for version in VERSIONS:
            if tuple(map(int, version.split("."))) >= since:
                kubernetes_validate.validate(thing, version, strict=True)


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(REQUESTS)


def test_the_schemas_refuse_what_the_api_does_not_have() -> None:
    (job,) = objects(request({}, {"pod_spec": {"nodeSelektor": {}}}))
    with pytest.raises(kubernetes_validate.ValidationError, match="nodeSelektor"):
        kubernetes_validate.validate(job, "1.37", strict=True)


# Nodes that are chosen


H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
NODES: Mapping[str, dict[str, str]] = {
    "h100": H100,
    "h100-mig": {**H100, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb"},
    "h100-gke": {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
    "h100-karpenter": {"karpenter.k8s.aws/instance-gpu-name": "h100", "karpenter.k8s.aws/instance-gpu-memory": "81920"},
    "h100-auto": {"eks.amazonaws.com/instance-gpu-name": "h100"},
    "h100-eks": {"node.kubernetes.io/instance-type": "p5.48xlarge"},
    "h100-aks": {"accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_ND96isr_H100_v5"},
    "h100-coreweave": {"gpu.nvidia.com/class": "H100_NVLINK_80GB"},
    "a100-karpenter": {"karpenter.k8s.aws/instance-gpu-name": "a100", "karpenter.k8s.aws/instance-gpu-memory": "40960"},
    "a100-80-karpenter": {
        "karpenter.k8s.aws/instance-gpu-name": "a100",
        "karpenter.k8s.aws/instance-gpu-memory": "81920",
    },
    "a100-80": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"},
    "t4": {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15109"},
    "a10g-eks": {"node.kubernetes.io/instance-type": "g5.xlarge"},
    "mi300x": {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
    "trn1": {"node.kubernetes.io/instance-type": "trn1.32xlarge"},
    "spot": {**H100, "karpenter.sh/capacity-type": "spot"},
    "plain": {"kubernetes.io/arch": "amd64"},
}


def taken(template: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether the scheduler takes a node with these labels for a pod: node selector and required affinity."""
    spec = template["spec"]
    if any(labels.get(key) != text for key, text in spec.get("nodeSelector", {}).items()):
        return False
    required = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required["nodeSelectorTerms"]
    return any(all(_meets(labels, one) for one in term["matchExpressions"]) for term in terms)


def _meets(labels: Mapping[str, str], one: Mapping[str, Any]) -> bool:
    text, values = labels.get(one["key"]), one["values"]
    if one["operator"] in ("In", "NotIn"):
        return (text in values) == (one["operator"] == "In")
    bound = int(values[0])
    return text is not None and (int(text) > bound if one["operator"] == "Gt" else int(text) < bound)


H100S = {name for name in NODES if name.startswith("h100") and "mig" not in name} | {"spot"}


@pytest.mark.parametrize(
    ("resources", "nodes"),
    [
        ({"accelerators": "H100"}, H100S),
        ({"accelerators": "A100"}, {"a100-karpenter"}),
        ({"accelerators": "A100-80GB"}, {"a100-80", "a100-80-karpenter"}),
        ({"accelerators": ["H100", "A100-80GB"]}, H100S | {"a100-80", "a100-80-karpenter"}),
        ({"accelerators": "T4", "gpu_memory": "16GB"}, {"t4"}),
        ({"accelerators": "H100", "spot": False}, H100S - {"spot"}),
        ({"gpu_memory": "16GB"}, set(NODES) - {"mi300x", "trn1", "plain"}),
        ({"gpu_memory": "40GB"}, H100S | {"h100-mig", "a100-karpenter", "a100-80-karpenter", "a100-80"}),
        ({"gpu_memory": "100GB", "gpu_vendor": "amd"}, {"mi300x"}),
        ({"accelerators": "trainium"}, {"trn1"}),
        ({"gpu_count": 1}, set(NODES)),
        ({"accelerators": "H100/1g.10gb"}, H100S),
    ],
)
def test_which_nodes_are_taken(resources: dict[str, Any], nodes: set[str]) -> None:
    template = pod_template(request(resources, {}))
    # A node's own labels of memory decide; an instance type that has no such label is taken by its model.
    wanted = nodes - {"h100-auto"} if "gpu_memory" in resources and "accelerators" not in resources else nodes
    assert {name for name, labels in NODES.items() if taken(template, labels)} == wanted


def test_a_node_is_taken_for_the_model_that_its_labels_name() -> None:
    """Both directions of the table agree: for each model that can be asked for, each node that is taken has it."""
    asked = 0
    for name in MODELS:
        made = accelerator_request(ResourceSettings(accelerators=name), KubernetesSettings())
        assert made is not None
        if made.refusal is not None or made.vendor == "tpu":
            continue
        template = pod_template(request({"accelerators": name}, {}))
        for label, values in nodelabels.label_values(name).items():
            for value in values:
                bounds = nodelabels.bounds_of(name, label)
                memory = nodelabels.KARPENTER_MEMORIES.get(label, "-")
                labels = {label: value, memory: str((bounds or (0, 0))[0] + 1)}
                assert taken(template, labels), (name, labels)
                asked += 1
    assert asked > 150


def test_nodes_that_are_left_out() -> None:
    asked = attrs.evolve(request({"accelerators": "H100"}, {"affinity": OWN_AFFINITY}), avoid=["gpu-1", "gpu-2"])
    job = objects(asked)[-1]
    kubernetes_validate.validate(job, "1.37", strict=True)
    node = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for term in terms:
        names = [one["values"] for one in term["matchFields"] if one["operator"] == "NotIn"]
        assert names == [["gpu-1"], ["gpu-2"]]
    plain = attrs.evolve(request({}, {}), avoid=["gpu-1"])
    node = objects(plain)[-1]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert len(node["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]) == 1


def test_a_better_alternative_weighs_more() -> None:
    (job,) = objects(request({"accelerators": ["H100", "A100-80GB", "A100"]}, {}))
    node = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    weights: dict[str, int] = {}
    for one in node["preferredDuringSchedulingIgnoredDuringExecution"]:
        (first,) = one["preference"]["matchExpressions"][:1]
        if first["key"] == nodelabels.NVIDIA_PRODUCT:
            weights[first["values"][0]] = one["weight"]
    assert weights == {"NVIDIA-H100-80GB-HBM3": 100, "NVIDIA-A100-SXM4-80GB": 55}


@pytest.mark.parametrize(
    ("resources", "settings", "words"),
    [
        ({"gpu_memory": "10GB", "share": True}, {}, "whole devices"),
        ({"gpu_vendor": "apple", "gpu_count": 1}, {}, "no device plugin"),
        ({"accelerators": "tpu-v5e:3"}, {}, "1 or 4 or 8"),
        ({"accelerators": "tpu-v5e:8", "nodes": 2}, {}, "a slice that spans several"),
        ({"accelerators": "tpu-v5e:4", "nodes": 3}, {}, "no slice of that size"),
        ({"accelerators": "tpu-v5p:4", "nodes": 17}, {}, "no slice of that size"),
        ({"accelerators": "tpu-v4:4", "nodes": 2000}, {}, "no slice of that size"),
        ({"accelerators": "tpu-v7x:2"}, {}, "1 or 4"),
        ({"gpu_vendor": "tpu", "gpu_count": 4}, {}, "by generation"),
        ({"accelerators": "tpu-v2:4"}, {}, "no nodes of that generation"),
        ({"accelerators": "tpu-v2:4"}, {"tpu_topology": "2x2"}, "no nodes of that generation"),
        ({"accelerators": "Gaudi3"}, {}, "no label is known"),
        ({"accelerators": "trainium"}, {"device_class": "neuron.aws.com"}, "is not known"),
        ({"gpu_vendor": "gaudi", "gpu_memory": "100GB"}, {}, "no label tells the memory"),
    ],
)
def test_what_kubernetes_cannot_give(resources: dict[str, Any], settings: dict[str, Any], words: str) -> None:
    made = accelerator_request(ResourceSettings(**resources), KubernetesSettings(**settings))
    assert made is not None and made.refusal is not None
    assert words in made.refusal.why and made.refusal.fix


@pytest.mark.parametrize(
    ("accelerators", "nodes", "topology"),
    [
        ("tpu-v7x:1", 1, "1x1x1"),
        ("tpu-v7x:4", 1, "2x2x1"),
        ("tpu-v6e:8", 1, "2x4"),
        ("tpu-v5e:4", 64, "16x16"),
        ("tpu-v4:4", 16, "4x4x4"),
        ("tpu-v5p:4", 48, "4x4x12"),
        ("tpu-v5p:4", 176, "4x4x44"),
        ("tpu-v5p:4", 576, "12x12x16"),
        ("tpu-v7x:4", 2048, "16x16x32"),
    ],
)
def test_the_topology_of_a_slice(accelerators: str, nodes: int, topology: str) -> None:
    """As https://github.com/AI-Hypercomputer/xpk has it."""
    made = accelerator_request(ResourceSettings(accelerators=accelerators, nodes=nodes), KubernetesSettings())
    assert made is not None and made.refusal is None
    assert made.selector[nodelabels.GKE_TPU_TOPOLOGY] == topology


def test_the_nearest_slices_are_named() -> None:
    for accelerators, nodes, fix in (("tpu-v5p:4", 17, "nodes=16 or 32;"), ("tpu-v4:4", 2000, "nodes=1024;")):
        made = accelerator_request(ResourceSettings(accelerators=accelerators, nodes=nodes), KubernetesSettings())
        assert made is not None and made.refusal is not None and fix in made.refusal.fix


def test_instance_types_of_ec2_are_those_that_aws_batch_knows() -> None:
    """Nodes of EKS may have no label of their accelerator but their type."""
    for each in instances.table().values():
        labels = {nodelabels.INSTANCE_TYPE: each.name}
        device = nodelabels.device_of(labels)
        assert device is not None and device.name == each.accelerator, each
        assert each.name in nodelabels.label_values(each.accelerator)[nodelabels.INSTANCE_TYPE], each


def test_what_a_setting_makes_possible() -> None:
    for resources, settings, expected in (
        ({"accelerators": "Gaudi3"}, {"accelerators": {"Gaudi3": {"kind": "g3"}}}, "1 × habana.ai/gaudi of Gaudi3"),
        ({"accelerators": "tpu-v6e:4", "nodes": 3}, {"tpu_topology": "3x4"}, "4 × google.com/tpu of tpu-v6e"),
        ({"gpu_count": 1}, {"resource_names": {"nvidia": "nvidia.com/gpu.shared"}}, "1 × nvidia.com/gpu.shared"),
        ({"accelerators": ["H100:8", "MI300X:8"]}, {}, "8 × nvidia.com/gpu of H100"),
    ):
        made = accelerator_request(ResourceSettings(**resources), KubernetesSettings(**settings))
        assert made is not None and made.refusal is None and made.text == expected


# Sizes


def test_quantities() -> None:
    assert [quantity(size) for size in (16 << 30, 16 * 10**9, 1234567, 10**6, 1 << 20)] == [
        "16Gi",
        "16G",
        "1234567",
        "1M",
        "1Mi",
    ]
    assert [cpu_quantity(cpus) for cpus in (2, 0.5, 1.5, 0.0001, 0.1)] == ["2", "500m", "1500m", "1m", "100m"]


def test_shared_memory() -> None:
    def of(resources: dict[str, Any], **settings: Any) -> int | None:
        return shared_memory(ResourceSettings(**resources), KubernetesSettings(**settings))

    assert of({}) is None
    assert of({"gpu_count": 1, "memory": "64GB"}) == 32 * 10**9
    assert of({"gpu_count": 1}) == 0
    assert of({"shared_memory": "2GB"}) == 2 * 10**9
    assert of({"gpu_count": 1}, host_ipc=True) is None
    own = {"volumes": [{"name": "mine", "emptyDir": {}}], "volume_mounts": [{"name": "mine", "mountPath": "/dev/shm"}]}
    (container,) = pod_template(request({"gpu_count": 1}, own))["spec"]["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]].count("/dev/shm") == 1


# Settings


def test_the_words_of_zenml_and_of_the_api() -> None:
    ours = KubernetesSettings(service_account="a", node_selector={"x": "y"}, scheduler="s", ttl=60, grace_period=5)
    theirs = KubernetesSettings(
        service_account_name="a",
        node_selectors={"x": "y"},
        scheduler_name="s",
        ttl_seconds_after_finished=60,
        pod_stop_grace_period=5,
    )
    assert ours == theirs
    with pytest.raises(SettingsError, match="given twice"):
        KubernetesSettings(service_account="a", service_account_name="b")
    with pytest.raises(SettingsError, match="has no field 'namespce', did you mean 'namespace'"):
        KubernetesSettings(namespce="a")
    with pytest.raises(SettingsError) as refused:
        KubernetesSettings(active_deadline_seconds=5)
    assert "timeout" in refused.value.fix
    # What is given beside pod settings counts more.
    both = KubernetesSettings(pod_settings={"labels": {"a": "1"}}, labels={"b": "2"})
    assert both.get("labels") == {"b": "2"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pod_settings": {"node_selector": {}}}, "no field 'node_selector', did you mean 'node_selectors'"),
        ({"pod_settings": {"tolerations": [{"keys": "x"}]}}, "did you mean 'key'"),
        ({"overlay": {"specs": {}}}, "did you mean 'spec'"),
        ({"pools": [{"name": "a", "node": 3}]}, "did you mean 'nodes'"),
        ({"pools": [{"nodes": 3}]}, "has no name"),
        ({"pools": [{"name": "a", "accelerators": "H1000"}]}, "a: accelerators: there is no accelerator"),
        ({"host_paths": "data"}, "not the full path"),
        ({"image": "team/Train:1"}, "'team/Train:1' names no image: a repository has no capital letters"),
        ({"image": "python 3.11"}, r"'python 3.11' names no image\n  fix: write REGISTRY/NAME:TAG"),
        ({"namespace": "ML_team"}, "'ML_team' is no name of a namespace"),
        ({"persistent_volume_claims": {"a": "data"}}, "no full path"),
        ({"resource_names": {"nvdia": "x/y"}}, "did you mean 'nvidia'"),
        ({"resource_names": {"nvidia": "gpu"}}, "no extended resource"),
        ({"volumes": [{"hostPath": {}}]}, "has no name"),
        ({"env_from": "hub"}, "not a list of objects"),
        ({"placement": "PACKED"}, "did you mean 'PACK'"),
        ({"queueing": "kueu"}, "did you mean 'kueue'"),
        ({"accelerators": {"H1": {}}}, "there is no accelerator"),
        ({"affinity": {"x": object()}}, "cannot be written as JSON"),
        ({"grace_period": "soon"}, "not a duration"),
        ({"port": 65536}, "65536 is no port"),
    ],
)
def test_mistakes_in_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        KubernetesSettings(**settings)


def test_parsing_twice_is_parsing_once() -> None:
    """Settings travel in the plan as what they were parsed to."""
    for _, settings in REQUESTS.values():
        once = KubernetesSettings(**settings)
        fields = {name: value for name, value in attrs.asdict(once, recurse=False).items() if value or value is False}
        assert KubernetesSettings(**json.loads(json.dumps(fields))) == once


def test_pools() -> None:
    pool = {
        "name": "h100",
        "labels": {"pool": "h100"},
        "taints": [{"key": "gpu", "value": "h100", "effect": "NoSchedule"}],
        "nodes": 4,
        "cpu_count": 96,
        "memory": "1TB",
        "accelerators": "H100:8",
    }
    settings = KubernetesSettings(pools=[pool], compute_pool="h100")
    assert settings.get("pools")[0]["memory"] == 10**12
    spec = pod_template(request({}, {"pools": [pool], "compute_pool": "h100"}))["spec"]
    assert spec["nodeSelector"] == {"pool": "h100"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Equal", "value": "h100", "effect": "NoSchedule"}]


def test_one_object_over_another() -> None:
    base = {"a": {"b": 1, "c": 2}, "env": [{"name": "X", "value": "1"}], "args": ["a"]}
    over = {"a": {"b": None}, "env": [{"name": "X", "value": "2"}, {"name": "Y"}], "args": ["b"], "new": {"d": None}}
    assert merged(base, over) == {
        "a": {"c": 2},
        "env": [{"name": "X", "value": "2"}, {"name": "Y"}],
        "args": ["b"],
        "new": {},
    }


@given(st.text("$()aB", max_size=12))
def test_a_variable_has_the_value_that_was_written(text: str) -> None:
    """The kubelet, as the tests' own does it, replaces $(NAME), and makes one $ of two."""
    asked = attrs.evolve(request({}, {}), environment={"B": "1", "WORD": text})
    (entry,) = [one for one in pod_template(asked)["spec"]["containers"][0]["env"] if one["name"] == "WORD"]
    assert expanded(entry["value"], {"B": "1"}) == text
