"""What is said in the plan of a request that Kubernetes cannot give, or gives in other words."""

from __future__ import annotations

import random
from typing import Any

import attrs
import kubernetes_validate
import pytest
from tests.backends.fields import KUBERNETES

from stoker.backends.kubernetes.request import check as k8scheck
from stoker.backends.kubernetes.request.accelerators import accelerator_request
from stoker.backends.kubernetes.request.pods import CONTAINER, PodRequest, companions, pod_template
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.config import Component, Stack
from stoker.core.accelerators import MODELS
from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.core.plan import Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import Retry, StepSettings
from stoker.launchers.options import resolve_launch
from stoker.plan.layers import resolve
from stoker.settings.options import layer_of

SITE = Site(
    artifacts="s3://bucket/store",
    scratch="/home/me/.stoker/scratch",
    path=(),
    folder="/home/me/project",
    checkpoints="/home/me/.stoker/checkpoints",
)
IMAGE = {"image": "team/train:1"}


def told(
    resources: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, site: Site = SITE, **step: Any
) -> list[tuple[str, str]]:
    """Level and code of each finding, of a step that has an image unless its settings say otherwise."""
    return [(one.level, one.code) for one in findings(resources, settings, site, **step)]


def findings(
    resources: dict[str, Any] | None = None, settings: dict[str, Any] | None = None, site: Site = SITE, **step: Any
) -> list[Any]:
    plan = StepPlan(
        key="train",
        name="train",
        source=FunctionSource(kind="script", module="t", qualname="train", path="/p/t.py", root="/p"),
        outputs=(),
        unpack=False,
        inputs={},
        settings=StepSettings(
            resources=ResourceSettings(**(resources or {})),
            backend={"orchestrator": IMAGE if settings is None else settings},
            **step,
        ),
        backend="orchestrator",
        code="1234",
        where="t.py:7",
    )
    return list(k8scheck.check(plan, {}, site))


SHM = ("info", "STK281")
ALONE = ("info", "STK369")


@pytest.mark.parametrize(
    ("resources", "settings", "expected"),
    [
        ({"cpu_count": 4, "memory": "16GB", "disk": "1GB", "spot": True, "nodes": 2}, {}, []),
        ({"memory": "1GB", "shared_memory": "2GB"}, {}, [("error", "STK280")]),
        ({"memory": "4GB", "shared_memory": "2GB"}, {}, []),
        ({"gpu_count": 1, "memory": "4GB"}, {}, [SHM]),
        ({"gpu_count": 1, "shared_memory": "4GB"}, {}, []),
        ({"gpu_memory": "10GB", "share": True, "shared_memory": "1GB"}, {}, [("error", "STK280")]),
        ({"accelerators": ["H100:8", "A100-80GB:4"], "shared_memory": "1GB"}, {}, [("translated", "STK281")]),
        (
            {"accelerators": ["H100:8", "A100-80GB:4"], "shared_memory": "1GB"},
            {"device_class": "gpu.nvidia.com"},
            [ALONE],
        ),
        ({"accelerators": ["H100:8", "A100-80GB:8"], "shared_memory": "1GB"}, {}, []),
        ({"memory": "4GB"}, {"qos": "Guaranteed"}, [("error", "STK280")]),
        ({"memory": "4GB", "cpu_count": 1}, {"qos": "Guaranteed"}, []),
        ({"extended": {"fpga": 1}}, {}, [("error", "STK280")]),
        ({"extended": {"example.com/fpga": 0.5}}, {}, [("error", "STK280")]),
        ({}, {"extended_resources": {"example.com/fpga": "500m"}}, [("error", "STK280")]),
        ({}, {"extended_resources": {"google.com/tpu": "4"}}, [("translated", "STK281")]),
        ({"extended": {"hugepages-2Mi": 1073741824}}, {}, []),
        ({}, {"volume_mounts": [{"name": "a", "mountPath": "/a"}]}, [("error", "STK280")]),
        ({}, {"volumes": [{"name": "a", "emptyDir": {}}], "volume_mounts": [{"name": "a"}]}, [("error", "STK280")]),
        ({}, {"host_paths": ["/a"], "persistent_volume_claims": {"c": "/a"}}, [("error", "STK280")]),
        ({}, {"queue_priority": "high"}, [("error", "STK280")]),
        ({}, {"queueing": "coscheduling", "queue": "a"}, [("error", "STK280"), ("info", "STK281"), ALONE]),
        ({}, {"queue": "a", "topology": "rack"}, [("info", "STK281"), ALONE]),
        ({}, {"topology": "rack"}, [("translated", "STK281")]),
        ({"nodes": 2}, {"topology": "rack"}, []),
        ({"nodes": 2}, {"reuse": True}, [("error", "STK255")]),
    ],
)
def test_resources_and_settings(
    resources: dict[str, Any], settings: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    assert told(resources, {**IMAGE, **settings}) == expected


def test_a_default_of_shared_memory_is_told() -> None:
    (finding,) = findings({"gpu_count": 1, "memory": "64GB"})
    assert "32GB of shared memory, half of its memory" in finding.what
    (finding,) = findings({"gpu_count": 1})
    assert "shared memory as needed" in finding.what


def test_a_step_waits_for_its_devices_and_chooses_none() -> None:
    ask = {"gpu_count": 1, "shared_memory": "1GB"}
    assert told(ask, accelerator_policy="prefer") == [("translated", "STK281")]
    assert told(ask, environment={"CUDA_VISIBLE_DEVICES": "0"}) == [("error", "STK112")]


def test_ranks_by_mpi() -> None:
    launch = resolve_launch({"launcher": "mpi"})
    assert told({"nodes": 2}, launch=launch) == [("error", "STK280")]
    assert told({}, launch=launch) == []


def test_images() -> None:
    ready = DockerSettings(parent_image="team/ml:1", skip_build=True)
    built = DockerSettings(parent_image="python:3.11", requirements=["six"])
    claim = attrs.evolve(SITE, artifacts="pvc://stoker")
    assert told({}, {}, claim) == [("info", "STK282")]
    assert k8scheck.OWN_IMAGE in findings({}, {}, claim)[0].what
    assert "CUDA" in findings({"gpu_count": 1, "shared_memory": "1GB"}, {}, claim)[0].why
    assert told({}, {}, docker=ready) == []
    assert told({}, IMAGE, docker=ready) == [("translated", "STK282")]
    assert told({}, {}, docker=built) == [("error", "STK282")]
    assert told({}, {}, attrs.evolve(SITE, registry="registry.example/ml"), docker=built) == []
    assert told({}, {}, docker=DockerSettings(skip_build=True)) == [("error", "STK282")]


@pytest.mark.parametrize(
    ("store", "package"),
    [("s3://bucket/x", "s3fs"), ("gs://bucket", "gcsfs"), ("az://box", "adlfs"), ("pvc://x", ""), ("sftp://h/x", "")],
)
def test_plain_python_before_a_bucket(store: str, package: str) -> None:
    """The pod would start, and its worker would lack what opens the bucket."""
    site = attrs.evolve(SITE, artifacts=store)
    for settings in ({}, {"image": "python:3.12-slim"}, {"image": "docker.io/library/python:3.12"}):
        errors = [one for one in findings({}, settings, site) if one.level == "error"]
        assert [one.code for one in errors] == (["STK282"] if package else [])
        assert not package or (f"plain Python lacks {package}" in errors[0].why and package in errors[0].fix)
    assert told({}, {"image": "registry.example/python:3.12"}, site) == []
    ready = DockerSettings(parent_image="python:3.12", skip_build=True)
    assert ("error" in {level for level, _ in told({}, {}, site, docker=ready)}) is bool(package)


def test_packages_become_part_of_the_image() -> None:
    pods = Component(flavor="kubernetes", options={"image": "team/train:1"})
    asked = layer_of("flow.py:3 @pypi", packages={"pypi": {"six": "1.16.0"}})
    settings, _ = resolve([asked], Stack(name="pods", orchestrator=pods))
    assert settings.docker is not None
    assert (settings.docker.parent_image, settings.docker.requirements) == ("team/train:1", ("six==1.16.0",))


def test_places() -> None:
    here = attrs.evolve(SITE, artifacts="/home/me/.stoker/artifacts")
    assert told(site=here) == [("error", "STK283")]
    assert told(site=here, settings={**IMAGE, "shares_files": True}) == []
    behind = attrs.evolve(SITE, artifacts="ssh://login/scratch/me")
    assert told(site=behind, settings={**IMAGE, "shares_files": True}) == [("error", "STK283")]
    assert told(retry=Retry(times=2)) == [("info", "STK284")]
    assert told(retry=Retry(times=2), site=here, settings={**IMAGE, "shares_files": True}) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, ""),
        ({"pod_spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}}, ""),
        (
            {"pod_spec": {"hostNetwork": True, "activeDeadlineSeconds": 5}},
            "pod_spec.activeDeadlineSeconds may",
        ),
        ({"ttl": 60}, "ttl is the life of one finished job"),
        ({"queue": "ml"}, "admits each job by itself"),
        ({"ttl": 60, "reuse": False}, ""),
    ],
)
def test_a_setting_that_costs_the_warm_pod_is_said(options: dict[str, Any], why: str) -> None:
    found = [finding for finding in findings(settings={**IMAGE, **options}) if finding.code == "STK369"]
    assert [why in finding.why for finding in found] == ([True] if why else [])


PLAIN: dict[str, list[Any]] = {
    "cpu_count": [0.5, 2, 64],
    "memory": ["1GB", "16GiB", 12345678],
    "disk": ["1GB"],
    "shared_memory": ["64MB", "8GB"],
    "nodes": [1, 2, 4, 16],
    "spot": [True, False],
    "extended": [{"example.com/fpga": 2}, {"hugepages-2Mi": 1 << 30}],
}


def asked(chance: random.Random) -> dict[str, Any]:
    """What a step asks for."""
    resources = {name: chance.choice(values) for name, values in PLAIN.items() if chance.random() < 0.4}
    way = chance.random()
    if way < 0.5:
        kinds = chance.sample(list(MODELS), chance.randint(1, 3))
        resources["accelerators"] = [f"{kind}:{chance.choice([1, 4, 8])}" for kind in kinds]
        slices = MODELS[kinds[0]].slices
        if slices and chance.random() < 0.2:
            resources["accelerators"] = f"{kinds[0]}/{chance.choice(slices)}:2"
    elif way < 0.7:
        resources["gpu_count"] = chance.choice([1, 8])
        resources["gpu_vendor"] = chance.choice(["nvidia", "amd", "intel", "gaudi", "neuron", "tpu", "apple"])
    elif way < 0.8:
        resources["gpu_memory"] = chance.choice(["8GB", "40GB", "100GB"])
    return resources


def test_requests(long_form: bool) -> None:
    chance = random.Random(0)
    valid = refused = 0
    for _ in range(1000 if long_form else 40):
        settings: dict[str, Any] = {}
        for name, example in KUBERNETES.examples.items():
            if chance.random() < 0.15:
                settings.update({name: example.value, **example.settings})
        try:
            resources = ResourceSettings(**asked(chance))
        except SettingsError:
            continue  # it contradicts itself
        if one(resources, KubernetesSettings(**settings)):
            valid += 1
        else:
            refused += 1
    assert valid > refused


def one(resources: ResourceSettings, settings: KubernetesSettings) -> bool:
    """Whether a pod comes of a request; it is checked then."""
    accelerators = accelerator_request(resources, settings)
    if accelerators is not None and accelerators.refusal is not None:
        assert accelerators.refusal.what and accelerators.refusal.why and accelerators.refusal.fix
        return False
    request = PodRequest(
        resources=resources,
        settings=settings,
        image="team/train:1",
        command=("python3",),
        environment={"WORD": "1"},
        labels={"stoker/request": "0123"},
        nodes=resources.get("nodes", 1),
        avoid=("gpu-1", "gpu-2"),
        name="digits-train-x7k2",
    )
    template = pod_template(request)
    assert pod_template(request) == template
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n"}, "spec": {"template": template}}
    for thing in (job, *companions(request)):
        if thing["kind"] != "PodGroup":
            kubernetes_validate.validate(thing, "1.37", strict=True)
    container = next(one for one in template["spec"]["containers"] if one["name"] == CONTAINER)
    requests, limits = container["resources"]["requests"], container["resources"].get("limits", {})
    if accelerators is not None and not settings.get("device_class"):
        assert limits[accelerators.resource] == requests[accelerators.resource] == str(accelerators.count)
    assert all(requests[name] == amount for name, amount in limits.items() if "/" in name or name == "memory")
    volumes = [volume["name"] for volume in template["spec"].get("volumes", [])]
    assert len(set(volumes)) == len(volumes)
    assert {mount["name"] for mount in container.get("volumeMounts", [])} <= set(volumes)
    variables = [variable["name"] for variable in container.get("env", [])]
    assert len(set(variables)) == len(variables)
    return True
