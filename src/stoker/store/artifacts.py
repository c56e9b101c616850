"""Saves and loads Python values: everything that steps take and return passes through here.

Numbers, texts and plain containers are JSON if JSON returns exactly the same value; everything else goes to the
serializer of its type. Small values are part of their `StoredArtifact`, larger ones become blobs.

JSON here is Python's: NaN and the infinities are allowed, and come back as such (a NaN's payload does not). A list that
occurs twice in a value comes back as two equal lists. Tuples, sets, keys that are not texts, and subclasses of any of
these are not JSON and are pickled.
"""

from __future__ import annotations

import io
import itertools
import json
import mmap
import sys
from hashlib import sha256
from typing import Any, Callable, Final, Iterable, Iterator, Mapping, Sequence

from stoker.core.artifact import INLINE_LIMIT, StoredArtifact, content_of, from_wire, names_in
from stoker.core.codec import to_json
from stoker.core.errors import DamagedArtifact, MissingPackage, SerializationError, StokerError, UntrustedArtifact
from stoker.core.secret import Secret
from stoker.store.blobs import Blobs, Writer
from stoker.store.serializers import registry
from stoker.store.serializers.base import Serializer, Stored, full_name
from stoker.store.serializers.references import References
from stoker.store.serializers.registry import BUILT_IN

_MAX_DEPTH: Final = 100
"""Levels of containers in a JSON value; deeper values are pickled, because the JSON encoder recurses on the C stack."""
_DATA_ONLY: Final = frozenset(
    {"json", "str", "bytes", "list", "numpy", "pandas", "polars", "pyarrow", "path", "secret"}
)
"""Serializers whose bytes are data alone; those of pickle are a program, and so are torch's unless they are `plain`."""
_LONG: Final = 4 << 20
"""Characters or bytes of a text from which on it is written in pieces, and read from the file's pages."""
_PIECE: Final = 1 << 16
"""Characters of JSON that are written at a time."""
_LEAF: Final = 256
"""Elements of a container that are encoded at a time."""
_SCALARS: Final[frozenset[type]] = frozenset({int, float, bool, str, type(None)})
_CONTAINERS: Final[frozenset[type]] = frozenset({list, dict})
_JSON: Final[frozenset[type]] = (_SCALARS | _CONTAINERS) - {str}
_NAMES: Final = {kind: full_name(kind) for kind in (*_SCALARS, *_CONTAINERS, bytes)}

encode: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False).encode
_LIST_BEGIN: Final = b'{"items":['
decode: Final[Callable[[str, int], tuple[Any, int]]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
"""A value's JSON, and (value, end) of the JSON that begins at a place of a text."""


def save(value: Any, blobs: Blobs, *, inline_limit: int = INLINE_LIMIT) -> StoredArtifact:
    """Save a value; one of at most `inline_limit` bytes becomes part of the artifact itself."""
    kind = type(value)
    data: bytes | None = None
    name = "json"
    if kind in _CONTAINERS and not _is_leaf(value):
        artifact = _save_long_json(value, kind, blobs, inline_limit)
        if artifact is not None:
            return artifact
    elif kind in _JSON:
        data = _json_bytes(value, kind)
    elif kind is str and len(value) > _LONG:
        return _save_long_text(value, blobs, inline_limit)
    elif kind is str:
        name = "str"
        try:
            data = value.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which UTF-8 cannot encode
            data = None
    elif kind is bytes:
        name, data = "bytes", value
    if data is None:
        if kind in (list, dict, tuple, set):
            _refuse_secrets_inside(value, kind)
        return _save_with(value, registry.serializer_for(value), blobs, inline_limit)
    size = len(data)
    if size > inline_limit:
        return StoredArtifact(digest=blobs.put(data), serializer=name, type=_NAMES[kind], size=size)
    return StoredArtifact(digest=sha256(data).hexdigest(), serializer=name, type=_NAMES[kind], size=size, inline=data)


def load(artifact: StoredArtifact, blobs: Blobs) -> Any:
    """Load a value. Big arrays are mapped into memory, not read: changes to them stay in this process."""
    name = artifact.serializer
    data = artifact.inline
    if data is not None and sha256(data).hexdigest() != artifact.digest:
        raise damaged_inline(artifact)
    if not blobs.trusted and _runs_code(artifact):
        raise UntrustedArtifact(
            f"a saved {artifact.type} is loaded by '{name}', which can run any code, and the store is another user's "
            f"({blobs.uri})",
            fix="Client(trust=True), dump --trust or STOKER_TRUST=1, if you trust everybody who may write to it",
        )
    if name == "json" and data is not None:
        return decode(data.decode(), 0)[0]
    reader = _READERS.get(name)
    if reader is not None:
        if data is None and artifact.size > _LONG and name != "bytes":
            # The text is made from the file's pages, which the kernel can drop, and not from a copy of them.
            path = blobs.path(artifact.digest, artifact.size)
            with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
                return reader(pages)
        return reader(blobs.read(artifact.digest, artifact.size) if data is None else data)
    if name == "list":
        return [load(item, blobs) for item in each_item(artifact, blobs)]
    try:
        return registry.serializer_named(name).load(Stored(artifact, blobs))
    except ModuleNotFoundError as error:
        raise _missing_module(artifact, error) from error
    except StokerError:
        raise
    except Exception as error:  # unpickling runs the user's code
        raise SerializationError(
            f"a saved {artifact.type} cannot be loaded: {type(error).__name__}: {error}{_versions(artifact)}",
            fix="load it with the code and the versions that saved it, or run the step that made it again",
        ) from error


def _runs_code(artifact: StoredArtifact) -> bool:
    """Whether loading a value can run code that the store's owner chose; what other distributions load may, too."""
    return artifact.serializer not in _DATA_ONLY and not (artifact.serializer == "torch" and artifact.meta.get("plain"))


def save_split(values: Iterable[Any], blobs: Blobs, *, inline_limit: int = INLINE_LIMIT) -> StoredArtifact:
    """Save each element as its own artifact, for a fan-out; the whole loads as a list."""
    if isinstance(values, (str, bytes, Mapping)) or not hasattr(type(values), "__iter__"):
        raise SerializationError(
            f"a fan-out needs a list of elements, not a value of type {full_name(type(values))}",
            fix="return a list, a tuple or an array from the step that the fan-out goes over",
        )
    return gather((save(value, blobs, inline_limit=inline_limit) for value in values), blobs, inline_limit=inline_limit)


def gather(parts: Iterable[StoredArtifact], blobs: Blobs, *, inline_limit: int = INLINE_LIMIT) -> StoredArtifact:
    """Combine artifacts into one that loads as the list of their values; only inline bytes are copied."""
    written: list[bytes] = []  # there may be a million parts, whose descriptions take ten times as much memory
    content, is_content_else = sha256(), False

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal is_content_else
        for part in parts:
            document = part.wire()
            content.update((b"\n" if written else b"") + content_of(document).encode("utf-8", "surrogatepass"))
            is_content_else = is_content_else or "content" in part.meta
            written.append(encode(document).encode("utf-8", "surrogatepass"))
            yield document

    names = names_in(documents())
    meta: dict[str, Any] = {"count": len(written), **names}
    if is_content_else:
        meta["content"] = content.hexdigest()
    data = _LIST_BEGIN + b",".join(written) + b"]}"
    written.clear()
    if len(data) > inline_limit:
        return StoredArtifact(digest=blobs.put(data), serializer="list", type=_NAMES[list], size=len(data), meta=meta)
    digest = sha256(data).hexdigest()
    return StoredArtifact(digest=digest, serializer="list", type=_NAMES[list], size=len(data), meta=meta, inline=data)


def items(artifact: StoredArtifact, blobs: Blobs) -> list[StoredArtifact]:
    """The elements of an artifact of `save_split` or `gather`, or of a list that was saved as JSON."""
    return list(each_item(artifact, blobs))


def each_item(artifact: StoredArtifact, blobs: Blobs) -> Iterator[StoredArtifact]:
    """The same, one by one: the descriptions of a million take ten times as much memory as their text."""
    if artifact.serializer == "list":
        data = artifact.inline
        if data is None:
            data = blobs.read(artifact.digest, artifact.size)
        elif sha256(data).hexdigest() != artifact.digest:
            raise damaged_inline(artifact)
        return _listed(data.decode("utf-8", "surrogatepass"))
    value = load(artifact, blobs) if artifact.serializer == "json" else None
    if isinstance(value, list):
        return (save(element, blobs) for element in value)
    raise SerializationError(
        f"a saved {artifact.type} is not a list of elements",
        fix="return a list from the step that the fan-out goes over",
    )


def _listed(text: str) -> Iterator[StoredArtifact]:
    place, end = len(_LIST_BEGIN), len(text) - len("]}")
    while place < end:
        document, place = decode(text, place)
        place += 1
        yield from_wire(document)


def unusable(artifact: StoredArtifact, blobs: Blobs) -> str:
    """The digest of the first part of an artifact that is lost, cut short or seen to be damaged; empty if it is whole.

    The content of small parts is checked, of large ones the size (`Blobs.holds`).
    """
    data = artifact.inline
    if data is not None:
        if sha256(data).hexdigest() != artifact.digest:
            return artifact.digest
    elif not blobs.holds(artifact.digest, artifact.size):
        return artifact.digest
    if artifact.serializer != "list":
        return ""
    try:
        parts = each_item(artifact, blobs)
    except DamagedArtifact as error:
        return error.digest
    return next(filter(None, (unusable(part, blobs) for part in parts)), "")


def damaged_inline(artifact: StoredArtifact) -> DamagedArtifact:
    """The error for an artifact whose own bytes do not have its digest."""
    return DamagedArtifact(
        f"the artifact {artifact.digest} is damaged in the database: its bytes have another digest",
        digest=artifact.digest,
        fix="run the step that made it again (`stoker rerun RUN`); `stoker store check` finds what else is damaged",
    )


register = registry.register


def _json_bytes(value: Any, kind: type) -> bytes | None:
    """The value as JSON; None if it would not load as the same value."""
    try:
        if kind is int:
            return str(value).encode()
        if kind in _CONTAINERS and not _is_json_bytes(value, _MAX_DEPTH):
            return None
        return encode(value).encode()
    except (ValueError, RecursionError):  # an integer too long for a text, or half a surrogate pair
        return None


def _is_json_bytes(value: Any, levels: int) -> bool:
    inner: Iterable[Any] = value
    if type(value) is dict:
        if value and set(map(type, value)) != {str}:
            return False
        inner = value.values()
    kinds = set(map(type, inner)) - _SCALARS
    if not kinds:
        return True
    if not kinds <= _CONTAINERS or levels <= 0:
        return False
    return all(_is_json_bytes(item, levels - 1) for item in inner if type(item) in _CONTAINERS)


def _save_long_json(value: Any, kind: type, blobs: Blobs, inline_limit: int) -> StoredArtifact | None:
    """Save a container piece by piece, so that its text is not in memory; None if it would not load as the same."""
    if not _is_json_bytes(value, _MAX_DEPTH):
        return None
    sink = _Sink(blobs, inline_limit)
    try:
        text = ""
        for piece in _json_pieces(value):
            text += piece
            if len(text) >= _PIECE:
                sink.write(text.encode())
                text = ""
        sink.write(text.encode())
        return sink.artifact("json", _NAMES[kind], {})
    except (ValueError, RecursionError):  # an integer too long for a text, or half a surrogate pair
        sink.abort()
        return None
    except BaseException:  # also an interrupt leaves nothing half-written
        sink.abort()
        raise


def _json_pieces(value: Any) -> Iterator[str]:
    """The pieces of what `encode` makes of a container."""
    keys = iter(value) if type(value) is dict else None
    yield "[" if keys is None else "{"
    rest, separator = iter(value if keys is None else value.values()), ""
    while group := list(itertools.islice(rest, _LEAF)):
        names = None if keys is None else list(itertools.islice(keys, len(group)))
        if all(map(_is_leaf, group)):
            yield separator + encode(group if names is None else dict(zip(names, group)))[1:-1]
            separator = ","
            continue
        for number, item in enumerate(group):
            yield separator if names is None else f"{separator}{encode(names[number])}:"
            whole = _is_leaf(item) or type(item) is str
            yield from (encode(item),) if whole else _json_pieces(item)
            separator = ","
    yield "]" if keys is None else "}"


def _is_leaf(item: Any) -> bool:
    """Whether a value's JSON is short, but for texts, which are as long as the value."""
    if type(item) is str:
        return len(item) < _PIECE
    if type(item) not in _CONTAINERS:
        return True
    inner = item.values() if type(item) is dict else item
    if len(item) > _LEAF or not _CONTAINERS.isdisjoint(map(type, inner)):
        return False
    return str not in set(map(type, inner)) or sum(len(text) for text in inner if type(text) is str) < _PIECE


class _Sink(io.RawIOBase):
    """A file that becomes a blob only when it outgrows the limit."""

    def __init__(self, blobs: Blobs, limit: int) -> None:
        self._blobs = blobs
        self._limit = limit
        self._small = bytearray()
        self._writer: Writer | None = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return len(self._small) if self._writer is None else self._writer.size

    def write(self, data: Any) -> int:
        if self._writer is None:
            view = memoryview(data)
            if len(self._small) + view.nbytes <= self._limit:
                self._small += view.tobytes() if not view.c_contiguous or view.format != "B" else view
                return view.nbytes
            self._writer = self._blobs.writer()
            self._writer.write(self._small)
        return self._writer.write(data)

    def artifact(self, serializer: str, kind: str, meta: Mapping[str, Any]) -> StoredArtifact:
        """Save the bytes that were written."""
        if self._writer is not None:
            digest = self._writer.commit()
            return StoredArtifact(digest=digest, serializer=serializer, type=kind, size=self._writer.size, meta=meta)
        data = bytes(self._small)
        digest = sha256(data).hexdigest()
        return StoredArtifact(digest=digest, serializer=serializer, type=kind, size=len(data), meta=meta, inline=data)

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.abort()


def _refuse_secrets_inside(value: Any, kind: type) -> None:
    """Refuse a container with a `Secret`: the step would get the reference in place of the value."""
    for item in value.values() if kind is dict else value:
        if type(item) is Secret:
            raise SerializationError(
                f"{item} is inside of a {kind.__name__}, where a step gets no value for it: "
                "it must be an argument of its own, or an environment variable",
            )


def _save_with(value: Any, serializer: Serializer, blobs: Blobs, inline_limit: int) -> StoredArtifact:
    sink = _Sink(blobs, inline_limit)
    try:
        # What no message can carry, such as a set, is found here, and not when the result is sent.
        meta = to_json(serializer.save(value, sink))  # type: ignore[arg-type]
        return sink.artifact(serializer.name, full_name(type(value)), _with_code(meta, type(value)))
    except (StokerError, MemoryError):
        sink.abort()
        raise
    except Exception:  # pickling runs the user's code
        sink.abort()
        return _save_with(
            value, registry.serializer_named(_FALLBACKS.get(serializer.name, "pickle")), blobs, inline_limit
        )
    except BaseException:  # also an interrupt leaves nothing half-written
        sink.abort()
        raise


def _save_long_text(value: str, blobs: Blobs, inline_limit: int) -> StoredArtifact:
    """Save a text piece by piece, so that it is not in memory a second time."""
    sink = _Sink(blobs, inline_limit)
    try:
        for start in range(0, len(value), _LONG):
            sink.write(value[start : start + _LONG].encode())
        return sink.artifact("str", _NAMES[str], {})
    except UnicodeEncodeError:  # half a surrogate pair
        sink.abort()
        return _save_with(value, registry.serializer_for(value), blobs, inline_limit)
    except BaseException:  # also an interrupt leaves nothing half-written
        sink.abort()
        raise


def _with_code(meta: Mapping[str, Any], kind: type) -> Mapping[str, Any]:
    """A serializer's `meta` with the name of the value's type, if that is code of the user's own."""
    references = References()
    references.add(kind)
    code = sorted({*references.meta().get("code", ()), *meta.get("code", ())})
    return {**meta, "code": code} if code else meta


def _decode_long(data: Any) -> Any:
    """The value of a long JSON text, a list's elements some at a time: as text it is up to four times as long."""
    if data[:1] != b"[":
        return decode(str(data, "utf-8"), 0)[0]
    result: list[Any] = []
    start, last, window = 1, len(data) - 1, _LONG
    while start < last:
        end = start + window
        between = _BETWEEN.get(bytes(data[start : start + 1]), b",")
        # Behind a comma inside of an element, the part is no list of whole elements, and is not decoded.
        cut = last if end >= last else data.rfind(between, start, end) + between.index(b",")
        try:
            part, _ = decode(f"[{str(data[start:cut], 'utf-8')}]", 0) if cut > start else ([], 0)
        except (ValueError, StopIteration):
            if end >= last:
                raise
            part = []
        if not part:
            window *= 2
            continue
        result += part
        start, window = cut + 1, _LONG
    return result


_BETWEEN: Final = {b'"': b'","', b"{": b"},{", b"[": b"],["}
"""The first character of a list's element → what is between it and one of its kind; for others, a comma."""
_FALLBACKS: Final = {"pickle": "cloudpickle"}
"""serializer → the one that is tried when it fails (by default pickle); cloudpickle, the last, raises a
`SerializationError` that explains."""

_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "json": lambda data: _decode_long(data) if len(data) > _LONG else decode(str(data, "utf-8"), 0)[0],
    "str": lambda data: str(data, "utf-8"),
    "bytes": lambda data: data,
}


def _missing_module(artifact: StoredArtifact, error: ModuleNotFoundError) -> StokerError:
    """The error for a module that cannot be imported: a library to install, or the user's own."""
    module = (error.name or "").partition(".")[0]
    package = BUILT_IN.get(artifact.serializer, ("", ""))[1]
    if module in _libraries(artifact, package):
        distribution = {"sklearn": "scikit-learn"}.get(module, module)
        return MissingPackage(
            f"a saved {artifact.type} needs the package '{distribution}' to be loaded",
            fix=f"pip install {distribution}",
        )
    return SerializationError(
        f"a saved {artifact.type} cannot be loaded: there is no module '{error.name}' here{_versions(artifact)}",
        fix="make the module that defines it importable here, for example by running from the project's folder",
    )


def _libraries(artifact: StoredArtifact, package: str) -> Sequence[str]:
    return [name for name in (package, artifact.meta.get("package"), "pyarrow" if package == "pandas" else "") if name]


def _versions(artifact: StoredArtifact) -> str:
    """`" (saved with x 1.0, here is 2.0)"` if the versions are known and differ."""
    package, version = artifact.meta.get("package"), artifact.meta.get("version")
    installed = getattr(sys.modules.get(package or ""), "__version__", None)
    if not version or installed in (None, version):
        return ""
    return f" (saved with {package} {version}, here is {installed})"
