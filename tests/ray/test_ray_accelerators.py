"""TPUs, Neuron cores, labels and parts of GPUs: a request reaches the node that has them, and a step sees its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from tests.ray.bench import Bench
from tests.servers.raycluster import RayCluster

from stoker.core.settings import ResourceSettings

CASES: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tpu": ("4xtpu-v5e", {"accelerators": "tpu-v5e:2"}, {}),
    "neuron": ("2xtrainium", {"accelerators": "trainium"}, {}),
    "label": ("2xH100", {}, {"labels": {"zone": "a"}}),
    "part": ("2xH100", {"accelerators": "H100"}, {"gpu_fraction": 0.25}),
}
"""Name → simulated machine, resources, settings of the backend."""


def answers(bench: Bench) -> dict[str, Any]:
    """Of each case: where its step ran, the variables that it saw, and its devices."""
    sent = {}
    for name, (simulate, resources, own) in CASES.items():
        bench.site = attrs.evolve(bench.site, simulate=simulate)
        more = {"backend": {"orchestrator": own}} if own else {}
        asked = ResourceSettings(cpu_count=0.1, **resources)
        job, backend = bench.job("devices", key=name, resources=asked, **more), bench.backend()
        backend.submit(job)
        sent[name] = (backend, job)
    return {name: bench.output(bench.end(backend, job)) for name, (backend, job) in sent.items()}


@pytest.fixture
def node(ray_cluster: RayCluster) -> Any:
    """`node(resources, labels)`: a further node's id; it is gone after the test."""
    ids = []

    def add(resources: dict[str, float], **more: Any) -> str:
        ids.append(ray_cluster.add(num_cpus=1, resources=resources, **more))
        return ids[-1]

    yield add
    for id in ids:
        ray_cluster.kill(id)


def test_a_step_gets_the_chips_that_ray_gave_it(bench: Bench, node: Any) -> None:
    tpus = node({"TPU": 4, "accelerator_type:TPU-V5LITEPOD": 1}, labels={"zone": "a"})
    cores = node({"neuron_cores": 4, "accelerator_type:aws-neuron-core": 1})

    found = answers(bench)

    where, seen, devices = found["tpu"]
    assert where == tpus and seen["TPU_VISIBLE_CHIPS"] == "0,1"
    assert [one[-1] for one in devices] == ["0", "1"]

    where, seen, devices = found["neuron"]
    assert where == cores and seen["NEURON_RT_VISIBLE_CORES"] == "0,1"
    assert [one[-1] for one in devices] == ["0"], "a chip has two cores"

    where, seen, devices = found["label"]
    assert where == tpus and not devices and not seen["CUDA_VISIBLE_DEVICES"]

    _, seen, devices = found["part"]
    assert [seen["CUDA_VISIBLE_DEVICES"]] == devices
