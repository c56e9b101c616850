"""Names that a script gets from its main block: where steps run, `if __name__ == "__main__":` is not true.

A step that reads such a name would find another value than the driver has, or none, and its cache key would hold the
driver's. What is certain is told: the main block assigns the name itself, or by a function that only it calls, and the
value is not the one that the rest of the module gives.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import os
import types
from typing import Any, Final, Iterable, Iterator, Mapping

from stoker.core.values import frozen
from stoker.plan.codereading import read_code

_STORES: Final = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_LOADS: Final = frozenset({"LOAD_NAME", "LOAD_GLOBAL"})


@frozen(kw_only=True)
class _Block:
    """What a script's main block does to the names of the module."""

    stored: Mapping[str, int]
    """Name → the first line of the block that says it, of names that the block itself assigns."""
    declared: Mapping[str, str]
    """Name → the function that assigns it, after `global`, and that only the block calls."""
    elsewhere: Mapping[str, Any]
    """Names that the rest of the module assigns → the value, where that is one literal; `_UNKNOWN` otherwise."""


_UNKNOWN: Final = object()
_NOTHING: Final = _Block(stored={}, declared={}, elsewhere={})


def names_of_main_block(functions: Iterable[types.FunctionType]) -> Iterator[str]:
    """Names that functions read and a script's main block sets, each with its place: `RATE (train.py:13)`.

    Functions of a module that is not the program of this process have none.
    """
    found: dict[str, str] = {}
    for function in functions:
        scope = function.__globals__
        if scope.get("__name__") != "__main__":
            continue
        block = _block_of(function.__code__.co_filename)
        for name in sorted({path[0] for path in read_code(function.__code__).paths}):
            place = _place(name, block, scope, os.path.basename(function.__code__.co_filename))
            if place:
                found.setdefault(name, f"{name} ({place})")
    yield from found.values()


def _place(name: str, block: _Block, scope: Mapping[str, Any], file: str) -> str:
    """Where the main block, or what it calls, sets a name; empty if the module's own value holds."""
    if name not in scope:
        return ""
    value = block.elsewhere.get(name, _UNKNOWN)
    if value is not _UNKNOWN and type(value) is type(scope[name]) and value == scope[name]:
        return ""
    if name in block.stored:
        # A module that is imported in both places is one module.
        same = isinstance(scope[name], types.ModuleType) and name in block.elsewhere
        return "" if same else f"{file}:{block.stored[name]}"
    if name in block.declared and (name not in block.elsewhere or value is not _UNKNOWN):
        return f"{file}, {block.declared[name]}()"
    return ""


def _block_of(file: str) -> _Block:
    try:
        status = os.stat(file)
        return _read(file, status.st_mtime_ns, status.st_size)
    except (SyntaxError, OSError, ValueError):
        return _NOTHING


@functools.lru_cache(maxsize=16)
def _read(file: str, mtime: int, size: int) -> _Block:
    with open(file, "rb") as source:
        tree = ast.parse(source.read(), file)
    inside: list[ast.stmt] = []
    outside: list[ast.stmt] = []
    for statement in tree.body:
        if isinstance(statement, ast.If) and _asks_for_main(statement.test):
            inside += statement.body
            outside += statement.orelse
        else:
            outside.append(statement)
    if not inside:
        return _NOTHING
    main, rest = _compiled(inside, file), _compiled(outside, file)
    stored = {name: _line_of(name, inside) for name in _names(main, _STORES)}
    bodies = {one.co_name: one for one in rest.co_consts if isinstance(one, types.CodeType)}
    at_import = _called(_names(rest, _LOADS), bodies)
    by_main = _called(_names(main, _LOADS), bodies) - at_import
    declared = {name: function for function in sorted(by_main) for name in _names(bodies[function], {"STORE_GLOBAL"})}
    return _Block(stored=stored, declared=declared, elsewhere=_values(outside, rest))


def _asks_for_main(test: ast.expr) -> bool:
    """Whether an expression is `__name__ == "__main__"`, either way round."""
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        return False
    sides = (test.left, test.comparators[0])
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides) and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def _compiled(statements: list[ast.stmt], file: str) -> types.CodeType:
    return compile(ast.Module(body=statements, type_ignores=[]), file, "exec", dont_inherit=True)


def _names(code: types.CodeType, operations: Iterable[str]) -> list[str]:
    """The names in a code object's own instructions of some kinds; not of the code inside it."""
    return [str(item.argval) for item in dis.get_instructions(code) if item.opname in operations]


def _line_of(name: str, statements: list[ast.stmt]) -> int:
    """The first line at which statements say a name; the line of the first, if they say it in another form."""
    nodes = (node for statement in statements for node in ast.walk(statement))
    lines = [node.lineno for node in nodes if isinstance(node, ast.Name) and node.id == name]
    return min(lines, default=statements[0].lineno)


def _called(names: Iterable[str], bodies: Mapping[str, types.CodeType]) -> set[str]:
    """The functions of a module among some names, and those that these name in turn."""
    reached: set[str] = set()
    remaining = list(names)
    while remaining:
        name = remaining.pop()
        if name in bodies and name not in reached:
            reached.add(name)
            remaining += [path[0] for path in read_code(bodies[name]).paths]
    return reached


def _values(statements: list[ast.stmt], code: types.CodeType) -> Mapping[str, Any]:
    """Names that statements assign → the value, where the name is assigned once and that is a literal."""
    names = _names(code, _STORES)
    values: dict[str, Any] = dict.fromkeys(names, _UNKNOWN)
    for statement in statements:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and names.count(target.id) == 1:
                with contextlib.suppress(ValueError):
                    values[target.id] = ast.literal_eval(value)
    return values
