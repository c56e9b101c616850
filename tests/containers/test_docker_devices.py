"""Devices of a lease in real containers: asked of the engine by UUID, never all, and proved by the gate inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.containers.bench import Bench
from tests.containers.test_runs import containers  # noqa: F401  # a fixture

from stoker.backends.base.backend import Services
from stoker.backends.base.leasing import Leasing
from stoker.core.devices import Device, Inventory
from stoker.core.settings import ResourceSettings
from stoker.devices.leases import Ledger
from stoker.devices.probe import parse_simulation
from stoker.worker.processes import this_process

TRAIN = """
from stoker import context, pipeline, step
from stoker.config import DockerSettings, ResourceSettings

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def train() -> str:
    return context.devices[0].uuid

@step(resources=ResourceSettings(gpu_count=1), cache=False)
def further(first: str) -> str:
    return context.devices[0].uuid

@pipeline(settings={"docker": DockerSettings(parent_image="BASE", skip_build=True)})
def once():
    further(train())

if __name__ == "__main__":
    once()
"""
CARDS = tuple(
    Device(
        kind="nvidia",
        index=index,
        uuid=f"GPU-0000000{index}-aaaa-bbbb-cccc-000000000000",
        name="NVIDIA H100 80GB HBM3",
        model="H100-80GB",
        memory=80 << 30,
        capability=(9, 0),
    )
    for index in range(4)
)


def leasing(bench: Bench, inventory: Inventory) -> Leasing:
    me = this_process()
    ledger = Ledger(lambda: inventory, lambda _: ())
    process = (int(me["pid"]), float(me["started"]))
    return Leasing(lambda: ledger, process=process, scratch=bench.site.scratch, limits=True)


REAL = Inventory(devices=CARDS, driver="550.54.15", cuda=(12, 4))


def test_an_engine_is_asked_for_the_devices_of_the_lease_alone(bench: Bench) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, REAL)))
    job = bench.job("surroundings", resources=ResourceSettings(gpu_count=2), accelerator_policy="prefer")
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status, bench.lines)
    found = bench.output(status)["environment"]
    wanted = ",".join(card.uuid for card in CARDS[:2])
    # The engine's own doing, by way of the hook: the request had device ids, not this variable.
    assert found["NVIDIA_VISIBLE_DEVICES"] == wanted
    assert found["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    # There is no such device, and the gate inside has seen that.
    assert status.result is not None
    assert status.result.fallback
    assert [device.uuid for device in status.lease.held] == [card.uuid for card in CARDS[:2]]


def test_a_request_that_the_engine_refuses_is_told(bench: Bench) -> None:
    backend = bench.backend(gpus="cdi", services=Services(leasing=leasing(bench, REAL)))
    status = bench.over(backend, bench.job("surroundings", resources=ResourceSettings(gpu_count=1)))
    assert (status.state, status.cause) == ("failed", "refused")
    assert "cdi" in status.message


def test_simulated_devices_are_leased_proved_and_watched(bench: Bench) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, parse_simulation("2xH100-80GB"))))
    job = bench.job("surroundings", resources=ResourceSettings(gpu_count=1))
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status, bench.lines)
    found = bench.output(status)["environment"]
    assert found["CUDA_VISIBLE_DEVICES"] == status.lease.held[0].uuid
    assert found["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert status.result is not None
    assert "simulated" in str(status.result.proved)
    samples = [json.loads(line) for line in Path(status.lease.samples).read_text().splitlines()]
    assert samples[0]["header"] == 1
    assert samples[-1]["why"] in ("gone", "told")


def test_a_faulty_device_is_left_out(containers: Any, base_image: str) -> None:  # noqa: F811
    first, second = (device.uuid for device in parse_simulation("2xH100").devices)
    containers.write({"train.py": TRAIN.replace("BASE", base_image)})
    done = containers.run("train.py", env={"STOKER_SIMULATE": "2xH100;bad=0"}, timeout=240.0)
    assert f"train: device {first} is left out for the rest of this run: gpu-hardware" in done.stderr
    run = containers.client().run("last")
    attempts = run.steps["train"].attempts
    assert [attempt.status for attempt in attempts] == ["failed", "succeeded"]
    assert first in attempts[0].failure.message and run.steps["train"].output.load() == second
    assert run.steps["further"].output.load() == second and len(run.steps["further"].attempts) == 1


def test_a_job_waits_until_devices_are_free(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, parse_simulation("1xH100-80GB"))))
    flag = bench.flags / "flag"
    one = ResourceSettings(gpu_count=1)
    first = bench.job("waits", inputs={"path": str(flag)}, resources=one)
    second = bench.job("waits", key="second", inputs={"path": str(flag)}, resources=one)
    backend.submit(first)
    bench.until(backend, lambda: "waiting" in bench.texts(first))
    backend.submit(second)
    bench.until(backend, lambda: any(news.state == "queued" for news in bench.news.get(second.name, ())))
    flag.write_text("")
    assert bench.output(bench.end(backend, first)) == "seen"
    assert bench.output(bench.end(backend, second)) == "seen"


def test_a_job_that_waits_for_devices_is_cancelled(bench: Bench, tmp_path: Path) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, parse_simulation("1xH100-80GB"))))
    one = ResourceSettings(gpu_count=1)
    first = bench.job("slow", resources=one)
    second = bench.job("slow", key="second", resources=one)
    backend.submit(first)
    bench.until(backend, lambda: "slow begins" in bench.texts(first))
    backend.submit(second)
    backend.cancel(second.name, grace=10.0)
    assert bench.end(backend, second).cause == "cancelled"


def test_a_gang_shares_out_the_devices_of_one_lease(bench: Bench) -> None:
    backend = bench.backend(services=Services(leasing=leasing(bench, parse_simulation("4xH100-80GB"))))
    job = bench.job("surroundings", resources=ResourceSettings(gpu_count=2, nodes=2))
    status = bench.over(backend, job)
    assert status.state == "succeeded", (status, bench.lines)
    own = [device.uuid for device in status.lease.held]
    others = [device.uuid for other in status.lease.others for device in other.held]
    assert len({*own, *others}) == 4
    assert bench.output(status)["environment"]["CUDA_VISIBLE_DEVICES"] == ",".join(own)
