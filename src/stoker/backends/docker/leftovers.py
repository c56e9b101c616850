"""What dead drivers and old runs left in a container engine, for `stoker gc`: containers, networks, images.

Only what has Stoker's labels, and of containers and networks only those of one home: others' may be in use.
"""

from __future__ import annotations

import os
import shutil
from typing import Collection, Final, Iterable, Iterator

import attrs

from stoker.backends.base.backend import Leftover, Sweep
from stoker.backends.docker.engines import Engine
from stoker.backends.docker.requests import HOME_LABEL, LABEL
from stoker.core.errors import BackendError
from stoker.images.build import LABEL as IMAGE_LABEL

IMAGE_AGE: Final = 86400.0
"""Seconds for which an image that no plan names is kept: a run that is about to begin has just built it."""
_OVER: Final = frozenset({"exited", "created", "dead", "stopped", "configured", "initialized"})
"""States of a container in which nothing runs; the last three are podman's."""


def sweep_engines(addresses: Iterable[str], sweep: Sweep) -> Iterator[Leftover]:
    """What went of each kind, or would go, on these engines; one that does not answer is named and left."""
    needed = sweep.needed() if (engines := list(addresses)) else ()
    containers = images = size = 0
    for address in engines:
        engine = Engine(address)
        try:
            unneeded = find_unneeded(
                engine,
                home=sweep.scratch,
                running=sweep.running,
                known=sweep.known,
                image_label=IMAGE_LABEL,
                needed=needed,
                before=sweep.now - IMAGE_AGE,
            )
            unneeded = unneeded if sweep.dry_run else remove(engine, unneeded)
        except BackendError as error:
            sweep.say(f"not looked into: {error}")
            continue
        finally:
            engine.close()
        containers += len(unneeded.containers)
        images += len(unneeded.images)
        size += unneeded.size
    yield Leftover(kind="containers", noun="container", rest="of steps that are over", count=containers)
    yield Leftover(kind="images", noun="image", rest="that no plan names", count=images, size=size)


@attrs.frozen(kw_only=True)
class Unneeded:
    """Ids of what nobody needs; `size` of the images in bytes, layers that they share counted for each. `folders` are
    those that the containers had on this machine."""

    containers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    size: int = 0


def find_unneeded(
    engine: Engine,
    *,
    home: str,
    running: Collection[str],
    known: Collection[str],
    image_label: str,
    needed: Collection[str],
    before: float,
) -> Unneeded:
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
    return Unneeded(
        containers=tuple(containers),
        folders=tuple(folder for folder in folders if folder.startswith(home.rstrip("/") + "/")),
        networks=tuple(networks),
        images=tuple(str(one["Id"]) for one in images),
        size=sum(int(one.get("Size") or 0) for one in images),
    )


def remove(engine: Engine, unneeded: Unneeded) -> Unneeded:
    """Take it away; what went."""
    for id in unneeded.containers:
        engine.remove(id)
    for folder in unneeded.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for id in unneeded.networks:
        engine.remove_network(id)
    return attrs.evolve(unneeded, images=tuple(id for id in unneeded.images if engine.remove_image(id)))
