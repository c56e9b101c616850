"""What a pickled value refers to: classes and functions of the user's own by name, and packages.

A pickle says what a class is called and not what it does, so that a step which calls the value's methods depends on
more than the value's bytes. The names are kept with the artifact; cache keys count the code that they name.
"""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import sys
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from stoker.core.usercode import is_own_package, is_user_file, is_user_module, script_module

_CACHED_FUNCTION: Final = type(functools.lru_cache(lambda: None))
NAMED: Final = (type, FunctionType, BuiltinFunctionType, _CACHED_FUNCTION)
"""Types of what a pickle names."""
LARGE_BUFFER: Final = 256 * 1024
"""Bytes from which on a buffer is kept out of a pickle: pickle would copy it, and mapping it is faster than reading."""
_SET_OPCODES: Final = (b"\x8f\x94", b"\x91\x94")
"""EMPTY_SET and FROZENSET, each followed by MEMOIZE, in pickles of protocol 4 and later."""


class References:
    """Collects what a pickler names."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._packages: set[str] = set()

    @property
    def has_tensors(self) -> bool:
        """Whether a class or function of torch is among them."""
        return "torch" in self._packages

    def add(self, value: Any) -> None:
        """Add a class or a function."""
        module_name = str(getattr(value, "__module__", None) or "")
        module = sys.modules.get(module_name)
        if module is not None and is_user_module(module):
            file = getattr(module, "__file__", None)
            if file and not is_user_file(file):
                return
            if module_name == "__main__" and file:
                module_name = script_module(file)
            # What is inside a function is found with that function.
            name = getattr(value, "__qualname__", "").partition(".<locals>")[0]
            self._names.add(f"{module_name}:{name}")
        elif module_name and not is_own_package(module_name):
            self._packages.add(_package(module_name))

    def meta(self) -> dict[str, Any]:
        """The names for an artifact's `meta`: "code" and "packages"."""
        names: dict[str, Any] = {"code": sorted(self._names)} if self._names else {}
        return {**names, "packages": sorted(self._packages)} if self._packages else names


def _package(module_name: str) -> str:
    """The name that says which package a module is from: the first part that has a file, as namespaces have none."""
    parts = module_name.split(".")
    for count in range(1, len(parts)):
        name = ".".join(parts[:count])
        if getattr(sys.modules.get(name), "__file__", None):
            return name
    return module_name if len(parts) > 1 and hasattr(sys.modules.get(parts[0]), "__path__") else parts[0]


class ObservingPickler(pickle.Pickler):
    """A pickler that adds what it names to `references`, an attribute that is set before it is used."""

    references: References

    def reducer_override(self, value: Any) -> Any:
        """Observe a class or a function; it is pickled as usual."""
        if isinstance(value, NAMED):
            self.references.add(value)
        return NotImplemented


class SetDetector(io.RawIOBase):
    """A file that hands on what is written, and notes whether the pickle may have a set in it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._last = b""
        self.may_have_sets = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.may_have_sets:
            content = data if isinstance(data, (bytes, bytearray)) else memoryview(data).tobytes()
            edge = self._last + content[:1]
            self.may_have_sets = any(opcode in content or opcode in edge for opcode in _SET_OPCODES)
            self._last = bytes(content[-1:])
        return int(self._file.write(data))


def content_digest(value: Any, protocol: int) -> str | None:
    """The digest of a value's pickle with sets in order and tensors by their numbers; None if it has neither.

    A set's order follows the process's hash seed, and a tensor's pickle names its address, so that the bytes of the
    same value's pickle differ from process to process.
    """
    file = _Hash()
    pickler = _SortingPickler(file, protocol, {})
    pickler.dump(value)
    return file.sha256.hexdigest() if pickler.differs else None


def tensor_reduction(value: Any) -> Any:
    """How a tensor is pickled for a digest, by its type, shape and numbers; `NotImplemented` for everything else.

    torch's own pickle of a storage names its address.
    """
    torch = sys.modules.get("torch")
    kind = getattr(torch, "Tensor", None)
    if (
        torch is None
        or kind is None
        or not isinstance(value, kind)
        or value.layout != torch.strided
        or value.device.type == "meta"
    ):
        return NotImplemented
    plain = value.detach().cpu().contiguous().flatten()
    numbers = plain.view(torch.uint8).numpy()  # bytes, since NumPy does not have all types
    numbers = numbers.tobytes() if numbers.nbytes < LARGE_BUFFER else pickle.PickleBuffer(numbers)
    return tuple, ((type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad, numbers),)


class _Hash:
    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        self.sha256.update(data)
        return len(data)

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Count a large buffer, which pickle would copy first; true for one that is left to the pickle."""
        try:
            view = buffer.raw()
        except BufferError:
            return True
        if view.nbytes < LARGE_BUFFER:
            return True
        self.sha256.update(view.nbytes.to_bytes(8, "big"))
        self.sha256.update(view)
        return False


class _SortingPickler(pickle.Pickler):
    """Pickles a value with the sorted digests of a set's items in the set's place, and tensors by their numbers."""

    def __init__(self, file: _Hash, protocol: int, inside: dict[int, int]) -> None:
        super().__init__(file, protocol, buffer_callback=file.take)
        self._protocol = protocol
        self._inside = inside
        self.differs = False

    def reducer_override(self, value: Any) -> Any:
        """Tensors by their numbers."""
        reduction = tensor_reduction(value)
        self.differs |= reduction is not NotImplemented
        return reduction

    def persistent_id(self, value: Any) -> Any:
        """The kind of a set and the digests of its items; None for everything else."""
        if type(value) not in (set, frozenset):
            return None
        self.differs = True
        if id(value) in self._inside:  # an item of the set refers to the set
            return type(value).__name__, self._inside[id(value)]
        self._inside[id(value)] = len(self._inside)
        try:
            return type(value).__name__, sorted(map(self._item_digest, value))
        finally:
            del self._inside[id(value)]

    def _item_digest(self, item: Any) -> bytes:
        file = _Hash()
        _SortingPickler(file, self._protocol, self._inside).dump(item)
        return file.sha256.digest()
