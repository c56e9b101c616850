"""What this machine keeps of images: the Python distributions that one has, and the digest that a name had last.

An image lists its distributions by its own Python, in a container without a network, only when an image is to be built
from it: planning starts nothing, and uses what was read before. By the digest that each reference had when it was last
used, a plan says which tags were moved since.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Final, Mapping

import attrs

from stoker.core.docker import ImageFacts
from stoker.core.errors import BackendError
from stoker.core.packages import canonical
from stoker.images.engine import ImageEngine

SECONDS: Final = 300.0
"""The longest time that a container may take to list what an image has, on a machine with much else to do."""
_LIST: Final = (
    "import importlib.metadata as m, json, platform; found = reversed(list(m.distributions())); "
    "names = {one.metadata['Name']: one.version for one in found if one.metadata['Name']}; "
    "print(json.dumps({'python': platform.python_version(), 'distributions': names}))"
)
"""A program that prints the distributions of its Python; of two with one name the first, which is imported, counts."""


def known_contents(facts: ImageFacts, folder: Path) -> ImageFacts:
    """The facts of an image with the distributions that were read from it before, if they were."""
    document = _read(_path(folder, facts.digest)) if facts.digest else None
    return facts if document is None else _with(facts, document)


def read_contents(facts: ImageFacts, folder: Path, *, engine: ImageEngine) -> ImageFacts:
    """The facts of an image of the engine with its distributions, which its own Python lists.

    They stay as they are if the engine does not have the image, or if the image has no Python.
    """
    facts = known_contents(facts, folder)
    if facts.distributions is not None or engine.kind == "buildah" or not facts.digest:
        return facts
    image_id = engine.id(facts.reference)
    if image_id is None:
        return facts
    words = ["run", "--rm", "--network=none", "--entrypoint=python3", image_id, "-c", _LIST]
    try:
        answer = engine.ask(*words, seconds=SECONDS)
        document = json.loads(answer.stdout) if answer.returncode == 0 else None
    except (BackendError, ValueError):
        return facts
    if not isinstance(document, dict) or not isinstance(document.get("distributions"), dict):
        return facts
    with contextlib.suppress(OSError):  # it is read again next time
        folder.mkdir(parents=True, exist_ok=True)
        path = _path(folder, facts.digest)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(path)
    return _with(facts, document)


def _with(facts: ImageFacts, document: Mapping[str, Any]) -> ImageFacts:
    distributions = {canonical(str(name)): str(version) for name, version in document["distributions"].items()}
    return attrs.evolve(facts, distributions=distributions, python=str(document.get("python") or facts.python))


def _path(folder: Path, digest: str) -> Path:
    return folder / f"contents-{digest.rpartition(':')[2]}.json"


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return document if isinstance(document["distributions"], dict) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None  # absent, or damaged


NAME: Final = "images.json"
_LONGEST: Final = 1000
"""References that are kept; the ones used longest ago go first."""


def last_digests(home: Path) -> dict[str, str]:
    """Digests by reference, the one that was used last at the end; empty where none are kept or they cannot be read."""
    try:
        document = json.loads((home / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {name: digest for name, digest in document.items() if isinstance(name, str) and isinstance(digest, str)}


def keep_digests(home: Path, digests: Mapping[str, str]) -> None:
    """Keep the digests of references that are used now; where the home cannot be written, nothing is kept."""
    known = last_digests(home)
    if all(known.get(name) == digest for name, digest in digests.items()):
        return
    latest = {**{name: digest for name, digest in known.items() if name not in digests}, **digests}
    try:
        with tempfile.NamedTemporaryFile("w", dir=home, prefix=f".{NAME}-", delete=False, encoding="utf-8") as file:
            json.dump(dict(list(latest.items())[-_LONGEST:]), file)
        os.replace(file.name, home / NAME)
    except OSError:  # the next plan cannot tell whether a tag was moved
        return
