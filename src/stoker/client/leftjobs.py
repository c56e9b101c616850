"""Jobs that runs without a driver left on the platforms of all stacks: looked up, and ended."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Collection, Final, Iterator, Mapping

from stoker import stacks
from stoker.backends.base.backend import LeftJob
from stoker.backends.registry import BACKENDS
from stoker.settings.options import is_backend
from stoker.store.access import create_file, make_folders

_PARTS: Final = "usual-parts"
"""The home's folder of backends that runs had and no file names: a document for each backend with its settings."""


def left_jobs(home: str, runs: Collection[str]) -> list[LeftJob]:
    """The jobs of these runs that go on, or whose results wait to be adopted.

    Raises `BackendError` where a platform does not answer.
    """
    options = parts_by_backend(home)
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.left_jobs is not None:
            jobs += backend.left_jobs(options.get(name, []), f"{home}/scratch", runs)
    return jobs


def end_left_jobs(home: str, run: str, *, grace: float) -> list[LeftJob]:
    """End the jobs of a run that go on, with so many seconds to leave; returns them. Results are kept."""
    options = parts_by_backend(home)
    jobs: list[LeftJob] = []
    for name, backend in BACKENDS.parts():
        if backend.end_left is not None:
            jobs += backend.end_left(options.get(name, []), f"{home}/scratch", run, grace)
    return jobs


def parts_by_backend(home: str) -> dict[str, list[Mapping[str, Any]]]:
    """The settings of every part of a stack, and of what runs of this home had beside their stacks, by backend."""
    options: dict[str, list[Mapping[str, Any]]] = {}
    for stack in stacks.stacks():
        for component in stack.parts.values():
            options.setdefault(component.flavor, []).append(component.options)
    for flavor, settings in _remembered_parts(home):
        if settings not in options.setdefault(flavor, []):
            options[flavor].append(settings)
    return options


def remember_part(home: str, flavor: str, settings: Mapping[str, Any]) -> None:
    """Keep the settings of a backend that no file names, so that what a run leaves there is found later."""
    text = json.dumps({"backend": flavor, "settings": settings}, sort_keys=True)
    folder = os.path.join(home, _PARTS)
    make_folders(folder)
    file = os.path.join(folder, f"{hashlib.sha256(text.encode()).hexdigest()}.json")
    if not os.path.exists(file):
        beside = f"{file}.{os.getpid()}"
        with os.fdopen(create_file(beside, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as written:
            written.write(text)
        os.replace(beside, file)


def _remembered_parts(home: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(Path(home, _PARTS).glob("*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        if is_backend(document["backend"]):
            yield document["backend"], document["settings"]
