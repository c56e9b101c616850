"""Finds a step's function in a worker's process.

A script is run under a name of its own, never as `__main__`, so that its main block stays quiet; a pipeline called
outside a main block ends the import there (`core.request.NotTheDriver`), with all that was defined before in place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any, Callable

from stoker.core import request
from stoker.core.errors import SourceError
from stoker.core.protocol import FunctionSource
from stoker.core.standins import METAFLOW, ZENML


def function_of(source: FunctionSource, read: Callable[[str], bytes]) -> Callable[..., Any]:
    """The plain function that a source names; `read` fetches an artifact's bytes by digest."""
    _prepare(source)
    if source.kind == "pickled":
        import pickle

        sys.argv = list(source.argv) or sys.argv

        return unwrap(pickle.loads(read(source.digest)))
    return unwrap(object_of(source))


def object_of(source: FunctionSource) -> Any:
    """The object that a source names in its module: a function, or the `Step` or `Pipeline` around it."""
    value: Any = module_of(source)
    for part in source.qualname.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            raise SourceError(
                f"{source.module} has no '{source.qualname}' here",
                where=source.path,
                fix="define the step at module level, above the call of the pipeline",
            ) from None
    return value


def module_of(source: FunctionSource) -> ModuleType:
    """The user's module, imported once a process."""
    _prepare(source)
    if source.root and source.root not in sys.path:
        sys.path.insert(0, source.root)
    # As the children of `multiprocessing` have it; the function may read it, too.
    sys.argv = list(source.argv) or sys.argv
    name = source.module
    loaded = sys.modules.get(name)
    if loaded is not None and (source.kind != "script" or _same_file(loaded, source.path)):
        return loaded
    before, request.WORKER = request.WORKER, True
    try:
        module = _script(name, source.path) if source.kind == "script" else _module(name)
        _parse_flags()
        return module
    finally:
        request.WORKER = before


def _prepare(source: FunctionSource) -> None:
    for needed, stand_in in ((source.metaflow, METAFLOW), (source.zenml, ZENML)):
        if needed:
            stand_in.install()


def _parse_flags() -> None:
    """Parse the flags of absl, which a script's main block parses in the driver only."""
    flags: Any = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    if flags is not None and not flags.is_parsed():
        with contextlib.suppress(Exception):  # a step that reads a flag then gets absl's own error
            flags(sys.argv, known_only=True)


class _UncachedLoader(SourceFileLoader):
    """Runs a file's source as it is now, never a compiled copy of it.

    Python takes a copy for current when the file's size and the second of its last change are the same. The driver,
    for which the script is `__main__`, has no copy: after a quick edit it would hash new code, and workers run the old.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        try:
            data = self.get_data(path)
        except OSError as error:
            raise SourceError(f"the user's code cannot be read: {error}", where=path) from None
        code: CodeType = self.source_to_code(data, path)
        return code


def _same_file(module: ModuleType, path: str) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and os.path.realpath(file) == os.path.realpath(path)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except request.NotTheDriver:
        # A failed import is dropped from sys.modules; what ran up to the pipeline's call is enough.
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SourceError(f"module '{name}' cannot be found by a worker") from None
        return _execute(name, spec.origin, package=spec.parent or "")


def _script(name: str, path: str) -> ModuleType:
    module = _execute(name, path, package="")
    # Values that the driver pickled name their classes after its `__main__`, which is this same file.
    sys.modules["__main__"] = module
    return module


def _execute(name: str, path: str, *, package: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path, loader=_UncachedLoader(name, path))
    if spec is None or spec.loader is None:
        raise SourceError(f"'{path}' is not a Python file that a worker can run")
    module = importlib.util.module_from_spec(spec)
    if package:
        module.__package__ = package
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except request.NotTheDriver:
        return module
    except SystemExit as error:
        sys.modules.pop(name, None)
        raise _exited(error, path) from error
    except BaseException:  # half a module must not stay in sys.modules; raised again
        sys.modules.pop(name, None)
        raise
    return module


def _exited(error: SystemExit, path: str) -> SourceError:
    """The error of a script that ends the process when it is imported."""
    import traceback

    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    place = f"{path}:{frames[-1].lineno}" if frames else path
    return SourceError(
        f"the file ends the process when a worker imports it: exit code {error.code}",
        where=place,
        fix=f'move line {frames[-1].lineno if frames else "?"} below `if __name__ == "__main__":`',
    )


def unwrap(value: Any) -> Callable[..., Any]:
    """The function inside a `Step`; other callables as they are."""
    function = getattr(value, "__stoker_function__", value)
    if not callable(function):
        raise SourceError(f"{value!r} is not a function")
    return function  # type: ignore[no-any-return]
