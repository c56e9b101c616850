"""Short notes that the nodes of a gang write for each other, in a shared folder or an object store."""

from __future__ import annotations

import os
import tempfile


def put(path: str, data: bytes) -> None:
    """Write a note, whole or not at all; an earlier one is overwritten."""
    if "://" in path:
        import fsspec

        with fsspec.open(path, "wb") as file:
            file.write(data)
        return
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    descriptor, scratch = tempfile.mkstemp(dir=folder, prefix="note-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(scratch, path)


def get(path: str) -> bytes | None:
    """Read a note; None if there is none."""
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
    """Remove a note; one that is gone is fine."""
    try:
        if "://" in path:
            import fsspec

            system, name = fsspec.core.url_to_fs(path)
            system.rm(name)
        else:
            os.unlink(path)
    except FileNotFoundError:
        return
