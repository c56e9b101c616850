"""What every rank gets and what becomes of what it returns, under each launcher that is there."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.conftest import Lab

SCRIPT = """
import numpy as np

with open("imports.txt", "a") as file:
    print("imported by", os.getpid(), file=file)

@step(cache=False)
def array() -> np.ndarray:
    return np.arange(300_000, dtype=np.float32).reshape(3, -1)

@step(cache=False)
def table() -> dict:
    return {"rate": 0.1, "names": ["a", "b"], "none": None, 3: (1, 2)}

def seen(array, table, text, flag, given, missing, count, names):
    meet("seen")
    return {
        "rank": context.rank, "local_rank": context.local_rank, "world_size": context.world_size,
        "local_world_size": context.local_world_size, "node": context.node, "nodes": context.nodes,
        "is_main": context.is_main, "attempt": context.attempt, "step": context.step, "repr": repr(context),
        "checkpoints": str(context.checkpoint_dir), "should_stop": context.should_stop,
        "mapped": isinstance(array, np.memmap) or isinstance(array.base, np.memmap), "sum": float(array.sum()),
        "table": table, "text": text, "flag": flag, "given": given, "missing": missing, "count": count,
        "names": names, "folder": os.getcwd(), "pid": os.getpid(), "NODE_RANK": os.environ["NODE_RANK"],
    }

@step(cache=False, launch=plain(1, outputs="all"))
def one(array: np.ndarray, table: dict, text: str, flag: bool, given: int | None, missing: int | None = None,
        count: int = 7, names: list | None = None) -> dict:
    return seen(array, table, text, flag, given, missing, count, names)

two = one.with_options(launch={"num_processes": 2}, name="two")
four = one.with_options(launch={"num_processes": 4}, name="four")

@step(cache=False, launch=plain(3))
def main_only(x: int) -> int:
    print(f"rank {context.rank} was here")
    return x if context.is_main else "not what the annotation says, and nobody looks"

@step(cache=False, launch=plain(3))
def fails_to_keep() -> object:
    import threading
    return 1 if context.is_main else threading.Lock()

@step(cache=False, launch=plain(3, outputs="all"))
def pairs() -> tuple[int, str]:
    return context.rank, f"of rank {context.rank}"

@step(cache=False, launch=plain(2, outputs="all"))
def nothing() -> None:
    return None

@step(cache=False)
def consumer(values, main: int) -> list:
    return [[value["rank"] for value in values], main]

@step(cache=False, launch=plain(2, outputs="all"))
def element(x: int) -> list:
    return [x, context.rank, context.element]

@pipeline
def values():
    a, t = array(), table()
    one(a, t, "text", True, None)
    two(array=a, table=t, text="text", flag=False, given=5, names=["x"])
    everywhere = four(a, t, text="text", flag=True, given=None, count=9)
    main = main_only(11)
    consumer(everywhere, main)
    fails_to_keep()
    pairs()
    nothing()
    element.map([5, 6])

values()
"""


@pytest.fixture(scope="module")
def ran(module_script: Callable[[str], Lab]) -> tuple[Lab, Any]:
    lab = module_script(SCRIPT)
    lab.run("script.py")
    return lab, lab["values"]


@pytest.mark.parametrize(
    ("key", "size", "own"),
    [
        ("one", 1, {"flag": True, "given": None, "missing": None, "count": 7, "names": None}),
        ("two", 2, {"flag": False, "given": 5, "missing": None, "count": 7, "names": ["x"]}),
        ("four", 4, {"flag": True, "given": None, "missing": None, "count": 9, "names": None}),
    ],
)
def test_every_rank_has_the_inputs_and_knows_its_place(
    ran: tuple[Lab, Any], key: str, size: int, own: dict[str, Any]
) -> None:
    lab, run = ran
    found = run.steps[key].load()
    assert [one["rank"] for one in found] == list(range(size))
    for rank, one in enumerate(found):
        assert (one["local_rank"], one["world_size"], one["local_world_size"]) == (rank, size, size)
        assert (one["node"], one["NODE_RANK"], one["nodes"], one["is_main"]) == (0, "0", 1, rank == 0)
        assert (one["step"], one["attempt"], one["should_stop"]) == (key, 1, False)
        assert f"rank {rank} of {size}" in one["repr"]
        assert one["sum"] == float(sum(range(300_000))) or abs(one["sum"] / sum(range(300_000)) - 1) < 1e-5
        assert one["mapped"], "an array is mapped from the store, not copied into each rank"
        assert one["table"] == {"rate": 0.1, "names": ["a", "b"], "none": None, 3: (1, 2)}
        assert one["text"] == "text" and {name: one[name] for name in own} == own
        assert one["folder"] == str(lab.folder)
    assert len({one["pid"] for one in found}) == size
    assert len({one["checkpoints"] for one in found}) == 1


def test_the_main_ranks_value_is_the_steps(ran: tuple[Lab, Any]) -> None:
    _, run = ran
    assert run.steps["main_only"].load() == 11
    assert run.steps["fails_to_keep"].load() == 1, "what other ranks return is not even looked at"
    assert run.steps["consumer"].load() == [[0, 1, 2, 3], 11]


def test_all_ranks_values_are_lists_by_rank(ran: tuple[Lab, Any]) -> None:
    _, run = ran
    outputs = run.steps["pairs"].outputs
    assert [output.load() for output in outputs.values()] == [[0, 1, 2], ["of rank 0", "of rank 1", "of rank 2"]]
    assert run.steps["nothing"].status == "succeeded" and not run.steps["nothing"].outputs


def test_elements_of_a_fan_out_have_ranks_of_their_own(ran: tuple[Lab, Any]) -> None:
    _, run = ran
    assert run.steps["element"].load() == [[[5, 0, 0], [5, 1, 0]], [[6, 0, 1], [6, 1, 1]]]


def test_lines_have_their_rank(ran: tuple[Lab, Any]) -> None:
    _, run = ran
    lines = {(line.rank, line.text) for line in run.steps["main_only"].logs()}
    assert lines == {(rank, f"rank {rank} was here") for rank in range(3)}


def test_a_rank_that_imports_the_script_starts_no_run(ran: tuple[Lab, Any]) -> None:
    """The script calls its pipeline at the bottom, without a main guard, and each rank imports it again."""
    lab, run = ran
    assert len(lab.read("imports.txt")) > 20, "each rank has imported it"
    assert [one.id for one in lab.client.runs()] == [run.id]


NODES = """
import ctypes
from stoker.config import MPI, ResourceSettings

TWO = ResourceSettings(nodes=2, cpu_count=0.2)

def total(rank):
    lib = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    lib.MPI_Init(None, None)
    known = lambda name: ctypes.byref(ctypes.c_char.in_dll(lib, name))
    mine, found = ctypes.c_int(rank + 1), ctypes.c_int()
    kind, world = known("ompi_mpi_int"), known("ompi_mpi_comm_world")
    lib.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(found), 1, kind, known("ompi_mpi_op_sum"), world)
    lib.MPI_Finalize()
    return found.value

@step(cache=False, resources=TWO, launch=MPI(processes_per_node=2, allow_run_as_root=True, outputs="all"))
def by_mpi(x: int) -> list:
    print("hello from", context.rank)
    assert os.environ["STOKER_NODE_RANK"] == str(context.node), "a rank has its node's variables"
    return [x, context.rank, context.local_rank, context.node, context.nodes, total(context.rank)]

@step(cache=False, resources=TWO, launch=MPI(processes_per_node=1, allow_run_as_root=True))
def fails() -> None:
    if context.rank == 1:
        raise ValueError("the second")
    time.sleep(600)

@pipeline(failure_mode="continue")
def mpi():
    by_mpi(5)
    fails()

mpi()
"""


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: apt-get install openmpi-bin)")
def test_mpirun_over_two_nodes(script: Callable[[str], Lab]) -> None:
    lab = script(NODES)
    lab.run("script.py", code=1)
    run = lab["mpi"]
    assert run.steps["by_mpi"].load() == [[5, rank, rank % 2, rank // 2, 2, 10] for rank in range(4)]
    assert {(line.rank, line.text) for line in run.steps["by_mpi"].logs(rank=[0, 1, 2, 3])} == {
        (rank, f"hello from {rank}") for rank in range(4)
    }
    failure = run.steps["fails"].failure
    assert (failure.cause, failure.message) == ("user-error", "the second")


JAX = """
from stoker.config import Jax

@step(cache=False, launch=Jax(num_processes=2, outputs="all"), environment={"JAX_PLATFORMS": "cpu"})
def by_jax(x: int) -> list:
    import jax
    from jax.experimental import multihost_utils

    found = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + x]))
    return [jax.process_index(), jax.process_count(), context.rank, found.ravel().tolist()]

@pipeline
def jaxes():
    by_jax(5)

jaxes()
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_jax(script: Callable[[str], Lab]) -> None:
    lab = script(JAX)
    lab.run("script.py")
    assert lab["jaxes"].steps["by_jax"].load() == [[0, 2, 0, [5, 6]], [1, 2, 1, [5, 6]]]
