"""How a worker finds a function, and an error with a fix for a function that it could not find.

The digest of a function's code comes from `plan.digest`; a step's plan has both.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Callable, Final

from stoker.core.errors import SourceError
from stoker.core.protocol import FunctionSource
from stoker.core.usercode import script_module

_FIX: Final = "define it with def at module level and hand over what it needs as parameters"


def locate(function: Callable[..., Any], where: str) -> FunctionSource:
    """How a worker finds a function; a `SourceError` says what to change if it could not."""
    function = _unwrap(function)
    module_name = getattr(function, "__module__", None) or ""
    qualname = getattr(function, "__qualname__", "")
    if not qualname:
        raise SourceError(
            f"{type(function).__name__} has no name by which a worker could find it", where=where, fix=_FIX
        )
    module = sys.modules.get(module_name)
    if module_name == "__main__" and _is_interactive(module, function):
        return FunctionSource(kind="pickled", module="__main__", qualname=qualname, argv=_argv())
    if "<lambda>" in qualname:
        raise SourceError("a lambda has no name by which a worker could find it", where=where, fix=_FIX)
    if "<locals>" in qualname:
        outer = qualname.partition(".<locals>")[0]
        raise SourceError(
            f"'{function.__name__}' is defined inside '{outer}', where a worker cannot find it", where=where, fix=_FIX
        )
    if module is None:
        raise SourceError(f"'{qualname}' is of module '{module_name}', which is not imported", where=where, fix=_FIX)
    _check_findable(function, module, qualname, where)
    return _source(module, module_name, qualname, where)


def pickled(function: Callable[..., Any]) -> bytes:
    """The pickle of a function that is in no file, as in a notebook, with all that it needs."""
    import cloudpickle

    return cloudpickle.dumps(_unwrap(function))  # type: ignore[no-any-return]


def _unwrap(function: Any) -> Any:
    return getattr(function, "__stoker_function__", function)


def _is_interactive(main: ModuleType | None, function: Any) -> bool:
    """Whether `__main__` is a notebook, a prompt, `-c` or stdin, or the function was typed after `python -i`."""
    if main is None or not getattr(main, "__file__", None):
        return True
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename in ("<stdin>", "<string>", "<console>")


def _check_findable(function: Any, module: ModuleType, qualname: str, where: str) -> None:
    target: Any = module
    for part in qualname.split("."):
        target = getattr(target, part, None)
    if _unwrap(target) is function:
        return
    name = module.__name__
    if target is None:
        raise SourceError(
            f"module '{name}' has no '{qualname}': a worker cannot find the function",
            where=where,
            fix=f"keep the function under its own name, {qualname}",
        )
    raise SourceError(
        f"'{qualname}' of module '{name}' is another object by now: a worker would find that one",
        where=where,
        fix="give the two different names; a decorator of your own goes below @step and uses functools.wraps",
    )


def _source(module: ModuleType, name: str, qualname: str, where: str) -> FunctionSource:
    file = getattr(module, "__file__", None)
    path = os.path.abspath(file) if file else ""
    spec = getattr(module, "__spec__", None)
    if name == "__main__":
        # `python -m package.module` is importable under its real name; `python folder` has no such name.
        real = getattr(spec, "name", "__main__")
        if real == "__main__":
            if not os.path.isfile(path):
                raise SourceError(
                    f"'{qualname}' is in the main module of an archive, {path}, which no worker can run",
                    where=where,
                    fix="put the steps into another module of the archive, and import it from __main__.py",
                )
            return FunctionSource(
                kind="script",
                module=script_module(path),
                qualname=qualname,
                path=path,
                root=os.path.dirname(path),
                argv=_argv(),
            )
        name = real
    if not path:
        if spec is None and name not in sys.builtin_module_names:
            raise SourceError(f"module '{name}' was not imported from a file", where=where, fix="put it into a file")
        return FunctionSource(kind="module", module=name, qualname=qualname, argv=_argv())
    # A script that this process has imported in place of its own program: values name its classes after `__main__`.
    is_program = sys.modules.get("__main__") is module and module.__name__ != "__main__"
    root = None if is_program else _root(name, path)
    if root is None:
        # Or loaded from its path under another name, as some tools do.
        return FunctionSource(
            kind="script", module=name, qualname=qualname, path=path, root=os.path.dirname(path), argv=_argv()
        )
    return FunctionSource(kind="module", module=name, qualname=qualname, path=path, root=root, argv=_argv())


def _argv() -> tuple[str, ...]:
    return tuple(map(str, sys.argv))


def _root(name: str, path: str) -> str | None:
    """The folder from which `import name` finds the file; None if its path does not match the module's name."""
    folder, base = os.path.split(path)
    parts = name.split(".")
    if base.partition(".")[0] != "__init__":
        if base.partition(".")[0] != parts[-1]:
            return None
        parts.pop()
    for part in reversed(parts):
        folder, last = os.path.split(folder)
        if last != part:
            return None
    return folder
