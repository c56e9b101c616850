"""Writes a stack into a file of stacks, and leaves every other byte of the file as it is."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final, Mapping

from stoker import stacks
from stoker.core.errors import SettingsError, UsageError

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def target_file(start: Path) -> tuple[Path, str]:
    """The file that a new stack is written to, and what stands before its keys: the nearest file of stacks, or a new
    stoker.toml in `start`."""
    for folder in (start, *start.parents):
        if (folder / stacks.FILE).is_file():
            return folder / stacks.FILE, ""
        pyproject = folder / stacks.PYPROJECT
        if pyproject.is_file() and "[tool.stoker" in pyproject.read_text(encoding="utf-8"):
            return pyproject, "tool.stoker."
    return start / stacks.FILE, ""


def with_stack(
    text: str, prefix: str, name: str, orchestrator: Mapping[str, str], *, replace: bool, store: str = ""
) -> str:
    """The file's text with a stack; the stack is the one that is meant when nobody says, if the file names none.

    `store` is the URI of its artifact store, empty for the usual one.
    Raises `UsageError` where the file has the stack and `replace` is False, or where it stands in a way that cannot be
    replaced without touching other lines.
    """
    if not replace:
        refuse_taken(text, prefix, name)
    document = stacks.parse_toml(text)
    own = _table(document, prefix)
    if name in own.get("stacks", {}):
        text = _without(text, f"{prefix}stacks.{name}")
        if name in _table(stacks.parse_toml(text), prefix).get("stacks", {}):
            raise UsageError(
                f"the stack '{name}' is not written as tables of its own",
                fix="remove it by hand, or give another --name",
            )
    lines = [f"[{prefix}stacks.{_key(name)}]", f"artifact_store = {_quoted(store)}", ""] if store else []
    lines.append(f"[{prefix}stacks.{_key(name)}.orchestrator]")
    lines += [f"{field} = {_quoted(value)}" for field, value in orchestrator.items()]
    body = text.rstrip("\n")
    result = f"{body}\n\n" if body else ""
    result += "\n".join(lines) + "\n"
    if "stack" not in own:
        result = _with_default(result, prefix, name)
    _require_same(document, stacks.parse_toml(result), prefix, name)
    return result


def refuse_taken(text: str, prefix: str, name: str) -> None:
    """Raise `UsageError` where a file's text has a stack of this name."""
    if name in _table(stacks.parse_toml(text), prefix).get("stacks", {}):
        raise UsageError(f"there is a stack called '{name}' already", fix="give another --name, or --force")


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its name, then rename it; a link stays one, and the mode what it was."""
    path = path.resolve()
    descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(beside, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask)
        os.replace(beside, path)
    except OSError:
        os.unlink(beside)
        raise


def _table(document: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
    for part in filter(None, prefix.split(".")):
        document = document.get(part, {})
    return document


def _without(text: str, dotted: str) -> str:
    """The text without the tables of this name and those below it."""
    parts = dotted.split(".")
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line)
        if header is not None:
            names = [part.strip().strip("\"'") for part in header[1].split(".")]
            inside = names[: len(parts)] == parts
        if not inside:
            kept.append(line)
    return "".join(kept)


def _with_default(text: str, prefix: str, name: str) -> str:
    """The text with the name of the stack that is meant when nobody says; such a key stands before all tables."""
    line = f"stack = {_quoted(name)}\n"
    if not prefix:
        return f"{line}\n{text}"
    header = re.search(r"^\[tool\.stoker\][ \t]*(?:#.*)?\n", text, re.MULTILINE)
    if header is not None:
        return text[: header.end()] + line + text[header.end() :]
    return f"{text}\n[tool.stoker]\n{line}"


def _require_same(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str, name: str) -> None:
    """Refuse a text in which anything else than the stack and the default has changed."""

    def rest(document: Mapping[str, Any]) -> Any:
        own = _table(document, prefix)
        others = {key: value for key, value in own.get("stacks", {}).items() if key != name}
        around = {key: value for key, value in document.items() if not prefix or key != "tool"}
        tools = {key: value for key, value in document.get("tool", {}).items() if key != "stoker"} if prefix else {}
        mine = {key: value for key, value in own.items() if key not in ("stack", "stacks")}
        return others, mine, tools, {} if not prefix else around

    if rest(before) != rest(after):
        raise SettingsError("the stack cannot be added without changing others", fix="add it by hand")


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _quoted(name)


def _quoted(value: str) -> str:
    """A basic string: https://toml.io/en/v1.0.0#string"""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
