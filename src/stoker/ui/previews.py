"""What is in an artifact, as far as a page can show it without running any code of it.

Values of pickle and whatever else can run code are never loaded (`store.previews`); besides, the store that the server
opens is not trusted (`store.artifacts`).
"""

from __future__ import annotations

import mimetypes
from typing import Final, Mapping

from stoker.client import Output
from stoker.core.artifact import StoredArtifact
from stoker.core.errors import StokerError
from stoker.core.preview import picture_type
from stoker.report.design import empty
from stoker.report.markup import Html, element
from stoker.report.previewparts import preview_part
from stoker.store import previews
from stoker.store.blobs import Blobs

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
        return picture_type(file.read(16))


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
        shown = preview_part(previews.preview(artifact, blobs, previews.LONG), label=f"{output.name} of {output.step}")
        return shown or empty(f"Nothing is known of what {output.serializer} wrote; download it.")
    except StokerError as error:
        return empty(f"It cannot be shown: {error.message}")
