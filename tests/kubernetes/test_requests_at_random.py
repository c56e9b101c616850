"""Requests at random: each is refused in words, or a pod that the API takes and that has all that is asked for."""

from __future__ import annotations

import os
import random
from typing import Any

import kubernetes_validate
import pytest
from tests.backends.fields import KUBERNETES

from stoker.backends.kubernetes.request.accelerators import accelerator_request
from stoker.backends.kubernetes.request.pods import CONTAINER, PodRequest, companions, pod_template
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.accelerators import MODELS
from stoker.core.errors import SettingsError
from stoker.core.resources import ResourceSettings

TRIES = int(os.environ.get("STOKER_TEST_REQUESTS", "40"))
"""Of each seed; STOKER_TEST_REQUESTS=1000 for a storm."""
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


@pytest.mark.parametrize("seed", range(3))
def test_requests(seed: int) -> None:
    chance = random.Random(seed)
    valid = refused = 0
    for _ in range(TRIES):
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
            kubernetes_validate.validate(thing, "1.36", strict=True)
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
