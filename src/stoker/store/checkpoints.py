"""Folders in which steps keep checkpoints: one for each step of a run, kept until the run is deleted.

A step on another machine has its folder below that machine's own; whoever runs it there brings the files, and the
folder's name is the same below both.
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
        """The folder of a step; it exists once the step has asked for it."""
        return Path(self.folder, file_name(run), file_name(key))

    def made(self, run: str, key: str) -> Path:
        """The folder of a step, made if it is not there."""
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
        """Bytes that the files of a run take, as long as they are read; 0 for a run without any."""
        total = 0
        for here, _, names in os.walk(os.path.join(self.folder, file_name(run))):
            for name in names:
                try:
                    total += os.lstat(os.path.join(here, name)).st_size
                except FileNotFoundError:
                    continue  # deleted by another process just now
        return total

    def delete(self, run: str) -> None:
        """Remove the checkpoints of a run; a run without any is fine."""
        remove_tree(os.path.join(self.folder, file_name(run)))
