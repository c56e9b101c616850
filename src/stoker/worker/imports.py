"""Watches imports, and knows what a fresh process is to import before it is forked.

Who waits for a module is called right after it was executed, before the code that imports it sees it. A process of its
own imports numpy anew in each step, which takes longer than the process itself: what a step imported is reported with
its result, and the next process for the same step is forked from a server that has imported it already.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Final, Iterable, Mapping, Sequence

from stoker.core.usercode import is_user_module


def call_on_import(names: Iterable[str], check: Callable[[str], None]) -> Callable[[], None]:
    """Call `check` once for each of these packages, right after it is executed; returns what ends the watch.

    What `check` raises comes out of the import.
    """
    finder = _WatchingFinder(set(names) - sys.modules.keys(), check)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        with contextlib.suppress(ValueError):  # the list was replaced, or the watch ended already
            sys.meta_path.remove(finder)

    return end


def call_once_imported(names: Iterable[str], check: Callable[[str], None]) -> None:
    """Call `check` once for each of these packages: at once for those that are imported already, as in a fork of a
    process that has imported them, and right after its import for each other one."""
    wanted = list(names)
    for name in filter(sys.modules.__contains__, wanted):
        check(name)
    call_on_import(wanted, check)


def replace(module: ModuleType, name: str, function: Any) -> None:
    """Replace a function of a module, and the parent package's name for it if that is the same function."""
    original = getattr(module, name)
    setattr(module, name, function)
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    if getattr(package, name, None) is original:
        setattr(package, name, function)


class _WatchingFinder:
    """Finds a watched package where Python finds it, with a loader around its own that calls back."""

    def __init__(self, names: set[str], check: Callable[[str], None]) -> None:
        self._names = names
        self._check = check
        self._looking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """A watched package's spec with a reporting loader; None for every other one."""
        if name not in self._names or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.now = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _ReportingLoader(spec.loader, self._on_executed)  # type: ignore[assignment]
        return spec

    def _on_executed(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._check(name)


class _ReportingLoader:
    """Executes a package by its own loader, which the package gets back first, and then calls back."""

    def __init__(self, loader: Any, on_executed: Callable[[str], None]) -> None:
        self._loader = loader
        self._on_executed = on_executed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that its own loader creates."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Execute the package, and report it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._on_executed(module.__name__)


FORKABLE: Final[Mapping[str, str]] = {
    # OpenBLAS: driver/others/memory.c, `pthread_atfork`; https://numpy.org/doc/stable/reference/global_state.html
    "numpy": "OpenBLAS ends its threads before a fork and starts them again with the next large product",
    "scipy": "its OpenBLAS does what numpy's does, and scipy.fft starts threads when it is called with workers",
    # https://arrow.apache.org/docs/cpp/threading.html: pools are created on first use, and anew after a fork
    "pandas": "it starts no threads; pyarrow, which it imports, makes its pool of threads anew after a fork",
    # https://scikit-learn.org/stable/faq.html: a fork is a problem only after a parallel region of OpenMP was run
    "sklearn": "libgomp starts threads with the first parallel region, and an import runs none",
    # https://docs.pytorch.org/docs/stable/notes/multiprocessing.html: a fork is a problem once CUDA is initialized
    "torch": "no import touches a device, and its pools of threads start with the first parallel operator",
}
"""Package → why processes that are forked after its import compute as if each had imported it.

JAX and TensorFlow start threads when they are imported, which a fork does not copy.
"""

_TUNING: Final = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "NUMEXPR_",
    "NPY_", "SCIPY_", "SKLEARN_", "ARROW_", "TORCH_", "PYTORCH_", "ATEN_",
)  # fmt: skip


def tuning(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that such packages read once, when they are imported: how many threads they start, and the like."""
    return {name: value for name, value in environment.items() if name.startswith(_TUNING)}


def load(names: Iterable[str]) -> tuple[str, ...]:
    """Import packages of `FORKABLE`; returns those that this process had not imported before, and could."""
    loaded: list[str] = []
    for name in names:
        if name in FORKABLE and name not in sys.modules:
            try:
                importlib.import_module(name)
            except Exception:  # a package's own code; the step that imports it meets the same error
                continue
            loaded.append(name)
    return tuple(loaded)


class ImportWatch:
    """What the step of a fresh process imports, counted from the fork. `preloaded` were imported for it before."""

    def __init__(self, preloaded: Iterable[str]) -> None:
        self._before = {name for name in FORKABLE if name in sys.modules}.difference(preloaded)
        self._tuning = tuning(os.environ)

    def seen(self) -> tuple[str, ...]:
        """The packages of `FORKABLE` that a process for this step may find imported.

        None if the step changed a variable that they read when they are imported: it has to import them itself.
        """
        if tuning(os.environ) != self._tuning:
            return ()
        names = [name for name in FORKABLE if name in sys.modules and name not in self._before]
        return tuple(name for name in names if not is_user_module(sys.modules[name]))
