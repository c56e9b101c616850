"""A program for Kubeflow Pipelines 2 with its components as steps, and its pipelines as pipelines of Stoker's.

A component's function keeps its body: what it wrote to the path of an output is returned as a `Path`. What is said of a
task becomes options of the call. A pipeline with conditions, or with a loop that is no `.map`, becomes a dynamic one.
"""

from __future__ import annotations

import ast
import copy
import re
from typing import Sequence

from stoker.core.errors import SourceError
from stoker.migrate.kfpcomponents import (
    GUIDE,
    INSTEAD,
    KfpPart,
    KfpProgram,
    fields_of,
    keywords_of,
    kind_of,
    last_name,
    rewrite_component,
)
from stoker.migrate.kfptasks import KfpPipeline
from stoker.migrate.scripts import Translation, named_imports


def translate(text: str, path: str) -> Translation:
    """The program with steps and pipelines of Stoker's."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise SourceError(f"is not Python: {error.msg}", where=f"{path}:{error.lineno}") from None
    program = KfpProgram(text if text.endswith("\n") else f"{text}\n")
    program.starts = [0]
    for line in program.text.encode().splitlines(keepends=True):
        program.starts.append(program.starts[-1] + len(line))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and kind_of(node)]
    tuples = program.tuples = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in functions:
        if node not in tree.body:
            program.notes.by_hand(node.lineno, node.name, "is in a function: a step is a function of the module")
        if kind_of(node) == "pipeline":
            names = fields_of(node.returns, tuples)
            program.pipelines.add(node.name)
            program.parts[node.name] = KfpPart(node.name, list(names) if names else ["Output"])
        else:
            rewrite_component(program, node, tuples)
    for node in functions:
        if kind_of(node) == "pipeline":
            KfpPipeline(program, node).rewrite()
    _program_calls(program, tree, functions)
    if not functions:
        program.notes.by_hand(1, "kfp", f"no @dsl.component or @dsl.pipeline is here: {GUIDE}")
    made = _finished(program, tree)
    return Translation(text=made, framework="KFP", notes=program.notes.made)


def _program_calls(program: KfpProgram, tree: ast.Module, functions: Sequence[ast.FunctionDef]) -> None:
    """What the program does with its pipelines."""
    clients: dict[str, ast.Assign] = {}
    used: dict[str, int] = {}
    for node in ast.walk(tree):
        value = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        if isinstance(node, ast.Assign) and last_name(value) == "Client" and isinstance(node.targets[0], ast.Name):
            clients[node.targets[0].id] = node
        elif isinstance(node, ast.Expr) and isinstance(value, ast.Call):
            name = ast.unparse(value.func)
            if name.endswith("Compiler().compile"):
                program.remove(node)
                program.notes.not_needed(node.lineno, "compile", "`stoker plan FILE --render` prints KFP's YAML")
            elif name in ("local.init", "kfp.local.init"):
                program.remove(node)
                program.notes.not_needed(node.lineno, name, "without a stack a pipeline runs on this machine")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            used[node.id] = used.get(node.id, 0) + 1
        if isinstance(node, ast.Call) and last_name(node) == "create_run_from_pipeline_func":
            given = keywords_of(node)
            function = node.args[0] if node.args else given.get("pipeline_func")
            arguments = node.args[1] if len(node.args) > 1 else given.get("arguments")
            if function is None:
                continue
            words = f"**{program.source(arguments)}" if arguments is not None else ""
            program.replace(node, f"{program.source(function)}({words})")
            dropped = sorted(set(given) - {"pipeline_func", "arguments"})
            if dropped:
                program.notes.differs(
                    node.lineno, ", ".join(dropped), "is not carried: `stoker run` has options for it"
                )
            if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                used[node.func.value.id] = used.get(node.func.value.id, 0) - 1
    for name, made in clients.items():
        if not used.get(name):
            program.remove(made)
            program.notes.not_needed(made.lineno, "Client", "the stack says where Kubeflow is")


def _finished(program: KfpProgram, tree: ast.Module) -> str:
    """The text with all edits, without what has nothing to do any more, and with Stoker's imports."""
    data = program.text.encode()
    for start, end, new in sorted(program.edits, key=lambda one: (one[0], one[1]), reverse=True):
        data = data[:start] + new.encode() + data[end:]
    text = data.decode()
    try:
        made = ast.parse(text)
    except SyntaxError as error:
        raise SourceError(
            f"was not migrated: it would be no Python: {error.msg}", where=f"line {error.lineno}"
        ) from error
    lines = text.splitlines()
    gone: set[int] = set()
    for node in ast.walk(made):
        for block in ("body", "orelse", "finalbody"):
            body = getattr(node, block, [])
            if isinstance(body, list) and len(body) > 1:
                passing = [one for one in body if isinstance(one, ast.Pass)]
                passing = passing[1:] if len(passing) == len(body) else passing
                gone |= {one.lineno for one in passing if lines[one.lineno - 1].strip() == "pass"}
    imports = [node for node in ast.walk(made) if isinstance(node, (ast.Import, ast.ImportFrom)) and _is_kfp(node)]
    names = {one.asname or one.name.partition(".")[0] for node in imports for one in node.names}
    left = [one for one in ast.walk(made) if isinstance(one, ast.Name) and one.id in names]
    _leftovers(program, tree, made, left)
    ours = [*_standard(text, tree), *named_imports(text)]
    ours += [f"from stoker import {name}" for name in ("each", "log_metadata", "log_metrics") if f"{name}(" in text]
    for node in imports:
        kept = [one for one in node.names if (one.asname or one.name.partition(".")[0]) in {each.id for each in left}]
        gone |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        clause = copy.copy(node)
        clause.names = kept
        indent = " " * node.col_offset
        lines[node.lineno - 1] = f"{indent}{ast.unparse(clause)}" if kept else f"{indent}pass"
        if kept or node not in made.body:
            gone.discard(node.lineno)
    first = next((one.lineno for one in imports if one in made.body), 1)
    result = []
    for number, line in enumerate(lines, 1):
        if number == first:
            result += ours
        if number not in gone:
            result.append(line)
    return "\n".join(result).rstrip("\n") + "\n"


def _leftovers(program: KfpProgram, tree: ast.Module, made: ast.Module, left: Sequence[ast.Name]) -> None:
    """Note what else of KFP's the program uses."""
    places: dict[str, list[int]] = {}
    for old in ast.walk(tree):
        if isinstance(old, (ast.Attribute, ast.Name)):
            places.setdefault(ast.unparse(old), []).append(old.lineno)
    parents = {id(one.value): one for one in ast.walk(made) if isinstance(one, ast.Attribute)}
    for one in left:
        top = one
        while id(top) in parents and ast.unparse(parents[id(top)]) in places:
            top = parents[id(top)]  # type: ignore[assignment]
        name = ast.unparse(top)
        for where in places.get(name, [1]):
            message = INSTEAD.get(name.rpartition(".")[2], f"is KFP's: {GUIDE}")
            program.notes.by_hand(where, name, message)


def _standard(text: str, tree: ast.Module) -> list[str]:
    """Imports of the standard library that the text needs now, and did not have."""
    had = {one.asname or one.name for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) for one in n.names}
    modules = [
        f"import {name}" for name in ("json", "subprocess", "tempfile") if f"{name}." in text and name not in had
    ]
    rows = (("pathlib", "Path"), ("typing", "Annotated"))
    return [
        *modules,
        *(f"from {module} import {n}" for module, n in rows if re.search(rf"\b{n}\b", text) and n not in had),
    ]


def _is_kfp(node: ast.Import | ast.ImportFrom) -> bool:
    names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
    return any(name.partition(".")[0] in ("kfp", "kfp_kubernetes") for name in names)
