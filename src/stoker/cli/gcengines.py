"""The part of `stoker gc` that looks into container engines: those of all stacks that share this home."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Collection, Final, Iterable

from stoker import config
from stoker.core import plugins
from stoker.core.errors import BackendError
from stoker.store.store import Store

IMAGE_AGE: Final = 86400.0
"""Seconds for which an image that no plan names is kept: a run that is about to begin has just built it."""
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def swept(
    store: Store,
    *,
    running: Collection[str],
    known: Collection[str],
    dry_run: bool,
    now: float,
    said: Callable[[str], None],
) -> dict[str, int]:
    """How many containers and images went, or would go; an engine that does not answer is named and left."""
    counts = {"containers": 0, "images": 0, "image_bytes": 0}
    addresses = list(engine_addresses())
    if not addresses:
        return counts
    from stoker.backends.docker import leftovers
    from stoker.backends.docker.engines import Engine
    from stoker.images.build import LABEL

    needed = {digest for text in store.records.references() for digest in _DIGEST.findall(text)}
    for address in addresses:
        engine = Engine(address)
        try:
            found = leftovers.found(
                engine,
                home=os.path.join(str(store.home), "scratch"),
                running=running,
                known=known,
                image_label=LABEL,
                needed=needed,
                before=now - IMAGE_AGE,
            )
            gone = found if dry_run else leftovers.remove(engine, found)
        except BackendError as error:
            said(f"not looked into: {error}")
            continue
        finally:
            engine.close()
        counts["containers"] += len(gone.containers)
        counts["images"] += len(gone.images)
        counts["image_bytes"] += gone.size
    return counts


def engine_addresses() -> Iterable[str]:
    """Where the engines are that any stack here runs steps on."""
    components: list[Any] = []
    for stack in config.stacks():
        components += [stack.orchestrator, *stack.step_operators.values()]
    found = []
    for component in components:
        if component.flavor in plugins.BACKENDS and component.flavor not in ("local", "inline"):
            backend = plugins.load("stoker.backends", component.flavor)
            if hasattr(backend, "engine_address"):
                found.append(backend.engine_address(component.options))
    return dict.fromkeys(found)
