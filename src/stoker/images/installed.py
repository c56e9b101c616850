"""Tell folders of the user's own code on `sys.path` from those of this Python and of Stoker."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

_OURS: Final = str(Path(__file__).resolve().parents[2])


def own_code() -> tuple[str, ...]:
    """The entries of this process's `sys.path` with the user's own code."""
    entries = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return tuple(entry for entry in entries if not is_installed(entry))


def is_installed(path: str) -> bool:
    """Whether a folder belongs to this Python, or to Stoker."""
    real = os.path.realpath(path)
    roots = {_OURS, *map(os.path.realpath, [*site.getsitepackages(), site.getusersitepackages()])}
    roots |= {os.path.realpath(place) for place in sysconfig.get_paths().values()}
    roots |= {os.path.realpath(os.path.join(prefix, "lib")) for prefix in (sys.prefix, sys.base_prefix)}
    roots |= {os.path.realpath(os.path.join(prefix, "bin")) for prefix in (sys.prefix, sys.base_prefix)}
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots)
