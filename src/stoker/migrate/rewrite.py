"""Rewrites a ZenML pipeline or a Metaflow flow as Stoker code: `migrate_source(source)`.

Comments and layout stay: the syntax tree that is changed contains them. Pure: bytes in, bytes and notes out.
"""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from typing import Any, Final, Mapping, Sequence, TypeVar

import attrs
import libcst as cst
from libcst import metadata

from stoker.core.errors import SourceError, StokerError
from stoker.migrate.calls import Edits
from stoker.migrate.names import MigrationNote
from stoker.migrate.served import Bindings, Needed, move_imports, rewrite_import
from stoker.migrate.survey import Survey

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
