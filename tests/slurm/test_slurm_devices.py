"""Devices that Slurm hands out, and a driver that answers on the node: found, proved, seen by ranks, measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.devices.gpus import WORKS, Gpus, fake_torch
from tests.devices.test_compat import UUIDS
from tests.distributed.conftest import SPAWN
from tests.servers.slurm import Cluster
from tests.slurm.bench import STACK

PROGRAM = """
import os
import sys
import time

from stoker import context, pipeline, step
from stoker.config import Command, Monitor, ResourceSettings

GPUS = dict(resources=ResourceSettings(gpu_count=2), monitor=Monitor(0.1), cache=False)


@step(**GPUS)
def alone() -> list:
    import torch

    with open(os.environ["FAKE_NVML_STEP"] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.replace(file.name, os.environ["FAKE_NVML_STEP"])
    time.sleep(2.5)
    return [torch.__version__, os.environ["CUDA_VISIBLE_DEVICES"]]


@step(launch=Command([sys.executable, "spawn.py"], num_processes=2, outputs="all"), **GPUS)
def rank(before: list) -> list:
    import torch

    return [context.rank, torch.__version__, [device.uuid for device in context.devices]]


@pipeline
def training():
    rank(alone())


if __name__ == "__main__":
    training()
"""


def test_a_driver_on_the_node(clustered: Any, cluster: Cluster, tmp_path: Path) -> None:
    """Nothing is pretended: where the run starts there is no GPU, and jobs find those of their node's driver."""
    gpus = Gpus(tmp_path / "gpus").answer(WORKS, WORKS).torch("2.9.0+cu130", "13.0", fake_torch())
    lines = [f"export {name}={value}" for name, value in gpus.environment.items()]
    stack = STACK.replace("}", f", setup = {json.dumps(lines)}}}")
    clustered.write({"program.py": PROGRAM, "spawn.py": SPAWN, "stoker.toml": stack})
    clustered.run("program.py", timeout=240)
    run = clustered.client().runs()[0]
    version, visible = run.steps["alone"].load()
    assert version == "2.9.0+cu130" and set(visible.split(",")) == set(UUIDS)
    receipt = run.steps["alone"].receipt
    assert receipt.verdict == "used" and not receipt.simulated, receipt.evidence
    assert receipt.proved["driver"] == "580.95.05 (CUDA 13.0)"
    assert receipt.proved["torch in use"].startswith("it sees 2, as leased")
    ranks = run.steps["rank"].load()
    assert [one[0] for one in ranks] == [0, 1]
    assert all(set(one[2]) == set(UUIDS) for one in ranks)
