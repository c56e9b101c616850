"""The backends that there are, Stoker's own and those of other distributions (entry points "stoker.backends")."""

from __future__ import annotations

from typing import Final, Iterator, Mapping

from stoker.backends.base.backend import Backend, FlowDecorator
from stoker.core.plugins import Registry, resolve

BACKENDS: Final[Registry[Backend]] = Registry(
    group="stoker.backends",
    noun="backend",
    kind=Backend,
    builtin={
        "local": ("stoker.backends.local.registration:LOCAL", ""),
        "inline": ("stoker.backends.local.registration:INLINE", ""),
        "docker": ("stoker.backends.docker.registration:DOCKER", "docker"),
        "slurm": ("stoker.backends.slurm.registration:SLURM", ""),
        "ray": ("stoker.backends.ray.registration:RAY", ""),
    },
)

PLANNED: Final[Mapping[str, str]] = {
    "kubernetes": "stoker.backends.kubernetes.registration:KUBERNETES",
    "batch": "stoker.backends.aws_batch.registration:BATCH",
}
"""Decorators of platforms for which there is no backend yet: what they say is checked, and running is refused."""


def planned_decorators() -> Iterator[FlowDecorator]:
    """The decorators of platforms without a backend."""
    for target in PLANNED.values():
        yield resolve(target)
