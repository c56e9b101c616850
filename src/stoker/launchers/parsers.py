"""Arguments of an installed launcher, read from its own `argparse` parser: what a newer version has works, too."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Final, Mapping

from stoker.core.errors import MissingPackage
from stoker.core.launch_arguments import Argument, Kind
from stoker.core.plugins import resolve

KINDS: Final[Mapping[Any, Kind]] = {int: "int", float: "float", bool: "truth", str: "text", None: "text"}


def installed(target: str, extra: str) -> Mapping[str, Argument]:
    """The arguments of the parser that the function at `target` makes; none where its package is not installed."""
    try:
        make: Callable[[], argparse.ArgumentParser] = resolve(target, extra=extra)
    except (MissingPackage, ImportError, AttributeError):
        return {}
    return arguments_of(make())


def arguments_of(parser: argparse.ArgumentParser) -> dict[str, Argument]:
    """Every option of a parser by its Python name; positional ones are the program, which is Stoker's worker."""
    found: dict[str, Argument] = {}
    for action in parser._actions:
        if action.option_strings and action.dest not in {"help", *found}:
            found[action.dest] = _argument(action)
    return found


def _argument(action: argparse.Action) -> Argument:
    flag = next((flag for flag in action.option_strings if flag.startswith("--")), action.option_strings[0])
    choices = tuple(str(choice) for choice in action.choices or ())
    if action.nargs == 0:
        return Argument("flag", flag=flag)
    if isinstance(action, argparse._AppendAction) or action.nargs in {"*", "+"} or isinstance(action.nargs, int):
        return Argument("texts", choices, flag=flag)
    kind: Kind = KINDS.get(action.type, "text")
    if kind == "text" and not choices and action.default in ("true", "false"):
        kind = "yesno"
    return Argument(kind, choices, flag=flag)
