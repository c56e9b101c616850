"""Formatting, ruff's rules, and our two rules about `except` that no linter knows."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def ruff(repository: Path, *arguments: str) -> str:
    """What ruff complains about, nothing if all is well."""
    finished = subprocess.run(
        [str(Path(sys.executable).with_name("ruff")), *arguments, "."],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if finished.returncode == 0 else finished.stdout + finished.stderr


def test_format(repository: Path) -> None:
    assert not ruff(repository, "format", "--check", "--quiet"), "run `make format`"


def test_rules(repository: Path) -> None:
    complaints = ruff(repository, "check", "--output-format=concise")
    assert not complaints, complaints


def broad_handlers(text: str) -> Iterator[tuple[int, str]]:
    """(line, complaint) for every handler that catches everything and does not say why."""
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield node.lineno, "bare except"
            continue
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {name.id for name in caught if isinstance(name, ast.Name)}
        if names & {"Exception", "BaseException"} and "#" not in lines[node.lineno - 1]:
            yield node.lineno, "catches everything without a comment on its line that says whose code is called"


def test_broad_handlers_say_why(repository: Path) -> None:
    wrong = [
        f"{path.relative_to(repository)}:{line}: {complaint}"
        for path in sorted((repository / "src").rglob("*.py"))
        for line, complaint in broad_handlers(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("handler", "fine"),
    [
        ("except ValueError:", True),
        ("except Exception:  # the step's code", True),
        ("except Exception:", False),
        ("except (OSError, BaseException):", False),
        ("except:", False),
    ],
)
def test_the_measure(handler: str, fine: bool) -> None:
    assert list(broad_handlers(f"try:\n    f()\n{handler}\n    pass\n")) is not fine
