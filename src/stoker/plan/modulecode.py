"""Modules as a digest sees them: the user's own by their code, and installed ones by what identifies their package.

The user's own are not imported for it; what they change in packages counts. A package is identified by the version of
the distribution that it is from, as its metadata says, and only packages that code names are looked up. A distribution
that is installed from a folder, an archive's address or a repository may change under one version, so its files'
digests count beside the version. Packages without a distribution, and extension modules of the user's own, count by
their files.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Final, Iterable, Iterator, Sequence

from stoker.core.usercode import is_own_package, is_user_class, is_user_file, is_user_module
from stoker.core.values import lazy_pattern

_INFO: Final = lazy_pattern(r"(?P<name>.+?)-(?P<version>[^-]+)(-py\d[^-]*)?\.(dist|egg)-info")
_SEPARATORS: Final = lazy_pattern(r"[-_.]+")
_BYTECODE: Final = (b".pyc", b".pyo")


def module_spec(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; unlike `importlib.util.find_spec` it imports no package around it."""
    parent = name.rpartition(".")[0]
    path: Any = None
    if parent:
        package_spec = module_spec(parent)
        if package_spec is None or package_spec.submodule_search_locations is None:
            return None
        path = package_spec.submodule_search_locations
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        try:
            spec = find_spec(name, path) if find_spec is not None else None
        except (KeyError, ImportError, ValueError):  # part of a namespace package whose parent is not imported
            continue
        if isinstance(spec, ModuleSpec):
            return spec
    return None


def package_root(name: str) -> str:
    """The name under which a module's package is distributed: `numpy` of `numpy.linalg`, `google.cloud.storage`.

    Modules directly in a namespace package belong to different distributions. A module of the user's own is its own
    root, and that of its members if it is an extension module; the members of its other modules have none (""), since
    they are code that is read. The root of a name that is a member of a package's module, or is not installed, is its
    first part.
    """
    parts = name.split(".")
    if len(parts) == 1:
        return name
    for count in range(1, len(parts) + 1):
        root = ".".join(parts[:count])
        file = _file(root)
        if file is None:
            return parts[0]
        if file:
            return _own_root(name, root) if is_user_file(file) else root
    return name


def _own_root(name: str, package: str) -> str:
    """The module of the user's own that a name stands for, or is a member of; empty for a member of Python code."""
    if _file(name):
        return name
    while name != package:
        name = name.rpartition(".")[0]
        file = _file(name)
        if file:
            return "" if file.endswith((".py", ".pyw")) else name
    return package


def identity(root: str) -> str:
    """A version, with a digest of files where it does not identify them, or a digest; "absent" if nothing is here."""
    file = _file(root)
    if file is None:
        return "absent"
    if not file:  # a namespace package as a whole: its parts count where they are named
        return "namespace"
    try:
        if is_user_file(file):
            return _files_digest(file)
        depth = root.count(".") + (1 if _is_package(file) else 0)
        folder = os.path.dirname(file)
        for _ in range(depth):
            folder = os.path.dirname(folder)
        owners = _owners(folder, os.stat(folder).st_mtime_ns, os.path.relpath(file, folder).replace(os.sep, "/"))
        if owners and len(owners) == len({_normal(owner.partition("-")[0]) for owner in owners}):
            return " ".join(_version(os.path.join(folder, owner)) for owner in owners)
        # No version, or several of one package: `pip install --target --upgrade` leaves the old one's metadata there.
        return _files_digest(os.path.dirname(file) if _is_package(file) else file)
    except OSError:
        return "unreadable"


def _file(name: str) -> str | None:
    """The file of a module; empty for a namespace package, None for a module that is not here."""
    module = sys.modules.get(name)
    if isinstance(module, ModuleType):
        file = getattr(module, "__file__", None)
        if file:
            return os.path.abspath(str(file))
        if hasattr(module, "__path__"):
            return ""
    spec = module_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations is not None and (spec.origin is None or spec.origin == "namespace"):
        return ""
    return os.path.abspath(spec.origin) if spec.origin and spec.has_location else None


def _is_package(file: str) -> bool:
    return os.path.basename(file).partition(".")[0] == "__init__"


@functools.lru_cache(maxsize=1024)
def _owners(folder: str, mtime: int, file: str) -> Sequence[str]:
    """The metadata folders of the distributions that a file is from; a changed folder is read again."""
    top = file.partition("/")[0].partition(".")[0]
    infos = sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))
    named_alike = [info for info in infos if _normal(info.partition("-")[0]) == _normal(top)]
    # Most are named like what they contain, and nothing else is read then.
    alike = tuple(info for info in named_alike if _contains(os.path.join(folder, info), file, top))
    return alike or tuple(info for info in infos if _contains(os.path.join(folder, info), file, top))


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def _contains(info: str, file: str, top: str) -> bool:
    record = _read(os.path.join(info, "RECORD"))
    if record is not None:
        line = file.encode() + b","
        return record.startswith(line) or b"\n" + line in record
    names = _read(os.path.join(info, "top_level.txt"))
    return names is not None and top in names.decode("utf-8", "replace").split()


def _version(info: str) -> str:
    """A distribution's version; with a digest of its files where the version does not identify them."""
    match = _INFO.fullmatch(os.path.basename(info))
    version = match["version"] if match is not None else _written_version(info)
    address = _read(os.path.join(info, "direct_url.json"))
    record = _read(os.path.join(info, "RECORD"))
    if address is None or record is None:
        return version
    return version + "+" + hashlib.sha256(b"\n".join(_file_lines(record))).hexdigest()[:16]


def _file_lines(record: bytes) -> Iterator[bytes]:
    """The lines of a RECORD about the package's own files, which are the same wherever it is installed."""
    for line in sorted(record.splitlines()):
        path = line.partition(b",")[0]
        if not path.startswith((b"..", b"/")) and not path.endswith(_BYTECODE) and b".dist-info/" not in path:
            yield line


def _written_version(info: str) -> str:
    text = _read(info if os.path.isfile(info) else os.path.join(info, "PKG-INFO")) or b""
    match = re.search(rb"^Version: *(\S+)", text, re.MULTILINE)
    return match[1].decode("utf-8", "replace") if match is not None else ""


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _files_digest(path: str) -> str:
    """The digest of a file, or of all files of a folder but compiled Python; computed once for each state of them."""
    paths = [path] if not os.path.isdir(path) else sorted(_below(path))
    state = tuple((item, *_stamp(item)) for item in paths)
    return _digest_of(path, state)


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


def _below(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(root, name) for name in names)


@functools.lru_cache(maxsize=256)
def _digest_of(path: str, state: tuple[tuple[str, int, int], ...]) -> str:
    hasher = hashlib.sha256()
    for item, _, _ in state:
        with open(item, "rb") as file:
            content = hashlib.sha256(file.read()).digest()
        hasher.update(os.path.relpath(item, os.path.dirname(path)).encode("utf-8", "surrogateescape") + b"\0" + content)
    return f"files {hasher.hexdigest()[:32]}"


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
