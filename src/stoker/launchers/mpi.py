"""Ranks by MPI: Open MPI's `mpirun` on the head, or `srun` inside a Slurm allocation.

Both start the ranks of all nodes from the head, so that the other nodes run nothing of their own. Options:
https://docs.open-mpi.org/en/v5.0.x/man-openmpi/man1/mpirun.1.html, https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php
and https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.launch_arguments import Argument
from stoker.launchers.base import Argv, Launcher, Node, Started, bracketed, words

PLACE: Final = "the nodes are those that the step was given"
FOLDER: Final = "the step's folder is the one that the worker was started in"
PROGRAMS: Final = ("mpirun", "mpiexec", "srun")

_FLAG: Final = Argument("flag")
_TEXT: Final = Argument("text")
_INT: Final = Argument("int")


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


MPIRUN: Final[Mapping[str, Argument]] = {
    "np": Argument("int", flag="-n", means="num_processes"),
    "n": Argument("int", flag="-n", means="num_processes"),
    "npernode": Argument("int", means="processes_per_node"),
    "host": Argument("text", owned=PLACE),
    "hostfile": Argument("text", owned=PLACE),
    "wdir": Argument("text", owned=FOLDER),
    "wd": Argument("text", owned=FOLDER),
    "mca": Argument("each", flag="--mca"),
    "x": Argument("texts", flag="-x"),
    "tune": _TEXT,
    "prefix": _TEXT,
    "stdin": _TEXT,
    "timeout": _INT,
    "quiet": _FLAG,
    "verbose": _FLAG,
    **{name: Argument("text", flag=_dashed(name)) for name in ("bind_to", "map_by", "rank_by", "cpu_set", "display")},
    **{
        name: Argument("text", flag=_dashed(name))
        for name in ("output", "output_filename", "runtime_options", "pmixmca")
    },
    **{
        name: Argument("flag", flag=_dashed(name))
        for name in (
            *("allow_run_as_root", "oversubscribe", "nooversubscribe", "use_hwthread_cpus", "report_bindings"),
            *("display_map", "display_allocation", "tag_output", "timestamp_output", "merge_stderr_to_stdout"),
            *("enable_recovery", "disable_recovery", "get_stack_traces", "report_state_on_timeout"),
        )
    },
}
"""Options of Open MPI 4 and 5."""

_SRUN_TEXTS: Final = (
    *("cpu_bind", "mem_bind", "gpu_bind", "distribution", "mpi", "hint", "network", "gres", "gres_flags", "tres_bind"),
    *("gpus", "gpus_per_node", "gpus_per_task", "gpus_per_socket", "mem", "mem_per_cpu", "mem_per_gpu", "export"),
    *("propagate", "input", "output", "error", "open_mode", "multi_prog", "task_epilog", "task_prolog", "time"),
    *("cpu_freq", "gpu_freq", "profile", "acctg_freq", "signal", "comment", "job_name", "exclude", "container"),
)
_SRUN_FLAGS: Final = (
    *("exact", "overlap", "overcommit", "label", "unbuffered", "quiet", "verbose", "no_kill", "disable_status"),
    *("quit_on_interrupt", "pty", "whole", "use_min_nodes", "interactive", "exclusive"),
)
SRUN: Final[Mapping[str, Argument]] = {
    "ntasks": Argument("int", means="num_processes"),
    "ntasks_per_node": Argument("int", flag="--ntasks-per-node", means="processes_per_node"),
    "nodes": Argument("int", means="nodes"),
    "nodelist": Argument("text", owned=PLACE),
    "chdir": Argument("text", owned=FOLDER),
    "kill_on_bad_exit": Argument("int", flag="--kill-on-bad-exit"),
    **{name: Argument("int", flag=_dashed(name)) for name in ("cpus_per_task", "cpus_per_gpu", "threads_per_core")},
    **{name: Argument("int", flag=_dashed(name)) for name in ("ntasks_per_gpu", "cores_per_socket", "wait", "threads")},
    **{name: Argument("text", flag=_dashed(name)) for name in _SRUN_TEXTS},
    **{name: Argument("flag", flag=_dashed(name)) for name in _SRUN_FLAGS},
}
"""Options of srun that make sense for a step inside an allocation."""

ARGUMENTS: Final[Mapping[str, Argument]] = {"program": Argument("text", PROGRAMS), **SRUN, **MPIRUN}
BOTH: Final = frozenset({*MPIRUN} & {*SRUN} | {"program"})


def launched(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """The command on the head; nothing on the other nodes."""
    given = {name: value for name, value in arguments.items() if value is not None}
    program = given.pop("program", "mpirun")
    environment = {"MASTER_ADDR": node.head, "MASTER_PORT": str(node.port)}
    if node.rank > 0:
        return Started(argv=(), environment=environment)
    if program == "srun":
        return Started(argv=_srun(argv, node, given), environment=environment)
    return Started(argv=_mpirun(program, argv, node, given), environment=environment)


def foreign(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments that the program asked for does not have: those of the other one."""
    other = MPIRUN if arguments.get("program") == "srun" else SRUN
    return [name for name, value in arguments.items() if value is not None and name in other and name not in BOTH]


def _mpirun(program: str, argv: Argv, node: Node, given: Mapping[str, Any]) -> Argv:
    # A host without a number has one slot: https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html
    where = ["--host", ",".join(f"{bracketed(host)}:{node.processes}" for host in node.hosts)]
    exported = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in given.get("x", ())]
    forwarded = [word for name in exported for word in ("-x", name)]
    return (program, "-n", str(node.world_size), *where, *forwarded, *_options(given), *argv)


def _srun(argv: Argv, node: Node, given: Mapping[str, Any]) -> Argv:
    given = {"kill_on_bad_exit": 1, **given, "nodes": node.nodes}
    counts = (f"--ntasks={node.world_size}", f"--ntasks-per-node={node.processes}")
    return ("srun", *counts, *words(SRUN, given), *argv)


def _options(given: Mapping[str, Any]) -> list[str]:
    """`--bind-to core` instead of `--bind-to=core`: Open MPI 4 takes only two words."""
    found: list[str] = []
    for name, value in given.items():
        argument = MPIRUN.get(name)
        for option in words(MPIRUN, {name: value}):
            apart = option.startswith("-") and (argument is None or argument.kind not in {"flag", "each"})
            found += option.split("=", 1) if apart else [option]
    return found


LAUNCHER: Final = Launcher(name="mpi", launched=launched, arguments=ARGUMENTS, crowded=True)
