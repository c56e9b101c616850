"""Which module of Stoker refers to which: imports of every kind, and names of modules that stand in texts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import grimp

DOTTED = re.compile(r"stoker(?:\.\w+)+(?::\w+)?")
"""A text that is nothing but the name of a module, or of something inside one: `"stoker.launchers.mpi:LAUNCHER"`."""
IN_USERS_CODE = ("stoker.migrate",)
"""Their texts are names that are written into somebody's code, and never imported here."""

GROUPS = frozenset(
    f"stoker.{kind}"
    for kind in ("backends", "launchers", "vendors", "serializers", "rules", "causes", "commands", "secrets")
)
"""Names of groups of entry points, some of which are also names of folders."""
LABELS = frozenset({"stoker.run"})
"""Keys of a platform's labels, which are also names of folders."""


def referred_to(path: Path, modules: frozenset[str]) -> Iterator[str]:
    """The modules that a file names in texts."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            if node.value in GROUPS | LABELS:
                continue
            name = node.value.partition(":")[0]
            while name not in modules:
                name = name.rpartition(".")[0]
            if name != "stoker":
                yield name


def by_name(source: Path, modules: frozenset[str]) -> dict[str, set[str]]:
    """module → the modules that it names in texts."""
    references: dict[str, set[str]] = {}
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        if not module.startswith(IN_USERS_CODE):
            references[module] = set(referred_to(path, modules)) - {module}
    return references


def by_import(graph: grimp.ImportGraph) -> dict[str, set[str]]:
    """module → the modules that it imports, also inside functions and for a type checker only."""
    return {
        module: {name for name in graph.find_modules_directly_imported_by(module) if name.startswith("stoker.")}
        for module in graph.modules
        if module == "stoker" or module.startswith("stoker.")
    }


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    result: list[list[str]] = []
    for root in sorted(edges):
        if root in number:
            continue
        number[root] = low[root] = len(number)
        stack.append(root)
        work = [(root, iter(sorted(edges[root])))]
        while work:
            module, rest = work[-1]
            for other in rest:
                if other not in number:
                    number[other] = low[other] = len(number)
                    stack.append(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in stack:
                    low[module] = min(low[module], number[other])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[module])
                if low[module] == number[module]:
                    at = stack.index(module)
                    members = stack[at:]
                    del stack[at:]
                    if len(members) > 1:
                        result.append(sorted(members))
    return result


def all_references(source: Path) -> dict[str, set[str]]:
    """module → the modules that it imports or names in texts."""
    graph = grimp.build_graph("stoker", include_external_packages=False, cache_dir=None)
    named = by_name(source, frozenset(graph.modules))
    return {module: imported | named.get(module, set()) for module, imported in by_import(graph).items()}
