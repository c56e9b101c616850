"""Ranks by MPI: Open MPI's `mpirun` on the head, or `srun` inside a Slurm allocation.

Both start the ranks of all nodes from the head, so that the other nodes run no command. Options:
https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html, https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php
and https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import re
from typing import Any, Final, Iterator, Mapping

from stoker.core.findings import Finding
from stoker.core.settings import Launch
from stoker.launchers.arguments import Argument, argument_table
from stoker.launchers.base import (
    Argv,
    FlowWords,
    HeadProgram,
    Launcher,
    Layout,
    Node,
    NodeCommand,
    RankVariables,
    bracket_address,
    constructor,
    refusal,
    words,
)

PROGRAMS: Final = ("mpirun", "mpiexec", "srun")

MPIRUN: Final[Mapping[str, Argument]] = argument_table("mpirun.txt")
SRUN: Final[Mapping[str, Argument]] = argument_table("srun.txt")
ARGUMENTS: Final[Mapping[str, Argument]] = {"program": Argument("text", PROGRAMS), **SRUN, **MPIRUN}
BOTH: Final = frozenset({*MPIRUN} & {*SRUN} | {"program"})

OPEN_MPI: Final = re.compile(r"\((?:Open MPI|OpenRTE)\) 4\.")
"""Matches `mpirun --version` of Open MPI 4, which starts ranks on several nodes of one machine without ssh. Under Open
MPI 5's runtime such ranks do not find each other. mpiexec prints the runtime's name."""

VARIABLES: Final = (
    # https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html
    RankVariables(
        rank="OMPI_COMM_WORLD_RANK",
        world_size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_world_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # https://mvapich.cse.ohio-state.edu/static/media/mvapich/mvapich2-userguide.html
    RankVariables(
        rank="MV2_COMM_WORLD_RANK",
        world_size="MV2_COMM_WORLD_SIZE",
        local_rank="MV2_COMM_WORLD_LOCAL_RANK",
        local_world_size="MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # MPICH's Hydra and Intel MPI: https://github.com/pmodels/mpich/blob/main/doc/wiki/how_to/Using_the_Hydra_Process_Manager.md
    RankVariables(
        rank="PMI_RANK", world_size="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_world_size="MPI_LOCALNRANKS"
    ),
    # https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES; sbatch's own script is task 0 of a
    # step of one, and SLURM_NTASKS speaks of the allocation there: SLURM_STEP_NUM_TASKS is only set by srun.
    RankVariables(
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        node="SLURM_NODEID",
        tasks_per_node="SLURM_STEP_TASKS_PER_NODE",
    ),
)


@constructor
def MPI(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Ranks by Open MPI's `mpirun`, or with `program="srun"` by Slurm; `np` and `ntasks` count all ranks."""
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The command on the head; nothing on the other nodes."""
    values = {name: value for name, value in arguments.items() if value is not None}
    program = values.pop("program", "mpirun")
    environment = {"MASTER_ADDR": node.head, "MASTER_PORT": str(node.port)}
    if node.rank > 0:
        return NodeCommand(argv=(), environment=environment)
    if program == "srun":
        return NodeCommand(argv=_srun(argv, node, values), environment=environment)
    return NodeCommand(argv=_mpirun(program, argv, node, values), environment=environment)


def foreign(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that belong to the other program."""
    other = MPIRUN if arguments.get("program") == "srun" else SRUN
    return [name for name, value in arguments.items() if value is not None and name in other and name not in BOTH]


def _mpirun(program: str, argv: Argv, node: Node, values: Mapping[str, Any]) -> Argv:
    # A host without a number has one slot: https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html
    hosts = ["--host", ",".join(f"{bracket_address(host)}:{node.processes}" for host in node.hosts)]
    exported = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in values.get("x", ())]
    forwarded = [word for name in exported for word in ("-x", name)]
    return (program, "-n", str(node.world_size), *hosts, *forwarded, *_options(values), *argv)


def _srun(argv: Argv, node: Node, values: Mapping[str, Any]) -> Argv:
    values = {"kill_on_bad_exit": 1, **values, "nodes": node.nodes}
    counts = (f"--ntasks={node.world_size}", f"--ntasks-per-node={node.processes}")
    return ("srun", *counts, *words(SRUN, values), *argv)


def _options(values: Mapping[str, Any]) -> list[str]:
    """`--bind-to core` instead of `--bind-to=core`: Open MPI 4 takes only two words."""
    words_of_options: list[str] = []
    for name, value in values.items():
        argument = MPIRUN.get(name)
        for option in words(MPIRUN, {name: value}):
            is_pair = option.startswith("-") and (argument is None or argument.kind not in {"flag", "each"})
            words_of_options += option.split("=", 1) if is_pair else [option]
    return words_of_options


def program_of(arguments: Mapping[str, Any]) -> str:
    """The program that starts the ranks."""
    return str(arguments.get("program") or "mpirun")


def program(launch: Launch) -> str:
    """The program that a launch needs."""
    return program_of(launch.arguments or {})


def head(arguments: Mapping[str, Any]) -> HeadProgram:
    """The program on the head. Open MPI's can use another command than ssh; srun asks Slurm."""
    name = program_of(arguments)
    return HeadProgram(program=name) if name == "srun" else HeadProgram(program=name, by_ssh=True, versions=OPEN_MPI)


def strangers(layout: Layout) -> Iterator[Finding]:
    """Refuse arguments of the other program."""
    misplaced = foreign(layout.arguments)
    if misplaced:
        name = layout.arguments.get("program", "mpirun")
        other = "mpirun" if name == "srun" else "srun"
        yield refusal(
            f"{', '.join(misplaced)} {'is' if len(misplaced) == 1 else 'are'} not of {name}",
            why=f"{other} has {'it' if len(misplaced) == 1 else 'them'}",
            fix=f'remove {", ".join(misplaced)}, or write program="{other}"',
        )


LAUNCHER: Final = Launcher(
    name="mpi",
    command=command,
    arguments=ARGUMENTS,
    program=program,
    head=head,
    variables=VARIABLES,
    checks=(strangers,),
    crowded=True,
    flow=FlowWords(current="mpi", title="mpirun"),
)
