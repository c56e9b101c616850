"""The code of a run, by the names of Metaflow's `MetaflowCode`: the files that its program had imported when it began.

A run whose code was sent along as a package has all files of that.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any, Mapping

from stoker.client.runs import Run
from stoker.core.errors import StoreError


class MetaflowCode:
    """The files of a run's code as they were."""

    def __init__(self, run: Run, plan: Mapping[str, Any]) -> None:
        self._run, self._plan = run, plan
        self.path: str = plan["source"]["path"]
        """The flow's file, as it was called."""

    @property
    def script_name(self) -> str:
        """The name of the flow's file."""
        return os.path.basename(self.path)

    @property
    def info(self) -> dict[str, str]:
        """The names of the flow and of its file."""
        return {"script": self.script_name, "flow_name": self._run.pipeline}

    @property
    def flowspec(self) -> str:
        """The text of the flow's file."""
        member = next((name for name in self.tarball.getnames() if self.path.endswith(f"/{name}")), None)
        content = None if member is None else self.tarball.extractfile(member)
        if content is None:
            raise StoreError(f"the code of run {self._run.id} does not have {self.path}")
        return content.read().decode("utf-8", "replace")

    @cached_property
    def tarball(self) -> tarfile.TarFile:
        """All files, by their names below the folder of the flow's file."""
        if self._plan.get("package"):
            return tarfile.open(self._run.store.blobs.path(self._plan["package"]))
        files, root = self._plan["files"], self._plan["source"]["root"] or os.path.dirname(self.path)
        texts = self._run.store.records.sources(files.values())
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, digest in sorted(files.items()):
                inside = os.path.commonpath([path, root]) == root
                member = tarfile.TarInfo(os.path.relpath(path, root) if inside else path.lstrip("/"))
                member.size = len(texts[digest])
                archive.addfile(member, io.BytesIO(texts[digest]))
        packed.seek(0)
        return tarfile.open(fileobj=packed)

    def extract(self) -> TemporaryDirectory[str]:
        """A folder with all files, which goes when what is returned does."""
        folder = TemporaryDirectory(prefix="stoker-code-")
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # not in every Python 3.10
        self.tarball.extractall(folder.name, **safely)
        return folder

    def __repr__(self) -> str:
        return f"<MetaflowCode: {self.script_name}>"


def code_of(run: Run) -> MetaflowCode | None:
    """The code of a run; None where it was not kept."""
    text = run.store.records.plan(run.id)
    plan = json.loads(text) if text else {}
    kept = plan.get("source") and (plan.get("files") or plan.get("package"))
    return MetaflowCode(run, plan) if kept else None
