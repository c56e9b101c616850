"""`import metaflow` means `stoker.flow`: the hooks by which files run that were written for another system, unchanged.

A process has a hook by `StandIn.install`, and those that it starts by `PYTHONPATH`: a folder there has a module of the
system's name that installs the hook. Where a worker gets no variables of the driver's, a function's source says which
hooks it needs.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Mapping

from stoker.core.errors import RefusedName, StokerError, UsageError

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # its module imports importlib.resources, and with it shutil and tempfile, which no worker loads


class StandIn:
    """A module of Stoker's that stands for another system's: `metaflow` and its modules are `target` and those below.

    `refused` are packages that belong to the system and are not here, each with the sentence that says so.
    """

    def __init__(self, name: str, target: str, refused: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.target = target
        self._refused = refused or {}
        stoker = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        self._folder = os.path.join(stoker, "integrations", name, "children")
        """The folder that processes which this one starts find the system's name in."""
        self._told = f"STOKER_{name.upper()}"
        """The variable that says that a process above has told of the hook."""

    def install(self) -> None:
        """Let the system's modules be `target` and those below it, here and in processes that start here."""
        if self.is_installed():
            return
        loaded = sys.modules.get(self.name)
        if loaded is not None and loaded is not sys.modules.get(self.target):
            file = getattr(loaded, "__file__", None)
            raise UsageError(
                f"{self.name} is imported already, from {file}", fix="call install() before the first import"
            )
        paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.meta_path.insert(0, _Hook(self, inherited=self._folder in paths))
        os.environ["PYTHONPATH"] = os.pathsep.join([self._folder, *(path for path in paths if path != self._folder)])
        if os.environ.get(self._told) is None:
            os.environ[self._told] = "1"
            sys.stderr.write(f"stoker: `import {self.name}` means {self.target} here{self._instead_of()}\n")

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Let the system's modules mean `target` for what runs in the block, and no longer: for code of somebody else's
        package that imports it, where the program itself does not."""
        if self.is_installed():
            yield
            return
        installed = self._take_modules()
        hook = _Hook(self, inherited=False)
        sys.meta_path.insert(0, hook)
        try:
            yield
        finally:
            sys.meta_path.remove(hook)
            self._take_modules()
            sys.modules.update(installed)

    def _take_modules(self) -> dict[str, ModuleType]:
        """Forget all modules of the system that are imported; they by name."""
        names = [name for name in sys.modules if name.partition(".")[0] == self.name]
        return {name: sys.modules.pop(name) for name in names}

    def offer(self) -> None:
        """Install the hook as soon as the system is imported where no package of that name is installed."""
        if not self.is_installed() and not any(
            isinstance(finder, _Offer) and finder.stand_in is self for finder in sys.meta_path
        ):
            sys.meta_path.append(_Offer(self))

    def is_installed(self) -> bool:
        """Whether the hook is on in this process."""
        return self._hook() is not None

    def program(self) -> str:
        """How a person runs a file: `python`, or what installs the hook for a file that does not do so itself."""
        hook = self._hook()
        return f"python -m {self.target}" if hook is not None and hook.inherited else "python"

    def is_there(self) -> bool:
        """Whether a package of the system's name is installed."""
        return self._installed_package() is not None

    def refuse(self, root: str) -> None:
        """Refuse a package that belongs to the system."""
        if root in self._refused:
            raise RefusedName(self._refused[root])

    def run_main(self, words: str) -> None:
        """`python -m TARGET FILE …`: `python FILE …` with the hook; `words` stand for what follows the file, in whose
        place `-m MODULE` may stand."""
        try:
            is_module = sys.argv[1:2] == ["-m"] and len(sys.argv) > 2
            if not is_module and (len(sys.argv) < 2 or sys.argv[1].startswith("-")):
                raise UsageError("no file is named", fix=f"python -m {self.target} FILE {words}")
            if not is_module and not os.path.isfile(sys.argv[1]):
                raise UsageError(f"there is no file {sys.argv[1]}", fix=f"python -m {self.target} FILE {words}")
            self.install()
        except StokerError as error:
            sys.stderr.write(f"error: {error}\n")
            sys.exit(error.exit_code)
        own = len(sys.orig_argv) - len(sys.argv) + 1
        module = (self.target, f"{self.target}.__main__")
        flags = [word for word in sys.orig_argv[1:own] if word != "-m" and word.removeprefix("-m") not in module]
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *flags, *sys.argv[1:]])

    def _hook(self) -> _Hook | None:
        return next((one for one in sys.meta_path if isinstance(one, _Hook) and one.stand_in is self), None)

    def _installed_package(self) -> str | None:
        """The file of the installed package."""
        spec = PathFinder.find_spec(self.name, [path for path in sys.path if path != self._folder])
        return None if spec is None else spec.origin or self.name

    def _instead_of(self) -> str:
        installed = self._installed_package()
        return "" if installed is None else f", and not {os.path.dirname(installed)}"


METAFLOW: Final = StandIn(
    "metaflow",
    "stoker.flow",
    {
        "metaflow_extensions": "extensions of Metaflow are not loaded here: docs/flows.md has what there is of theirs; "
        "write a decorator with @user_step_decorator"
    },
)
ZENML: Final = StandIn("zenml", "stoker.integrations.zenml")
STAND_INS: Final = (METAFLOW, ZENML)


class _Hook(Loader):
    """Finds the system's modules, and loads each as the module object of Stoker's that it stands for."""

    def __init__(self, stand_in: StandIn, *, inherited: bool) -> None:
        self.stand_in = stand_in
        self.inherited = inherited
        """Whether a process above has it."""
        self._specs: dict[str, Any] = {}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        self.stand_in.refuse(root)
        return ModuleSpec(fullname, self, is_package=True) if root == self.stand_in.name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self.stand_in.target + spec.name[len(self.stand_in.name) :])
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put this import's spec into it.
        spec = module.__spec__
        module.__spec__ = self._specs.pop(spec.name) if spec is not None else None


class _Offer:
    """The last finder of all: installs the hook for a system that nothing else has."""

    def __init__(self, stand_in: StandIn) -> None:
        self.stand_in = stand_in

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if fullname != self.stand_in.name:
            return None
        self.stand_in.install()
        hook = self.stand_in._hook()
        return None if hook is None else hook.find_spec(fullname)
