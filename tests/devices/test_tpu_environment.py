"""What processes on TPUs are told: which chips they have, and which hosts belong to their slice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from tests.backends.fields import ROWS
from tests.backends.test_every_field import SITE, job_of

from stoker.backends.base.backend import NO_SERVICES
from stoker.backends.registry import BACKENDS
from stoker.core.codec import to_json
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.devices.probe import parse_simulation
from stoker.vendors.tpu import visibility

SLICE = {"accelerators": "tpu-v5e:4", "nodes": 4}


def chips(text: str) -> list[Any]:
    """Chips that are there, joined with each other as on one machine."""
    devices = [attrs.evolve(one, simulated=False) for one in parse_simulation(text).devices]
    uuids = {one.uuid for one in devices}
    return [attrs.evolve(one, links=tuple(sorted(uuids - {one.uuid}))) for one in devices]


def test_a_part_of_a_machine_is_a_slice_of_its_own() -> None:
    four = chips("4xtpu-v5e")
    assert dict(visibility(four[1:2])) == {
        "TPU_VISIBLE_CHIPS": "1",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": "1,1,1",
    }
    assert visibility(four[:2])["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "1,2,1"
    assert visibility(chips("8xtpu-v5e")[:4])["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"


def test_a_whole_machine_may_be_a_host_of_a_larger_slice() -> None:
    assert dict(visibility(chips("4xtpu-v5e"))) == {"TPU_VISIBLE_CHIPS": "0,1,2,3"}
    assert dict(visibility(parse_simulation("4xtpu-v5e").devices)) == {}
    assert dict(visibility(())) == {}


def request(flavor: str, resources: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Any:
    row = ROWS[flavor]
    own = {"backend": {"orchestrator": dict(settings)}} if settings else {}
    job = job_of(row, StepSettings(resources=ResourceSettings(**resources), **own))
    backend = BACKENDS.load(flavor).open(SITE, row.options, NO_SERVICES)
    try:
        return to_json(backend.render(job))
    finally:
        backend.close()


def variables(manifest: Any) -> Mapping[str, Any]:
    """The variables of the only container, wherever the pod is."""
    spec = manifest["spec"]
    if manifest["kind"] == "JobSet":
        spec = spec["replicatedJobs"][0]["template"]["spec"]
    return {entry["name"]: entry for entry in spec["template"]["spec"]["containers"][0]["env"]}


def job_in(rendered: Any) -> Any:
    """The Job or JobSet of what is rendered."""
    found = [one for one in every_mapping(rendered) if one.get("kind") in ("Job", "JobSet") and "spec" in one]
    return found[0]


def every_mapping(found: Any) -> list[Any]:
    parts = [found] if isinstance(found, dict) else []
    inner = found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
    return [*parts, *(one for part in inner for one in every_mapping(part))]


def test_pods_of_a_slice_know_each_other() -> None:
    manifest = job_in(request("kubernetes", SLICE))
    told, name = variables(manifest), manifest["metadata"]["name"]
    assert told["PJRT_DEVICE"]["value"] == "TPU"
    assert "job-completion-index" in told["TPU_WORKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    pod = manifest["spec"]["template"]["spec"]
    assert told["TPU_WORKER_HOSTNAMES"]["value"] == ",".join(f"{name}-{index}.{pod['subdomain']}" for index in range(4))
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert manifest["spec"]["completions"] == 4


def test_pods_of_a_job_set_have_names_of_its_own() -> None:
    manifest = job_in(request("kubernetes", SLICE, {"jobset": True}))
    assert manifest["kind"] == "JobSet"
    name, subdomain = manifest["metadata"]["name"], manifest["spec"]["network"]["subdomain"]
    hosts = ",".join(f"{name}-node-0-{index}.{subdomain}" for index in range(4))
    assert variables(manifest)["TPU_WORKER_HOSTNAMES"]["value"] == hosts


def test_pods_that_are_no_slice_are_told_nothing_of_others() -> None:
    alone = variables(job_in(request("kubernetes", {"accelerators": "tpu-v5e:8"})))
    assert "PJRT_DEVICE" in alone and "TPU_WORKER_ID" not in alone
    other = variables(job_in(request("kubernetes", {"accelerators": "H100:8", "nodes": 4})))
    assert not [name for name in other if name.startswith("TPU") or name == "PJRT_DEVICE"]
    own = {"env": [{"name": "PJRT_DEVICE", "value": "CPU"}]}
    assert variables(job_in(request("kubernetes", {"accelerators": "tpu-v5e:8"}, own)))["PJRT_DEVICE"]["value"] == "CPU"


def test_skypilot_is_asked_for_one_slice() -> None:
    task = request("skypilot", SLICE)["task"]
    assert task["resources"]["accelerators"] == "tpu-v5litepod-16:1" and task["num_nodes"] == 1
    assert task["envs"]["PJRT_DEVICE"] == "TPU"
    by_cores = request("skypilot", {"accelerators": "tpu-v4:4", "nodes": 4})["task"]
    assert by_cores["resources"]["accelerators"] == "tpu-v4-32:1"
    gpus = request("skypilot", {"accelerators": "H100:8", "nodes": 4})["task"]
    assert gpus["num_nodes"] == 4 and "PJRT_DEVICE" not in gpus.get("envs", {})


@pytest.mark.parametrize("kind", ["tpu-v5e:8", "Gaudi2:8"])
def test_a_container_of_this_machine_gets_none(kind: str) -> None:
    from stoker.backends.docker.backend import check
    from stoker.backends.docker.settings import ContainerSettings
    from stoker.core.plan import Capacity

    job = job_of(ROWS["docker"], StepSettings(resources=ResourceSettings(accelerators=kind)))
    room = Capacity(cpus=64, memory=2**40, slots=64)
    found = [one.code for one in check(job.step, ContainerSettings(), SITE, room, leases=True) if one.level == "error"]
    assert found == ["STK367"]
    simulated = attrs.evolve(SITE, simulate="8xtpu-v5e")
    found = [one.code for one in check(job.step, ContainerSettings(), simulated, room, leases=True)]
    assert "STK367" not in found
