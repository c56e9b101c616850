"""`torchrun` on each node, static or elastic.

Options: https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py
"""

from __future__ import annotations

from typing import Any, Final, Iterator, Mapping

from stoker.core.findings import Finding
from stoker.core.settings import Launch
from stoker.launchers.arguments import Argument, argument_table, installed_arguments
from stoker.launchers.base import (
    LOOPBACK,
    Argv,
    FlowWords,
    Launcher,
    Layout,
    Node,
    NodeCommand,
    bracket_address,
    complete_table,
    constructor,
    module_command,
    refusal,
)

ARGUMENTS: Final[Mapping[str, Argument]] = argument_table("torchrun.txt")
OWN_RENDEZVOUS: Final = frozenset({"static", "c10d"})
"""Backends with which the nodes meet without a service; others, such as etcd, need the address of one."""

RESTARTS: Final = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Gives ranks that start again a store of their own. In the one that they share with torchrun, they find the addresses
of the ranks before them, and do not meet: https://github.com/pytorch/pytorch/issues/135712"""


@constructor
def Torchrun(**options: Any) -> Launch:  # noqa: N802  a value by its name, as in Retry(3)
    """Ranks by `torchrun`; its `nproc_per_node` counts the ranks of each node, `num_processes` all of them."""
    return LAUNCHER.launch(**options)


def command(argv: Argv, node: Node, arguments: Mapping[str, Any]) -> NodeCommand:
    """`torchrun` for one node."""
    values = {name: value for name, value in arguments.items() if value is not None}
    # On one node the c10d store finds a free port. `--standalone` would overwrite the id.
    values.pop("standalone", None)
    # Not a range that the person gave: who takes part is known, and nodes that begin without the others would make
    # worlds of their own.
    values["nnodes"] = node.nodes
    values["nproc_per_node"] = node.processes
    values["rdzv_id"] = node.rendezvous
    port = values.pop("master_port", node.port)
    values |= _rendezvous(values, node, port)
    return NodeCommand(
        argv=module_command("torch.distributed.run", argv, node, complete_table(ARGUMENTS, values, newer), values),
        environment=RESTARTS if elastic(values) else {},
    )


def elastic(arguments: Mapping[str, Any]) -> bool:
    """Whether torchrun itself may restart ranks."""
    return bool(arguments.get("max_restarts"))


def least_nodes(arguments: Mapping[str, Any]) -> int:
    """The first number of a range of nodes; 0 of a single number, of which all are needed."""
    least, colon, _ = str(arguments.get("nnodes") or "").partition(":")
    return int(least) if colon else 0


def numbers_nodes(arguments: Mapping[str, Any]) -> bool:
    """Whether torchrun numbers the nodes: any rendezvous but the static one sorts them by their addresses as text."""
    return arguments.get("rdzv_backend", "c10d" if elastic(arguments) else "static") not in (None, "", "static")


def _rendezvous(values: Mapping[str, Any], node: Node, port: int) -> dict[str, Any]:
    backend = values.get("rdzv_backend")
    if backend is not None and backend not in OWN_RENDEZVOUS:
        return {"local_addr": node.address}
    if node.nodes == 1 and backend != "static":
        endpoint = f"{LOOPBACK}:{port}"
        return {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "local_addr": LOOPBACK}
    if backend == "c10d" or (elastic(values) and backend != "static"):
        # Restarted ranks meet again, which the static rendezvous cannot do across nodes.
        endpoint = f"{bracket_address(node.head)}:{port}"
        # By itself, torchrun looks whether its host has that name or address, and nobody may find that it does.
        conf = {"is_host": "true" if node.rank == 0 else "false", **values.get("rdzv_conf", {})}
        return {"rdzv_backend": "c10d", "rdzv_endpoint": endpoint, "rdzv_conf": conf, "local_addr": node.address}
    return {
        "rdzv_backend": "static",
        "node_rank": node.rank,
        "master_addr": node.head,
        "master_port": port,
        "local_addr": node.address,
    }


def newer() -> Mapping[str, Argument]:
    """The arguments of the torch that is installed; importing it takes seconds."""
    return installed_arguments("torch.distributed.run:get_args_parser", "")


def rendezvous(layout: Layout) -> Iterator[Finding]:
    """Refuse arguments with which the nodes would not meet."""
    arguments = layout.arguments
    backend = arguments.get("rdzv_backend")
    among_nodes = backend is None or backend in OWN_RENDEZVOUS
    if among_nodes and arguments.get("rdzv_endpoint"):
        yield refusal(
            f"rdzv_endpoint={arguments['rdzv_endpoint']!r} with rdzv_backend={backend or 'static'!r}",
            why="the nodes meet at the head of their gang, whose address and port are known when they start",
            fix='remove rdzv_endpoint, or name the service that it belongs to: rdzv_backend="etcd-v2"',
            code="STK139",
        )
    if not among_nodes and not arguments.get("rdzv_endpoint"):
        yield refusal(
            f"rdzv_backend={backend!r} without rdzv_endpoint",
            why="it is a service of its own, of which Stoker does not know the address",
            fix="give rdzv_endpoint",
            code="STK139",
        )
    if arguments.get("standalone") and layout.nodes > 1:
        yield refusal(
            f"standalone=True on {layout.nodes} nodes",
            why="each node would be a world of its own",
            fix="remove standalone",
            code="STK139",
        )
    if backend == "static" and elastic(arguments) and layout.nodes > 1:
        yield refusal(
            'rdzv_backend="static" for ranks that may start again on several nodes',
            why="nodes that meet once cannot meet again",
            fix='remove rdzv_backend, or write "c10d"',
            code="STK139",
        )


LAUNCHER: Final = Launcher(
    name="torchrun",
    command=command,
    arguments=ARGUMENTS,
    newer=newer,
    package="torch",
    brought_by=frozenset(
        {"torch", "accelerate", "deepspeed", "lightning", "pytorch-lightning", "torchvision", "vllm", "trl"}
    ),
    checks=(rendezvous,),
    port="master_port",
    finds_port=True,
    restarts="max_restarts",
    numbers_nodes=numbers_nodes,
    least_nodes=least_nodes,
    flow=FlowWords(current="torch", title="torchrun"),
)
