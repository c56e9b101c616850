"""The decorators by which a step of a flow says where it runs: `@slurm`, `@ray`, and those of any other backend.

Each is the value `decorator` of a registered backend, or of a platform without a backend yet, whose words are checked
and whose steps are refused.
"""

from __future__ import annotations

import functools
from typing import Iterator, Mapping

from stoker.backends.base.backend import FlowDecorator
from stoker.backends.registry import BACKENDS, planned_decorators


@functools.cache
def planned() -> Mapping[str, FlowDecorator]:
    """The decorators of platforms without a backend."""
    return {decorator.name: decorator for decorator in planned_decorators()}


@functools.cache
def built_in() -> Mapping[str, FlowDecorator]:
    """Stoker's own, by name: of platforms without a backend, then of backends."""
    decorators = (BACKENDS.load(name).decorator for name in BACKENDS.builtin)
    return {**planned(), **{decorator.name: decorator for decorator in decorators if decorator is not None}}


def platform(name: str) -> FlowDecorator | None:
    """The decorator of this name, if it is a platform's; looks at other distributions where Stoker has none."""
    own = built_in().get(name)
    if own is not None:
        return own
    return BACKENDS.load(name).decorator if name not in BACKENDS.builtin and name in BACKENDS else None


def names() -> Iterator[str]:
    """The names of all of them, those of other distributions too."""
    yield from built_in()
    for name, backend in BACKENDS.third_party_parts():
        if backend.decorator is not None:
            yield name
