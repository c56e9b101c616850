"""What dead drivers and old runs left in a container engine, for `stoker gc`: containers, networks, images.

Only what has Stoker's labels, and of containers and networks only those of one home: others' may be in use.
"""

from __future__ import annotations

import os
import shutil
from typing import Collection, Final

import attrs

from stoker.backends.docker.engines import Engine
from stoker.backends.docker.requests import HOME_LABEL, LABEL

_OVER: Final = frozenset({"exited", "created", "dead", "stopped", "configured", "initialized"})
"""States of a container in which nothing runs; the last three are podman's."""


@attrs.frozen(kw_only=True)
class Leftovers:
    """Ids of what nobody needs; `size` of the images in bytes, layers that they share counted for each. `folders` are
    those that the containers had on this machine."""

    containers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    size: int = 0


def found(
    engine: Engine,
    *,
    home: str,
    running: Collection[str],
    known: Collection[str],
    image_label: str,
    needed: Collection[str],
    before: float,
) -> Leftovers:
    """What nobody needs: containers that have ended and whose run has no driver, or whose run is not known any more;
    networks of such runs; images with `image_label` made before a time that no container has and no plan names.

    A container that still runs, of a run whose driver died, is left: `stoker resume` takes it over. `needed` are the
    hexadecimal digests that plans name.
    """
    containers, folders = [], []
    used = set()
    for one in engine.find({LABEL: "step"}):
        run = one["Labels"].get(f"{LABEL}.run", "")
        ours = one["Labels"].get(HOME_LABEL) == home
        over = one["State"] in _OVER and run not in running
        if ours and (over or run not in known):
            containers.append(str(one["Id"]))
            folders.append(os.path.dirname(one["Labels"].get(f"{LABEL}.place", "")))
    for one in engine.find({}):
        if one["Id"] not in containers:
            used.add(one.get("ImageID", ""))
    networks = [
        id
        for id, labels in engine.networks({LABEL: "network", HOME_LABEL: home})
        if labels.get(f"{LABEL}.run", "") not in running
    ]
    images = [
        one
        for one in engine.images(image_label)
        if one["Created"] < before and one["Id"] not in used and one["Id"].rpartition(":")[2] not in needed
    ]
    return Leftovers(
        containers=tuple(containers),
        folders=tuple(folder for folder in folders if folder.startswith(home.rstrip("/") + "/")),
        networks=tuple(networks),
        images=tuple(str(one["Id"]) for one in images),
        size=sum(int(one.get("Size") or 0) for one in images),
    )


def remove(engine: Engine, leftovers: Leftovers) -> Leftovers:
    """Take them away; what went."""
    for id in leftovers.containers:
        engine.remove(id)
    for folder in leftovers.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for id in leftovers.networks:
        engine.remove_network(id)
    gone = tuple(id for id in leftovers.images if engine.remove_image(id))
    return attrs.evolve(leftovers, images=gone)
