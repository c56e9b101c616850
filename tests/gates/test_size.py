"""A file has one subject and at most 400 lines, a function one job and at most 60."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FILE_LINES = 400
FUNCTION_LINES = 60
"""From its first line to its last, without decorators and docstring."""

ALLOWED: dict[str, tuple[int, str]] = {
    # "engine/machine.py": (450, "why this one may be longer"),
    # "engine/machine.py::Machine.react": (70, "why this one may be longer"),
}
"""What may be longer: up to how many lines, and why. A row that is no longer needed fails."""


def sizes(root: Path) -> Iterator[tuple[str, int, int]]:
    """(name, lines, limit) of every file and every function below a folder."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8")
        yield name, len(text.splitlines()), FILE_LINES
        for qualname, lines in functions(ast.parse(text)):
            yield f"{name}::{qualname}", lines, FUNCTION_LINES


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """(qualified name, lines) of every function, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, length(node)
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(node, f"{prefix}{node.name}." if named else prefix)


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert node.end_lineno is not None
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        docstring = node.body[0]
        assert docstring.end_lineno is not None
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def test_nothing_is_too_long(repository: Path) -> None:
    found = {name: (lines, limit) for name, lines, limit in sizes(repository / "src" / "stoker")}
    assert found
    too_long = [
        f"{name}: {lines} lines, at most {ALLOWED.get(name, (limit,))[0]}"
        for name, (lines, limit) in found.items()
        if lines > ALLOWED.get(name, (limit,))[0]
    ]
    assert not too_long, "split by noun:\n" + "\n".join(too_long)
    unused = [name for name in ALLOWED if name not in found or found[name][0] <= found[name][1]]
    assert not unused, f"take out of ALLOWED what is short enough or gone: {unused}"


def test_every_exception_has_a_reason() -> None:
    assert all(len(reason) > 20 for _, reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f():\n    return 1\n", 2),
        ('def f():\n    """One\n    two."""\n    return 1\n', 2),
        ("@cache\n@other\ndef f(\n    a,\n):\n    return a\n", 4),
    ],
)
def test_the_measure(text: str, lines: int) -> None:
    assert dict(functions(ast.parse(text)))["f"] == lines
