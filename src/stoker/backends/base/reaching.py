"""What this machine has to reach a platform with: a line of `stoker doctor`. No file is read, and no platform asked."""

from __future__ import annotations

import os
import shutil
from typing import Iterable

from stoker.core.findings import Check


def reach(
    name: str, *, commands: Iterable[str] = (), files: Iterable[str] = (), variables: Iterable[str] = ()
) -> Check:
    """The commands on the PATH, the files and folders (with "~") and the environment's variables that are there."""
    there = [path for command in commands if (path := shutil.which(command)) is not None]
    there += [path for file in files if os.path.exists(path := os.path.expanduser(file))]
    there += [variable for variable in variables if os.environ.get(variable)]
    return Check(name=name, found=", ".join(there) or "nothing to reach it with (optional)")
