"""A cluster's nodes for `stoker top`: groups of equal ones, each once however many partitions it is in."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

from stoker.backends.base.logins import login
from stoker.backends.base.nodes import NodeDevices, PlatformNode
from stoker.backends.slurm.cluster import Group, cluster_facts
from stoker.backends.slurm.settings import SlurmSettings


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes of the cluster that these settings name; a `BackendError` where it does not answer."""
    machine = login(SlurmSettings(**options).get("host"))
    try:
        facts = cluster_facts(machine)
    finally:
        machine.close()
    return nodes_of(group for partition in facts.partitions.values() for group in partition.groups)


def nodes_of(groups: Iterable[Group]) -> list[PlatformNode]:
    """The nodes of groups, in their order; nodes in several partitions are listed once."""
    alike: dict[tuple[str, str], list[Group]] = {}
    for group in groups:
        alike.setdefault((group.names, group.state), []).append(group)
    return [_node(same) for same in alike.values()]


def _node(same: Sequence[Group]) -> PlatformNode:
    group = same[0]
    unread = (f"{name}={text} is not understood" for name, text in group.unread.items())
    return PlatformNode(
        name=group.names,
        count=group.nodes,
        state=", ".join([group.state, *unread]),
        group=", ".join(one.partition for one in same),
        cpus=group.cpus,
        memory=None if group.memory is None else int(group.memory * 2**20),
        devices=tuple(
            # On a node that is idle without any mark no job runs. How many are taken on others, these commands do not
            # tell.
            NodeDevices(
                model=gres.type or gres.name, count=gres.count, free=gres.count if group.state == "idle" else None
            )
            for gres in group.gres
            if gres.count is not None
        ),
    )
