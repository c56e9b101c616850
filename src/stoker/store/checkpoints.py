"""Folders for the checkpoints of steps: one for each step of a run, until the run is deleted.

A step on another machine has a folder of the same name there; the backend copies the files.
"""

from __future__ import annotations

import os
from pathlib import Path

from stoker.core.errors import StoreError
from stoker.store.blobs import remove_tree
from stoker.store.logs import file_name


class Checkpoints:
    """The checkpoints below a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def path(self, run: str, key: str) -> Path:
        """The folder of a step; it need not exist."""
        return Path(self.folder, file_name(run), file_name(key))

    def create(self, run: str, key: str) -> Path:
        """The folder of a step, created if it does not exist."""
        path = self.path(run, key)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder for checkpoints {path} cannot be made: {error.strerror or error}",
                fix="free space on its disk, check its permissions, or set STOKER_HOME to another place",
            ) from error
        return path

    def size(self, run: str) -> int:
        """The sum of the sizes of a run's files, in bytes; 0 for a run without any."""
        total = 0
        for parent, _, names in os.walk(os.path.join(self.folder, file_name(run))):
            for name in names:
                try:
                    total += os.lstat(os.path.join(parent, name)).st_size
                except FileNotFoundError:
                    continue  # deleted by another process just now
        return total

    def delete(self, run: str) -> None:
        """Remove the checkpoints of a run; a run without any is fine."""
        remove_tree(os.path.join(self.folder, file_name(run)))
