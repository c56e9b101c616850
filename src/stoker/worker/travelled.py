"""The user's code where a job runs: unpacked there, and the driver's paths as they are called there."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Mapping

from stoker.store.blobs import Blobs


def unpacked(spec: Mapping[str, Any]) -> str:
    """The folder with the user's code, unpacked for this job alone; empty where there is no package.

    Not one folder for all jobs of a machine: others may not be able to read there, and nobody would know when to remove
    it. Whoever asked calls `leave`.
    """
    if not spec["package"]:
        return ""
    from stoker.images import context

    folder = os.path.join(tempfile.mkdtemp(prefix="stoker-code-"), spec["package"][:16])
    context.unpack(Path(Blobs(spec["blobs"]).path(spec["package"])), Path(folder))
    return folder


def leave(here: str) -> None:
    """Remove what `unpacked` made."""
    if here:
        shutil.rmtree(os.path.dirname(here), ignore_errors=True)


def moved(spec: Mapping[str, Any], here: str) -> tuple[dict[str, Any], dict[str, Any], list[str], str]:
    """Job, step, `sys.path` and working directory, with the driver's folders as they are called here."""
    job, step = dict(spec["job"]), dict(spec["step"])
    if not here:
        return job, step, list(dict.fromkeys([*spec["path"], *sys.path])), spec["folder"]
    root = spec["root"]
    step["source"] = _source(step["source"], root, here)
    if "hook" in job:
        job["hook"] = _source(job["hook"], root, here)
    path = [place for place in (_place(entry, root, here) for entry in spec["path"]) if place]
    folder = _place(spec["folder"], root, here) or here
    return job, step, list(dict.fromkeys([*path, here, *sys.path])), folder if os.path.isdir(folder) else here


def _source(source: Mapping[str, Any], root: str, here: str) -> dict[str, Any]:
    found = {name: _place(str(source.get(name) or ""), root, here) for name in ("path", "root")}
    return {**source, **{name: place or source.get(name, "") for name, place in found.items()}}


def _place(path: str, root: str, here: str) -> str:
    """A path below the driver's root as it is here; empty for one that lies elsewhere."""
    if path == root:
        return here
    return here + path[len(root.rstrip("/")) :] if path.startswith(root.rstrip("/") + "/") else ""


def named_as_there(result: dict[str, Any], here: str, root: str) -> dict[str, Any]:
    """The error with the person's own file names, so that an editor finds the line."""
    error = result.get("error")
    if error:
        renamed = {name: text.replace(here, root) for name, text in error.items() if isinstance(text, str)}
        result["error"] = {**error, **renamed}
    return result
