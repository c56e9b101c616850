"""What is in an artifact, as far as a page can show it without running any code of it.

Values of pickle and whatever else can run code are never loaded (`store.previews`); besides, the store that the server
opens is not trusted (`store.artifacts`).
"""

from __future__ import annotations

import json
import mimetypes
from typing import BinaryIO, Callable, Final, Mapping

from stoker.client import Output
from stoker.core.artifact import StoredArtifact
from stoker.core.errors import StokerError
from stoker.core.words import memory_text
from stoker.report.design import empty, preformatted
from stoker.report.markup import Html, element, joined
from stoker.report.previewparts import preview_part
from stoker.store import previews
from stoker.store.blobs import Blobs

TEXT: Final = 200_000
"""Bytes of a text that are shown."""
_HEX: Final = 512

IMAGES: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}
"""The first bytes of the pictures that a page shows, and their types. SVG is not among them: it can hold scripts."""
EXTENSIONS: Final[Mapping[str, str]] = {
    "json": ".json",
    "str": ".txt",
    "bytes": ".bin",
    "list": ".json",
    "numpy": ".npy",
    "torch": ".pt",
    "pandas": ".parquet",
    "polars": ".parquet",
    "pyarrow": ".parquet",
    "pickle": ".pkl",
    "cloudpickle": ".pkl",
}
"""Serializer → the ending of a file with its bytes."""


def file_name(output: Output) -> str:
    """A name for a file with an output's bytes."""
    name = str(output.meta.get("name") or "") if output.serializer == "path" else ""
    if name:
        return f"{name}.tar" if output.meta.get("kind") == "folder" else name
    return f"{output.step}-{output.name}{EXTENSIONS.get(output.serializer, '.bin')}"


def image_type(output: Output) -> str:
    """The type of the picture that an output's bytes are; empty for what is none."""
    if output.serializer not in ("bytes", "path") or output.meta.get("kind") == "folder":
        return ""
    with output.open() as file:
        head = file.read(16)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in IMAGES.items() if head.startswith(magic)), "")


def is_page(output: Output) -> bool:
    """Whether an output is a file of HTML, which is shown in a frame that may do nothing."""
    return output.serializer == "path" and mimetypes.guess_type(str(output.meta.get("name")))[0] == "text/html"


def preview(output: Output, artifact: StoredArtifact, blobs: Blobs, *, address: str, frame: str) -> Html:
    """What is in an output; `address` leads to its bytes, `frame` to them as a page in a sandbox."""
    try:
        if image_type(output):
            return element("img", {"src": address, "alt": f"{output.name} of {output.step}"})
        if is_page(output):
            title = f"{output.name} of {output.step}"
            return element("iframe", {"src": frame, "sandbox": "allow-scripts", "title": title, "class": "user"})
        if output.serializer in _TEXTS and output.meta.get("kind") != "folder":
            return _TEXTS[output.serializer](output)
        shown = preview_part(previews.preview(artifact, blobs), label=f"{output.name} of {output.step}")
        return shown or empty(f"Nothing is known of what {output.serializer} wrote; download it.")
    except StokerError as error:
        return empty(f"It cannot be shown: {error.message}")


def _text(output: Output) -> Html:
    data, more = _head(output, TEXT)
    text = data.decode("utf-8", "replace")
    if output.serializer == "json" and not more:
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return joined([preformatted(text), _more(output) if more else ""])


def _raw(output: Output) -> Html:
    data, more = _head(output, TEXT)
    try:
        text = data[: len(data) - 4 if more else None].decode()  # not inside a character
    except UnicodeDecodeError:
        return _hex(data[:_HEX], output)
    if "\0" in text:
        return _hex(data[:_HEX], output)
    return joined([preformatted(text), _more(output) if more else ""])


def _hex(data: bytes, output: Output) -> Html:
    lines = []
    for start in range(0, len(data), 16):
        row = data[start : start + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
        lines.append(f"{start:06x}  {row.hex(' '):<47}  {letters}")
    return joined([preformatted("\n".join(lines)), _more(output) if output.size > len(data) else ""])


def _head(output: Output, length: int) -> tuple[bytes, bool]:
    """The first bytes, and whether there are more."""
    file: BinaryIO
    with output.open() as file:
        data = file.read(length + 1)
    return data[:length], len(data) > length


def _more(output: Output) -> Html:
    return element("p", {"class": "muted"}, f"This is the beginning; the whole has {memory_text(output.size)}.")


_TEXTS: Final[Mapping[str, Callable[[Output], Html]]] = {
    "json": _text,
    "str": _text,
    "bytes": _raw,
    "path": _raw,
}
"""Serializers of what is shown at length where it is text; of others `store.previews` tells what is in them."""
