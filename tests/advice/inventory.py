"""Which advice the source gives: the text of each `fix=` and `advice=`, and of each row of the table of failures.

A text that is put together stands with `{…}` in it. What is given by a name is looked up: in the function, in the
module's constants, in what callers in the same module hand over, and in what a function of the module returns. What
cannot be read so (`fix=error.fix`) hands on what another place said, and is no text of its own.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from stoker.worker.signatures import TABLE, own_rows

SOURCE = Path(__file__).resolve().parents[2] / "src" / "stoker"
HOLE = "{…}"

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda"


class Advice(NamedTuple):
    """One text of one module: a row of the table."""

    module: str
    """Path below src/stoker."""
    text: str


class Site(NamedTuple):
    """One `fix=` or `advice=`, and the texts that it may give; none where it hands on another's."""

    module: str
    function: str
    line: int
    texts: tuple[str, ...]


def sites(source: Path = SOURCE) -> list[Site]:
    """Every place of the source that gives advice, in the order of files and lines; then the table of failures."""
    modules = [site for path in sorted(source.rglob("*.py")) for site in _Module(path, source).sites()]
    table = TABLE.relative_to(SOURCE).as_posix()
    return modules + [Site(table, "", 0, (row.advice,)) for row in own_rows()]


def advice(found: list[Site]) -> list[Advice]:
    """The different texts, in order."""
    return sorted({Advice(site.module, text) for site in found for text in site.texts})


def pattern(text: str) -> re.Pattern[str]:
    """What a text looks like when it is said: anything stands for a hole or a field, and lines may be broken."""
    fixed = text.replace("{name}", HOLE).split(HOLE)
    parts = (re.escape(part).replace(r"\ ", r"\s+").replace("\n", r"\s+") for part in fixed)
    return re.compile(r".+?".join(parts), re.DOTALL)


class _Module:
    def __init__(self, path: Path, source: Path) -> None:
        self.name = path.relative_to(source).as_posix()
        self.source = source
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.outer: dict[ast.AST, ast.AST] = {}
        self.functions: dict[str, list[Function]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.outer[child] = node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Call):
                self.calls.setdefault(_called(node), []).append(node)

    def sites(self) -> Iterator[Site]:
        found = [
            (keyword, node)
            for calls in self.calls.values()
            for node in calls
            for keyword in node.keywords
            if keyword.arg in ("fix", "advice")
        ]
        for keyword, call in sorted(found, key=lambda one: (one[1].lineno, one[1].col_offset)):
            texts = sorted({text for text in self.texts(keyword.value, frozenset()) if text.strip("; {…}")})
            functions = [one.name for one in self.around(call) if not isinstance(one, ast.Lambda)]
            yield Site(self.name, functions[0] if functions else "", call.lineno, tuple(texts))

    def around(self, node: ast.AST) -> Iterator[Function]:
        """The functions around a node, innermost first."""
        while node in self.outer:
            node = self.outer[node]
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                yield node

    def texts(self, value: ast.expr, seen: frozenset[ast.AST]) -> Iterator[str]:
        """What an expression may give; a hole alone where it cannot be read."""
        if value in seen:
            return
        seen |= {value}
        if isinstance(value, ast.Constant):
            yield value.value if isinstance(value.value, str) else ""
        elif isinstance(value, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else self.filled(part, seen) for part in value.values
            )
        elif isinstance(value, ast.IfExp):
            yield from self.texts(value.body, seen)
            yield from self.texts(value.orelse, seen)
        elif isinstance(value, ast.BoolOp):
            for operand in value.values:
                yield from self.texts(operand, seen)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            for left in self.texts(value.left, seen):
                for right in self.texts(value.right, seen):
                    yield left + right
        elif isinstance(value, ast.Call) and isinstance(value.func, (ast.Name, ast.Attribute)):
            yield from self.returned(_called(value), seen)
        elif isinstance(value, ast.Name):
            yield from self.named(value, seen)
        elif isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name):
            tables = [one for one in self.bound(value.value.id, self.tree.body) if isinstance(one, ast.Dict)]
            for entry in (entry for table in tables for entry in table.values):
                yield from self.texts(entry, seen)
            if value.value.id.isupper() and not tables:  # the module reads the table from a file
                module = importlib.import_module(f"stoker.{self.name.removesuffix('.py').replace('/', '.')}")
                yield from vars(module)[value.value.id].values()
        else:
            yield HOLE

    def filled(self, part: ast.expr, seen: frozenset[ast.AST]) -> str:
        """A constant of the module in a text is part of the text; all else is a hole."""
        if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id.isupper():
            texts = [text for bound in self.bound(part.value.id, self.tree.body) for text in self.texts(bound, seen)]
            if len(texts) == 1 and texts[0]:
                return texts[0]
        return HOLE

    def returned(self, name: str, seen: frozenset[ast.AST]) -> Iterator[str]:
        functions = self.functions.get(name, ())
        if not functions:
            yield HOLE
        for function in functions:
            for node in ast.walk(function):
                if isinstance(node, ast.Return) and node.value is not None:
                    yield from self.texts(node.value, seen)

    def named(self, name: ast.Name, seen: frozenset[ast.AST]) -> Iterator[str]:
        for function in self.around(name):
            bound = self.bound(name.id, function.body) if not isinstance(function, ast.Lambda) else []
            parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            if bound:
                for value in bound:
                    yield from self.texts(value, seen)
                return
            if name.id in parameters:
                yield from self.handed_over(function, parameters.index(name.id), seen)
                return
        for value in self.bound(name.id, self.tree.body):
            yield from self.texts(value, seen)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and name.id.isupper() and name.id in {one.name for one in node.names}:
                path = self.source.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
                yield from _Module(path, self.source).named(name, seen)

    def handed_over(self, function: Function, position: int, seen: frozenset[ast.AST]) -> Iterator[str]:
        """What callers in this module give by position; what they give by `fix=` is a site of its own."""
        if isinstance(function, ast.Lambda):
            return
        method = isinstance(self.outer.get(function), ast.ClassDef)
        for call in self.calls.get(function.name, ()):
            at = position - method
            if at < len(call.args) and not any(isinstance(one, ast.Starred) for one in call.args):
                yield from self.texts(call.args[at], seen)

    def bound(self, name: str, body: list[ast.stmt]) -> list[ast.expr]:
        """The values that a name is given in statements, those of inner blocks too."""
        values: list[ast.expr] = []
        for statement in body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Assign):
                    for target in node.targets:
                        values += _assigned(target, node.value, name)
                elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
                    values += _assigned(node.target, node.value, name)
        return values


def _assigned(target: ast.expr, value: ast.expr, name: str) -> list[ast.expr]:
    if isinstance(target, ast.Name):
        return [value] if target.id == name else []
    if not isinstance(target, ast.Tuple):
        return []
    if isinstance(value, ast.IfExp):
        return _assigned(target, value.body, name) + _assigned(target, value.orelse, name)
    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
        return [one for left, right in zip(target.elts, value.elts) for one in _assigned(left, right, name)]
    return []


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
