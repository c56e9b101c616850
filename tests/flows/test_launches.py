"""Programs in ranks from a step, on one node and on several: accelerate, torchrun, DeepSpeed and Open MPI."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.core import wire
from stoker.core.errors import MissingPackage, RunFailed, SettingsError, UsageError
from stoker.flows import launch as flowlaunch
from stoker.launchers.registry import launcher_named
from stoker.worker import mpigang
from stoker.worker.context import enter

needs_mpi = pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: apt-get install openmpi-bin)")

FLOW = """
import os
from stoker.flow import FlowSpec, Parameter, accelerate, current, mpi, step, torchrun

class Ranks(FlowSpec):
    way = Parameter("way", default="accelerate")
    fail = Parameter("fail", default=False)

    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @accelerate(nproc_per_node=2)
    @torchrun(nproc_per_node=2)
    @mpi(all_nodes_started_timeout=60)
    @step
    def train(self):
        node = str(current.parallel.node_index)
        os.environ["NODE"] = node
        given = ["--fail"] if self.fail else []
        if self.way == "accelerate":
            current.accelerate.run("torch_ranks.py", given)
        elif self.way == "torchrun":
            current.torch.run(entrypoint="torch_ranks.py", entrypoint_args=given, torchrun_args=["--max-restarts=0"])
        elif self.way == "alone" and node == "0":
            current.mpi.run("mpi_ranks.py", args=["--allow-run-as-root"])
        elif self.way == "mpi":
            current.mpi.broadcast_file("mpi_ranks.py")
            current.mpi.run(args=["-np", "4", "--allow-run-as-root"], program="python mpi_ranks.py", program_args=given)
            current.mpi.exec(args=["--allow-run-as-root", "-np", "2"], program="python again.py")
        self.done = node
        self.next(self.join)

    @step
    def join(self, inputs):
        self.done = [found.done for found in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Ranks()
"""
TORCH = """
import os
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
if "--fail" in sys.argv and rank == 3:
    sys.exit(3)
import torch
total = torch.tensor([rank + 1])
dist.all_reduce(total)
sys.stdout.write(f"rank {rank} of {size} on {os.environ['NODE']} sum {int(total)}\\n")
dist.destroy_process_group()
"""
MPI = """
import ctypes
import os
import sys

lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
lib.MPI_Init(None, None)

def known(name):
    return ctypes.byref(ctypes.c_char.in_dll(lib, name))

rank, total = int(os.environ["OMPI_COMM_WORLD_RANK"]), ctypes.c_int()
if "--fail" in sys.argv and rank == 3:
    sys.exit(3)
world = known("ompi_mpi_comm_world")
mine = ctypes.c_int(rank + 1)
lib.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, known("ompi_mpi_int"), known("ompi_mpi_op_sum"), world)
size, local = os.environ["OMPI_COMM_WORLD_SIZE"], os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"]
assert local == "2"
sys.stdout.write(f"rank {rank} of {size} on {os.environ['NODE']} sum {total.value}\\n")
lib.MPI_Finalize()
"""
AGAIN = """
import os
import sys
sys.stdout.write(f"again {os.environ['OMPI_COMM_WORLD_RANK']} on {os.environ['NODE']}\\n")
"""
RANKS = {f"rank {rank} of 4 on {rank // 2} sum 10" for rank in range(4)}


@pytest.fixture
def ranks(project: Any) -> Any:
    return project.write({"flow.py": FLOW, "torch_ranks.py": TORCH, "mpi_ranks.py": MPI, "again.py": AGAIN})


def said(project: Any, begin: str) -> set[str]:
    """What the ranks of the newest run wrote."""
    lines = [line.text for line in project.client().runs()[0].steps["train"].logs()]
    return {line for line in lines if line.startswith(begin)}


@pytest.mark.long  # `test_features` has ranks by torchrun on two nodes, without the seconds of torch in each
@pytest.mark.parametrize("way", ["accelerate", "torchrun"])
def test_ranks_of_both_nodes_meet(ranks: Any, way: str) -> None:
    ranks.run("flow.py", "run", "--way", way, timeout=240)
    assert said(ranks, "rank") == RANKS
    if way == "accelerate":
        failed = ranks.run("flow.py", "run", "--way", way, "--fail", code=1, timeout=240)
        assert "accelerate ended with exit code" in failed.stderr


@needs_mpi
def test_mpirun_reaches_every_node_without_ssh(ranks: Any, tmp_path: Path) -> None:
    # Each rank is a process of its node: it has the variables that only that node's task has.
    environment = {"TMPDIR": str(tmp_path)}
    ranks.run("flow.py", "run", "--way", "mpi", env=environment, timeout=240)
    assert said(ranks, "rank") == RANKS
    assert said(ranks, "again") == {"again 0 on 0", "again 1 on 1"}
    assert ranks.client().runs()[0].steps["end"].outputs["done"].load() == ["0", "1"]
    failed = ranks.run("flow.py", "run", "--way", "mpi", "--fail", env=environment, code=1, timeout=240)
    assert "mpirun ended with exit code 3" in failed.stderr
    assert not list(tmp_path.glob("stoker-mpi-*")), "nodes leave nothing behind"


@needs_mpi
def test_a_node_that_does_not_come_is_named(ranks: Any) -> None:
    text = (ranks.folder / "flow.py").read_text().replace("all_nodes_started_timeout=60", "all_nodes_started_timeout=1")
    # The node that does not start mpirun must still be there.
    ranks.write({"flow.py": text.replace("self.done = node", "self.done = node\n        import time; time.sleep(600)")})
    ranks.run("flow.py", "run", "--way", "alone", code=1)
    assert any("node 1 did not come to mpirun within 1 s" in line for line in said(ranks, "error"))


def test_what_is_asked_for_wrongly_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = {"run": "r", "key": "train", "attempt": 1}
    mpi: Any = flowlaunch.launching(launcher_named("mpi"), {}, "")
    with enter(job):
        torch = flowlaunch.launching(launcher_named("torchrun"), {}, "")
        with pytest.raises(SettingsError, match="torchrun has no argument 'nproc'"):
            torch.run("x.py", nproc=2)
        with pytest.raises(SettingsError, match="learns its place"):
            torch.run("x.py", torchrun_args={"--node-rank": 1})
        with pytest.raises(UsageError, match="deepspeed_args is not for torchrun"):
            torch.run("x.py", deepspeed_args=["--x"])
        with pytest.raises(UsageError, match="is no option"):
            torch.run("x.py", torchrun_args=["train.py"])
        with pytest.raises(UsageError, match="entrypoint_args='--lr 1' is one text"):
            torch.run("x.py", "--lr 1")
        with pytest.raises(UsageError, match="given no program, or two"):
            mpi.run("x.py", program="y")
        with pytest.raises(UsageError, match="-np many is not a number of ranks"):
            mpi.run(args=["-np", "many"], program="y")
        with pytest.raises(UsageError, match="there is no program 'no-such-mpicc'"):
            flowlaunch._run(("no-such-mpicc",), ({},), {}, "mpicc")
        with pytest.raises(UsageError, match=r"no file nothing\.txt"):
            mpi.broadcast_file("nothing.txt")
    if importlib.util.find_spec("deepspeed") is None:
        with enter(job), pytest.raises(MissingPackage, match="@deepspeed needs the package 'deepspeed'"):
            flowlaunch.launching(launcher_named("deepspeed"), {}, "").run("x.py", deepspeed_args=["--deepspeed"])


@needs_mpi
def test_one_node_needs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    mpi: Any = flowlaunch.launching(launcher_named("mpi"), {"nproc_per_node": 2}, "")
    (tmp_path / "say.py").write_text(AGAIN)
    monkeypatch.setenv("NODE", "x")
    with enter({"run": "r", "key": "train", "attempt": 1}):
        mpi.run("say.py", args=["--allow-run-as-root", "--oversubscribe"])
        assert set(capfd.readouterr().out.splitlines()) == {"again 0 on x", "again 1 on x"}
        with pytest.raises(RunFailed, match="mpicc ended with exit code"):
            mpi.cc(["no-such-file.c"])


def test_another_mpi_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    with pytest.raises(mpigang.MpiGangFailed, match=r"5\.0\.11; several nodes need Open MPI 4"):
        mpigang._check(str(program))
    with pytest.raises(mpigang.MpiGangFailed, match="cannot be started"):
        mpigang._check(str(tmp_path / "none"))


def test_strangers_are_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket
    import threading

    monkeypatch.setenv(mpigang.TOKEN, "ours")
    head, node = socket.socketpair()
    heard: list[int | None] = []
    thread = threading.Thread(target=lambda: heard.append(mpigang._admit(head)))
    thread.start()
    assert mpigang._introduce(node, 3)
    thread.join()
    assert heard == [3]
    stranger, other = socket.socketpair()
    thread = threading.Thread(target=lambda: heard.append(mpigang._admit(stranger)))
    thread.start()
    other.sendall(wire.framed({"op": "here", "node": 1, "nonce": "x"}))
    other.sendall(wire.framed({"op": "proof", "proof": "guessed"}))
    thread.join()
    assert heard == [3, None]
    for end in (head, node, stranger, other):
        end.close()
