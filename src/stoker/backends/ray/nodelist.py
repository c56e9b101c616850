"""A cluster's nodes for `stoker top`, as Ray's dashboard lists them."""

from __future__ import annotations

import os
from typing import Any, Final, Iterable, Mapping

from stoker.backends.base.nodes import NodeDevices, PlatformNode
from stoker.backends.ray.jobs import Jobs, resources_of
from stoker.backends.ray.settings import RaySettings

_TYPE: Final = "accelerator_type:"
_DEVICES: Final = ("GPU", "TPU", "neuron_cores", "HPU", "NPU")
"""The resources in which Ray counts accelerators:
https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html"""


def nodes(options: Mapping[str, Any]) -> list[PlatformNode]:
    """The nodes that are alive; a `BackendError` where the dashboard does not answer."""
    jobs = Jobs(RaySettings(**options), os.environ)
    try:
        return nodes_of(jobs.nodes())
    finally:
        jobs.close()


def nodes_of(rows: Iterable[Mapping[str, Any]]) -> list[PlatformNode]:
    """The nodes of the dashboard's rows. What tasks use of them, it does not tell."""
    return [_node(row) for row in rows]


def _node(row: Mapping[str, Any]) -> PlatformNode:
    total = resources_of(row)
    state = str(row["state"]).lower()
    if total is None:
        total, state = {}, f"{state}, its resources are not understood"
    model = next((name.removeprefix(_TYPE) for name in total if name.startswith(_TYPE)), "")
    return PlatformNode(
        name=str(row.get("node_name") or row.get("node_ip") or row["node_id"]),
        state=state,
        cpus=total.get("CPU"),
        memory=int(total["memory"]) if "memory" in total else None,
        devices=tuple(
            NodeDevices(model=model or name, count=float(total[name])) for name in _DEVICES if total.get(name)
        ),
    )
