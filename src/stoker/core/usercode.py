"""Whose code a file, a module or a class is: the user's own, or Python's, an installed package's, Stoker's.

The user's own code counts in cache keys by what it does; all other code counts by the version of its package. Packages
that are installed in editable form lie outside the folders of installed packages, and are the user's own.

Also where something stands in the user's code, as a person reads it: "train.py:14".
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from traceback import TracebackException
    from types import FunctionType


_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Names of the folders of installed packages."""
_STANDARD_LIBRARY: Final = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_STOKER: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether a file is the user's own; so is code that is in no file, unless Python froze it."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    path = os.path.abspath(filename)
    return not path.startswith((_STANDARD_LIBRARY, _STOKER)) and not is_package_file(path)


@functools.cache
def is_package_file(filename: str) -> bool:
    """Whether a file is an installed package's: below a folder of such packages, or named by the record of a package
    that was put into any other folder of `sys.path`, as `pip install --target` does."""
    path = os.path.abspath(filename)
    if not _INSTALLED.isdisjoint(path.split(os.sep)):
        return True
    for entry in sys.path:
        folder = os.path.join(os.path.abspath(entry), "")
        if path.startswith(folder) and path[len(folder) :].partition(os.sep)[0] in _recorded(folder):
            return True
    return False


@functools.cache
def _recorded(folder: str) -> frozenset[str]:
    """The files and folders directly below a folder that the records of packages beside them name. Source: the
    specification of installed projects, "The RECORD file" (https://packaging.python.org/specifications/)."""
    names: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if entry.name.endswith(".dist-info"):
                with (
                    contextlib.suppress(OSError),
                    open(os.path.join(entry.path, "RECORD"), encoding="utf-8", errors="surrogateescape") as record,
                ):
                    names.update(line.partition("/")[0].partition(",")[0] for line in record)
    return frozenset(names)


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


def raised_by_user(error: BaseException) -> bool:
    """Whether the user's own code raised an exception, or called the library that did: of the user's frames and
    Stoker's, the innermost is the user's. A mistake of syntax is in the file that it names."""
    if isinstance(error, SyntaxError) and error.filename:
        return is_user_file(error.filename)
    owner = False
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        owner = is_user_file(file) or (owner and not _is_stokers(file))
        trace = trace.tb_next
    return owner


def user_traceback(error: BaseException) -> str:
    """The traceback of an exception as Python writes it, from the user's first line on and without Stoker's lines."""
    import traceback

    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    _leave_out_stoker(shown)
    return "".join(shown.format()).rstrip()


def replaced_functions() -> list[str]:
    """Functions of the standard library that the user's code has replaced, and by what: "json.dumps is dumps (a.py:3)".

    What they answer is what Stoker works with, so that a mistake in one of them looks like a mistake of Stoker's.
    """
    import types

    replaced = []
    for name in sorted(sys.stdlib_module_names & sys.modules.keys() | {"os.path"}):
        for attribute, value in list(vars(sys.modules[name]).items()) if name != "__main__" else ():
            if isinstance(value, types.FunctionType) and _is_users_own(value):
                place = f"{os.path.basename(value.__code__.co_filename)}:{value.__code__.co_firstlineno}"
                replaced.append(f"{name}.{attribute} is {value.__name__} ({place})")
            elif type(value).__module__ == "unittest.mock" and name != "unittest.mock":
                replaced.append(f"{name}.{attribute} is a {type(value).__name__}")
    return replaced


def _is_users_own(function: FunctionType) -> bool:
    """Whether a function is the user's: code in no file counts in `__main__` alone, since compiled extensions of Cython
    put such code into `inspect`."""
    file = function.__code__.co_filename
    return is_user_file(file) and (not file.startswith("<") or function.__globals__.get("__name__") == "__main__")


def replaced_text(error: BaseException, replaced: list[str]) -> str:
    """What is said of an error inside Stoker while functions of the standard library are replaced."""
    return (
        f"{type(error).__name__}: {error}; Stoker met it while functions of Python's library are replaced: "
        f"{', '.join(replaced[:5])}\n  fix: let them answer as Python's own do, or replace them inside the steps only"
    )


def _leave_out_stoker(shown: TracebackException) -> None:
    first = next((number for number, frame in enumerate(shown.stack) if is_user_file(frame.filename)), len(shown.stack))
    shown.stack[:] = [frame for frame in shown.stack[first:] if not _is_stokers(frame.filename)]
    for inner in (shown.__cause__, shown.__context__, *(getattr(shown, "exceptions", None) or ())):
        if inner is not None:
            _leave_out_stoker(inner)


def _is_stokers(filename: str) -> bool:
    return os.path.abspath(filename).startswith(_STOKER)


_STOKER_FOLDER: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_COMMANDS: Final = "click"
"""The library that calls Stoker's commands: nothing below it is the user's, the installed script included."""
_shown: dict[tuple[str, str], str] = {}


def source_line(filename: str, line: int) -> str:
    """A file, relative to the working directory where it lies below it, and a line."""
    folder = _folder()
    name = _shown.get((folder, filename))
    if name is None:
        name = _shown[folder, filename] = _readable(filename, folder)
    return f"{name}:{line}"


def definition_line(function: Any) -> str:
    """Where a function is defined; its first decorator's line where it has one."""
    code = getattr(function, "__code__", None)
    return source_line(code.co_filename, code.co_firstlineno) if isinstance(code, CodeType) else caller()


def caller() -> str:
    """Where the user's code called into Stoker; empty where a command line did."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_STOKER_FOLDER):
            if frame.f_globals.get("__name__", "").partition(".")[0] == _COMMANDS:
                return ""
            if is_user_file(file):
                return source_line(file, frame.f_lineno)
        frame = frame.f_back
    return ""


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # it was removed
        return ""


def _readable(filename: str, folder: str) -> str:
    if filename.startswith("<"):
        return filename
    whole = os.path.abspath(filename) if folder else filename
    prefix = os.path.join(folder, "")
    return whole[len(prefix) :] if folder and whole.startswith(prefix) else os.path.basename(filename)


def own_code() -> tuple[str, ...]:
    """The entries of this process's `sys.path` with the user's own code."""
    entries = dict.fromkeys(entry or os.getcwd() for entry in sys.path)
    return tuple(entry for entry in entries if not is_installed(entry))


def is_installed(path: str) -> bool:
    """Whether a folder belongs to this Python, or to Stoker."""
    import site  # hardly any process asks
    import sysconfig

    real = os.path.realpath(path)
    above_stoker = os.path.dirname(os.path.dirname(_STOKER))
    roots = {*map(os.path.realpath, [above_stoker, *site.getsitepackages(), site.getusersitepackages()])}
    roots |= {os.path.realpath(place) for place in sysconfig.get_paths().values()}
    roots |= {os.path.realpath(os.path.join(prefix, "lib")) for prefix in (sys.prefix, sys.base_prefix)}
    roots |= {os.path.realpath(os.path.join(prefix, "bin")) for prefix in (sys.prefix, sys.base_prefix)}
    return any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots)
