"""DeepSpeed's launcher on each node, without ssh.

The `deepspeed` command finds nodes in a host file and starts `deepspeed.launcher.launch` on each by ssh. Stoker's nodes
run already, so it starts that module itself. The command also turns `CUDA_VISIBLE_DEVICES` into numbers, which fails
for UUIDs; the module takes names. https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/runner.py and
launch.py
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final, Mapping

from stoker.core.settings import Launch
from stoker.launchers.arguments import Argument, argument_table
from stoker.launchers.base import (
    TORCH,
    Argv,
    FlowWords,
    Launcher,
    Node,
    NodeCommand,
    RankVariables,
    constructor,
    module_command,
)

ARGUMENTS: Final[Mapping[str, Argument]] = argument_table("deepspeed.txt")

# CROSS_RANK is the node, LOCAL_SIZE the ranks on it (deepspeed/launcher/launch.py); the other names are torch's.
VARIABLES: Final = RankVariables(
    rank="RANK",
    world_size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    local_world_size="LOCAL_SIZE",
    node="CROSS_RANK",
    mark="CROSS_RANK",
)


@constructor
def DeepSpeed(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Ranks by DeepSpeed's launcher, without ssh; its `num_gpus` counts the ranks of each node."""
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """`deepspeed.launcher.launch` for one node."""
    values = {name: value for name, value in arguments.items() if value is not None}
    values.pop("num_nodes", None)
    values.setdefault("master_port", node.port)
    values["node_rank"] = node.rank
    values["master_addr"] = node.head
    values["world_info"] = world_info(node)
    # Without it, the local rank is added to the worker's arguments; the variable LOCAL_RANK is enough.
    values["no_local_rank"] = True
    return NodeCommand(
        argv=module_command("deepspeed.launcher.launch", argv, node, ARGUMENTS, values),
        # Elastic training has no argument for it.
        environment={"ELASTIC_RUN_ID": node.rendezvous},
    )


def world_info(node: Node) -> str:
    """Every node's devices as the launcher takes them: this node's by name, numbers for the others, where only the
    count matters.

    Ranks without devices get numbers, too.
    """
    devices_of_node: dict[str, list[Any]] = {}
    for rank in range(node.nodes):
        devices = list(node.devices[: node.processes]) if rank == node.rank else []
        devices_of_node[f"node-{rank}"] = devices if len(devices) == node.processes else list(range(node.processes))
    return base64.urlsafe_b64encode(json.dumps(devices_of_node).encode()).decode()


LAUNCHER: Final = Launcher(
    name="deepspeed",
    command=command,
    arguments=ARGUMENTS,
    package="deepspeed",
    brought_by=frozenset({"deepspeed"}),
    variables=(VARIABLES, TORCH),
    port="master_port",
    flow=FlowWords(current="deepspeed", title="DeepSpeed's launcher"),
)
