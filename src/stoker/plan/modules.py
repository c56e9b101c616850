"""Modules as a digest sees them: whose they are, their names and versions, and their code without importing them."""

from __future__ import annotations

import functools
import os
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Final

import stoker.core

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_OURS: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(stoker.core.__file__))), "")


@functools.cache
def is_own_file(filename: str) -> bool:
    """Whether a code object's file is the user's own: not standard library, not installed, not Stoker's."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    path = os.path.abspath(filename)
    if path.startswith((_STANDARD, _OURS)):
        return False
    return _INSTALLED.isdisjoint(path.split(os.sep))


def is_own_module(module: ModuleType) -> bool:
    """Whether a module is the user's own; `__main__` is, in a notebook as well."""
    file = getattr(module, "__file__", None)
    if file:
        return is_own_file(file)
    if module.__name__ == "__main__":
        return True
    # A namespace package has folders and no file; a module without either is built in, unless somebody made it by hand.
    folders = list(getattr(module, "__path__", ()))
    if folders:
        return any(is_own_file(os.path.join(folder, "__init__.py")) for folder in folders)
    return module.__name__.partition(".")[0] not in sys.stdlib_module_names


def label_of_module(module: ModuleType) -> str:
    """A module's name for digests: the user's own go by their files, for a script is `__main__` where it runs."""
    file: str | None = getattr(module, "__file__", None)
    if not file or not is_own_module(module):
        return module.__name__
    stem = os.path.splitext(os.path.basename(file))[0]
    return os.path.basename(os.path.dirname(file)) if stem == "__init__" else stem


def version_of(name: str) -> str:
    """The version of the package that a module belongs to, where the package says it; "" for others."""
    top = name.partition(".")[0]
    # Stoker's own version is not in it: an upgrade must not run everything again.
    if top == "stoker" or top in sys.stdlib_module_names:
        return ""
    found: Any = vars(sys.modules[top]).get("__version__", "") if top in sys.modules else ""
    return found if isinstance(found, str) else ""


def spec_of(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec` it imports no package around it."""
    parent = name.rpartition(".")[0]
    path: Any = None
    if parent:
        found = spec_of(parent)
        if found is None or found.submodule_search_locations is None:
            return None
        path = found.submodule_search_locations
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path) if find is not None else None
        except KeyError:  # a part of a namespace package whose parent is not imported: as good as not found
            continue
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def code_of(name: str) -> CodeType | None:
    """The code of a module of the user's own, not imported for it; None for everything else."""
    top = name.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top == "stoker":
        return None
    try:
        spec = spec_of(name)
        if spec is None or not spec.origin or not is_own_file(spec.origin):
            return None
        get: Any = getattr(spec.loader, "get_code", None)
        code = get(name) if get is not None else None
    except (ImportError, SyntaxError, OSError, ValueError):  # the step's own import will say so
        return None
    return code if isinstance(code, CodeType) else None
