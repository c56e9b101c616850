"""Short notes that jobs and nodes write for each other, in a shared folder or an object store."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Sequence

from stoker.store.filesystems import url_to_fs


def put(path: str, data: bytes) -> None:
    """Write a note, whole or not at all; an earlier one is overwritten."""
    if "://" in path:
        system, name = url_to_fs(path)
        with contextlib.suppress(PermissionError):  # to make buckets, which is not needed where there is one
            system.makedirs(system._parent(name), exist_ok=True)
        with system.open(name, "wb") as remote:
            remote.write(data)
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
            system, name = url_to_fs(path)
            with system.open(name, "rb") as remote:
                return bytes(remote.read())
        with open(path, "rb") as plain:
            return plain.read()
    except FileNotFoundError:
        return None


def get_all(paths: Sequence[str]) -> dict[str, bytes]:
    """Those of the notes that are there, by path; from an object store all at once."""
    if not any("://" in path for path in paths):
        return {path: data for path in paths if (data := get(path)) is not None}
    system, _ = url_to_fs(paths[0])
    names = {system._strip_protocol(path): path for path in paths}
    contents: dict[str, bytes] = {}
    for name, data in system.cat(list(names), on_error="return").items():
        if isinstance(data, BaseException):
            if not isinstance(data, FileNotFoundError):
                raise data
        else:
            contents[names[name]] = bytes(data)
    return contents


def remove(path: str) -> None:
    """Remove a note; one that is gone is fine."""
    try:
        if "://" in path:
            system, name = url_to_fs(path)
            system.rm_file(name)  # `rm` takes a name with brackets for a pattern
        else:
            os.unlink(path)
    except FileNotFoundError:
        return


def names(folder: str) -> list[str]:
    """The names in a folder; none where there is no such folder."""
    try:
        if "://" in folder:
            system, path = url_to_fs(folder)
            system.invalidate_cache()
            entries = [entry.rstrip("/") for entry in system.ls(path, detail=False)]
            # Or a name that is written from now on would be looked for in this listing, and not be found.
            system.invalidate_cache()
            return [entry.rpartition("/")[2] for entry in entries if entry != path.rstrip("/")]
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def tree_size(folder: str) -> int:
    """The bytes of all files below a folder; 0 where there is no such folder."""
    if "://" in folder:
        system, path = url_to_fs(folder)
        system.invalidate_cache()
        try:
            return sum(int(size or 0) for size in system.du(path, total=False).values())
        except FileNotFoundError:
            return 0
    total = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue  # deleted by another process just now
    return total


def copy_tree(source: str, target: str) -> None:
    """Copy a folder; one that is not there is fine."""
    if "://" in source:
        system, path = url_to_fs(source)
        _, copied = url_to_fs(target)
        system.invalidate_cache()
        try:
            entries = system.find(path)
        except FileNotFoundError:
            return
        for entry in entries:
            place = copied.rstrip("/") + entry[len(path.rstrip("/")) :]
            system.makedirs(place.rpartition("/")[0], exist_ok=True)
            system.cp_file(entry, place)
        return
    if os.path.isdir(source):
        shutil.copytree(source, target, dirs_exist_ok=True)


def remove_tree(folder: str) -> None:
    """Remove a folder of an object store with all that is in it; one that is gone is fine."""
    system, path = url_to_fs(folder)
    system.invalidate_cache()
    try:
        system.rm(path, recursive=True)
    except FileNotFoundError:
        return
