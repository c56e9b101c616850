"""No launcher: the step runs in one process on each node; on one node that is rank 0 of 1."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.launchers.base import Argv, Launcher, Node, NodeCommand


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """The command as it is. On one node without variables: `RANK` alone would make torch wait for others."""
    if node.nodes == 1:
        return NodeCommand(argv=argv)
    variables = {
        "RANK": node.rank,
        "WORLD_SIZE": node.nodes,
        "LOCAL_RANK": 0,
        "LOCAL_WORLD_SIZE": 1,
        "GROUP_RANK": node.rank,
        "MASTER_ADDR": node.head,
        "MASTER_PORT": node.port,
    }
    return NodeCommand(argv=argv, environment={name: str(value) for name, value in variables.items()})


LAUNCHER: Final = Launcher(name="single", command=command, one_per_node=True)
