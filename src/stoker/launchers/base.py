"""What launchers share: a node's place in a gang, the worker's command taken apart, and the form of a launcher.

A launcher is called in the job, where addresses and ports are real. It reads no environment and opens no file.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Literal, Mapping, Sequence

import attrs

from stoker.core.launch import Launch
from stoker.core.launch_arguments import Argument, written

Argv = tuple[str, ...]
LOOPBACK: Final = "127.0.0.1"


@attrs.frozen(kw_only=True)
class Node:
    """The place of one node in its gang, and what it has.

    `head` is the address of node 0 as seen from this node, `address` this node's own; `port` is free on the head, and 0
    lets a launcher on a single node find one. `rendezvous` is unique to run, step and attempt. `processes` are the
    ranks of each node, `devices` the names by which this node's devices are chosen (`CUDA_VISIBLE_DEVICES`). `hosts`
    are all nodes' addresses, the head first. `cpu`: the ranks compute on CPUs. `python` runs launchers of programs that
    are not Python; a worker that is has its own.
    """

    rank: int = 0
    nodes: int = 1
    head: str = LOOPBACK
    address: str = LOOPBACK
    port: int = 0
    rendezvous: str = "stoker"
    processes: int = 1
    devices: tuple[str, ...] = ()
    hosts: tuple[str, ...] = (LOOPBACK,)
    cpu: bool = False
    python: str = "python"

    @property
    def world_size(self) -> int:
        """Ranks on all nodes."""
        return self.nodes * self.processes

    @property
    def endpoint(self) -> str:
        """Where nodes meet, as `host:port`; an IPv6 address in brackets."""
        return f"{bracketed(self.head)}:{self.port}"


@attrs.frozen(kw_only=True)
class Started:
    """What a node runs: one command that starts its ranks, with variables that it needs.

    `ranks` has the variables of each rank on this node where Stoker starts them itself, `argv` once for each. An empty
    `argv`: another node's launcher starts the ranks here.
    """

    argv: Argv
    environment: Mapping[str, str] = attrs.field(factory=dict)
    ranks: tuple[Mapping[str, str], ...] = ()


Launched = Callable[[Argv, Node, Mapping[str, Any]], Started]


def nothing_newer() -> Mapping[str, Argument]:
    """For a launcher whose installed version cannot be asked."""
    return {}


@attrs.frozen(kw_only=True)
class Launcher:
    """One way to start ranks; called with the worker's argv, the node and the launcher's own arguments.

    `arguments` is its table, `newer` asks the installed version for more. `crowded`: more ranks than devices are
    usual. `port` is the argument that fixes the port where ranks meet, empty for a launcher without one.
    """

    name: str
    launched: Launched
    arguments: Mapping[str, Argument] = attrs.field(factory=dict, repr=False)
    newer: Callable[[], Mapping[str, Argument]] = nothing_newer
    crowded: bool = False
    port: str = ""

    def __call__(self, argv: Sequence[str], node: Node, arguments: Mapping[str, Any]) -> Started:
        return self.launched(tuple(argv), node, arguments)


@attrs.frozen
class Target:
    """A command taken apart: `python -m module …`, `python script …`, or any other program."""

    kind: Literal["module", "script", "program"]
    name: str
    rest: Argv = ()
    python: Argv = ()


def target_of(argv: Argv) -> Target:
    """What a command runs; options of the interpreter itself, such as `-u`, stay with it."""
    if not argv:
        raise ValueError("there is nothing to launch")
    program = argv[0].rpartition("/")[2]
    if not program.startswith(("python", "pypy")):
        return Target("program", argv[0], argv[1:])
    index = 1
    while index < len(argv) and argv[index].startswith("-") and argv[index] not in {"-m", "-c", "-"}:
        # -W and -X are followed by a word of their own where none is joined to them.
        index += 2 if argv[index] in {"-W", "-X"} else 1
    if index >= len(argv) or argv[index] in {"-c", "-"}:
        return Target("program", argv[0], argv[1:])
    if argv[index] == "-m":
        return Target("module", argv[index + 1], argv[index + 2 :], argv[:index])
    return Target("script", argv[index], argv[index + 1 :], argv[:index])


def words(table: Mapping[str, Argument], arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as they stand on the command line, in the table's order; ones that it lacks come last, as texts."""
    found: list[str] = []
    for name in [*(name for name in table if name in arguments), *(name for name in arguments if name not in table)]:
        found += written(name, table.get(name) or shape(arguments[name]), arguments[name])
    return found


def known(
    table: Mapping[str, Argument], given: Mapping[str, Any], newer: Callable[[], Mapping[str, Argument]]
) -> Mapping[str, Argument]:
    """The table, and what the installed version adds if an argument is not in it."""
    return table if all(name in table for name in given) else {**newer(), **table}


def shape(value: Any) -> Argument:
    """How an argument of a newer version is written, from its value."""
    if isinstance(value, bool):
        return Argument("flag")
    if isinstance(value, Mapping):
        return Argument("pairs")
    return Argument("texts" if isinstance(value, (list, tuple)) else "text")


def processes_per_node(launch: Launch, *, nodes: int, devices: int, cpu: bool = False) -> int:
    """The ranks of each node: as asked for, else one for each device, else one; without a launcher one.

    A number in all that does not divide by the nodes is refused by `check`; here it is rounded down.
    """
    if launch.launcher == "single":
        return 1
    if launch.processes_per_node:
        return launch.processes_per_node
    if launch.num_processes:
        return max(1, launch.num_processes // nodes)
    return 1 if cpu else max(1, devices)


def on_cpus(launch: Launch) -> bool:
    """Whether the launch says that its ranks compute on CPUs."""
    return bool((launch.arguments or {}).get("cpu"))


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address
