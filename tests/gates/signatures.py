"""What users call, with its types: `python -m tests.gates.signatures` writes docs/signatures.txt."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

FILE = Path(__file__).resolve().parents[2] / "docs" / "signatures.txt"
MODULES = ("stoker", "stoker.config", "stoker.flow")


def listed() -> str:
    """Every public name with its signature, and every command with its options, a line each."""
    from stoker.cli.main import group

    names = [line for module in MODULES for line in _names(importlib.import_module(module))]
    return "\n".join([*names, *_commands("stoker", group)]) + "\n"


def _names(module: Any) -> Iterator[str]:
    for name in sorted(module.__all__):
        value, whole = getattr(module, name), f"{module.__name__}.{name}"
        yield f"{whole}{_signature(value)}"
        for part in sorted(vars(value)) if inspect.isclass(value) else ():
            attribute = inspect.getattr_static(value, part)
            if not part.startswith("_") and (callable(attribute) or isinstance(attribute, (property, staticmethod))):
                found = attribute.fget if isinstance(attribute, property) else getattr(value, part)
                yield f"{whole}.{part}{_signature(found)}"


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    words, named = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            words.append("*")
        named = named or one.kind in (one.VAR_POSITIONAL, one.KEYWORD_ONLY)
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        words.append(f"{mark}{one.name}{_text(one.annotation, ': ')}{_text(one.default, ' = ')}")
    return f"({', '.join(words)}){_text(signature.return_annotation, ' -> ')}"


def _text(value: Any, before: str) -> str:
    if value is inspect.Parameter.empty:
        return ""
    words = value if isinstance(value, str) and before != " = " else repr(value)
    return before + re.sub(r" at 0x[0-9a-f]+|<class '([\w.]+)'>", r"\1", words)


def _commands(words: str, command: click.Command) -> Iterator[str]:
    options = [option for one in command.params if isinstance(one, click.Option) for option in one.opts]
    arguments = [str(one.name).upper() for one in command.params if isinstance(one, click.Argument)]
    yield " ".join([words, *arguments, *sorted(options)])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _commands(f"{words} {name}", below)


if __name__ == "__main__":
    FILE.write_text(listed(), encoding="utf-8")
