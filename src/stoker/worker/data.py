"""A step's data on this node: brought before the step begins, held while it runs, and found by name."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.data import DataCache, StepData, hub_place
from stoker.core.errors import UsageError, nearest
from stoker.core.protocol import BROUGHT, StepTask, WorkerEvent, WorkerJob
from stoker.core.units import value_or
from stoker.core.words import count_text, memory_text, time_text
from stoker.nodecache import program
from stoker.nodecache.cache import Cache, place_of
from stoker.nodecache.hub import cache_folder, link
from stoker.worker.context import context

_HOMES: Final[Mapping[str, str]] = {"HF_HOME": "huggingface", "TORCH_HOME": "torch"}
"""Variable → the folder below ~/.cache, and below the node's cache, that it names for a library."""


def data(name: str) -> Path:
    """What the step asks for under this name by `data=`, on this node: a folder, or a file where the address names one.

    Its files are shared with other steps and read-only. Raises `UsageError` outside a step, and for another name.
    """
    document = context.document_for("data")
    paths: Mapping[str, str] = document.get("data", {})
    if name not in paths:
        raise UsageError(
            f"the step asks for no data called '{name}'{nearest(name, paths)}",
            where=f"step '{document['key']}'",
            fix=f'ask for it: @step(data={{"{name}": "s3://bucket/folder/"}})',
        )
    return Path(paths[name])


def bring(job: WorkerJob, step: StepTask, emit: Callable[[WorkerEvent], None], held: contextlib.ExitStack) -> WorkerJob:
    """Bring what a step asks for, and hold it until `held` is closed; the job whose context has the paths.

    What is brought at once by several processes is downloaded by one, for which the others wait.
    """
    began, cache = time.time(), place_of(step.data_cache, os.environ)
    os.environ.update(_variables(cache, step.data_cache))
    paths, facts = {}, []
    for name, one in step.data.items():
        fact = _bring_one(name, one, cache, step.data_cache, held)
        paths[name] = fact.pop("path")
        facts.append(fact)
    seconds = time.time() - began
    emit(WorkerEvent(kind="noted", job=job.job, note=BROUGHT, time=began, data={"seconds": seconds, "data": facts}))
    return attrs.evolve(job, context={**job.context, "data": paths})


def _bring_one(
    name: str, one: StepData, cache: Cache, settings: DataCache | None, held: contextlib.ExitStack
) -> dict[str, Any]:
    """One thing; returns its path and what the run's record has of it."""
    began, fetched, checked = time.monotonic(), 0, 0
    if one.is_folder and _is_used_in_place(one.uri, cache, settings):
        now = program.source_of(one).listing().describe(one)
        if one.identity not in ("", now.identity):
            raise UsageError(f"{one.uri} is another one than when the run was planned", fix="run again")
        return _fact(name, now, one.uri, seconds=time.monotonic() - began, fetched=0)
    known = one if one.identity else program.describe(one, os.environ)

    def download(lock: Any) -> None:
        nonlocal fetched, checked
        size, files = memory_text(known.size or 0), count_text(known.files or 0, "file")
        _say(f"data '{name}': bringing {known.name}, {size} in {files}")
        brought = program.bring(known, cache, os.environ, lock)
        fetched, checked = brought.bytes, brought.checked

    def wait() -> None:
        _say(f"data '{name}': waiting for another process that brings {known.name}")

    held.enter_context(cache.hold(known.identity, download, wait))
    record, files = cache.record(known.identity), cache.files(known.identity)
    assert record is not None, "what is held is there"
    place = hub_place(known.uri)
    if place is not None:
        link(cache_folder(os.environ), place, known.revision, files, [row[0] for row in record["files"]])
    seconds = time.monotonic() - began
    if fetched:
        speed = memory_text(fetched / max(seconds, 0.001))
        _say(f"data '{name}': {memory_text(fetched)} in {time_text(seconds)} ({speed}/s), {checked} files checked")
    return _fact(name, known, str(files / record["at"]), seconds=seconds, fetched=fetched)


def _fact(name: str, data: StepData, path: str, *, seconds: float, fetched: int) -> dict[str, Any]:
    about = {"name": name, "uri": data.uri, "revision": data.revision, "identity": data.identity, "size": data.size}
    return {**about, "path": path.rstrip("/"), "seconds": seconds, "fetched": fetched}


def _is_used_in_place(folder: str, cache: Cache, settings: DataCache | None) -> bool:
    """Whether a folder of the node is used where it is: unless the settings name a cache on another file system."""
    if not _is_chosen(settings):
        return True
    cache.folder.mkdir(parents=True, exist_ok=True)
    try:
        return os.stat(folder).st_dev == os.stat(cache.folder).st_dev
    except FileNotFoundError:
        return True


def _is_chosen(settings: DataCache | None) -> bool:
    """Whether the settings say where this node's cache is."""
    return settings is not None and bool(value_or(settings.folder, None))


def _variables(cache: Cache, settings: DataCache | None) -> dict[str, str]:
    """The variables by which libraries keep what the step itself downloads in the node's cache, too.

    One that is set stays; a library's usual folder that is there stays where no folder is set for the cache.
    """
    found, usual = {}, Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    moved = _is_chosen(settings)
    for variable, folder in _HOMES.items():
        if variable not in os.environ and (moved or not (usual / folder).is_dir()):
            found[variable] = str(cache.folder / folder)
    if "HF_HOME" in found and "HF_TOKEN_PATH" not in os.environ:
        found["HF_TOKEN_PATH"] = str(usual / "huggingface" / "token")  # where `hf auth login` has put it
    return found


def _say(text: str) -> None:
    sys.stderr.write(f"stoker: {text}\n")
    sys.stderr.flush()
