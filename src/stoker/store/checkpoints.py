"""Folders for the checkpoints of steps: one for each step of a run, until the run is deleted.

A step whose nodes do not see the folder has one of the same name on its node; what is copied from there lies in the
artifact store (`worker.checkpointer`), and goes with the run's folder.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final, Iterator

from stoker.core.errors import MissingPackage, StoreError
from stoker.store.access import make_folders
from stoker.store.blobs import remove_tree
from stoker.store.filesystems import fix_of, package_fix
from stoker.store.logs import file_name
from stoker.store.transport import TRANSPORTS

SAVED: Final = "saved"
"""The folder in a task's own in which `flows.checkpoint` keeps each checkpoint as a folder of its own."""
SHARED: Final = ".flows"
"""The folder beside the runs' by which the same task of several runs finds its checkpoints (`flows.checkpoint`)."""


def run_place(store: str, run: str) -> str:
    """Where an artifact store has the copies of a run's checkpoints."""
    return f"{store.removeprefix('file://').rstrip('/')}/checkpoints/{file_name(run)}"


def step_place(store: str, run: str, key: str) -> str:
    """Where an artifact store has the copies of a step's checkpoints."""
    return f"{run_place(store, run)}/{file_name(key)}"


class Checkpoints:
    """The checkpoints below a folder, and the copies of others in the artifact store at `artifacts`, if it is given."""

    def __init__(self, folder: str, artifacts: str = "") -> None:
        self.folder = folder
        # Where a login node's own folder is the store, its checkpoints lie in a folder that all nodes see.
        self._artifacts = "" if artifacts.partition("://")[0] in TRANSPORTS.builtin else artifacts

    def path(self, run: str, key: str) -> Path:
        """The folder of a step; it need not exist."""
        return Path(self.folder, file_name(run), file_name(key))

    def create(self, run: str, key: str) -> Path:
        """The folder of a step, created if it does not exist."""
        path = self.path(run, key)
        try:
            make_folders(str(path))
        except OSError as error:
            raise StoreError(
                f"the folder for checkpoints {path} cannot be made: {error.strerror or error}",
                fix="free space on its disk, check its permissions, or set STOKER_HOME to another place",
            ) from error
        return path

    def last_saved(self, run: str, key: str, before: float) -> float | None:
        """When a file in a step's folder last changed before a moment, in seconds since the epoch; 0 for an empty
        folder, None where there is none."""
        path = self.path(run, key)
        latest = 0.0 if path.is_dir() else None
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(OSError):  # it was removed meanwhile
                    changed = os.lstat(os.path.join(folder, name)).st_mtime
                    latest = max(latest or 0.0, changed) if changed <= before else latest
        return latest

    def copy(self, run: str, target: str, key: str) -> None:
        """Copy the checkpoints of a step to the same step of another run; a step without any is fine."""
        path = self.path(run, key)
        if path.is_dir():
            import shutil

            shutil.copytree(path, self.path(target, key), symlinks=True, dirs_exist_ok=True)
        if self._artifacts and not self._has_transport():
            from stoker.store import notes

            with self._translated_errors():
                notes.copy_tree(step_place(self._artifacts, run, key), step_place(self._artifacts, target, key))

    def size(self, run: str) -> int | None:
        """The sum of the sizes of a run's files, in bytes; 0 for a run without any, None where the store does not
        tell."""
        if self._artifacts and self._has_transport():
            return None
        from stoker.store import notes

        total = notes.tree_size(os.path.join(self.folder, file_name(run)))
        if self._artifacts:
            with self._translated_errors():
                total += notes.tree_size(run_place(self._artifacts, run))
        return total

    def delete(self, run: str) -> None:
        """Remove the checkpoints of a run; a run without any is fine."""
        if self._artifacts and self._has_transport():
            self._delete_behind_transport(run)
        elif self._artifacts:
            from stoker.store import notes

            place = run_place(self._artifacts, run)
            with self._translated_errors():
                if "://" in place:
                    notes.remove_tree(place)
                else:
                    remove_tree(place)
        remove_tree(os.path.join(self.folder, file_name(run)))

    def _has_transport(self) -> bool:
        """Whether a plugin's transport reaches the store; the store of a claim of a cluster has one."""
        if "://" not in self._artifacts:
            return False
        from stoker.store.remote import has_transport

        return has_transport(self._artifacts)

    def _delete_behind_transport(self, run: str) -> None:
        transport = TRANSPORTS.load(self._artifacts.partition("://")[0]).open(self._artifacts)
        try:
            with self._translated_errors():
                transport.remove(list(transport.files(run_place("", run).strip("/"))))
        finally:
            transport.close()

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except ImportError as error:
            raise MissingPackage(
                f"the artifact store {self._artifacts} needs a package: {error}",
                fix=package_fix(self._artifacts),
            ) from error
        except Exception as error:  # every file system behind fsspec has errors of its own
            raise StoreError(
                f"the copies of checkpoints in {self._artifacts} cannot be reached: {type(error).__name__}: {error}",
                fix=fix_of(self._artifacts, error),
            ) from error
