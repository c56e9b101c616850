"""The key of a step's result in the cache: code, inputs, outputs, environment, and the step's own `cache_key`.

The environment's part is one mapping from an `Environment`, so that what is installed here, a lock and an image take
the same place in a key and the other parts do not know of them.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any, Final, Iterable, Mapping, Protocol, Sequence

from stoker.core.values import frozen
from stoker.plan.installed import identity

FORMAT: Final = 2
"""Version of the key's computation; keys of another version never match."""

ENVIRONMENTS: Final = ("python", "image", "packages")
"""Names in `KeyParts.environment` that are no package's."""

_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


class Environment(Protocol):
    """The packages that a step finds where it runs."""

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """What identifies the environment, as far as results of code that names these packages depend on it."""


@frozen
class InstalledEnvironment:
    """What is installed in this Python: its implementation and minor version, and the packages that the code names.

    Patch releases of Python do not count.
    """

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """The identity of each package, and of Python."""
        version = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
        return {"python": version, **{name: identity(name) for name in packages}}


@frozen
class FixedEnvironment:
    """An environment that one name identifies with Python and all packages: the digest of an image or a lock."""

    kind: str
    """"image" or "packages"."""
    name: str

    def identities(self, packages: Iterable[str]) -> Mapping[str, str]:
        """The environment's name; packages do not count once more by what happens to be installed here."""
        return {self.kind: self.name}


@frozen(kw_only=True)
class KeyParts:
    """Everything that a result depends on; two of them show why a cache key differs."""

    code: str
    """The digest of the step's code."""
    inputs: Mapping[str, str]
    """Parameter → the digests of its values in their structure."""
    input_code: Mapping[str, str]
    """Class or function of the user's own that a value refers to, as "module:name" → the digest of its code as it is
    now."""
    outputs: Sequence[str]
    """The outputs' names, in order, and how they are split."""
    environment: Mapping[str, str]
    """`Environment.identities`: "python" and packages with their versions, or "image" with its digest."""
    extra: Any
    """The step's `cache_key=`, a JSON value."""

    @property
    def key(self) -> str:
        """The hexadecimal SHA-256 of all parts."""
        document = [
            FORMAT,
            self.code,
            dict(self.inputs),
            dict(self.input_code),
            list(self.outputs),
            dict(self.environment),
            self.extra,
        ]
        return hashlib.sha256(_canonical(document).encode("ascii")).hexdigest()

    def differs_in_inputs_only(self, other: KeyParts) -> bool:
        """Whether two keys of one step differ in nothing but inputs, or not at all."""
        return (
            self.environment == other.environment
            and self.input_code == other.input_code
            and self.outputs == other.outputs
            and self.extra == other.extra
            and self.code == other.code
        )
