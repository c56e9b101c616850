"""A launcher that starts the ranks of a node side by side, each with a lower priority where that is asked for.

@step(launch=Acmerun(num_processes=2, nice=5))
"""

from __future__ import annotations

from typing import Any, Mapping

from stoker.core.settings import Launch
from stoker.launchers.arguments import Argument
from stoker.launchers.base import TORCH, Argv, Launcher, Node, NodeCommand


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The worker's own command, once for each rank of this node; each rank learns its place from torch's variables."""
    nice = arguments.get("nice")
    prefix = () if nice is None else ("nice", "-n", str(nice))
    ranks = tuple(
        {
            "RANK": str(node.rank * node.processes + local_rank),
            "WORLD_SIZE": str(node.world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(node.processes),
            "GROUP_RANK": str(node.rank),
        }
        for local_rank in range(node.processes)
    )
    return NodeCommand(
        argv=(*prefix, *argv),
        environment={"MASTER_ADDR": node.head, "MASTER_PORT": str(node.port)},
        ranks=ranks,
    )


LAUNCHER = Launcher(
    name="acmerun",
    command=command,
    arguments={"nice": Argument("int")},
    variables=(TORCH,),
    program=lambda launch: "nice" if (launch.arguments or {}).get("nice") is not None else "",
    crowded=True,
)


def Acmerun(**arguments: Any) -> Launch:  # noqa: N802  a value by its name
    """Ranks by Acme's launcher; `nice` is what the command of that name takes."""
    return LAUNCHER.launch(**arguments)
