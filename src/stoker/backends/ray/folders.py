"""The folder of a batch of steps on Ray: on this machine where the cluster sees it, else a URI that fsspec knows."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile

from stoker.core.errors import BackendError


def write(folder: str, name: str, data: bytes) -> None:
    """A file of the folder, whole or not at all; readable for nobody else where that can be said."""
    if "://" in folder:
        import fsspec

        try:
            with fsspec.open(f"{folder}/{name}", "wb") as file:
                file.write(data)
        except Exception as error:  # whatever the store's own library raises
            raise BackendError(f"{folder}/{name} cannot be written: {type(error).__name__}: {error}") from error
        return
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor, beside = tempfile.mkstemp(dir=folder, prefix=".new-")
    with os.fdopen(descriptor, "wb") as plain:
        plain.write(data)
    os.replace(beside, os.path.join(folder, name))


def read(folder: str, name: str) -> bytes | None:
    """What a file holds; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        if "://" in folder:
            import fsspec

            with fsspec.open(f"{folder}/{name}", "rb") as file:
                return bytes(file.read())
        with open(os.path.join(folder, name), "rb") as plain:
            return plain.read()
    return None


def remove(folder: str) -> None:
    """Take the folder away; one that is gone is fine."""
    if "://" not in folder:
        shutil.rmtree(folder, ignore_errors=True)
        return
    import fsspec

    system, name = fsspec.core.url_to_fs(folder)
    with contextlib.suppress(FileNotFoundError):
        system.rm(name, recursive=True)
