"""What a step's result is found again by: code, inputs, outputs, environment, and what the step's author adds."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from typing import Any, Final, Mapping, Sequence

FORMAT: Final = 1
"""Of the key: a key of another format never matches, so that a change here makes steps run again, never go wrong."""

_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def cache_key(
    *, code: str, inputs: Mapping[str, str], outputs: Sequence[str], environment: str, extra: Any = None
) -> str:
    """The hexadecimal SHA-256 of all that a result depends on.

    `inputs` are digests by parameter; `outputs` are names, in order; `extra` is the step's `cache_key=`, as JSON.
    """
    document = [FORMAT, code, dict(inputs), list(outputs), environment, extra]
    return hashlib.sha256(_canonical(document).encode("ascii")).hexdigest()


@functools.cache
def environment_digest() -> str:
    """The environment that results depend on: which Python, to its minor version, of which implementation.

    Patch releases and installed packages are not in it: packages that a step's code names count in its code digest.
    """
    return f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
