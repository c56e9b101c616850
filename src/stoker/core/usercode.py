"""Whose code a file, a module or a class is: the user's own, or Python's, an installed package's, Stoker's.

The user's own code counts in cache keys by what it does; all other code counts by the version of its package. Packages
that are installed in editable form lie outside the folders of installed packages, and are the user's own.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from types import ModuleType
from typing import Final

INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Names of the folders of installed packages."""
_STANDARD_LIBRARY: Final = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_STOKER: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether a file is the user's own; so is code that is in no file, unless Python froze it."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    path = os.path.abspath(filename)
    if path.startswith((_STANDARD_LIBRARY, _STOKER)):
        return False
    return INSTALLED.isdisjoint(path.split(os.sep))


def is_user_module(module: ModuleType) -> bool:
    """Whether a module is the user's own, as `__main__` is, in a notebook too."""
    file = getattr(module, "__file__", None)
    if file:
        return is_user_file(file)
    if module.__name__ == "__main__":
        return True
    # A namespace package has folders and no file; a module without either is built in, or was made by hand.
    folders = list(getattr(module, "__path__", ()))
    if folders:
        return any(is_user_file(os.path.join(folder, "__init__.py")) for folder in folders)
    return module.__name__.partition(".")[0] not in sys.stdlib_module_names


def is_user_class(kind: type) -> bool:
    """Whether a class is defined in a module of the user's own that is imported."""
    module = sys.modules.get(kind.__module__)
    return module is not None and is_user_module(module)


def is_own_package(name: str) -> bool:
    """Whether a module's package has no version that counts: the standard library's, built in, or Stoker's."""
    top = name.partition(".")[0]
    return not top or top in {"stoker", "__main__"} or top in sys.stdlib_module_names


def script_module(path: str) -> str:
    """The module name under which a worker runs a script: its file's name, unless that hides another module."""
    stem = os.path.splitext(os.path.basename(path))[0]
    name = re.sub(r"\W", "_", stem)
    # `numbers.py` must not become `numbers` in a process that has yet to import the standard library's.
    if not name.isidentifier() or name.startswith("__") or name in sys.stdlib_module_names:
        name = f"script_{name.strip('_')}"
    return name
