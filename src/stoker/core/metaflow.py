"""`import metaflow` means `stoker.flow`: the hook by which files run that were written for Metaflow, unchanged.

A process has it by `install`, and those that it starts by `PYTHONPATH`: a folder there has a module `metaflow` that
installs the hook. Where a worker gets no variables of the driver's, a function's source says that it needs the hook.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from stoker.core.errors import RefusedName, UsageError

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # its module imports importlib.resources, and with it shutil and tempfile, which no worker loads

_NAME: Final = "metaflow"
_TARGET: Final = "stoker.flow"
_EXTENSIONS: Final = "metaflow_extensions"
_FOLDER: Final = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "integrations", "metaflow", "children"
)
"""The folder that processes which this one starts find `metaflow` in."""
_TOLD: Final = "STOKER_METAFLOW"
"""The variable that says that a process above has told of the hook."""


def install() -> None:
    """Let `metaflow` and its modules be `stoker.flow` and those below it, here and in processes that start here."""
    if is_installed():
        return
    loaded = sys.modules.get(_NAME)
    if loaded is not None and loaded is not sys.modules.get(_TARGET):
        file = getattr(loaded, "__file__", None)
        raise UsageError(f"metaflow is imported already, from {file}", fix="call install() before the first import")
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.meta_path.insert(0, _Hook(inherited=_FOLDER in paths))
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *(path for path in paths if path != _FOLDER)])
    if os.environ.get(_TOLD) is None:
        os.environ[_TOLD] = "1"
        sys.stderr.write(f"stoker: `import metaflow` means stoker.flow here{_instead_of()}\n")


@contextlib.contextmanager
def served() -> Iterator[None]:
    """Let `metaflow` mean `stoker.flow` for what runs in the block, and no longer: for code of somebody else's package
    that imports it, where the program itself does not."""
    if is_installed():
        yield
        return
    installed = _take_modules()
    hook = _Hook(inherited=False)
    sys.meta_path.insert(0, hook)
    try:
        yield
    finally:
        sys.meta_path.remove(hook)
        _take_modules()
        sys.modules.update(installed)


def _take_modules() -> dict[str, ModuleType]:
    """Forget all modules of `metaflow` that are imported; they by name."""
    names = [name for name in sys.modules if name.partition(".")[0] == _NAME]
    return {name: sys.modules.pop(name) for name in names}


def is_installed() -> bool:
    """Whether the hook is on in this process."""
    return _hook() is not None


def _hook() -> _Hook | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Hook)), None)


def program() -> str:
    """How a person runs a flow's file: `python`, or what installs the hook for a file that does not do so itself."""
    hook = _hook()
    return f"python -m {_TARGET}" if hook is not None and hook.inherited else "python"


def is_there() -> bool:
    """Whether a package `metaflow` is installed."""
    return _installed_package() is not None


def _installed_package() -> str | None:
    """The file of the installed package `metaflow`."""
    spec = PathFinder.find_spec(_NAME, [path for path in sys.path if path != _FOLDER])
    return None if spec is None else spec.origin or _NAME


def _instead_of() -> str:
    installed = _installed_package()
    return "" if installed is None else f", and not {os.path.dirname(installed)}"


class _Hook(Loader):
    """Finds `metaflow` and its modules, and loads each as the module object of `stoker.flow` that it stands for."""

    def __init__(self, *, inherited: bool) -> None:
        self.inherited = inherited
        """Whether a process above has it."""
        self._specs: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root == _EXTENSIONS:
            raise RefusedName(
                "extensions of Metaflow are not loaded here: docs/flows.md has what there is of theirs; write a "
                "decorator with @user_step_decorator"
            )
        return ModuleSpec(fullname, self, is_package=True) if root == _NAME else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(_TARGET + spec.name[len(_NAME) :])
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put this import's spec into it.
        spec = module.__spec__
        module.__spec__ = self._specs.pop(spec.name) if spec is not None else None
