"""The code that a value refers to, as it is now: the classes and functions whose names are kept with an artifact."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any, Callable, Final

from stoker.core.usercode import script_module
from stoker.core.values import frozen
from stoker.plan.digest import FunctionCode, read_code_of, read_module_code
from stoker.plan.recipes import remember_code

log = logging.getLogger(__name__)

MISSING: Final = "missing"
"""The digest of a name that leads nowhere."""


@frozen
class NamedCode:
    """What a name stands for."""

    digest: str
    """The digest of its code and of what that reaches; `MISSING` if the name leads nowhere any more."""
    packages: tuple[str, ...] = ()
    """The packages that the code names."""


class InputCode:
    """Finds and reads the code of names; each once in a run.

    `report` is told each name that leads nowhere any more.
    """

    def __init__(self, report: Callable[[str], None] = log.warning) -> None:
        self._report = report
        self._readings: dict[str, NamedCode] = {}

    def read(self, name: str) -> NamedCode:
        """The code of "module:qualified.name"; of a module that is not imported here, all of the module's code."""
        reading = self._readings.get(name)
        if reading is None:
            reading = self._readings[name] = _read(name)
            if reading.digest == MISSING:
                code = name.replace(":", ".")
                self._report(f"an input refers to {code}, which cannot be found any more: steps that take it run again")
        return reading


def _read(name: str) -> NamedCode:
    module_name, _, qualname = name.partition(":")
    module = _loaded(module_name)
    if module is None:
        code = read_module_code(module_name)
        if code is None:
            return NamedCode(digest=MISSING)
        return _named(code)
    value: Any = module
    for part in qualname.split("."):
        value = vars(value).get(part) if hasattr(value, "__dict__") else None
        if value is None:
            return NamedCode(digest=MISSING)
    return _named(read_code_of({"": value}))


def _named(code: FunctionCode) -> NamedCode:
    remember_code(code.digest, (code,))
    return NamedCode(digest=code.digest, packages=code.packages)


def _loaded(name: str) -> ModuleType | None:
    module = sys.modules.get(name)
    if module is None:
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        if main is not None and file and script_module(file) == name:
            return main
    return module
