"""`current.checkpoint` of a step with `@checkpoint`: what an attempt saved, the next one has again, also after SIGKILL.

Checkpoints belong to a task of a run: its step, its place in a foreach. They lie in the task's folder, which every
attempt gets (`runtime.context`), each whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Mapping

from stoker.core.errors import NotFound, UsageError

_SAVED: Final = "saved"


class Checkpoint:
    """The checkpoints of the task that runs. `directory` begins with what the latest one has, if `is_loaded`."""

    def __init__(self, root: Path, policy: str) -> None:
        self._root = root / _SAVED
        self._root.mkdir(parents=True, exist_ok=True)
        self.directory = tempfile.mkdtemp(prefix="stoker-checkpoint-")
        latest = self.list()[:1] if policy != "none" else []
        self.is_loaded = bool(latest)
        if latest:
            self.load(latest[0])

    def save(
        self, path: str | None = None, name: str = "checkpoint", metadata: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keep a file or a folder, `directory` if none is named; what it is called is returned."""
        source = Path(self.directory if path is None else path)
        if not source.exists():
            raise NotFound(f"there is nothing at {source} to be kept as a checkpoint")
        if not name.replace("-", "_").isidentifier():
            raise UsageError(f"{name!r} cannot be a checkpoint's name", fix='write "epoch_3"')
        number = max((int(found["number"]) for found in self.list()), default=0) + 1
        beside = Path(tempfile.mkdtemp(prefix=".new-", dir=self._root))
        if source.is_dir():
            shutil.copytree(source, beside / "content", symlinks=True)
        else:
            (beside / "content").mkdir()
            shutil.copy2(source, beside / "content" / source.name)
        place = self._root / f"{number:08d}-{name}"
        os.replace(beside, place)
        return _told(place) | {"metadata": dict(metadata or {})}

    def list(self, name: str | None = None) -> list[dict[str, Any]]:
        """What was kept, the newest first."""
        found = [_told(path) for path in sorted(self._root.iterdir(), reverse=True) if not path.name.startswith(".")]
        return [one for one in found if name is None or one["name"] == name]

    def load(self, which: Mapping[str, Any] | str | None = None, path: str | None = None) -> str:
        """Copy a checkpoint to a folder, `directory` if none is named; the newest, one of `list()`, or a name."""
        known = self.list(which) if isinstance(which, str) else [dict(which)] if which is not None else self.list()
        if not known:
            raise NotFound(f"the task has no checkpoint{f' {which!r}' if which else ''}")
        target = self.directory if path is None else path
        shutil.copytree(Path(str(known[0]["path"])) / "content", target, dirs_exist_ok=True, symlinks=True)
        return target

    def close(self) -> None:
        """The task is over: what was not saved is gone."""
        shutil.rmtree(self.directory, ignore_errors=True)


def _told(path: Path) -> dict[str, Any]:
    number, _, name = path.name.partition("-")
    return {"number": int(number), "name": name, "path": str(path), "created": path.stat().st_mtime or time.time()}
