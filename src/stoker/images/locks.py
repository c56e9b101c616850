"""Locks that were made before: below Stoker's home, and in a project's `stoker.lock`.

A lock is found by the digest of what was asked for, so that the same requirements give the same packages until a newer
lock is asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Final, Iterable, Mapping

from stoker.core.codec import from_json, parse_object, to_json
from stoker.core.errors import SettingsError, StokerError
from stoker.core.packages import LOCK_FORMAT, Lock
from stoker.images.resolving import LockRequest

FOLDER: Final = "locks"
"""The folder below Stoker's home."""
PROJECT_FILE: Final = "stoker.lock"
"""The file beside a project's code, with the locks that everybody who has the code uses."""


class LockStore:
    """The locks below one home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / FOLDER

    def find(self, request: LockRequest, *, root: Path) -> Lock | None:
        """The lock of a request; None if there is none.

        The `stoker.lock` in `root`, or in the working directory, goes before what the home has.
        """
        digest = request.digest
        files = (read_file(folder / PROJECT_FILE).get(digest) for folder in dict.fromkeys((root, Path.cwd())))
        return next(filter(None, files), None) or self._read(digest)

    def keep(self, lock: Lock) -> None:
        """Keep a lock, in place of an older one of the same request."""
        self._write(f"{lock.digest}.json", to_json(lock))

    def _read(self, digest: str) -> Lock | None:
        try:
            return parse(json.loads((self.folder / f"{digest}.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, StokerError):
            return None  # absent, or damaged: it is resolved again

    def _write(self, name: str, document: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: the lock is in the plan
            self.folder.mkdir(parents=True, exist_ok=True)
            partial = self.folder / f".{name}.{os.getpid()}"
            partial.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
            partial.replace(self.folder / name)


def parse(document: Mapping[str, Any]) -> Lock:
    """A lock of its document; a `SettingsError` if it is none, or has another format."""
    lock = from_json(Lock, document, strict=False)
    if lock.version != LOCK_FORMAT:
        raise SettingsError(f"a lock of format {lock.version}, and this Stoker has format {LOCK_FORMAT}")
    return lock


def file_text(locks: Iterable[Lock]) -> str:
    """The text of a `stoker.lock`."""
    documents = {lock.digest: to_json(lock) for lock in sorted(locks, key=lambda lock: lock.digest)}
    return json.dumps({"locks": documents}, indent=1, sort_keys=True) + "\n"


def read_file(path: Path) -> dict[str, Lock]:
    """The locks of a `stoker.lock` by digest; none if there is no file. One of another kind is a `SettingsError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}", fix=_FIX) from None
    try:
        return {lock.digest: lock for lock in map(parse, parse_object(text)["locks"].values())}
    except (StokerError, KeyError, AttributeError, TypeError) as error:
        raise SettingsError(f"{path} is no file of locks: {error}", fix=_FIX) from None


_FIX: Final = f"remove it, and write it again: stoker plan FILE --lock={PROJECT_FILE}"


def indexes(request: LockRequest) -> str:
    """What the indexes of a request are known by: those that settings name, else the installers' usual one."""
    words = [word for word in request.arguments if "://" in word]
    lines = [line for part in request.lists for line in part.lines if line.startswith("-")]
    named = [part.index for part in request.lists if part.index]
    variables = [f"{name}={text}" for name, text in request.environment.items() if "://" in text]
    return " ".join(sorted({*words, *lines, *named, *variables})) or "usual"
