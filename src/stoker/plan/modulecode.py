"""Modules of the user's own as a digest sees them: their names, their code, which is not imported for it, and what they
change in packages."""

from __future__ import annotations

import functools
import os
import re
import sys
from types import CodeType, ModuleType
from typing import Any, Final, Iterable, Sequence

from stoker.core.usercode import is_own_package, is_user_class, is_user_file, is_user_module
from stoker.core.values import lazy_pattern
from stoker.plan.installed import module_spec

_ABSENT: Final = object()


def module_label(module: ModuleType) -> str:
    """A module's name for labels: of the user's own the file name, since a script is `__main__` where it runs."""
    file: str | None = getattr(module, "__file__", None)
    if not file or not is_user_module(module):
        return module.__name__
    stem = os.path.splitext(os.path.basename(file))[0]
    return os.path.basename(os.path.dirname(file)) if stem == "__init__" else stem


def imported_label(name: str, module: ModuleType | None) -> str:
    return module_label(module) if name == "__main__" and module is not None else name


def package_of(name: str, module: ModuleType | None) -> str:
    """The package in which a module's relative imports are resolved."""
    if module is not None:
        return str(vars(module).get("__package__") or "")
    spec = module_spec(name)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return name if is_package else name.rpartition(".")[0]


def module_code(name: str, module: ModuleType | None) -> CodeType | None:
    """The code of a module of the user's own, which is not imported for it; None for any other module."""
    if module is not None:
        file = getattr(module, "__file__", None)
        if not file or not is_user_file(file) or not file.endswith((".py", ".pyw")):
            return None
        return _file_code(file)
    if not name or is_own_package(name):
        return None
    try:
        spec = module_spec(name)
        if spec is None or not spec.origin or not is_user_file(spec.origin):
            return None
        get_code: Any = getattr(spec.loader, "get_code", None)
        code = get_code(name) if get_code is not None else None
    except (ImportError, SyntaxError, OSError, ValueError):  # the step's import reports it
        return None
    return code if isinstance(code, CodeType) else None


def _file_code(file: str) -> CodeType | None:
    try:
        status = os.stat(file)
        return _compiled(file, status.st_mtime_ns, status.st_size)
    except (SyntaxError, OSError, ValueError):
        return None


@functools.lru_cache(maxsize=256)
def _compiled(file: str, mtime: int, size: int) -> CodeType:
    with open(file, "rb") as source:
        return compile(source.read(), file, "exec", dont_inherit=True)


_ASSIGNMENT: Final = lazy_pattern(r"^[ \t]*(?!self\.|cls\.)([^\W\d]\w*(?:\.[^\W\d]\w*)+)[ \t]*=(?!=)", re.MULTILINE)
_SETATTR: Final = lazy_pattern(r"\bsetattr\(\s*([^\W\d][\w.]*)\s*,\s*[\"']([^\W\d]\w*)[\"']")


def patches(modules: Iterable[ModuleType]) -> Iterable[tuple[tuple[str, ...], Any]]:
    """(path, value) of attributes of packages that the user's modules assign, such as `json.dumps = mine`.

    The modules that these import are looked at, too, since importing one is enough for a change.
    """
    remaining = list(modules)
    visited: set[int] = set()
    while remaining:
        module = remaining.pop()
        file = getattr(module, "__file__", None)
        if id(module) in visited or not is_user_module(module):
            continue
        visited.add(id(module))
        names = set()
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            if isinstance(name, str):
                names.add(name)
        remaining += [sys.modules[name] for name in names if name in sys.modules]
        for path in _assigned_paths(file) if file else ():
            owner = vars(module).get(path[0])
            for attribute in path[1:-1]:
                owner = getattr(owner, "__dict__", {}).get(attribute)
            if isinstance(owner, ModuleType):
                own = is_user_module(owner)
            elif isinstance(owner, type):
                own = is_user_class(owner)
            else:
                continue
            value = vars(owner).get(path[-1], _ABSENT)
            if not own and value is not _ABSENT:
                yield (owner.__name__, path[-1]), value


def _assigned_paths(file: str) -> Sequence[tuple[str, ...]]:
    try:
        status = os.stat(file)
        return _paths_in(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        return ()


@functools.lru_cache(maxsize=1024)
def _paths_in(file: str, mtime: int, size: int) -> Sequence[tuple[str, ...]]:
    """The dotted names that a file's source assigns to."""
    if not file.endswith((".py", ".pyw")):
        return ()
    with open(file, encoding="utf-8", errors="replace") as source:
        text = source.read()
    paths = {tuple(match[1].split(".")) for match in _ASSIGNMENT.finditer(text)}
    paths |= {(*match[1].split("."), match[2]) for match in _SETATTR.finditer(text)}
    return sorted(paths)
