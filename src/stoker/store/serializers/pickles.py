"""The last serializers: pickle, then cloudpickle for what pickle cannot save (lambdas, local classes).

Tensors inside other objects are copied to the CPU, so that they load on a machine without the device. The numbers of
large arrays and tensors stand behind the pickle, uncopied, and are mapped when it is loaded. If a value cannot be
pickled at all, the error names the part of it that is the reason.
"""

from __future__ import annotations

import copyreg
import functools
import io
import mmap
import pickle
import sys
import weakref
from collections.abc import Coroutine
from collections.abc import Iterator as AnyIterator
from types import FunctionType
from typing import Any, BinaryIO, Callable, Final, Iterable, Iterator, Mapping

from stoker.core.errors import SerializationError
from stoker.store.serializers.base import Stored, full_name
from stoker.store.serializers.references import (
    LARGE_BUFFER,
    NAMED,
    ObservingPickler,
    References,
    SetDetector,
    content_digest,
)

PROTOCOL: Final = 5
"""The newest that every supported Python reads."""
_ALIGNED: Final = 64
"""What the places of buffers are multiples of, as NumPy's own files align their numbers."""
_STRIP: Final = 1 << 20
"""Bytes of an image's pixels that are copied at a time."""
_MAX_PARTS: Final = 2000
"""Parts of a value that are tried to find the one that cannot be pickled."""
_MAX_DEPTH: Final = 30


class Pickle:
    """Any Python object whose classes and functions can be imported where it is loaded."""

    name: Final = "pickle"

    def fits(self, value: Any) -> bool:
        return True

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        detector, buffers = SetDetector(file), Buffers()
        kind = ObservingPickler if _has_file("__main__") else _ScriptlessPickler
        pickler = kind(detector, PROTOCOL, buffer_callback=buffers.take)
        pickler.references = References()
        reducers = _reducers(buffers)
        if reducers:
            pickler.dispatch_table = {**copyreg.dispatch_table, **reducers}
        pickler.dump(value)
        meta = {**package_of(type(value)), **pickler.references.meta(), **buffers.write(file)}
        if detector.may_have_sets or pickler.references.has_tensors:
            content = content_digest(value, PROTOCOL)
            if content is not None:
                meta["content"] = content
        return meta

    def load(self, stored: Stored) -> Any:
        return _load(stored)


class CloudPickle:
    """Any Python object; classes and functions that cannot be imported are saved with it."""

    name: Final = "cloudpickle"

    def fits(self, value: Any) -> bool:
        return True

    def save(self, value: Any, file: BinaryIO) -> Mapping[str, Any]:
        try:
            references, buffers = _cloudpickle(value, file)
        except Exception as error:  # pickling runs the user's code
            raise _unserializable(value, error) from error
        return {**package_of(type(value)), **references.meta(), **buffers.write(file)}

    def load(self, stored: Stored) -> Any:
        return _load(stored)


PICKLE: Final = Pickle()
CLOUDPICKLE: Final = CloudPickle()


class Buffers:
    """The large buffers of a pickle, which are written behind it: inside of it each would be copied first."""

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Iterable[Any]]] = []
        self._deferred: dict[int, tuple[bytearray, int, Iterable[Any]]] = {}

    def defer(self, size: int, pieces: Iterable[Any]) -> pickle.PickleBuffer:
        """Stand for a buffer of `size` bytes, whose pieces are made when they are written."""
        mark = bytearray(1)
        self._deferred[id(mark)] = mark, size, pieces
        return pickle.PickleBuffer(mark)

    def take(self, buffer: pickle.PickleBuffer) -> bool:
        """Keep a buffer; true for one that is left to the pickle."""
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous, for which pickle has an error
            return True
        if id(view.obj) in self._deferred:
            self._buffers.append(self._deferred[id(view.obj)][1:])
            return False
        if view.nbytes < LARGE_BUFFER:
            return True
        self._buffers.append((view.nbytes, (view,)))
        return False

    def write(self, file: BinaryIO) -> dict[str, Any]:
        """Write the buffers; returns "buffers", the first byte and the size of each, for the artifact's `meta`."""
        places = []
        for size, pieces in self._buffers:
            file.write(bytes(-file.tell() % _ALIGNED))
            places.append([file.tell(), size])
            file.writelines(pieces)
        return {"buffers": places} if places else {}


def _load(stored: Stored) -> Any:
    places = stored.meta.get("buffers")
    path = stored.path() if places else None
    with stored.open() if path is None else open(path, "rb") as file:
        if not places:
            return pickle.load(file)
        if path is None:  # part of the artifact
            pages: Any = bytearray(file.read())
            file.seek(0)
        else:  # changes stay in this process
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return pickle.load(file, buffers=[memoryview(pages)[start : start + size] for start, size in places])


class _ScriptlessPickler(ObservingPickler):
    """Refuses classes and functions that are defined interactively: a worker's `__main__` does not have them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is in no file")
        return super().reducer_override(value)


def package_of(kind: type) -> dict[str, Any]:
    """The package of a type and its version, for the error of a later version that cannot load the value."""
    package = kind.__module__.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return {"package": package, "version": version} if isinstance(version, str) else {}


def _has_file(module: str) -> bool:
    # A program from stdin has the file "<stdin>".
    return not (getattr(sys.modules.get(module), "__file__", None) or "<").startswith("<")


def _cloudpickle(value: Any, file: BinaryIO) -> tuple[References, Buffers]:
    """Pickle a value; returns what the pickle names, and the buffers that belong behind it."""
    import cloudpickle

    references, buffers = References(), Buffers()

    class Observing(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, NAMED):
                references.add(value)
            # cloudpickle would read the whole file, and leave a text in its place; and bytes in place of a view.
            if isinstance(value, io.TextIOWrapper) and value not in (sys.stdout, sys.stderr):
                raise pickle.PicklingError(f"{value.name} is open in this process")
            if isinstance(value, memoryview):
                raise pickle.PicklingError("a view of another object's memory")
            return super().reducer_override(value)

    pickler = Observing(file, PROTOCOL, buffer_callback=buffers.take)
    reducers = _reducers(buffers)
    if reducers:
        pickler.dispatch_table = {**dict(pickler.dispatch_table), **reducers}
    pickler.dump(value)
    return references, buffers


def _reducers(buffers: Buffers) -> dict[type, Callable[[Any], Any]]:
    """How tensors and images are pickled, if torch or Pillow is imported; otherwise no value contains one."""
    reducers: dict[type, Callable[[Any], Any]] = {}
    torch, pillow = sys.modules.get("torch"), sys.modules.get("PIL.Image")
    if torch is not None and hasattr(torch, "nn"):
        reducers |= _torch_reducers(torch)
    if pillow is not None and hasattr(pillow, "Image"):
        reducers[pillow.Image] = functools.partial(_reduce_image, buffers)
    return reducers


def _reduce_image(buffers: Buffers, image: Any) -> Any:
    """Reduce an image, with its pixels as a buffer of strips of whole rows: Pillow itself would copy them twice."""
    image.load()
    width, height = image.size
    row = len(image.crop((0, 0, width, 1)).tobytes()) if width and height else 0
    if row * height < LARGE_BUFFER:
        return image.__reduce_ex__(PROTOCOL)
    rows = max(1, _STRIP // row)
    strips = (image.crop((0, top, width, min(height, top + rows))).tobytes() for top in range(0, height, rows))
    return pillow_image, (image.info, image.mode, image.size, image.getpalette(), buffers.defer(row * height, strips))


def pillow_image(*state: Any) -> Any:
    """Pillow's image with a state, as `Image.__getstate__` gives it. Pickles name this function."""
    from PIL import Image

    image = Image.Image()
    image.__setstate__(list(state))
    return image


def _torch_reducers(torch: Any) -> dict[type, Callable[[Any], Any]]:
    """How tensors, parameters and storages are pickled: on the CPU, with their numbers as buffers."""

    def tensor(value: Any) -> Any:
        return (value if value.device.type == "cpu" else value.cpu()).__reduce_ex__(PROTOCOL)

    def parameter(value: Any) -> Any:
        if value.device.type == "cpu":
            return value.__reduce_ex__(PROTOCOL)
        return torch.nn.Parameter(value.data.cpu(), requires_grad=value.requires_grad).__reduce_ex__(PROTOCOL)

    def storage(value: Any) -> Any:
        untyped = value._untyped_storage
        if untyped.nbytes() < LARGE_BUFFER or untyped.device.type != "cpu":
            return value.__reduce_ex__(PROTOCOL)  # torch makes a file of it in memory
        numbers = torch.empty(0, dtype=torch.uint8).set_(untyped).numpy()
        return torch_storage, (pickle.PickleBuffer(numbers), value.dtype)

    return {torch.Tensor: tensor, torch.nn.Parameter: parameter, torch.storage.TypedStorage: storage}


def torch_storage(buffer: Any, kind: Any) -> Any:
    """A tensor's storage on a buffer. Pickles name this function."""
    import torch

    untyped = torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()
    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=kind, _internal=True)


def _unserializable(value: Any, error: Exception) -> SerializationError:
    """The error that names the part of the value that cannot be pickled, and what to do."""
    path, part, reason = find_unpicklable(value, error)
    kind = full_name(type(part)).removeprefix("builtins.")
    if path:
        message = (
            f"a value of type {full_name(type(value)).removeprefix('builtins.')} cannot be saved: {path} is a {kind}"
        )
    else:
        message = f"a value of type {kind} cannot be saved"
    return SerializationError(
        f"{message} ({type(reason).__name__}: {reason})",
        fix=next((advice for kinds, advice in _INSTEAD if isinstance(part, kinds)), ANEW),
    )


ANEW: Final = (
    "leave it out of what the step returns and make it anew in the step that needs it; "
    "or register a serializer for its type (stoker.store.artifacts.register)"
)
_INSTEAD: Final[tuple[tuple[Any, str], ...]] = (
    (io.IOBase, "keep the file's path as a pathlib.Path, which is saved with its content, or what was read from it"),
    (memoryview, "keep bytes(…) of it"),
    (weakref.ReferenceType, "keep the object itself"),
    (Coroutine, "keep what asyncio.run(…) of it gives"),
    (AnyIterator, "keep list(…) of it"),
)
"""What to keep in place of a part that no other process can have."""


def find_unpicklable(value: Any, error: Exception) -> tuple[str, Any, Exception]:
    """The path to the innermost part that cannot be pickled (`['model'].lock`), the part, and why."""
    path, tries = "", _MAX_PARTS
    visited = {id(value)}
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            tries -= 1
            if tries < 0:
                return path, value, error
            if id(part) in visited:
                continue
            reason = _pickling_error(part)
            if reason is not None:
                visited.add(id(part))
                path, value, error = path + step, part, reason
                break
        else:
            break
    return path, value, error


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for number, part in enumerate(value):
            yield f"[{number}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield "{…}", part
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict) and not isinstance(value, type):
        for name, part in state.items():
            yield f".{name}", part
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


class _NullFile(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _pickling_error(part: Any) -> Exception | None:
    if isinstance(part, (int, float, str, bytes, type(None))):
        return None
    try:
        _cloudpickle(part, _NullFile())  # type: ignore[arg-type]
    except Exception as error:  # pickling runs the user's code
        return error
    return None
