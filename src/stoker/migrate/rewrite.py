"""Rewrites a ZenML pipeline or a Metaflow flow as Stoker code: `migrate_source(source)`.

A survey finds what must change in a module: the edits, the imports that it needs, and the notes. Names are resolved by
scope, so a parameter called `step` is left alone. Comments and layout stay: the syntax tree that is changed contains
them. Pure: bytes in, bytes and notes out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from typing import Any, Final, Mapping, Sequence, TypeVar

import attrs
import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from stoker.client import Client
from stoker.core.errors import SourceError, StokerError
from stoker.migrate import calls, metaflow, zenml
from stoker.migrate.calls import Edits
from stoker.migrate.names import Level, MigrationNote, fate_of, is_known, is_source_module
from stoker.migrate.served import (
    Bindings,
    Needed,
    aliases_of,
    binding_of,
    dotted,
    module_of,
    move_imports,
    qualified_name,
    rewrite_import,
)
from stoker.worker.context import Context

_Listed = TypeVar("_Listed", cst.Call, cst.List, cst.Tuple)


@attrs.frozen(kw_only=True)
class Migration:
    """A source file before and after the migration, with notes about its lines."""

    before: bytes
    after: bytes
    notes: Sequence[MigrationNote] = ()
    frameworks: Sequence[str] = ()
    """The frameworks that the file imports: "ZenML", "Metaflow"."""
    lines: Mapping[int, int] = attrs.field(factory=dict, repr=False)
    """Line before → line after, both from 1."""

    @property
    def by_hand(self) -> Sequence[MigrationNote]:
        """The notes about lines that a person must change before the file runs."""
        return [note for note in self.notes if note.level == "by hand"]

    def new_line(self, note: MigrationNote) -> int:
        """The line of a note after the migration: the nearest one that contains the note's name."""
        guess = self.lines.get(note.line, note.line)
        texts = self.after.decode("utf-8", errors="replace").splitlines()
        word = re.compile(rf"\b{re.escape(note.name.rpartition('.')[2])}\b")
        matches = [number for number, text in enumerate(texts, 1) if word.search(text)]
        return min(matches, key=lambda number: abs(number - guess), default=guess)


def migrate_source(source: bytes, where: str) -> Migration:
    """Migrate the source of the file `where`. Raises `SourceError` for a source that is not Python."""
    _check_compiles(source, where)
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise SourceError(f"cannot be read: {error.message}", where=f"{where}:{error.raw_line}") from None
    bindings = Bindings()
    wrapper.visit(bindings)
    frameworks = [name for name, used in (("ZenML", bindings.pipelines), ("Metaflow", bindings.flows)) if used]
    survey = Survey(bindings)
    wrapper.visit(survey)
    survey.finish()
    after = wrapper.module.visit(Rewriting(survey.edits, survey.needed)).bytes
    try:
        compile(after, where, "exec", dont_inherit=True)
    except SyntaxError as error:
        message = f"was not migrated: line {error.lineno} would be no Python: {error.msg}"
        raise StokerError(message, where=where, fix="report this line, and change it by hand first") from error
    return Migration(
        before=source, after=after, notes=survey.notes, frameworks=frameworks, lines=_line_map(source, after)
    )


def migrate_file(source: bytes, where: str) -> Migration:
    """The file in Stoker's own words; where something of ZenML's is left in them, with ZenML's names from
    `stoker.integrations.zenml` instead, if less is left so."""
    migration = migrate_source(source, where)
    if not migration.by_hand or "ZenML" not in migration.frameworks:
        return migration
    moved = move_imports(source, where)
    if len(moved.by_hand) >= len(migration.by_hand):
        return migration
    lines = _line_map(source, moved.after)
    return attrs.evolve(migration, after=moved.after, notes=moved.notes, lines=lines)


class Rewriting(cst.CSTTransformer):
    """Applies the edits of a survey."""

    def __init__(self, edits: Edits, needed: Needed) -> None:
        super().__init__()
        self.edits = edits
        self.needed = needed
        self._depth = 0

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        """Count the depth of blocks."""
        self._depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        """Count the depth of blocks."""
        self._depth -= 1
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Rewrite imports; one statement may become several lines, or none."""
        statements = self._statements(original_node.body, updated_node.body)
        if statements is None:
            return updated_node
        if len(original_node.body) > 1 or len(statements) == 1:
            return updated_node.with_changes(body=statements or [cst.Pass()])
        if not statements:
            if self._depth:
                return updated_node.with_changes(body=[cst.Pass()])
            return updated_node.with_changes(body=[_EMPTY_STATEMENT])
        first = updated_node.with_changes(body=[statements[0]], trailing_whitespace=cst.TrailingWhitespace())
        between = [cst.SimpleStatementLine(body=[one]) for one in statements[1:-1]]
        last = cst.SimpleStatementLine(body=[statements[-1]], trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel([first, *between, last])

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """Rewrite imports in a block on one line: `if ready: from zenml import step`."""
        statements = self._statements(original_node.body, updated_node.body)
        return updated_node if statements is None else updated_node.with_changes(body=statements or [cst.Pass()])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Remove empty statements; the comments above them stay."""
        body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        comments: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            if isinstance(statement, cst.SimpleStatementLine) and statement.body[0] is _EMPTY_STATEMENT:
                comments += statement.leading_lines
                continue
            body.append(statement.with_changes(leading_lines=[*comments, *statement.leading_lines]))
            comments = []
        footer = [*comments, *updated_node.footer]
        return updated_node.with_changes(body=body, footer=footer)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        """Replace a name."""
        return self._expression(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        """Replace a dotted name."""
        return self._expression(original_node, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        """Replace a call, append its new arguments, and move keywords into `.with_options(…)`."""
        if original_node in self.edits.expressions:
            return self.edits.expressions[original_node]
        call = _keep_closing_comma(original_node, updated_node, "args")
        if original_node in self.edits.added:
            call = _with_arguments(call, self.edits.added[original_node])
        moved = self.edits.moved.get(original_node)
        if moved:
            options = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value in moved]
            staying = [arg for arg in call.args if arg not in options]
            with_options = cst.Attribute(value=call.func, attr=cst.Name("with_options"))
            function = cst.Call(func=with_options, args=_without_last_comma(options))
            call = call.with_changes(func=function, args=_without_last_comma(staying))
        return call

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        """Append a keyword to a decorator, with or without a call."""
        arg = self.edits.decorators.get(original_node)
        if arg is None:
            return updated_node
        function = updated_node.decorator
        call = function if isinstance(function, cst.Call) else cst.Call(func=function)
        return updated_node.with_changes(decorator=_with_arguments(call, [arg]))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> Any:
        """Rename, replace or remove an argument."""
        if original_node not in self.edits.arguments:
            return updated_node
        edit = self.edits.arguments[original_node]
        if edit is None:
            return cst.RemoveFromParent()
        changed = updated_node.with_changes(keyword=edit.keyword)
        return changed if edit.value is original_node.value else changed.with_changes(value=edit.value)

    def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> Any:
        """Remove an element of a list."""
        return cst.RemoveFromParent() if original_node in self.edits.elements else updated_node

    def leave_List(self, original_node: cst.List, updated_node: cst.List) -> cst.BaseExpression:
        """Keep the closing comma of a list as it was."""
        return _keep_closing_comma(original_node, updated_node, "elements")

    def _expression(self, original_node: cst.CSTNode, updated_node: cst.BaseExpression) -> cst.BaseExpression:
        replacement = self.edits.expressions.get(original_node)
        if replacement is None:
            return updated_node
        # An expression in parentheses stays in them.
        return replacement.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def _statements(
        self, original: Sequence[cst.BaseSmallStatement], updated: Sequence[cst.BaseSmallStatement]
    ) -> list[cst.BaseSmallStatement] | None:
        """The statements of a line with its imports rewritten; None if none of them changes."""
        line: list[cst.BaseSmallStatement] = []
        changed = False
        for old, new in zip(original, updated):
            statements = rewrite_import(old, self.needed)
            changed = changed or statements is not None
            line += [new] if statements is None else statements
        if not changed:
            return None
        return [statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for statement in line]


_EMPTY_STATEMENT: Final = cst.Pass()
"""Marks a removed statement until `leave_Module` drops its line."""


def _keep_closing_comma(original: _Listed, updated: _Listed, field: str) -> _Listed:
    """The updated node with the original last comma, where elements were removed."""
    elements: Sequence[Any] = getattr(original, field)
    staying: Sequence[Any] = getattr(updated, field)
    if len(elements) == len(staying) or not staying:
        return updated
    return updated.with_changes(**{field: [*staying[:-1], staying[-1].with_changes(comma=elements[-1].comma)]})


def _with_arguments(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """The call with more arguments; whitespace and comment behind the last comma stay last."""
    present = list(call.args)
    last = present[-1].comma if present else cst.MaybeSentinel.DEFAULT
    if not isinstance(last, cst.Comma):
        return call.with_changes(args=_without_last_comma([*map(_with_comma, present), *map(_with_comma, args)]))
    # `f(\n    a=1,\n)`: the new arguments go on the line of the last one.
    plain = [*present[:-1], present[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT), *args]
    return call.with_changes(args=[*map(_with_comma, plain[:-1]), plain[-1].with_changes(comma=last)])


def _with_comma(arg: cst.Arg) -> cst.Arg:
    """The argument with a comma behind it."""
    if isinstance(arg.comma, cst.Comma):
        return arg
    return arg.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))


def _without_last_comma(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """The arguments, the last one without its comma."""
    return [*args[:-1], *(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in args[-1:])]


def _check_compiles(source: bytes, where: str) -> None:
    try:
        compile(source, where, "exec", dont_inherit=True)
    except SyntaxError as error:
        position = f"{where}:{error.lineno}" if error.lineno else where
        raise SourceError(
            f"is not Python: {error.msg}", where=position, fix="mend it first; nothing was changed"
        ) from None
    except ValueError as error:
        raise SourceError(f"is not Python: {error}", where=where) from None


def _line_map(before: bytes, after: bytes) -> dict[int, int]:
    """Each line before → the line after, from 1. Changed lines are paired in order, up to the end of the change."""
    old, new = before.splitlines(), after.splitlines()
    lines: dict[int, int] = {}
    counts = Counter(new)
    unique = {line: index + 1 for index, line in enumerate(new) if counts[line] == 1}
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for index in range(start, end):
            nearest = min(new_start + index - start, max(new_end - 1, new_start)) + 1
            # A line that moved is recognized by its text.
            lines[index + 1] = nearest if kind == "equal" else unique.get(old[index], nearest)
    return lines


_CONTEXT_MEMBERS: Final = frozenset(name for name in dir(Context) if not name.startswith("_"))
_CLIENT_MEMBERS: Final = frozenset(name for name in dir(Client) if not name.startswith("_"))


class Survey(cst.CSTVisitor):
    """Collects `edits`, `needed` and `notes`; call `finish` after the visit."""

    METADATA_DEPENDENCIES = (
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
    )

    def __init__(self, bindings: Bindings) -> None:
        super().__init__()
        self.bindings = bindings
        self.edits = Edits()
        self.needed = Needed(context=bindings.context, flows=bindings.flows, names_in_use=bindings.names)
        self.notes: list[MigrationNote] = []
        self._lines: dict[str, set[int]] = defaultdict(set)
        self._imported: dict[str, int] = {}
        self._keeps_names: dict[str, bool] = {}
        self._rewritten_members: dict[cst.Attribute, str] = {}

    def add_note(self, node: cst.CSTNode, level: Level, name: str, message: str) -> None:
        """Add a note about a node's line."""
        self.notes.append(MigrationNote(line=self._line(node), level=level, name=name, message=message))

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Note imported names that have no replacement, or one that differs."""
        module = module_of(node)
        if not is_source_module(module, flows=self.bindings.flows):
            return False
        if isinstance(node.names, cst.ImportStar):
            self.add_note(node, "by hand", f"{module}.*", "import the names one by one, and migrate again")
            return False
        for alias in node.names:
            qualified = f"{module}.{alias.evaluated_name}"
            fate = fate_of(qualified)
            if fate.kind == "gone":
                self._imported.setdefault(qualified, self._line(alias))
            elif fate.message and fate.kind == "moved":
                self.add_note(alias, "differs", alias.evaluated_name, fate.message)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """Note modules that are imported under a name; a name in the statement itself is no use."""
        for alias in node.names:
            name, full = binding_of(alias)
            if is_source_module(full, flows=self.bindings.flows) and full not in ("zenml", "metaflow") and name != full:
                self.needed.modules.setdefault(name, set())
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Add the number of GPUs to a step that Accelerate launches."""
        launch: cst.Call | None = None
        step: cst.Decorator | None = None
        for decorator in node.decorators:
            function = decorator.decorator
            name = self._qualified(function.func if isinstance(function, cst.Call) else function)
            if name.startswith("zenml.") and name.endswith(".run_with_accelerate") and isinstance(function, cst.Call):
                launch = function
            elif name.startswith("zenml.") and name.endswith(".step"):
                step = decorator
        if launch is not None and step is not None:
            calls.add_gpu_count(node, launch, step, self.edits, self.add_note)

    def visit_Call(self, node: cst.Call) -> bool:
        """Translate the arguments of a call, or replace the call."""
        qualified = self._qualified(node.func)
        name = qualified.rpartition(".")[2]
        if qualified.startswith("zenml."):
            if name == zenml.CONTEXT and not node.args:
                self._replace_context_call(node, node.func)
                return False
            if name == zenml.UNWRAPPED and (output := calls.output_name(node)) is not None:
                self.edits.expressions[node] = output
                return False
            if name in calls.CALLS:
                calls.CALLS[name](node, self.edits, self.add_note)
        elif self.bindings.pipelines and isinstance(node.func, cst.Attribute):
            if node.func.attr.value == "with_options":
                calls.edit_options(node, self.edits, self.add_note)
            elif node.func.attr.value == "configure" and self._is_step(node.func.value):
                self.add_note(
                    node, "by hand", "configure", "nothing is changed in place: name what `.with_options(…)` returns"
                )
        if isinstance(node.func, cst.Name) and self._is_step(node.func):
            moved = {arg.keyword.value for arg in node.args if arg.keyword is not None} & {"after", "id"}
            if moved:
                self.edits.moved[node] = frozenset(moved)
        return True

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        """Replace `zenml.step`, `PythonPackageInstaller.UV`, `current.card`, `context.step_run.name`."""
        qualified = self._qualified(node)
        member = ".".join(qualified.split(".")[-2:])
        if qualified.startswith("zenml.") and member in zenml.LITERALS:
            self.edits.expressions[node] = cst.SimpleString(zenml.LITERALS[member])
            return False
        attribute = qualified.removeprefix("metaflow.current.")
        if attribute != qualified and attribute in metaflow.CURRENT:
            self.add_note(node, "by hand", f"current.{attribute}", metaflow.CURRENT[attribute])
        if qualified:
            return self._visit_module_member(node, qualified)
        return self._visit_instance_member(node)

    def visit_Name(self, node: cst.Name) -> None:
        """Replace the use of an imported name, or note that nothing replaces it."""
        qualified = self._qualified(node)
        if not qualified:
            return
        if node.value in self.bindings.modules:
            self.needed.remaining.add(node.value)
            self.add_note(node, "by hand", node.value, "the module is used as a whole: use its names")
            return
        self._lines[qualified].add(self._line(node))
        fate = fate_of(qualified)
        if fate.kind in ("member", "call"):
            self.needed.untranslated.add(qualified)
            self.add_note(node, "by hand", node.value, fate.message)
        elif (
            fate.kind == "moved"
            and node.value == qualified.rpartition(".")[2]
            and fate.name not in (node.value, *self.needed.names_in_use)
        ):
            self.edits.expressions[node] = cst.Name(fate.name)

    def visit_While(self, node: cst.While) -> bool:
        """Hint at `cleanup_memory` for the loop with which ZenML's guide empties the CUDA cache."""
        if isinstance(node.test, cst.Call) and get_full_name_for_node(node.test.func) == "gc.collect":
            message = (
                "stays as it is; `from stoker import cleanup_memory` is the same and more, for every kind of device"
            )
            self.add_note(node, "hint", "gc.collect", message)
        return True

    def finish(self) -> None:
        """Add the notes that depend on the whole module; call it after the visit."""
        for qualified, line in self._imported.items():
            used = sorted(self._lines[qualified])
            where = f" (used in line{'s' if len(used) > 1 else ''} {', '.join(map(str, used))})" if used else ""
            name = qualified.rpartition(".")[2]
            self.notes.append(
                MigrationNote(line=line, level="by hand", name=name, message=f"{fate_of(qualified).message}{where}")
            )
        self.needed.aliased = aliases_of(self.needed.modules, self._keeps_names, self.bindings.modules)
        for name in [*self.needed.aliased]:
            if name in self.needed.remaining:
                del self.needed.aliased[name]
        for node, name in self._rewritten_members.items():
            if name in self.needed.aliased:
                del self.edits.expressions[node]
        self.notes = sorted(set(self.notes), key=lambda note: (note.line, note.name))

    def _visit_module_member(self, node: cst.Attribute, qualified: str) -> bool:
        """Replace a member of an imported module: `zenml.config.DockerSettings`. Returns whether to visit its parts."""
        local = _leftmost(node)
        if local is None:
            return True
        if qualified.startswith("zenml.config.") and fate_of(qualified.rpartition(".")[0]).name == "config":
            self._visit_config_member(node, qualified, local)
        if local not in self.bindings.modules:
            return True
        fate = fate_of(qualified)
        if is_known(qualified) and fate.kind == "moved":
            self.needed.modules.setdefault(local, set()).add(fate.module)
            same = fate.name == qualified.rpartition(".")[2] and qualified.count(".") == 1
            self._keeps_names[local] = self._keeps_names.get(local, True) and same
            self.edits.expressions[node] = dotted(fate.module, fate.name)
            self._rewritten_members[node] = local
            if fate.message:
                self.add_note(node, "differs", fate.name, fate.message)
            return False
        if is_known(qualified) or not self._has_known_prefix(node):
            self.needed.remaining.add(local)
            self.add_note(node, "by hand", qualified, fate.message)
            return False
        return True

    def _visit_config_member(self, node: cst.Attribute, qualified: str, local: str) -> None:
        """Replace `config.StepRetryConfig` of `from zenml import config`."""
        if local in self.bindings.modules or not isinstance(node.value, cst.Name):
            return
        fate = fate_of(qualified)
        if fate.kind != "moved":
            self.add_note(node, "by hand", node.attr.value, fate.message)
        elif fate.name != node.attr.value:
            self.edits.expressions[node] = node.with_changes(attr=cst.Name(fate.name))

    def _has_known_prefix(self, node: cst.Attribute) -> bool:
        """Whether a table has a row for a leading part of a dotted name."""
        inside = node.value
        while isinstance(inside, cst.Attribute):
            if is_known(self._qualified(inside)):
                return True
            inside = inside.value
        return False

    def _visit_instance_member(self, node: cst.Attribute) -> bool:
        """Replace an attribute of a Client or of the step's context. Returns whether to visit its parts."""
        path = _path(node)
        base = path[0]
        name = self._class_of(base)
        if name == "Client":
            self._visit_client(node, base)
        elif name == zenml.CONTEXT:
            return self._visit_context(node, path)
        return True

    def _visit_client(self, node: cst.Attribute, base: cst.BaseExpression | str) -> None:
        method = node.attr.value
        if node.value is not base or method in _CLIENT_MEMBERS:
            return
        if method in zenml.CLIENT:
            self.edits.expressions[node.attr] = cst.Name(zenml.CLIENT[method])
            self.add_note(
                node, "differs", method, f"is `{zenml.CLIENT[method]}` here: docs/guide/client.md has its arguments"
            )
        else:
            self.add_note(node, "by hand", f"Client.{method}", "docs/guide/client.md has what there is to read")

    def _visit_context(self, node: cst.Attribute, path: Sequence[cst.BaseExpression | str]) -> bool:
        """Replace an attribute of the step's context, from its outermost name. Returns whether to visit its parts."""
        if self._is_inner(node):
            return True
        attributes = ".".join(str(name) for name in path[1:])
        inner: cst.BaseExpression = node
        while isinstance(inner, cst.Attribute) and attributes not in zenml.CONTEXT_PATHS:
            inner, attributes = inner.value, attributes.rpartition(".")[0]
        if isinstance(inner, cst.Attribute):
            base = path[0]
            assert isinstance(base, cst.BaseExpression)
            if isinstance(base, cst.Call):
                self._replace_context_call(base, base.func)
                base = self.edits.expressions[base]
            self.edits.expressions[inner] = cst.Attribute(value=base, attr=cst.Name(zenml.CONTEXT_PATHS[attributes]))
            return False
        if path[1] not in _CONTEXT_MEMBERS:
            name = f"context.{'.'.join(map(str, path[1:]))}"
            self.add_note(node, "by hand", name, "docs/guide/context.md has what a step knows of itself")
        return True

    def _replace_context_call(self, node: cst.Call, function: cst.BaseExpression) -> None:
        local = _leftmost(function)
        if local is not None and local in self.bindings.modules:
            self.needed.modules.setdefault(local, set()).add("stoker")
            self._keeps_names[local] = False
            self.edits.expressions[node] = dotted("stoker", "context")
        else:
            self.edits.expressions[node] = cst.Name(self.needed.context)

    def _is_inner(self, node: cst.Attribute) -> bool:
        parent = self.get_metadata(metadata.ParentNodeProvider, node, None)
        return isinstance(parent, cst.Attribute) and parent.value is node

    def _class_of(self, base: cst.BaseExpression | str) -> str:
        """ "Client" or "get_step_context" for a call of it and for a name that holds its result; empty otherwise."""
        if isinstance(base, cst.Call):
            return self._qualified(base.func).rpartition(".")[2] if self._qualified(base.func) else ""
        if isinstance(base, cst.Name):
            return self.bindings.instances.get(base.value, "")
        return ""

    def _is_step(self, node: cst.BaseExpression) -> bool:
        return isinstance(node, cst.Name) and node.value in self.bindings.steps

    def _qualified(self, node: cst.CSTNode) -> str:
        if isinstance(node, cst.Attribute) and _leftmost(node) is None:
            return ""  # libcst resolves `get().name` to the name of the function `get`
        names = self.get_metadata(metadata.QualifiedNameProvider, node, set())
        return qualified_name(names, flows=self.bindings.flows)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)


def _leftmost(node: cst.BaseExpression) -> str | None:
    while isinstance(node, cst.Attribute):
        node = node.value
    return node.value if isinstance(node, cst.Name) else None


def _path(node: cst.Attribute) -> Sequence[cst.BaseExpression | str]:
    """`a().b.c` as the expression `a()` and its attributes `b`, `c`."""
    names: list[str] = []
    value: cst.BaseExpression = node
    while isinstance(value, cst.Attribute):
        names.insert(0, value.attr.value)
        value = value.value
    return [value, *names]
