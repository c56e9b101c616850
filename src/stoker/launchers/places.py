"""How a rank learns its place: the variables of each launcher, in one table."""

from __future__ import annotations

from typing import Final, Mapping

import attrs


@attrs.frozen(kw_only=True)
class Place:
    """A rank among all, among those of its node, and the node among its gang. Alone: rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0

    @property
    def is_main(self) -> bool:
        """Whether it speaks for the step as a whole."""
        return self.rank == 0


@attrs.frozen
class Variables:
    """The names by which one launcher tells a rank its place; "" where it does not say."""

    rank: str
    world_size: str
    local_rank: str = ""
    local_world_size: str = ""
    node: str = ""


# The first whose rank and size are both there counts. torch's come first: Accelerate, torchrun and DeepSpeed set them
# for their ranks also where an allocation of Slurm or an mpirun around them has variables of its own.
VARIABLES: Final[Mapping[str, Variables]] = {
    # https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables; DeepSpeed: CROSS_RANK is the node,
    # LOCAL_SIZE the ranks on it (deepspeed/launcher/launch.py).
    "torch": Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"),
    "deepspeed": Variables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"),
    # Stoker's own names, launchers.jax.
    "jax": Variables("JAX_PROCESS_ID", "JAX_NUM_PROCESSES", "STOKER_LOCAL_RANK", "STOKER_PROCESSES_PER_NODE"),
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    "openmpi": Variables(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # https://mvapich.cse.ohio-state.edu/static/media/mvapich/mvapich2-userguide.html
    "mvapich": Variables(
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # MPICH's Hydra and Intel MPI: https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md
    "mpich": Variables("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    # https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES; sbatch's own script is task 0 of a
    # step of one, and SLURM_NTASKS speaks of the allocation there: SLURM_STEP_NUM_TASKS is only set by srun.
    "slurm": Variables("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID"),
}


def place_of(environment: Mapping[str, str]) -> Place:
    """The place that the variables speak of; rank 0 of 1 where none does."""
    for names in (VARIABLES["deepspeed"], *VARIABLES.values()) if "CROSS_RANK" in environment else VARIABLES.values():
        rank, size = _number(environment, names.rank), _number(environment, names.world_size)
        if rank is None or size is None or not 0 <= rank < size:
            continue
        return _completed(environment, names, rank, size)
    return Place()


def _completed(environment: Mapping[str, str], names: Variables, rank: int, size: int) -> Place:
    local_size = _number(environment, names.local_world_size) or _tasks_here(environment, names)
    local = _number(environment, names.local_rank)
    node = _number(environment, names.node)
    if local_size is None:
        # Nothing is said of nodes: all ranks are on this one.
        local_size = size if local is None or local == rank else local + 1
    if local is None:
        local = rank % local_size
    if node is None:
        node = (rank - local) // local_size
    return Place(rank=rank, local_rank=local, world_size=size, local_world_size=local_size, node=node)


def _tasks_here(environment: Mapping[str, str], names: Variables) -> int | None:
    """The ranks on this node as Slurm writes them for all nodes: "2(x3),1" is 2 on three nodes and 1 on the fourth."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "") if names is VARIABLES["slurm"] else ""
    node = _number(environment, names.node)
    counts: list[int] = []
    for part in filter(None, text.split(",")):
        number, _, times = part.partition("(x")
        if not number.isdigit() or not (times.rstrip(")") or "1").isdigit():
            return None
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts[node] if node is not None and node < len(counts) else None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "") if name else ""
    return int(text) if text.isdigit() else None
