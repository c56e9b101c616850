"""Serializers of arrays and tensors: saved without a copy, mapped instead of read.

A mapped array is private: changes to it stay in the process and never reach the stored bytes. Tensors load on the CPU,
whatever device they were on. A library is imported only for a value of it.
"""

from __future__ import annotations

import pickle
import sys
from collections import OrderedDict
from types import ModuleType
from typing import Any, BinaryIO, Final, Iterable, Iterator, Mapping

from stoker.store.serializers.base import Stored
from stoker.store.serializers.references import ObservingPickler, References

_MAPPED: Final = 256 * 1024
"""Bytes from which on mapping a file is faster than reading it."""
_LEVELS: Final = 12
"""Levels of containers that are searched for tensors."""


class Numpy:
    """NumPy arrays as .npy; arrays of Python objects, and subclasses such as masked arrays, are pickled."""

    name: Final = "numpy"

    def fits(self, value: Any) -> bool:
        numpy = sys.modules["numpy"]
        return type(value) in (numpy.ndarray, numpy.memmap) and not value.dtype.hasobject

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        import numpy as np

        array = value.view(np.ndarray)
        straight = array if array.flags.c_contiguous else array.T
        if straight.flags.c_contiguous and array.nbytes:
            np.lib.format.write_array_header_2_0(file, np.lib.format.header_data_from_array_1_0(array))
            # As plain bytes: arrays of dates and records do not export a buffer.
            file.write(straight.reshape(-1).view(np.uint8).data)
        else:
            np.lib.format.write_array(file, array, version=(2, 0), allow_pickle=False)
        return {"shape": list(array.shape), "dtype": str(array.dtype)}

    def load(self, stored: Stored) -> Any:
        import numpy as np

        path = stored.path(beside=stored.artifact.size >= _MAPPED)
        if path is not None and stored.artifact.size >= _MAPPED:
            # `asarray` returns an ordinary array, which keeps the mapping alive.
            return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
        with stored.open() as file:
            return np.load(file, allow_pickle=False)


class Torch:
    """Tensors, modules, optimizers, and containers with tensors, as torch's own zip."""

    name: Final = "torch"

    def fits(self, value: Any) -> bool:
        torch = sys.modules["torch"]
        if not hasattr(torch, "nn"):  # still being imported
            return False
        if _elements_of(value) is None:
            return isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer))
        return any(issubclass(kind, (torch.Tensor, torch.nn.Module)) for kind in _leaf_types(value))

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        import torch

        kinds = _leaf_types(value)
        # torch loads plain values without running pickled code; a user's own classes need the code.
        plain = all(kind in _PLAIN or kind in (torch.Tensor, torch.nn.Parameter, torch.Size) for kind in kinds)
        references = References()
        pickling = pickle if plain else _observing_pickle(references)
        torch.save(_without_unused_storage(value), file, pickle_module=pickling, pickle_protocol=2 if plain else 5)
        meta: dict[str, Any] = {"plain": plain, "package": "torch", "version": str(torch.__version__)}
        meta.update(references.meta())
        if isinstance(value, torch.Tensor):
            meta.update(shape=list(value.shape), dtype=str(value.dtype).removeprefix("torch."))
        return meta

    def load(self, stored: Stored) -> Any:
        import torch

        plain = bool(stored.meta.get("plain"))
        path = stored.path(beside=plain and stored.artifact.size >= _MAPPED)
        if path is not None and stored.artifact.size >= _MAPPED:
            return torch.load(path, map_location="cpu", weights_only=plain, mmap=True)
        with stored.open() as file:
            return torch.load(file, map_location="cpu", weights_only=plain)


NUMPY: Final = Numpy()
TORCH: Final = Torch()

_PLAIN: Final = frozenset({int, float, bool, str, type(None), complex, bytes})
_CONTAINERS: Final = frozenset({dict, OrderedDict, list, tuple})


def _observing_pickle(collected: References) -> ModuleType:
    """The pickle module as `torch.save` takes it, with a pickler that collects what it names."""

    class Observing(ObservingPickler):
        references = collected

    module = ModuleType("pickle")
    module.__dict__.update(vars(pickle), Pickler=Observing)
    return module


def _elements_of(value: Any) -> Iterable[Any] | None:
    """The elements of an ordinary container; None for another value."""
    if type(value) in (dict, OrderedDict):
        return value.values()  # type: ignore[no-any-return]
    return value if type(value) in (list, tuple) else None


def _leaf_types(value: Any, levels: int = _LEVELS) -> set[type]:
    """The types of all values in nested containers."""
    inner = _elements_of(value)
    if inner is None or levels < 0:
        return {type(value)}
    kinds: set[type] = set(map(type, inner))
    if kinds.isdisjoint(_CONTAINERS):
        return kinds
    return (kinds - _CONTAINERS).union(*(_leaf_types(item, levels - 1) for item in inner if type(item) in _CONTAINERS))


def _without_unused_storage(value: Any) -> Any:
    """The value with copies of tensors that are part of a larger storage which no other tensor in it uses.

    torch saves whole storages: `batch[:10]` would include the whole data set.
    """
    import torch

    tensors = [part for part in _tensors(value) if type(part) is torch.Tensor and part.layout == torch.strided]
    uses: dict[int, int] = {}
    for part in tensors:
        if part.device.type != "meta":
            address = part.untyped_storage().data_ptr()
            uses[address] = uses.get(address, 0) + 1
    wasteful = {
        id(part)
        for part in tensors
        if part.device.type != "meta"
        and uses[part.untyped_storage().data_ptr()] == 1
        and part.untyped_storage().nbytes() > part.numel() * part.element_size()
    }
    return _copy_parts(value, wasteful) if wasteful else value


def _tensors(value: Any, levels: int = _LEVELS) -> Iterator[Any]:
    inner = _elements_of(value)
    if inner is None:
        yield value if isinstance(value, sys.modules["torch"].Tensor) else None
    elif levels >= 0:
        for item in inner:
            yield from _tensors(item, levels - 1)


def _copy_parts(value: Any, wasteful: set[int]) -> Any:
    if id(value) in wasteful:
        return value.detach().clone().requires_grad_(value.requires_grad)
    inner = _elements_of(value)
    if inner is None:
        return value
    if type(value) in (dict, OrderedDict):
        copy = value.copy()  # keeps the attributes of a state dict
        for key, item in value.items():
            copy[key] = _copy_parts(item, wasteful)
        return copy
    return type(value)(_copy_parts(item, wasteful) for item in inner)
