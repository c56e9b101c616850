"""Which files of /dev are a container's devices, for vendors whose devices an engine hands in as files.

AMD: /dev/kfd and the render node of each GPU (https://rocm.docs.amd.com/projects/install-on-linux/en/latest/how-to/docker.html).
Neuron: /dev/neuronN (https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/tutorials/tutorial-docker-env-setup.html).
NVIDIA's are the engine's affair. Reads the kernel's own tables, asks no driver.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Iterable

from stoker.backends.docker.requests import Files
from stoker.core.devices import Device
from stoker.core.errors import BackendError

TOPOLOGY: Final = "sys/class/kfd/kfd/topology/nodes"
"""A folder a node; `properties` has `unique_id` (decimal) and `drm_render_minor`; CPUs have no SIMD units.
https://github.com/torvalds/linux/blob/v6.6/drivers/gpu/drm/amd/amdkfd/kfd_topology.c"""
_UUID: Final = re.compile(r"GPU-([0-9a-f]{16})", re.IGNORECASE)
"""ROCr's: the unique id in hexadecimal."""


def files(devices: Iterable[Device], root: Path = Path("/")) -> Files:
    """The files of some devices, and the groups that own them; simulated devices have none."""
    held = [one for one in devices if not one.simulated]
    strange = sorted({one.kind for one in held} - {"nvidia", "amd", "neuron"})
    if strange:
        raise BackendError(
            f"devices of kind {', '.join(strange)} cannot be handed into a container",
            fix="run the step on a stack whose orchestrator is local",
        )
    paths = [f"/dev/neuron{one.index}" for one in held if one.kind == "neuron"]
    cards = [one for one in held if one.kind == "amd"]
    if cards:
        paths += ["/dev/kfd", *_render_nodes(cards, root)]
    paths = list(dict.fromkeys(paths))
    groups = {str(os.stat(root / path.lstrip("/")).st_gid) for path in paths if (root / path.lstrip("/")).exists()}
    return Files(paths=tuple(paths), groups=tuple(sorted(groups - {"0"})) if cards else ())


def _render_nodes(cards: Iterable[Device], root: Path) -> list[str]:
    known = list(_gpus(root))
    found = []
    for card in cards:
        match = _UUID.fullmatch(card.uuid)
        if match is not None:
            wanted = int(match.group(1), 16)
            minors = [minor for unique, minor in known if unique == wanted]
        else:  # GPUs without an id of their own are numbered as the kernel lists them
            minors = [minor for _, minor in known[card.index : card.index + 1]]
        if not minors:
            raise BackendError(
                f"the kernel does not list the GPU {card.uuid} in /{TOPOLOGY}, so that no file of it is known",
                fix="see whether `amd-smi list` and `ls /dev/dri` agree",
            )
        found.append(f"/dev/dri/renderD{minors[0]}")
    return found


def _gpus(root: Path) -> Iterable[tuple[int, int]]:
    """(unique id, number of the render node) of each GPU, in the kernel's order."""
    folder = root / TOPOLOGY
    nodes = sorted((path for path in folder.glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
    for node in nodes:
        try:
            rows = (line.split() for line in (node / "properties").read_text().splitlines())
            facts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
        except OSError:
            continue  # another user's GPU, in a container that has some of them
        if facts.get("simd_count"):
            yield facts.get("unique_id", 0), facts.get("drm_render_minor", -1)
