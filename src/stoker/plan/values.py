"""Values that code refers to, such as constants of a module, as bytes that are the same in every process."""

from __future__ import annotations

import hashlib
import logging
import pickle
import types
from typing import Any, Callable, Final, Mapping

Tokenize = Callable[[Any], bytes]

_SIMPLE: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(...), range, type(NotImplemented)})


def value_token(value: Any, token: Tokenize) -> bytes:
    """What a value is. `token` is asked for what a container holds, and for the functions and classes in an object."""
    kind = type(value)
    if kind in _SIMPLE:
        return _hashed(kind.__name__, repr(value).encode("utf-8", "surrogatepass"))
    if kind in (list, tuple):
        return _hashed(kind.__name__, *(token(item) for item in value))
    if kind in (set, frozenset):
        return _hashed(kind.__name__, *sorted(token(item) for item in value))
    if isinstance(value, (dict, types.MappingProxyType)):
        # The order of a dict's keys is part of what it does.
        return _hashed(kind.__name__, *(part for key, item in value.items() for part in (token(key), token(item))))
    if isinstance(value, logging.Logger):
        # Named after its module, which is `__main__` in a script.
        return _hashed("logger")
    return _hashed(kind.__name__, _pickled(value, token))


def _hashed(kind: str, *parts: bytes) -> bytes:
    hasher = hashlib.sha256(kind.encode())
    for part in parts:
        hasher.update(b"%d:" % len(part) + part)
    return hasher.digest()


class _Hasher:
    """A file that keeps the digest of what is written into it."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Add bytes."""
        self.sha256.update(data)
        return len(data)


class _Pickler(pickle.Pickler):
    """Pickles an object around the functions, classes and sets in it, for which a token stands."""

    def __init__(self, file: _Hasher, value: Any, token: Tokenize, *, fast: bool) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda buffer: bool(file.write(buffer.raw())) and False)
        self._value = value
        self._token = token
        # Without a memo the bytes do not depend on which equal objects are the same object.
        self.fast = fast

    def persistent_id(self, found: Any) -> Any:
        """A token, or None for what is to be pickled."""
        if found is self._value:
            return None
        if isinstance(found, (type, types.FunctionType, types.ModuleType, set, frozenset, logging.Logger)):
            return self._token(found)
        return None


def _pickled(value: Any, token: Tokenize) -> bytes:
    for fast in (True, False):  # an object that holds itself needs the memo
        file = _Hasher()
        try:
            _Pickler(file, value, token, fast=fast).dump(value)
        except Exception:  # the object's own pickling code runs here, and many objects have no pickle at all
            continue
        return file.sha256.digest()
    return _state(value, token)


def _state(value: Any, token: Tokenize) -> bytes:
    """An object that cannot be pickled: its class, and its attributes as far as they are plain values."""
    found: Mapping[str, Any] = getattr(value, "__dict__", None) or {}
    plain = {name: item for name, item in sorted(found.items()) if type(item) in _SIMPLE}
    return _hashed("object", token(type(value)), *(part for item in plain.items() for part in map(token, item)))
