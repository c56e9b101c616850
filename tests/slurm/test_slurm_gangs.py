"""Several nodes of a cluster run one step together."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import attrs
import pytest
from tests.servers.slurm import NODES, Cluster
from tests.slurm.bench import Bench
from tests.waiting import until

from stoker.backends.slurm.task import LATE
from stoker.core.settings import DEFAULTS, ResourceSettings

TRAIN = """
import json
import os
import sys
import torch
import torch.distributed as dist
from stoker import context, pipeline, step
from stoker.config import Accelerate, ResourceSettings, Torchrun

HOW = {
    "torchrun": Torchrun(nproc_per_node=2, outputs="all"),
    "accelerate": Accelerate(cpu=True, num_processes=4, outputs="all"),
    "elastic": Torchrun(nproc_per_node=2, nnodes="1:2", max_restarts=1, outputs="all"),
}[sys.argv[1] if __name__ == "__main__" else "torchrun"]

@step(resources=ResourceSettings(nodes=2, gpu_count=2, cpu_count=2), launch=HOW, cache=False)
def train() -> dict:
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = model(torch.ones(2, 4) * (context.rank + 1)).sum()
    loss.backward()
    total = torch.tensor([context.rank])
    dist.all_reduce(total)
    if context.rank == 3 and os.environ["TORCHELASTIC_MAX_RESTARTS"] == "1":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ConnectionError("once")
    dist.barrier()
    dist.destroy_process_group()
    print("rank", context.rank, "on node", context.node)
    return {
        "rank": context.rank,
        "node": context.node,
        "sum": int(total),
        "gradient": round(float(model.module.weight.grad[0, 0]), 4),
        "devices": [one.uuid for one in context.devices],
    }

@pipeline
def together():
    train()

if __name__ == "__main__":
    for one in together().steps["train"].output.load():
        print(json.dumps(one))
"""


@pytest.mark.long  # torchrun of two nodes: the elastic gang below, without torch
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "elastic"])
def test_two_nodes_train_with_two_ranks_each(clustered: Any, cluster: Cluster, launcher: str) -> None:
    clustered.write({"train.py": TRAIN})
    done = clustered.run("train.py", launcher, env={"STOKER_SIMULATE": "4xV100"}, timeout=240)
    ranks = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["rank"] for one in ranks] == [0, 1, 2, 3]
    assert [one["node"] for one in ranks] == [0, 0, 1, 1]
    assert {one["sum"] for one in ranks} == {6}
    assert len({one["gradient"] for one in ranks}) == 1
    assert all(one["devices"] for one in ranks)
    for rank in range(4):
        logs = clustered.stoker("logs", "last", "train", "--rank", str(rank)).stdout
        assert f"rank {rank} on node {rank // 2}" in logs
    receipt = json.loads(clustered.stoker("gpu", "last", "--json").stdout)
    assert json.dumps(receipt).count("uuid") >= 4, receipt
    (job,) = [job for job in cluster.jobs() if job["state"] == "COMPLETED"][-1:]
    assert "[" in job["nodes"] or "," in job["nodes"]


def test_each_node_of_a_gang_has_its_place_and_devices(bench: Bench) -> None:
    bench.site = attrs.evolve(bench.site, simulate="4xV100")
    job = bench.job("where", resources=ResourceSettings(nodes=2, gpu_count=1))
    status = bench.over(bench.backend(), job)
    assert bench.output(status)["host"] in NODES or os.getuid() != 0
    assert len(status.lease.held) == 1
    assert len(status.lease.others) == 1


def test_a_node_of_a_gang_fails(bench: Bench, cluster: Cluster) -> None:
    backend = bench.backend()
    job = bench.job("slow", resources=ResourceSettings(nodes=2))
    backend.submit(job)
    bench.until(backend, lambda: bench.texts(job).count("slow begins") == 2)
    cluster.node_fails(cluster.run("scontrol", "show", "hostnames", bench.jobs()[-1]["nodes"]).stdout.split()[1])
    status = bench.end(backend, job)
    assert (status.state, status.cause) == ("failed", "node-lost"), status


@pytest.mark.slow
@pytest.mark.parametrize("what", ["worker", pytest.param("node", marks=pytest.mark.long)])
def test_an_elastic_gang_goes_on_without_a_node(bench: Bench, cluster: Cluster, what: str) -> None:
    backend = bench.backend()
    launch = attrs.evolve(DEFAULTS, launcher="torchrun", arguments={"nnodes": "1:2"})
    job = bench.job("alone", resources=ResourceSettings(nodes=2), launch=launch)
    backend.submit(job)
    bench.until(backend, lambda: bench.texts(job).count("one of 2") == 2)
    if what == "node":
        cluster.node_fails(cluster.run("scontrol", "show", "hostnames", bench.jobs()[-1]["nodes"]).stdout.split()[1])
    else:
        (worker,) = cluster.programs("stoker.worker.boot", SLURM_NODEID="1")
        worker.kill()
    assert bench.output(bench.end(backend, job)) == 1
    assert "one of 1" in bench.texts(job)


def test_a_launcher_may_start_ranks_by_srun(bench: Bench) -> None:
    """The nodes' own step has all of the job's CPUs, and would keep those of another one waiting for ever."""
    job = bench.job("starts", resources=ResourceSettings(nodes=2, cpu_count=2))
    status = bench.over(bench.backend(), job)
    assert status.state == "succeeded", (status, bench.lines)
    assert {"rank 0", "rank 1"} <= set(bench.texts(job))


def test_how_gangs_end(bench: Bench, cluster: Cluster) -> None:
    """Five at once: a process is killed on the first node or the second, Stoker or a person ends one, one fails."""
    backend = bench.backend()
    two = ResourceSettings(nodes=2)
    gangs = [bench.job("slow", key=key, resources=two) for key in ("head", "other", "cancelled", "ended")]
    ids: dict[str, str] = {}
    for job in gangs:
        backend.submit(job)
        bench.until(backend, lambda: len(bench.jobs()) > len(ids))
        ids[job.key] = bench.jobs()[-1]["id"]
    head, other, cancelled, ended = gangs
    bench.until(backend, lambda: all(bench.texts(job).count("slow begins") == 2 for job in gangs))
    for key, node in (("head", "0"), ("other", "1")):
        (worker,) = cluster.programs("stoker.worker.boot", SLURM_NODEID=node, SLURM_JOB_ID=ids[key])
        worker.kill()
    killed = time.monotonic()
    assert bench.end(backend, head).cause == "worker-lost"
    assert bench.end(backend, other).cause == "node-lost"
    assert time.monotonic() - killed < LATE / 2, "nobody waits for a result that a killed process cannot write"
    backend.cancel(cancelled.name, grace=60.0)
    cluster.run("scancel", ids["ended"])
    assert (bench.end(backend, cancelled).cause, bench.end(backend, ended).cause) == ("cancelled", "killed")
    assert all(bench.texts(job).count("slow was asked to end") == 2 for job in (cancelled, ended))
    assert bench.over(backend, bench.job("fails", resources=two)).cause == "user-error"
    until(lambda: bench.jobs()[-1]["state"] == "FAILED")
