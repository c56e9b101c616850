"""Watches imports: calls back right after a module was executed, before the code that imports it sees it."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Iterable, Sequence


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
