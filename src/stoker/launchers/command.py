"""A user's own launcher: its words, then the worker's command. No shell, no placeholders: variables say the rest."""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.core.launch_arguments import Argument
from stoker.launchers.base import Argv, Launcher, Node, Started


def launched(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> Started:
    """The user's command with the worker's behind it; `arguments` has it under "command"."""
    return Started(argv=(*arguments.get("command", ()), *argv), environment=place(node))


def place(node: Node) -> dict[str, str]:
    """A node's place as variables."""
    return {
        "STOKER_NUM_PROCESSES": str(node.world_size),
        "STOKER_PROCESSES_PER_NODE": str(node.processes),
        "STOKER_NODES": str(node.nodes),
        "STOKER_NODE_RANK": str(node.rank),
        "STOKER_RENDEZVOUS": node.rendezvous,
        "MASTER_ADDR": node.head,
        "MASTER_PORT": str(node.port),
    }


NONE: Final[Mapping[str, Argument]] = {}
LAUNCHER: Final = Launcher(name="command", launched=launched, arguments=NONE, crowded=True)
