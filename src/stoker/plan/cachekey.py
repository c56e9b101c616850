"""The key of a step's result in the cache: code, inputs, outputs, environment, and the step's own `cache_key`."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from typing import Any, Final, Mapping, Sequence

FORMAT: Final = 1
"""Version of the key's computation; keys of another version never match."""

_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def cache_key(
    *, code: str, inputs: Mapping[str, str], outputs: Sequence[str], environment: str, extra: Any = None
) -> str:
    """The hexadecimal SHA-256 of everything that a result depends on.

    `inputs` are digests by parameter; `outputs` are names, in order; `extra` is the step's `cache_key=`, as JSON.
    """
    document = [FORMAT, code, dict(inputs), list(outputs), environment, extra]
    return hashlib.sha256(_canonical(document).encode("ascii")).hexdigest()


@functools.cache
def environment_digest() -> str:
    """The environment that results depend on: the implementation and the minor version of Python.

    Patch releases do not count; packages that a step's code names count in its code digest.
    """
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
