"""Short notes that the nodes of a gang leave where all can read them: a folder they share, or an object store."""

from __future__ import annotations

import os
import tempfile


def put(path: str, data: bytes) -> None:
    """Leave a note, whole or not at all; an earlier one is overwritten."""
    if "://" in path:
        import fsspec

        with fsspec.open(path, "wb") as file:
            file.write(data)
        return
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    descriptor, fresh = tempfile.mkstemp(dir=folder, prefix="note-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(fresh, path)


def get(path: str) -> bytes | None:
    """A note; None while there is none."""
    try:
        if "://" in path:
            import fsspec

            with fsspec.open(path, "rb") as file:
                return bytes(file.read())
        with open(path, "rb") as plain:
            return plain.read()
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    """Take a note away; one that is gone is fine."""
    try:
        if "://" in path:
            import fsspec

            system, name = fsspec.core.url_to_fs(path)
            system.rm(name)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
