"""What a stored value looks like, without running anything of it: some rows, a histogram, the tensors of a model.

A preview is data: who shows it decides how. Values that are pickled are never loaded. Of torch's files the list of
tensors is read by an unpickler that knows no name: whatever a file names becomes a value that does nothing.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections import OrderedDict
from typing import Any, BinaryIO, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.artifact import COLUMNS, Histogram, KeptPreview, Picture, Preview, StoredArtifact, cell, picture_type
from stoker.core.codec import from_json, parse_json
from stoker.core.errors import StokerError
from stoker.core.values import frozen
from stoker.core.words import count_text, memory_text
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.previewing import KEY
from stoker.store.serializers.base import Stored

LARGEST: Final = 256 * 2**20
"""Bytes of a value that are read for a preview where the store is a folder of this machine."""
LARGEST_REMOTE: Final = 16 * 2**20
"""The same for a store elsewhere, of which the value is fetched."""
_SHOWN: Final = 10
"""Numbers of a list that are written out."""
HEX: Final = 512
"""Bytes that are shown by their numbers where they are no text."""
PARTS: Final = 32
"""Parts of a histogram."""
SAMPLES: Final = 1_000_000
"""Elements of an array that are counted; of a larger one, elements at equal distances."""
PICTURE: Final = 256
"""Pixels of the longer side of a picture that is made of an array."""
LARGEST_PICTURE: Final = 2 * 2**20
"""Bytes of a file with a picture that is shown as it is."""
_TEXT_FILE: Final = 256 * 1024
"""Bytes of a file that are looked at to tell whether it is a text, and shown."""
_PARSED: Final = 4 * 2**20
"""Bytes of JSON above which it is shown as it is stored, and only its beginning."""
_PICKLE: Final = 4 * 2**20
"""Bytes of the list of tensors in a file of torch's."""


@frozen(kw_only=True)
class PreviewSize:
    """How much of a value is shown."""

    rows: int
    """Rows of a table, tensors of a model, entries of a folder."""
    text: int
    """Characters of a text."""


SHORT: Final = PreviewSize(rows=10, text=2_000)
"""On a page with many values."""
LONG: Final = PreviewSize(rows=100, text=200_000)
"""On a page of its own."""


def preview(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize = SHORT) -> Preview:
    """A preview of a value; one that cannot be read has the reason as its words."""
    if KEY in artifact.meta:
        try:
            return _kept(artifact, blobs, size)
        except StokerError as error:
            return Preview(words=f"its preview cannot be read: {error.message}")
    read = _READERS.get(artifact.serializer)
    if read is None:
        return Preview(words=_PICKLED if artifact.serializer in ("pickle", "cloudpickle") else "")
    limit = LARGEST_REMOTE if blobs.is_remote else LARGEST
    if artifact.inline is None and artifact.size > limit:
        return Preview(words=f"larger than {memory_text(limit)}: its content is not read for a preview")
    try:
        return read(artifact, blobs, size)
    except (StokerError, ModuleNotFoundError) as error:
        return Preview(words=f"cannot be read: {error}".splitlines()[0])
    except Exception as error:  # libraries raise anything for bytes that are damaged
        return Preview(words=f"cannot be shown: {type(error).__name__}")


_PICKLED: Final = "pickled: loading it would run code, and no preview was made when it was saved"


def _kept(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    """The preview that the worker made, no longer than it is to be here."""
    text = str(artifact.meta[KEY])
    document = text if text.startswith("{") else blobs.read(text).decode("utf-8", "replace")
    made = from_json(KeptPreview, parse_json(document), strict=False).preview()
    left = len(made.rows) - size.rows
    more = " and ".join(filter(None, (made.more, count_text(left, "more row") if left > 0 else "")))
    shown = attrs.evolve(made, rows=made.rows[: size.rows], more=more)
    if len(made.text) > size.text:
        shown = attrs.evolve(shown, text=made.text[: size.text], more="a part of it")
    return shown


# Plain values


def _json(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    if artifact.size > _PARSED:
        return _text(artifact, blobs, size)
    value = artifacts.load(artifact, blobs)
    records = _records(value, size.rows)
    if records is not None:
        headers, rows = records
        left = len(value) - len(rows)
        return Preview(headers=headers, rows=rows, more=f"{count_text(left, 'more row')}" if left else "")
    if isinstance(value, list) and len(value) > _SHOWN and all(type(one) in (int, float) for one in value):
        return _numbers(value)
    indent = 2 if isinstance(value, (dict, list)) else None
    return _cut(json.dumps(value, ensure_ascii=False, indent=indent), size.text)


def _records(value: Any, most: int) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]] | None:
    """A list of flat dicts with the same names as a table."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(one, dict) and one for one in value):
        return None
    names = tuple(value[0])
    if len(names) > COLUMNS or any(tuple(one) != names for one in value):
        return None
    if any(isinstance(cell, (dict, list)) for one in value[:most] for cell in one.values()):
        return None
    return tuple(cell(name) for name in names), tuple(tuple(map(cell, one.values())) for one in value[:most])


def _numbers(values: Sequence[float]) -> Preview:
    known = [float(value) for value in values[:SAMPLES] if math.isfinite(value)]
    shown = ", ".join(f"{value:g}" for value in values[:_SHOWN])
    return Preview(
        words=f"{count_text(len(values), 'number')}: {shown}, …",
        histogram=_counted(known),
    )


def _counted(values: Sequence[float]) -> Histogram | None:
    if not values or min(values) == max(values):
        return None
    low, high = min(values), max(values)
    counts = [0] * PARTS
    for value in values:
        counts[min(PARTS - 1, int((value / 2 - low / 2) / (high / 2 - low / 2) * PARTS))] += 1
    return Histogram(low=low, high=high, counts=tuple(counts))


def _text(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    with Stored(artifact, blobs).open() as file:
        data = file.read(4 * size.text + 1)  # a character has four bytes at most
    shown = _cut(data.decode("utf-8", "replace"), size.text)
    return attrs.evolve(shown, more=f"of {memory_text(artifact.size)}") if artifact.size > len(data) else shown


def _cut(text: str, most: int) -> Preview:
    if len(text) <= most:
        return Preview(text=text)
    return Preview(text=text[:most], more=f"{len(text) - most:,} more characters")


def _bytes(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    return _of_bytes(bytes(artifacts.load(artifact, blobs)), size)


def _of_bytes(data: bytes, size: PreviewSize) -> Preview:
    media = picture_type(data)
    if media:
        if len(data) > LARGEST_PICTURE:
            return Preview(words=f"a picture ({media}), larger than {memory_text(LARGEST_PICTURE)}")
        return Preview(picture=Picture(media=media, data=data))
    head = data[:_TEXT_FILE]
    try:
        text = head.decode("utf-8") if len(head) == len(data) else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return _hexadecimal(data)
    if "\0" in text:
        return _hexadecimal(data)
    shown = _cut(text, size.text)
    return attrs.evolve(shown, more=f"of {memory_text(len(data))}" if len(data) > len(head) else shown.more)


def _hexadecimal(data: bytes) -> Preview:
    """The first bytes by their numbers, and as letters where they are such."""
    lines = []
    for start in range(0, min(len(data), HEX), 16):
        row = data[start : min(start + 16, HEX)]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {letters}")
    more = f"{memory_text(len(data) - HEX)} more" if len(data) > HEX else ""
    return Preview(words="bytes that are no text", text="\n".join(lines), more=more)


def _list(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    parts = artifacts.items(artifact, blobs)
    rows = tuple(
        (str(index), part.type.removeprefix("builtins."), _shape(part), memory_text(part.size))
        for index, part in enumerate(parts[: size.rows])
    )
    left = len(parts) - len(rows)
    return Preview(
        words=count_text(len(parts), "element"),
        headers=("", "type", "shape", "size"),
        rows=rows,
        more=count_text(left, "more element") if left else "",
    )


def _shape(artifact: StoredArtifact) -> str:
    shape = artifact.meta.get("shape")
    return "×".join(map(str, shape)) if isinstance(shape, list) else ""


def _secret(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    return Preview(words="a secret, of which only the reference is stored")


def _path(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    stored = Stored(artifact, blobs)
    if artifact.meta.get("kind") != "folder":
        with stored.open() as file:
            data = file.read(LARGEST_PICTURE + 1)
        made = _of_bytes(data, size)
        return attrs.evolve(made, words=made.words or f"the file {artifact.meta.get('name', '')}")
    with stored.open() as file, tarfile.open(fileobj=file, mode="r|*") as folder:
        members = [(member.name, member.size, member.isdir()) for member in folder]
    rows = tuple((name, "folder" if is_folder else memory_text(size)) for name, size, is_folder in members[: size.rows])
    left = len(members) - len(rows)
    return Preview(
        words=f"the folder {artifact.meta.get('name', '')} with {_entries(len(members))}",
        headers=("name", "size"),
        rows=rows,
        more=_entries(left, " more") if left else "",
    )


def _entries(number: int, more: str = "") -> str:
    return f"{number:,}{more} {'entry' if number == 1 else 'entries'}"


# Tables and arrays


def _arrow(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    import pyarrow as pa

    stored = Stored(artifact, blobs)
    path = stored.path()
    if path is not None:
        with pa.memory_map(path) as file, pa.ipc.open_file(file) as reader:
            return _of_table(reader, size.rows)
    with stored.open() as file, pa.ipc.open_file(pa.BufferReader(file.read())) as reader:
        return _of_table(reader, size.rows)


def _of_table(reader: Any, most: int) -> Preview:
    """The first rows; `reader` is pyarrow's of a file. Later batches are counted and not read."""
    names = list(reader.schema.names)
    shown = names[:COLUMNS]
    head = reader.get_batch(0).slice(0, most) if reader.num_record_batches else None
    columns = [head.column(place).to_pylist() for place in range(len(shown))] if head is not None else []
    rows = sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))
    kinds = tuple(f"{cell(name)} ({reader.schema.field(place).type})" for place, name in enumerate(shown))
    left = [
        count_text(rows - most, "more row") if rows > most else "",
        count_text(len(names) - COLUMNS, "more column") if len(names) > COLUMNS else "",
    ]
    return Preview(
        words=f"{count_text(rows, 'row')}, {count_text(len(names), 'column')}",
        headers=kinds,
        rows=tuple(tuple(cell(value) for value in row) for row in zip(*columns)),
        more=" and ".join(filter(None, left)),
    )


def _numpy(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    return _of_array(artifacts.load(artifact, blobs))


def _of_array(array: Any) -> Preview:
    """Statistics, a histogram, and the picture of an array that has the form of one."""
    import numpy as np

    if array.dtype.names or array.dtype.kind not in "biuf":
        flat = array.reshape(-1)[:_SHOWN]
        return Preview(text="\n".join(cell(one) for one in flat.tolist()))
    flat = array.reshape(-1) if array.flags.c_contiguous or array.size <= SAMPLES else array.flat
    step = max(1, array.size // SAMPLES)
    with np.errstate(all="ignore"):
        samples = np.asarray(flat[::step], dtype=np.float64)
        known = samples[np.isfinite(samples)]
        odd = samples.size - known.size
        some = f" (of {samples.size:,} of its elements)" if step > 1 else ""
        if not known.size:
            return Preview(words="no element is a finite number" if array.size else "it has no element")
        low, high = float(known.min()), float(known.max())
        words = f"{low:.4g} to {high:.4g}, mean {float(known.mean()):.4g}, deviation {float(known.std()):.4g}{some}"
        if odd:
            words += f"; {odd:,} are no finite numbers"
        histogram = None
        if low < high and math.isfinite(high - low):
            counts, _ = np.histogram(known, bins=PARTS, range=(low, high))
            histogram = Histogram(low=low, high=high, counts=tuple(int(count) for count in counts))
    text = ", ".join(cell(one) for one in array.reshape(-1).tolist()) if 0 < array.size <= _SHOWN else ""
    return Preview(words=words, text=text, histogram=histogram, picture=_array_picture(array))


def _array_picture(array: Any) -> Picture | None:
    """The PNG of an array of bytes in the form of a picture: height × width, or with 1, 3 or 4 channels at the end."""
    import numpy as np

    if array.dtype != np.uint8 or array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        return None
    height, width = array.shape[:2]
    if min(height, width) < 8 or max(height, width) > 16_384:
        return None
    step = -(-max(height, width) // PICTURE)
    small = np.ascontiguousarray(array[::step, ::step])
    kind = {1: 0, 3: 2, 4: 6}[1 if small.ndim == 2 else small.shape[2]]
    return Picture(media="image/png", data=_png(small.tobytes(), small.shape[1], small.shape[0], kind))


def _png(pixels: bytes, width: int, height: int, kind: int) -> bytes:
    """A PNG of 8 bits a channel; `kind` is its colour type. https://www.w3.org/TR/png-3/#11IHDR"""
    stride = len(pixels) // height
    lines = b"".join(b"\0" + pixels[row * stride : (row + 1) * stride] for row in range(height))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


# Models


@frozen(kw_only=True)
class ModelTensor:
    """A tensor of a model, as its file describes it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    key: str = ""
    """The name of its storage in the file."""
    offset: int = 0
    """Its first element in the storage."""
    plain: bool = True
    """Whether its elements follow each other in the storage."""


_SIZES: Final[Mapping[str, tuple[str, int]]] = {
    "DoubleStorage": ("float64", 8),
    "FloatStorage": ("float32", 4),
    "HalfStorage": ("float16", 2),
    "BFloat16Storage": ("bfloat16", 2),
    "LongStorage": ("int64", 8),
    "IntStorage": ("int32", 4),
    "ShortStorage": ("int16", 2),
    "CharStorage": ("int8", 1),
    "ByteStorage": ("uint8", 1),
    "BoolStorage": ("bool", 1),
    "ComplexFloatStorage": ("complex64", 8),
    "ComplexDoubleStorage": ("complex128", 16),
}
"""Torch's name of a storage → its elements and their bytes."""


def _torch(artifact: StoredArtifact, blobs: Blobs, size: PreviewSize) -> Preview:
    with Stored(artifact, blobs).open() as file:
        # A zip is read from its end; not every file of a store can be wound back.
        source = file if file.seekable() else io.BytesIO(file.read())
        found = tensors_of(source)
        if artifact.meta.get("shape") is not None and len(found) == 1:
            array = _elements(source, found[0])
            if array is not None:
                return _of_array(array)
    if not found:
        return Preview(words="no tensors")
    elements = sum(math.prod(one.shape) for one in found)
    whole = sum(one.bytes for one in found)
    largest = sorted(found, key=lambda one: -one.bytes)[: size.rows]
    left = len(found) - len(largest)
    kinds = ", ".join(dict.fromkeys(one.dtype for one in found))
    return Preview(
        words=f"{count_text(len(found), 'tensor')} with {elements:,} elements of {kinds}: {memory_text(whole)}",
        headers=("largest tensors", "shape", "elements of", "size"),
        rows=tuple(
            (cell(one.name), "×".join(map(str, one.shape)) or "scalar", one.dtype, memory_text(one.bytes))
            for one in largest
        ),
        more=count_text(left, "smaller tensor") if left else "",
    )


def tensors_of(file: BinaryIO) -> list[ModelTensor]:
    """The tensors that a file of `torch.save` describes, by their names in it. Raises what a damaged file leads to."""
    with zipfile.ZipFile(file) as archive:
        [entry] = [
            one for one in archive.infolist() if one.filename.count("/") == 1 and one.filename.endswith("/data.pkl")
        ]
        if entry.file_size > _PICKLE:
            raise ValueError("its list of tensors is too long")
        value = _StructureReader(io.BytesIO(archive.read(entry))).load()
    return list(_named(value, "", set(), 0))


class _Inert:
    """What stands for everything that a file names: it takes anything, and does nothing."""

    arguments: tuple[Any, ...]
    items: dict[Any, Any]
    state: Any

    def __new__(cls, *arguments: Any, **options: Any) -> _Inert:
        # Files make objects also without a call of `__init__`.
        made = super().__new__(cls)
        made.arguments, made.items, made.state = arguments, {}, None
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def append(self, value: Any) -> None:
        """Take an element of a list."""
        self.items[len(self.items)] = value

    def extend(self, values: Any) -> None:
        """Take elements of a list."""
        for value in values:
            self.append(value)

    def add(self, value: Any) -> None:
        """Take an element of a set."""
        self.append(value)


@frozen
class _Storage:
    kind: str
    key: str


def _tensor(storage: Any, offset: Any, size: Any, stride: Any = (), *rest: Any) -> Any:
    """What `torch._utils._rebuild_tensor_v2` would make a tensor of."""
    if not isinstance(storage, _Storage) or type(offset) is not int or not isinstance(size, tuple):
        return _Inert()
    if not all(type(one) is int and one >= 0 for one in size):
        return _Inert()
    dtype, width = _SIZES.get(storage.kind, (storage.kind.removesuffix("Storage").lower() or "unknown", 1))
    straight, expected = True, 1
    for length, step in zip(reversed(size), reversed(stride if isinstance(stride, tuple) else ())):
        straight = straight and (length == 1 or step == expected)
        expected *= length
    return ModelTensor(
        name="",
        shape=size,
        dtype=dtype,
        bytes=math.prod(size) * width,
        key=storage.key,
        offset=offset,
        plain=straight,
    )


def _first(value: Any, *rest: Any) -> Any:
    return value


_KNOWN: Final[Mapping[tuple[str, str], Callable[..., Any]]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("collections", "OrderedDict"): OrderedDict,
}
"""Names in a file → what stands for them; all others are `_Inert`."""


class _StructureReader(pickle.Unpickler):
    """Reads a file's structure: no name in it leads to anything outside this module but `OrderedDict`."""

    def find_class(self, module: str, name: str) -> Any:
        """What stands for a name."""
        if module == "torch" and name.endswith("Storage"):
            return name
        return _KNOWN.get((module, name), _Inert)

    def persistent_load(self, pid: Any) -> Any:
        """A storage: ("storage", its kind, its key, its place, its length)."""
        if isinstance(pid, tuple) and len(pid) == 5 and isinstance(pid[1], str):
            return _Storage(pid[1], str(pid[2]))
        return _Inert()


_DEPTH: Final = 40
_MOST: Final = 100_000


def _named(value: Any, name: str, seen: set[int], depth: int) -> Iterator[ModelTensor]:
    """The tensors below a value, each by the names that lead to it."""
    if isinstance(value, ModelTensor):
        yield attrs.evolve(value, name=name or "tensor")
        return
    if depth > _DEPTH or id(value) in seen or len(seen) > _MOST:
        return
    if isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    elif isinstance(value, _Inert):
        parts = [*value.items.items(), ("", value.state), ("", value.arguments)]
    else:
        return
    seen.add(id(value))
    for key, part in parts:
        # A module keeps its parts under these names; in what it calls its state, they are left out.
        own = "" if key in ("", "_parameters", "_buffers", "_modules") else str(key)
        yield from _named(part, ".".join(filter(None, (name, own))), seen, depth + 1)


def _elements(file: BinaryIO, tensor: ModelTensor) -> Any:
    """The elements of a tensor as an array; None where numpy is missing or does not know them."""
    import numpy as np

    if tensor.dtype == "bfloat16" or not tensor.plain:
        return None
    try:
        dtype = np.dtype(tensor.dtype)
    except TypeError:
        return None
    with zipfile.ZipFile(file) as archive:
        [entry] = [one for one in archive.infolist() if one.filename.endswith(f"/data/{tensor.key}")]
        data = archive.read(entry)
    count = math.prod(tensor.shape)
    return np.frombuffer(data, dtype=dtype, count=count, offset=tensor.offset * dtype.itemsize).reshape(tensor.shape)


_READERS: Final[Mapping[str, Callable[[StoredArtifact, Blobs, PreviewSize], Preview]]] = {
    "json": _json,
    "str": _text,
    "bytes": _bytes,
    "list": _list,
    "numpy": _numpy,
    "torch": _torch,
    "pandas": _arrow,
    "polars": _arrow,
    "pyarrow": _arrow,
    "path": _path,
    "secret": _secret,
}
"""Serializer → what shows its values."""
