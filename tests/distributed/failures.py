"""The table of distributed failures: what a user's code does, and which cause, rank and words it is to be told with.

`test_failures.py` runs each row as a gang of its own; `docs/guide/distributed-failures.md` shows the table.
`python -m tests.distributed.failures [ROW…]` runs rows, all of them without a name, and writes the table anew with the
seconds that it measured from a rank's failure, or since the ranks stood still, to that of the step.
"""

from __future__ import annotations

import itertools
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import attrs

TORCH = """
import ctypes
import fcntl
import mmap
import queue
import signal
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from stoker.config import MPI

LOCK = threading.Lock()
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))

class Numbers(Dataset):
    '''What a dataset does in rank 1 is a function of its index.'''
    def __init__(self, size=8, does=None):
        self.size, self.does = size, does

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if self.does is not None and RANK == 1 and index == 3:
            self.does()
        return torch.tensor([float(index)])

def torchrun(count=2, **more):
    return Torchrun(nproc_per_node=count, **{"hang_after": "6s", **more})
"""
"""Follows the head of every script of torch's."""


@attrs.frozen(kw_only=True)
class Failure:
    """One row."""

    name: str
    """The step."""
    what: str
    """What happens, in words of the docs."""
    code: str
    """The body of the step's function."""
    cause: str
    rank: int | None
    """None: no single rank's fault, or no rank's."""
    says: str
    """What the message has, with `FILE:N` for each line of code."""
    launch: str = "torchrun()"
    group: str = "collectives"
    """Rows of one group are steps of one run."""

    @property
    def step(self) -> str:
        """The step's source."""
        body = indent(dedent(self.code).strip("\n"), "    ")
        return f"@step(cache=False, launch={self.launch})\ndef {self.name}() -> object:\n{body}\n"


def without_lines(text: str) -> str:
    """A message without what changes from run to run: lines, process ids, ports, folders."""
    text = re.sub(r"[\w./-]*\b\w+\.py:\d+", "FILE:N", text)
    text = re.sub(r"\bpid\)? ?\d+|process \d+", "pid N", text)
    return re.sub(r"(?:/[\w.+-]+)+/", "…/", text)


def script(rows: list[Failure]) -> str:
    """The script of a group."""
    name = rows[0].group
    steps = "\n".join(row.step for row in rows)
    calls = "\n".join(f"    {row.name}()" for row in rows)
    return f"{TORCH}\n{steps}\n@pipeline(failure_mode='continue', max_parallel=2)\ndef {name}():\n{calls}\n\n{name}()\n"


def table(told: Mapping[str, str]) -> Iterator[str]:
    """The rows of the docs. `told`: what happens → the seconds after which it is told."""
    yield "| what happens | cause | rank | what Stoker says | told after |"
    yield "|---|---|---|---|---|"
    for row in FAILURES:
        rank = "none alone" if row.rank is None else str(row.rank)
        words = row.says.replace("FILE:N", "train.py:12").replace("|", "\\|")
        yield f"| {row.what} | `{row.cause}` | {rank} | `{words}` | {told.get(row.what, '')} |"


MARK = "<!-- made from tests/distributed/failures.py -->\n"
"""Stands before the table in the docs."""


def told_in(text: str) -> dict[str, str]:
    """What a table of the docs has in its last column, by what happens."""
    rows = [re.split(r"(?<!\\\\) ?\| ?", line) for line in text.partition(MARK)[2].splitlines()[2:]]
    return {row[1]: row[-2] for row in rows}


def told_after(step: Any) -> str:
    """The seconds from a rank's failure to that of the step; empty where no rank has failed."""
    at = step.attempts[-1]._row.error.get("at")
    return f"{step.attempts[-1].ended.timestamp() - at:.1f} s" if at else ""


def main() -> None:
    """Run rows and write the docs' table."""
    from tests.distributed.conftest import scripted
    from tests.engine.conftest import Lab

    docs = Path(__file__).resolve().parents[2] / "docs" / "guide" / "distributed-failures.md"
    before, mark, _ = docs.read_text(encoding="utf-8").partition(MARK)
    told = told_in(docs.read_text(encoding="utf-8"))
    chosen = [row for row in FAILURES if row.name in sys.argv[1:] or not sys.argv[1:]]
    for group, rows in itertools.groupby(chosen, lambda row: row.group):
        members = list(rows)
        with tempfile.TemporaryDirectory() as folder:
            lab = scripted(Lab(Path(folder)), script(members), name=f"{group}.py")
            lab.start(f"{group}.py").wait(1, 3600)
            told |= {row.what: told_after(lab[group].steps[row.name]) for row in members}
            lab.close()
        docs.write_text(before + mark + "".join(f"{line}\n" for line in table(told)), encoding="utf-8")


COLLECTIVES = [
    Failure(
        name="uneven",
        what="rank 1 has fewer batches, and returns",
        code="""
        dist.init_process_group("gloo")
        loss = torch.ones(4)
        for _ in range(9 if dist.get_rank() == 0 else 8):
            dist.all_reduce(loss)
        dist.destroy_process_group()
        """,
        cause="rank-left",
        rank=1,
        says="rank 1 returned after 8 all_reduce, while rank 0 waited in the 9th all_reduce (FILE:N); no rank crashed",
    ),
    Failure(
        name="uneven_no_destroy",
        what="the same, without `destroy_process_group`",
        code="""
        dist.init_process_group("gloo")
        loss = torch.ones(4)
        for _ in range(9 if dist.get_rank() == 0 else 8):
            dist.all_reduce(loss)
        """,
        cause="rank-left",
        rank=1,
        says="rank 1 returned after 8 all_reduce, while rank 0 waited in the 9th all_reduce (FILE:N); no rank crashed",
    ),
    Failure(
        name="uneven_barrier",
        what="rank 1 has fewer batches, and goes on to a barrier",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        loss = torch.ones(4)
        for _ in range(3 if dist.get_rank() == 0 else 2):
            dist.all_reduce(loss)
        dist.barrier()
        """,
        cause="mismatch",
        rank=None,
        says=(
            "ranks differ in their 3rd collective operation: rank 0: all_reduce of [4] float32 (FILE:N); rank 1: "
            "barrier (FILE:N)"
        ),
    ),
    Failure(
        name="uneven_async",
        what="the same with `async_op=True`",
        code="""
        dist.init_process_group("gloo")
        loss = torch.ones(4)
        for _ in range(5 if dist.get_rank() == 1 else 4):
            work = dist.all_reduce(loss, async_op=True)
            work.wait()
        """,
        cause="rank-left",
        rank=0,
        says="rank 0 returned after 4 all_reduce, while rank 1 waited in the 5th all_reduce (FILE:N); no rank crashed",
    ),
    Failure(
        name="uneven_ddp",
        what="uneven batches with DistributedDataParallel",
        code="""
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        for _ in range(5 if dist.get_rank() == 0 else 4):
            model(torch.ones(2, 4)).sum().backward()
        """,
        cause="rank-left",
        rank=1,
        says=(
            "rank 1 returned after 4 batches of DistributedDataParallel, while rank 0 waited in the backward "
            "pass of their 5th batch (FILE:N)"
        ),
    ),
    Failure(
        name="sizes",
        what="tensors of different sizes in one collective",
        code="""
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(4 + dist.get_rank()))
        """,
        cause="mismatch",
        rank=None,
        says=(
            "ranks differ in their 1st collective operation: rank 0: all_reduce of [4] float32 (FILE:N); rank 1: "
            "all_reduce of [5] float32 (FILE:N)"
        ),
    ),
    Failure(
        name="dtypes",
        what="tensors of different types in one collective",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        values = torch.ones(3, dtype=torch.float64 if dist.get_rank() == 2 else torch.float32)
        dist.broadcast(torch.ones(2), src=0)
        dist.all_reduce(values)
        dist.barrier()
        """,
        launch="torchrun(3)",
        cause="mismatch",
        rank=2,
        says=(
            "ranks differ in their 2nd collective operation: ranks 0, 1: all_reduce of [3] float32 (FILE:N); "
            "rank 2: all_reduce of [3] float64 (FILE:N)"
        ),
    ),
    Failure(
        name="order",
        what="another order of the same operations on one rank",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        loss, weights = torch.ones(1), torch.ones(1)
        if dist.get_rank() == 0:
            dist.all_reduce(loss)
            dist.broadcast(weights, src=0)
        else:
            dist.broadcast(weights, src=0)
            dist.all_reduce(loss)
        dist.barrier()
        """,
        cause="mismatch",
        rank=None,
        says=(
            "ranks differ in their 1st collective operation: rank 0: all_reduce of [1] float32 (FILE:N); rank 1: "
            "broadcast of [1] float32, src=0 (FILE:N)"
        ),
    ),
    Failure(
        name="roots",
        what="each rank broadcasts from itself",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        weights = torch.ones(2)
        dist.broadcast(weights, src=dist.get_rank())
        dist.barrier()
        dist.barrier()
        raise SystemExit(0)
        """,
        cause="mismatch",
        rank=None,
        says="rank 0: broadcast of [2] float32, src=0 (FILE:N); rank 1: broadcast of [2] float32, src=1 (FILE:N)",
    ),
    Failure(
        name="barrier_of_one",
        what="a barrier on rank 0 only",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        if dist.get_rank() == 0:
            torch.save({"step": 1}, "checkpoint.pt")
            dist.barrier()
        dist.all_reduce(torch.ones(1))
        """,
        cause="mismatch",
        rank=None,
        says=(
            "ranks differ in their 1st collective operation: rank 0: barrier (FILE:N); rank 1: all_reduce of [1] "
            "float32 (FILE:N)"
        ),
    ),
    Failure(
        name="branch",
        what="a branch that depends on the rank's data",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        loss = torch.tensor([float("inf") if dist.get_rank() == 2 else 1.0])
        if torch.isfinite(loss):
            dist.all_reduce(loss)
        dist.barrier()
        """,
        launch="torchrun(3)",
        cause="mismatch",
        rank=2,
        says=(
            "ranks differ in their 1st collective operation: ranks 0, 1: all_reduce of [1] float32 (FILE:N); "
            "rank 2: barrier (FILE:N)"
        ),
    ),
    Failure(
        name="slow_data",
        what="one rank waits for its data longer than the group's timeout",
        code="""
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        loader = DataLoader(Numbers(does=lambda: time.sleep(60)), batch_size=1)
        for batch in loader:
            dist.all_reduce(batch)
        """,
        launch="torchrun(hang_after=None)",
        cause="nccl-timeout",
        rank=1,
        says=(
            "rank 0 waited in the 4th all_reduce (FILE:N) for rank 1: rank 1 stands at FILE:N: loader = "
            "DataLoader(Numbers(does=lambda: time.sleep(60)), batch_size=1), after 3 all_reduce"
        ),
    ),
    Failure(
        name="slow_checkpoint",
        what="rank 0 writes a checkpoint, and the others wait in a barrier until its timeout",
        code="""
        def save(model, path):
            torch.save(model.state_dict(), path)
            time.sleep(60)  # a slow file system

        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        model = torch.nn.Linear(2, 1)
        dist.barrier()
        if dist.get_rank() == 0:
            save(model, "slow.pt")
        dist.barrier()
        """,
        launch="torchrun(3, hang_after=None)",
        cause="nccl-timeout",
        rank=0,
        says="for rank 0: rank 0 stands at FILE:N: time.sleep(60)  # a slow file system, after 1 barrier",
    ),
    Failure(
        name="monitored",
        what="rank 1 never comes to a `monitored_barrier`",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.monitored_barrier(timeout=timedelta(seconds=3))
        """,
        launch="torchrun(hang_after=None)",
        cause="nccl-timeout",
        rank=1,
        says=(
            "rank 0 waited in the 1st monitored_barrier (FILE:N) for rank 1: rank 1 stands at FILE:N: "
            "time.sleep(60), after no collective operation"
        ),
    ),
    Failure(
        name="stuck_data",
        what="one rank's loader never returns",
        code="""
        dist.init_process_group("gloo")
        for batch in DataLoader(Numbers(does=queue.Queue().get), batch_size=1):
            dist.all_reduce(batch)
        """,
        cause="hang",
        rank=1,
        says=(
            "rank 0 waited in the 4th all_reduce (FILE:N) for rank 1: rank 1 stands at FILE:N: self.does(), "
            "after 3 all_reduce"
        ),
    ),
    Failure(
        name="slow_data_ddp",
        what="one rank computes on its data, and DistributedDataParallel waits for it",
        code="""
        def tokenize(text):
            while True:
                text = text[::-1]

        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(4, 1))
        for batch in range(3):
            if batch == 2 and dist.get_rank() == 1:
                tokenize("corpus")
            model(torch.ones(2, 4)).sum().backward()
        """,
        cause="hang",
        rank=1,
        says=("rank 0 waited in the backward pass of their 3rd batch (FILE:N) for rank 1: rank 1 stands at FILE:N"),
    ),
    Failure(
        name="unpicklable",
        what="`broadcast_object_list` of what cannot be pickled",
        code="""
        dist.init_process_group("gloo")
        config = [threading.Lock() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(config, src=0)
        """,
        cause="user-error",
        rank=0,
        says="cannot pickle '_thread.lock' object",
    ),
    Failure(
        name="left_group",
        what="one rank destroys its group early and goes on",
        code="""
        dist.init_process_group("gloo")
        for batch in range(3):
            dist.all_reduce(torch.ones(1))
            if batch == 1 and dist.get_rank() == 1:
                dist.destroy_process_group()
                time.sleep(60)
        """,
        cause="rank-left",
        rank=1,
        says=(
            "rank 1 left the group (FILE:N) after 2 all_reduce, while rank 0 waited in the 3rd all_reduce "
            "(FILE:N); no rank crashed"
        ),
    ),
    Failure(
        name="part_of_group",
        what="one member of a group of its own does not call its operation",
        code="""
        dist.init_process_group("gloo")
        pair = dist.new_group([0, 1])
        dist.barrier()
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1), group=pair)
        if dist.get_rank() == 1:
            time.sleep(60)
        dist.barrier()
        """,
        launch="torchrun(3)",
        cause="hang",
        rank=1,
        says="for rank 1: rank 1 stands at FILE:N: time.sleep(60), after",
    ),
    Failure(
        name="functional",
        what="one rank does not come to a functional collective, as DTensor calls them",
        code="""
        import torch.distributed._functional_collectives as functional

        dist.init_process_group("gloo")
        for batch in range(3):
            if batch == 2 and dist.get_rank() == 1:
                time.sleep(60)
            functional.wait_tensor(functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD))
        """,
        cause="hang",
        rank=1,
        says=(
            "rank 0 waited in the 3rd all_reduce (FILE:N) for rank 1: rank 1 stands at FILE:N: time.sleep(60), after 2 "
            "all_reduce"
        ),
    ),
    Failure(
        name="recv_alone",
        what="a `recv` whose `send` is missing",
        code="""
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 0:
            dist.recv(torch.zeros(1), src=1)
        """,
        cause="rank-left",
        rank=1,
        says="rank 0 waited in recv from rank 1 (FILE:N), which has returned",
    ),
    Failure(
        name="recv_both",
        what="both ranks receive, and none sends",
        code="""
        dist.init_process_group("gloo")
        dist.recv(torch.zeros(1), src=1 - dist.get_rank())
        """,
        cause="hang",
        rank=None,
        says=(
            "rank 0 waits in recv from rank 1 (FILE:N), and rank 1 in recv from rank 0 (FILE:N): neither answers "
            "the other"
        ),
    ),
    Failure(
        name="other_models",
        what="models of different shapes in DistributedDataParallel",
        code="""
        dist.init_process_group("gloo")
        layers = [torch.nn.Linear(2, 2) for _ in range(1 + dist.get_rank())]
        DistributedDataParallel(torch.nn.Sequential(*layers))
        """,
        cause="mismatch",
        rank=0,
        says="DDP expects same model across all ranks",
    ),
    Failure(
        name="unused_parameters",
        what="parameters without a gradient in DistributedDataParallel",
        code="""
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.used, self.unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)

            def forward(self, x):
                return self.used(x)

        dist.init_process_group("gloo")
        model = DistributedDataParallel(Model())
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        """,
        cause="user-error",
        rank=0,
        says="Expected to have finished reduction in the prior iteration before starting a new one",
    ),
]

START = [
    Failure(
        name="never_joins",
        what="rank 1 never joins the rendezvous",
        code="""
        if os.environ["RANK"] == "1":
            time.sleep(60)
        dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        """,
        cause="rendezvous",
        rank=1,
        says=(
            "rank 1 did not call init_process_group, where rank 0 waited (FILE:N): rank 1 stands at FILE:N: "
            "time.sleep(60)"
        ),
    ),
    Failure(
        name="join_of_one",
        what="only rank 0 calls `init_process_group`",
        code="""
        if context.is_main:
            dist.init_process_group("gloo", timeout=timedelta(seconds=4))
        """,
        cause="rendezvous",
        rank=1,
        says="rank 1 did not call init_process_group, where rank 0 waited (FILE:N): rank 1 has returned",
    ),
    Failure(
        name="other_size",
        what="ranks with different world sizes",
        code="""
        rank = int(os.environ["RANK"])
        dist.init_process_group("gloo", rank=rank, world_size=2 + rank)
        """,
        cause="wrong-world",
        rank=1,
        says=(
            "init_process_group is called for a world that its argument world_size says has 3 ranks here, and 2 "
            "were started"
        ),
    ),
    Failure(
        name="size_of_environment",
        what="code that changes WORLD_SIZE",
        code="""
        os.environ["WORLD_SIZE"] = "4"
        dist.init_process_group("gloo")
        """,
        cause="wrong-world",
        rank=0,
        says="WORLD_SIZE, which the step's code has changed, says has 4 ranks here, and 2 were started",
    ),
    Failure(
        name="same_rank",
        what="every rank calls itself rank 0",
        code="""
        dist.init_process_group("gloo", rank=0, world_size=2, timeout=timedelta(seconds=4))
        """,
        cause="wrong-world",
        rank=None,
        says="ranks 0, 1 all call init_process_group as rank 0 (at FILE:N)",
    ),
    Failure(
        name="worlds_of_one",
        what="every rank makes a world of one",
        code="""
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        """,
        cause="wrong-world",
        rank=0,
        says="torch.distributed counts 1 rank here, and 2 were started",
    ),
    Failure(
        name="busy_port",
        what="a fixed port that another program has",
        code="""
        import socket

        if context.is_main:
            taken = socket.create_server(("127.0.0.1", 0))
            dist.init_process_group("gloo", rank=0, world_size=2, init_method=f"tcp://127.0.0.1:{taken.getsockname()[1]}")
        time.sleep(60)
        """,
        launch="plain(2)",
        cause="port-in-use",
        rank=0,
        says="EADDRINUSE",
    ),
    Failure(
        name="import_on_one",
        what="a module that one rank alone imports, and that is missing",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            import wandb_of_tomorrow
        dist.barrier()
        """,
        cause="import-error",
        rank=1,
        says="No module named 'wandb_of_tomorrow'",
    ),
    Failure(
        name="accelerate_apart",
        what="Accelerate without its launcher's variables",
        code="""
        from accelerate import Accelerator

        Accelerator()
        """,
        cause="wrong-world",
        rank=0,
        says="accelerate counts 1 rank here, and 2 were started",
    ),
    Failure(
        name="accelerate_batches",
        what="a loader of Accelerate's with `even_batches=False`",
        code="""
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=False))
        model, loader = accelerator.prepare(torch.nn.Linear(1, 1), DataLoader(Numbers(7), batch_size=1))
        for batch in loader:
            accelerator.backward(model(batch).sum())
        """,
        launch="Accelerate(cpu=True, num_processes=2)",
        cause="rank-left",
        rank=1,
        says="rank 1 returned after 3 batches of DistributedDataParallel, while rank 0 waited in the backward pass of",
    ),
    Failure(
        name="accelerate_uneven",
        what="`Accelerator.gather` on rank 0 only",
        code="""
        from accelerate import Accelerator

        accelerator = Accelerator()
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            accelerator.gather(torch.ones(2))
        """,
        launch="Accelerate(cpu=True, num_processes=2)",
        cause="rank-left",
        rank=1,
        says=(
            "rank 1 returned after 1 barrier, while rank 0 waited in all_gather, the 2nd operation (FILE:N); no "
            "rank crashed"
        ),
    ),
    Failure(
        name="mpi_mapping",
        what="more ranks than MPI may map to the node",
        code="""
        pass
        """,
        launch="MPI(num_processes=2, map_by='ppr:1:node', allow_run_as_root=True)",
        cause="exited",
        rank=None,
        says="mpi started 0 of 2 ranks, and left with exit code 1: Your job has requested more processes than the ppr",
    ),
    Failure(
        name="launcher_refuses",
        what="a launcher that ends before it starts a rank",
        code="""
        pass
        """,
        launch="Command([sys.executable, '-c', 'import sys; sys.exit(\"no such fabric: ib9\")'], num_processes=2)",
        cause="exited",
        rank=None,
        says="no such fabric: ib9",
    ),
    Failure(
        name="launcher_waits",
        what="a launcher that starts no rank",
        code="""
        pass
        """,
        launch="Command([sys.executable, '-c', 'import time; time.sleep(60)'], num_processes=2, start_timeout='3s')",
        cause="not-started",
        rank=None,
        says="command started none of 2 ranks within its start_timeout of 3.0 s; missing: 0, 1",
    ),
]

PROCESSES = [
    Failure(
        name="raises_slowly",
        what="rank 1 raises, and takes 4 s to die",
        code="""
        dist.init_process_group("gloo")
        dist.barrier()
        try:
            if dist.get_rank() == 1:
                raise KeyError("label")
            dist.all_reduce(torch.ones(4))
        finally:
            dist.destroy_process_group()
            time.sleep(4)
        """,
        cause="user-error",
        rank=1,
        says="KeyError: 'label'",
    ),
    Failure(
        name="wrapped",
        what="rank 0 turns the connection's error into one of its own",
        code="""
        dist.init_process_group("gloo")
        try:
            if dist.get_rank() == 1:
                raise FileNotFoundError("shard-0001.tar")
            dist.all_reduce(torch.ones(4))
        except RuntimeError:
            raise ValueError("training failed")
        finally:
            dist.destroy_process_group()
            time.sleep(dist.is_initialized() or RANK * 3)
        """,
        cause="user-error",
        rank=1,
        says="shard-0001.tar",
    ),
    Failure(
        name="not_a_number",
        what="an assertion on one rank's loss",
        code="""
        dist.init_process_group("gloo")
        loss = torch.tensor([float("nan") if dist.get_rank() == 1 else 1.0])
        assert torch.isfinite(loss).all(), f"loss is {loss.item()}"
        dist.all_reduce(loss)
        """,
        cause="user-error",
        rank=1,
        says="loss is nan",
    ),
    Failure(
        name="segfault",
        what="a segmentation fault in rank 2",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            ctypes.string_at(0)
        dist.barrier()
        """,
        launch="torchrun(3)",
        cause="crashed",
        rank=2,
        says="rank 2 of 3 was ended by SIGSEGV",
    ),
    Failure(
        name="bus_error",
        what="a file that shrinks while it is mapped",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            with open("shard.bin", "wb+") as file:
                file.truncate(1 << 16)
                page = mmap.mmap(file.fileno(), 0)
                file.truncate(0)
                page[4096]
        dist.barrier()
        """,
        cause="crashed",
        rank=1,
        says="rank 1 of 2 was ended by SIGBUS",
    ),
    Failure(
        name="aborts",
        what="an abort in native code",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            os.abort()
        dist.barrier()
        """,
        cause="crashed",
        rank=1,
        says="rank 1 of 2 was ended by SIGABRT",
    ),
    Failure(
        name="killed",
        what="SIGKILL of rank 1",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        """,
        launch="torchrun(3)",
        cause="killed",
        rank=1,
        says="rank 1 of 3 was ended by SIGKILL",
    ),
    Failure(
        name="terminated",
        what="SIGTERM to one rank, from outside",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.barrier()
        """,
        cause="killed",
        rank=1,
        says="ended by SIGTERM from outside",
    ),
    Failure(
        name="leaves",
        what="`sys.exit(0)` on one rank",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            sys.exit(0)
        dist.barrier()
        """,
        cause="exited",
        rank=1,
        says="the step called sys.exit(0)",
    ),
    Failure(
        name="exits",
        what="`os._exit(0)` on one rank",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            os._exit(0)
        dist.barrier()
        """,
        cause="exited",
        rank=1,
        says="rank 1 of 2 left with exit code 0 before the step returned",
    ),
    Failure(
        name="no_memory",
        what="no memory left for one rank",
        code="""
        import resource

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            torch.ones(4 << 30)
        dist.barrier()
        """,
        cause="host-oom",
        rank=1,
        says="can't allocate memory",
    ),
    Failure(
        name="disk_full",
        what="a full disk on one rank",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            with open("/dev/full", "w") as file:
                file.write("checkpoint")
        dist.barrier()
        """,
        cause="disk-full",
        rank=1,
        says="No space left on device",
    ),
    Failure(
        name="open_files",
        what="too many open files on one rank",
        code="""
        import resource

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            shards = [open("/dev/null") for _ in range(100)]
        dist.barrier()
        """,
        cause="user-error",
        rank=1,
        says="Too many open files",
    ),
    Failure(
        name="no_threads",
        what="no more threads for one rank",
        code="""
        import resource

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
            threading.stack_size(1 << 30)
            for _ in range(20):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        dist.barrier()
        """,
        cause="user-error",
        rank=1,
        says="can't start new thread",
    ),
    Failure(
        name="worker_raises",
        what="an exception in a DataLoader's worker",
        code="""
        def broken():
            raise OSError("shard 3 is damaged")

        dist.init_process_group("gloo")
        for batch in DataLoader(Numbers(does=broken), batch_size=1, num_workers=1):
            dist.all_reduce(batch)
        """,
        cause="user-error",
        rank=1,
        says="shard 3 is damaged",
    ),
    Failure(
        name="worker_killed",
        what="a DataLoader's worker that is killed",
        code="""
        dist.init_process_group("gloo")
        for batch in DataLoader(Numbers(does=lambda: os.kill(os.getpid(), 9)), batch_size=1, num_workers=1):
            dist.all_reduce(batch)
        """,
        cause="killed",
        rank=1,
        says="DataLoader worker",
    ),
    Failure(
        name="worker_shm",
        what="a DataLoader's worker that finds /dev/shm full",
        code="""
        dist.init_process_group("gloo")
        for batch in DataLoader(Numbers(does=lambda: os.kill(os.getpid(), 7)), batch_size=1, num_workers=1):
            dist.all_reduce(batch)
        """,
        cause="shm-too-small",
        rank=1,
        says="DataLoader worker",
    ),
    Failure(
        name="cuda_in_worker",
        what="CUDA in a DataLoader's worker that was forked after the rank had used it",
        code="""
        def to_device():
            torch.cuda._is_in_bad_fork = lambda: True  # as in a build for CUDA
            torch.ones(1).cuda()

        dist.init_process_group("gloo")
        for batch in DataLoader(Numbers(does=to_device), batch_size=1, num_workers=1):
            dist.all_reduce(batch)
        """,
        cause="user-error",
        rank=1,
        says="Cannot re-initialize CUDA in forked subprocess",
    ),
    Failure(
        name="tokenizers_fork",
        what="the warning of tokenizers about a fork, and another failure after it",
        code="""
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            print("huggingface/tokenizers: The current process just got forked, after parallelism has already been "
                  "used. Disabling parallelism to avoid deadlocks...", file=sys.stderr)
            print("To disable this warning, you can either:", file=sys.stderr)
            os._exit(3)
        dist.barrier()
        """,
        cause="exited",
        rank=1,
        says="rank 1 of 2 left with exit code 3 before the step returned",
    ),
    Failure(
        name="thread_dies",
        what="a thread of one rank dies, and the rank waits for it",
        code="""
        batches = queue.Queue()

        def produce():
            for number in range(3):
                batches.put(torch.ones(number))
            raise OSError("the bucket is gone")

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            threading.Thread(target=produce, name="prefetch").start()
            while True:
                batches.get()
        dist.barrier()
        """,
        cause="user-error",
        rank=1,
        says="thread 'prefetch' of rank 1 died, and the rank waits at FILE:N: OSError: the bucket is gone",
    ),
    Failure(
        name="own_lock",
        what="a lock that every rank takes twice",
        code="""
        dist.init_process_group("gloo")
        with LOCK:
            with LOCK:
                dist.barrier()
        """,
        cause="hang",
        rank=None,
        says="ranks 0, 1 wait at FILE:N for the lock LOCK, which the same thread has taken at FILE:N",
    ),
    Failure(
        name="lock_of_thread",
        what="a lock that another thread holds",
        code="""
        def log():
            with LOCK:
                threading.Event().wait()

        threading.Thread(target=log, name="logger", daemon=True).start()
        time.sleep(0.5)
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            LOCK.acquire()
        dist.barrier()
        """,
        cause="hang",
        rank=1,
        says=(
            "rank 1 stands at FILE:N: LOCK.acquire(), waiting for the lock LOCK, which thread 'logger' has taken "
            "at FILE:N; it stands at FILE:N"
        ),
    ),
    Failure(
        name="file_lock",
        what="a file lock that one rank keeps, and the others wait for",
        code="""
        dist.init_process_group("gloo")
        cache = open("cache.lock", "w")
        if dist.get_rank() == 0:
            fcntl.flock(cache, fcntl.LOCK_EX)
        dist.barrier()
        if dist.get_rank() == 1:
            fcntl.flock(cache, fcntl.LOCK_EX)
        dist.barrier()
        """,
        cause="hang",
        rank=1,
        says="waiting for the lock of the file …/cache.lock, which rank 0 holds",
    ),
    Failure(
        name="stopped",
        what="a rank that is stopped (SIGSTOP)",
        code="""
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()
        """,
        cause="hang",
        rank=1,
        says="rank 0 waited in the 2nd barrier (FILE:N) for rank 1: rank 1 gave no account",
    ),
    Failure(
        name="not_kept",
        what="rank 0 returns what cannot be kept",
        code="""
        dist.init_process_group("gloo")
        dist.barrier()
        return threading.Lock() if context.is_main else None
        """,
        cause="unserializable",
        rank=0,
        says="cannot pickle '_thread.lock' object",
    ),
    Failure(
        name="recursion",
        what="a recursion without end on one rank",
        code="""
        def depth(tree):
            return 1 + depth(tree)

        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            depth({})
        dist.barrier()
        """,
        cause="user-error",
        rank=1,
        says="maximum recursion depth exceeded",
    ),
]
FAILURES = [
    *COLLECTIVES,
    *(attrs.evolve(row, group="start") for row in START),
    *(attrs.evolve(row, group="processes") for row in PROCESSES),
]

if __name__ == "__main__":
    main()
