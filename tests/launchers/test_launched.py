"""The command of each launcher, word for word; and with the real ones, what the ranks see."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.config import MPI, Accelerate, Command, DeepSpeed, Jax, Launch, Torchrun
from stoker.core.settings import plain
from stoker.launchers import jax
from stoker.launchers.accelerate import CONFIG
from stoker.launchers.base import Node, NodeCommand, Target, target_of
from stoker.launchers.options import resolve_launch
from stoker.launchers.registry import launcher_named, place_of

WORKER = ("python3", "-u", "-m", "worker", "job")
ALONE = Node(rendezvous="r1", devices=("GPU-a",))
PAIR = Node(processes=2, devices=("GPU-a", "GPU-b"), rendezvous="r1", port=0)
SECOND = Node(
    rank=1,
    nodes=2,
    processes=2,
    head="10.0.0.1",
    address="10.0.0.2",
    hosts=("10.0.0.1", "10.0.0.2"),
    port=4001,
    rendezvous="r1",
    devices=("GPU-c", "GPU-d"),
)
FIRST = Node(**{**{name: getattr(SECOND, name) for name in ("nodes", "processes", "head", "hosts", "port")}, "rank": 0})


def started(launch: Launch, node: Node, argv: tuple[str, ...] = WORKER) -> NodeCommand:
    complete = resolve_launch(plain(launch))
    assert complete is not None
    arguments = {**complete.arguments, **({"command": complete.command} if complete.command else {})}
    made = launcher_named(complete.launcher)(argv, node, arguments)
    assert isinstance(made, NodeCommand)
    return made


def line(launch: Launch, node: Node, argv: tuple[str, ...] = WORKER) -> str:
    return " ".join(started(launch, node, argv).argv).replace(str(CONFIG), "CONFIG")


CASES: dict[str, tuple[Launch, Node]] = {
    "alone": (Accelerate(), ALONE),
    "bf16": (Accelerate(mixed_precision="bf16"), PAIR),
    "cpu": (Accelerate(cpu=True), ALONE),
    "cpu-pair": (Accelerate(cpu=True), PAIR),
    "deepspeed": (Accelerate(use_deepspeed=True, zero_stage=2), SECOND),
    "own-file": (Accelerate(config_file="my.yaml"), PAIR),
    "torchrun": (Torchrun(), PAIR),
    "standalone": (Torchrun(standalone=True, max_restarts=2, rdzv_conf={"timeout": 60}), PAIR),
    "static": (Torchrun(), SECOND),
    "elastic": (Torchrun(nnodes="1:4", max_restarts=3), SECOND),
    "etcd": (Torchrun(rdzv_backend="etcd-v2", rdzv_endpoint="etcd:2379"), SECOND),
    "fixed-port": (Torchrun(rdzv_backend="static", master_port=29511), ALONE),
}
GOLDEN = Path(__file__).with_name("golden.txt").read_text().splitlines()


@pytest.mark.parametrize("name", CASES)
def test_the_command_is_this_one(name: str) -> None:
    launch, node = CASES[name]
    made = line(launch, node)
    assert f"{name}: {made}" in GOLDEN
    if launch.launcher == "torchrun":
        run = pytest.importorskip("torch.distributed.run")
        parsed = run.get_args_parser().parse_args(made.split()[4:])
        assert (parsed.module, parsed.training_script, parsed.training_script_args) == (True, "worker", ["job"])
        assert parsed.nproc_per_node == str(node.processes)


def test_accelerates_variables() -> None:
    assert started(Accelerate(), PAIR).environment == {"PET_RDZV_ID": "r1"}
    assert started(Accelerate(cpu=True), PAIR).environment == {"PET_RDZV_ID": "r1", "ACCELERATE_USE_CPU": "true"}
    assert started(Accelerate(), SECOND).environment == {"PET_RDZV_ID": "r1", "PET_LOCAL_ADDR": "10.0.0.2"}


def test_an_ipv6_head_stands_in_brackets() -> None:
    node = Node(nodes=2, head="fd00::1", port=4001)
    assert "--rdzv-endpoint=[fd00::1]:4001" in line(Torchrun(rdzv_backend="c10d"), node)


def test_deepspeed() -> None:
    made = started(DeepSpeed(bind_cores_to_rank=True, elastic_training=True, max_elastic_nodes=2), SECOND)
    info = next(word for word in made.argv if word.startswith("--world_info="))
    assert " ".join(made.argv).replace(info, "INFO") == (
        "python3 -u -m deepspeed.launcher.launch --enable_elastic_training --node_rank=1 --master_addr=10.0.0.1"
        " --master_port=4001 --max_elastic_nodes=2 --no_local_rank --bind_cores_to_rank INFO --module worker job"
    )
    # This node's devices keep their names; of the other's, the number counts.
    world = json.loads(base64.urlsafe_b64decode(info.partition("=")[2]))
    assert world == {"node-0": [0, 1], "node-1": ["GPU-c", "GPU-d"]}


def test_mpi() -> None:
    launch = MPI(np=4, bind_to="core", mca={"btl": "^openib"}, x=["LD_LIBRARY_PATH"], oversubscribe=True)
    assert line(launch, FIRST) == (
        "mpirun -n 4 --host 10.0.0.1:2,10.0.0.2:2 -x MASTER_ADDR -x MASTER_PORT --bind-to core --mca btl ^openib"
        " -x LD_LIBRARY_PATH --oversubscribe python3 -u -m worker job"
    )
    assert started(launch, SECOND).argv == (), "the head's mpirun starts the ranks here"
    assert started(launch, FIRST).environment == {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4001"}


def test_srun() -> None:
    launch = MPI(program="srun", cpus_per_task=4, mpi="pmix", label=True)
    assert line(launch, FIRST) == (
        "srun --ntasks=4 --ntasks-per-node=2 --nodes=2 --kill-on-bad-exit=1 --cpus-per-task=4 --mpi=pmix --label"
        " python3 -u -m worker job"
    )


def test_jax() -> None:
    made = started(Jax(initialization_timeout=60), SECOND)
    assert made.argv == WORKER
    assert made.ranks == (
        {
            "JAX_NUM_PROCESSES": "4",
            "JAX_PROCESS_ID": "2",
            "STOKER_LOCAL_RANK": "0",
            "STOKER_PROCESSES_PER_NODE": "2",
            "JAX_LOCAL_DEVICE_IDS": "0",
        },
        {
            "JAX_NUM_PROCESSES": "4",
            "JAX_PROCESS_ID": "3",
            "STOKER_LOCAL_RANK": "1",
            "STOKER_PROCESSES_PER_NODE": "2",
            "JAX_LOCAL_DEVICE_IDS": "1",
        },
    )
    assert jax.initialization({**made.environment, **made.ranks[1]}) == {
        "coordinator_address": "10.0.0.1:4001",
        "num_processes": 4,
        "process_id": 3,
        "local_device_ids": [1],
        "initialization_timeout": 60,
    }


def test_devices_are_dealt_out_evenly() -> None:
    node = Node(processes=2, devices=("a", "b", "c"))
    assert [jax.devices_of_process(node, local) for local in range(2)] == [[0, 1], [2]]
    assert jax.devices_of_process(Node(devices=("a", "b")), 0) == [], "one process has them all"
    assert started(Jax(), Node(processes=2, cpu=True)).environment["JAX_PLATFORMS"] == "cpu"


def test_a_command_of_ones_own() -> None:
    made = started(Command(["./start", "-v"]), SECOND)
    assert made.argv == ("./start", "-v", *WORKER)
    assert made.environment["STOKER_NODE_RANK"] == "1"
    assert made.environment["STOKER_NUM_PROCESSES"] == "4"


def test_no_launcher() -> None:
    assert launcher_named("single")(WORKER, ALONE, {}) == NodeCommand(argv=WORKER)


@pytest.mark.parametrize(
    ("argv", "target"),
    [
        (("python", "-m", "a.b", "c"), Target("module", "a.b", ("c",), ("python",))),
        (
            ("/x/python3.11", "-W", "error", "a.py", "-m"),
            Target("script", "a.py", ("-m",), ("/x/python3.11", "-W", "error")),
        ),
        (("python", "-c", "pass"), Target("program", "python", ("-c", "pass"))),
        (("./train", "1"), Target("program", "./train", ("1",))),
    ],
)
def test_commands_are_taken_apart(argv: tuple[str, ...], target: Target) -> None:
    assert target_of(argv) == target


def test_programs_that_are_not_python() -> None:
    node = Node(processes=2, python="/x/python")
    assert line(Torchrun(), node, ("./train", "1")).endswith(" --no-python ./train 1")
    assert line(Accelerate(), node, ("./train", "1")).startswith("/x/python -m accelerate.commands.launch")
    assert line(DeepSpeed(), node, ("./train", "1")).endswith(" --no_python ./train 1")


@pytest.mark.parametrize(
    ("launch", "nodes", "devices", "each"),
    [
        (Torchrun(), 1, 0, 1),
        (Torchrun(), 2, 4, 4),
        (Torchrun(num_processes=8), 2, 8, 4),
        (Torchrun(nproc_per_node=2), 2, 8, 2),
        (Accelerate(num_processes=4), 2, 0, 2),
    ],
)
def test_processes_of_a_node(launch: Launch, nodes: int, devices: int, each: int) -> None:
    complete = resolve_launch(plain(launch))
    assert complete is not None
    assert launcher_named(complete.launcher).processes_per_node(complete, nodes=nodes, devices=devices) == each


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


RANK = """
import json, os, sys, torch
import torch.distributed as dist
if "accelerate" in sys.argv:
    from accelerate import Accelerator
    kind = str(Accelerator().distributed_type)
else:
    dist.init_process_group("gloo")
    kind = "gloo"
total = torch.ones(1)
dist.all_reduce(total)
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    json.dump([kind, total.item(), os.environ["TORCHELASTIC_RUN_ID"], dict(os.environ)], file)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "launch",
    [
        Accelerate(cpu=True),
        pytest.param(Torchrun(), marks=pytest.mark.long),  # on two nodes: tests/distributed/test_gangs.py
        pytest.param(Torchrun(max_restarts=1), marks=pytest.mark.long),  # another rendezvous: tests/slurm, elastic
    ],
)
def test_the_real_launcher_makes_ranks(launch: Launch, tmp_path: Path) -> None:
    pytest.importorskip("accelerate" if launch.launcher == "accelerate" else "torch")
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "out").mkdir()
    nodes, port = 2, free_port()  # on one node: tests/distributed/test_ranks.py
    worker = (sys.executable, str(tmp_path / "rank.py"), str(tmp_path / "out"), launch.launcher)
    # A file in the user's home that asks for something else must not be heard.
    home = tmp_path / "home" / "accelerate"
    home.mkdir(parents=True)
    (home / "default_config.yaml").write_text("distributed_type: NO\nnum_processes: 7\nmixed_precision: fp16\n")
    running = []
    for rank in range(nodes):
        node = Node(rank=rank, nodes=nodes, processes=2, port=port, rendezvous="run-step-1", cpu=True)
        made = started(launch, node, worker)
        environment = {**os.environ, **made.environment, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
        running.append(
            subprocess.Popen(made.argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    for process in running:
        text, _ = process.communicate(timeout=240)
        assert process.returncode == 0, text
    found: dict[str, Any] = {path.name: json.loads(path.read_text()) for path in (tmp_path / "out").iterdir()}
    assert sorted(found) == [str(rank) for rank in range(2 * nodes)]
    for name, (kind, total, identity, environment) in found.items():
        assert kind == ("DistributedType.MULTI_CPU" if launch.launcher == "accelerate" else "gloo")
        assert total == 2 * nodes
        assert identity == "run-step-1"
        place = place_of(environment)
        assert (place.rank, place.world_size, place.local_world_size) == (int(name), 2 * nodes, 2)
        assert (place.node, place.local_rank) == divmod(int(name), 2)
        if launch.launcher == "accelerate":
            assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
