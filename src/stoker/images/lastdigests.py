"""The digest that each image reference had when it was last used: a plan says which tags were moved since.

Knows references and digests as texts, and nothing of engines or registries.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Final, Mapping

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
