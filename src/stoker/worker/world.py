"""Compares the world that a rank's frameworks see with the ranks that were started.

A rank that takes itself for the only one computes on all data, writes what the others write too, and succeeds. So each
framework that a rank has initialised is asked how many ranks it counts: right after it was initialised, where the error
shows the user's line, and once more when the step has returned. One that was imported and never initialised counts no
ranks, and is not asked.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable, Final, Iterator

from stoker.core.errors import StokerError
from stoker.core.status import WRONG_WORLD
from stoker.launchers.base import Launcher
from stoker.worker.imports import call_on_import

_INITIALISERS: Final = {
    "torch.distributed.distributed_c10d": ("", "init_process_group"),
    "accelerate.state": ("PartialState", "__init__"),
}
"""Module → class and function after which its framework has a world."""
_MPI: Final = ("OMPI_", "MV2_", "PMI_")
"""Begin the variables of ranks that MPI started: https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html"""


class WrongWorld(StokerError):
    """A framework of a rank counts another number of ranks than were started."""

    cause = WRONG_WORLD

    def __init__(self, framework: str, count: int, world_size: int, fix: str) -> None:
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        super().__init__(
            f"{framework} counts {ranks} here, and {world_size} were started: they do not work together",
            fix=f"{fix}; where ranks are meant to be apart, say one_world=False in the launch",
        )


def watch(launcher: Launcher, world_size: int) -> None:
    """Check the world whenever this process initialises a framework; raises `WrongWorld` out of that call."""

    def check() -> None:
        verify(launcher, world_size)

    def wrap(name: str) -> None:
        owner, function = _INITIALISERS[name]
        module = sys.modules[name]
        place = getattr(module, owner, None) if owner else module
        original = getattr(place, function, None)
        if original is not None:
            setattr(place, function, _checked(original, check))

    call_on_import(_INITIALISERS, wrap)


def verify(launcher: Launcher, world_size: int) -> None:
    """Raise `WrongWorld` where a framework that this process has initialised counts another number of ranks."""
    for framework, count, fix in _worlds(launcher):
        if count != world_size:
            raise WrongWorld(framework, count, world_size, fix)


def _checked(function: Callable[..., Any], check: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        value = function(*arguments, **keywords)
        check()
        return value

    return call


def _worlds(launcher: Launcher) -> Iterator[tuple[str, int, str]]:
    """(framework, the ranks that it counts, what to do where that is wrong), of those that are initialised."""
    yield from _accelerate()
    yield from _torch()
    yield from _jax()
    if any(names.rank.startswith(_MPI) and names.rank in os.environ for names in launcher.variables):
        yield from _mpi()


def _accelerate() -> Iterator[tuple[str, int, str]]:
    state = getattr(sys.modules.get("accelerate.state"), "PartialState", None)
    shared = getattr(state, "_shared_state", {})
    # With XLA it counts devices, of which one process may have several.
    if shared.get("num_processes") and shared.get("backend") != "xla":
        fix = "launch the step with Accelerate(cpu=True, …) for ranks on CPUs, or write PartialState(cpu=True)"
        yield "accelerate", int(shared["num_processes"]), fix


def _torch() -> Iterator[tuple[str, int, str]]:
    distributed: Any = sys.modules.get("torch.distributed")
    # The backend "fake" of torch's own tests counts ranks that are nowhere.
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() != "fake":
        fix = "call init_process_group without rank and world_size: it reads RANK and WORLD_SIZE"
        yield "torch.distributed", int(distributed.get_world_size()), fix


def _jax() -> Iterator[tuple[str, int, str]]:
    jax: Any = sys.modules.get("jax")
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    # Without jax.distributed, each rank computes with its own JAX, as a loader of data may.
    if jax is None or getattr(state, "client", None) is None:
        return
    fix = "launch the step with Jax(…), which calls jax.distributed.initialize itself"
    if state is not None and state.num_processes:
        yield "jax.distributed", int(state.num_processes), fix
    # The number of processes starts JAX's devices, if nothing has yet.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if getattr(bridge, "backends_are_initialized", bool)():
        yield "jax", int(jax.process_count()), fix


def _mpi() -> Iterator[tuple[str, int, str]]:
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        fix = "build mpi4py for the MPI whose mpirun starts the ranks; mpi4py.MPI.Get_library_version() names its own"
        yield "MPI", int(mpi.COMM_WORLD.Get_size()), fix
