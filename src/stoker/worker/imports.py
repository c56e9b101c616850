"""Sees frameworks being imported, and has the vendors of the step's devices ask them whether they can use these."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Iterable, Sequence

from stoker.core import status
from stoker.core.devices import Device
from stoker.vendors.base import FrameworkCheck
from stoker.vendors.builds import Problem
from stoker.vendors.registry import by_vendor


def watch(names: Iterable[str], check: Callable[[str], None]) -> Callable[[], None]:
    """Call `check` once for each of these packages, right after it has been executed; what is returned ends the watch.

    What `check` raises comes out of the import.
    """
    finder = _Finder(set(names) - sys.modules.keys(), check)
    sys.meta_path.insert(0, finder)

    def end() -> None:
        with contextlib.suppress(ValueError):  # somebody has put another list there, or ended the watch already
            sys.meta_path.remove(finder)

    return end


class _Finder:
    """Finds a watched package where Python finds it, and puts a loader around it that calls back."""

    def __init__(self, names: set[str], check: Callable[[str], None]) -> None:
        self._names = names
        self._check = check
        self._looking = threading.local()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The import system's question; none of ours unless the package is watched and not yet seen."""
        if name not in self._names or getattr(self._looking, "now", False):
            return None
        self._looking.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.now = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self._seen)  # type: ignore[assignment]
        return spec

    def _seen(self, name: str) -> None:
        if name in self._names:
            self._names.discard(name)
            self._check(name)


class _Loader:
    """A package's own loader, which it has back before its first line runs; then the callback."""

    def __init__(self, loader: Any, seen: Callable[[str], None]) -> None:
        self._loader = loader
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """What its own loader makes."""
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Execute the package; a look at what came of it."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._seen(module.__name__)


def asked(name: str, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    """What an imported framework says of the devices, as a fact; and why it cannot use them, if it cannot."""
    module = sys.modules.get(name)
    facts: list[str] = []
    for vendor, held in by_vendor(devices).items():
        question = vendor.frameworks.get(name)
        if module is None or question is None:
            continue
        fact, problem = _answer(name, module, question, held)
        if problem is not None:
            return "", problem
        facts.append(fact)
    return "; ".join(filter(None, facts)), None


def _answer(name: str, module: Any, question: FrameworkCheck, devices: Sequence[Device]) -> tuple[str, Problem | None]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            fact, problem = question(module, devices)
            raised = []
        except Exception as error:  # a framework's own code, which raises what it likes where a driver fails
            fact, problem, raised = "", None, [f"{type(error).__name__}: {error}"]
    texts = [*raised, *(str(one.message) for one in warned)]
    if raised or (problem is not None and texts):
        return "", _classified(name, texts, problem)
    return fact, problem


def _classified(name: str, said: Sequence[str], problem: Problem | None) -> Problem:
    """What a framework raised or warned of, by the table of failures; the problem that is known where it has no row."""
    from stoker.worker import signatures  # read when something failed: the table costs a start 2 ms

    found = signatures.known(said, "")
    if found is not None:
        row, line = found
        return Problem(cause=row.cause, sentence=f"{name}: {row.why} ({line})", fix=row.advice)
    if problem is not None:
        return problem
    fix = "see whether `nvidia-smi` works here, and import it by hand"
    return Problem(cause=status.DRIVER_BROKEN, sentence=f"{name} fails to look for devices: {said[0]}", fix=fix)
