"""A pipeline of ZenML's or a flow of Metaflow's as Stoker's code: `migrated(source)`.

Comments and layout stay: the code is changed as a tree that knows them. Pure: bytes in, bytes and notes out.
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
from stoker.migrate.bindings import Bindings
from stoker.migrate.calls import Edits
from stoker.migrate.imports import Needed, rewritten
from stoker.migrate.names import Note
from stoker.migrate.survey import Survey

_Listed = TypeVar("_Listed", cst.Call, cst.List, cst.Tuple)


@attrs.frozen(kw_only=True)
class Migration:
    """The code as it was and as it is now, and what to say of it. `lines` maps a line before to the one after."""

    before: bytes
    after: bytes
    notes: Sequence[Note] = ()
    frameworks: Sequence[str] = ()
    lines: Mapping[int, int] = attrs.field(factory=dict, repr=False)

    @property
    def by_hand(self) -> Sequence[Note]:
        """What somebody has to change before it runs."""
        return [note for note in self.notes if note.level == "by hand"]

    def new_line(self, note: Note) -> int:
        """Where a note's line is after the migration; the nearest line with its name, where the line itself changed."""
        guess = self.lines.get(note.line, note.line)
        texts = self.after.decode("utf-8", errors="replace").splitlines()
        word = re.compile(rf"\b{re.escape(note.name.rpartition('.')[2])}\b")
        places = [number for number, text in enumerate(texts, 1) if word.search(text)]
        return min(places, key=lambda number: abs(number - guess), default=guess)


def migrated(source: bytes, where: str) -> Migration:
    """The code with Stoker's names; `where` is its file. Code that is not Python is a `SourceError`."""
    _compiled(source, where)
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
    return Migration(before=source, after=after, notes=survey.notes, frameworks=frameworks, lines=_lines(source, after))


class Rewriting(cst.CSTTransformer):
    """Makes the changes that a survey found."""

    def __init__(self, edits: Edits, needed: Needed) -> None:
        super().__init__()
        self.edits = edits
        self.needed = needed
        self._depth = 0

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        """Go in."""
        self._depth += 1

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock) -> cst.BaseSuite:
        """Go out."""
        self._depth -= 1
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """Imports; one statement may become several lines, or none."""
        found = self._statements(original_node.body, updated_node.body)
        if found is None:
            return updated_node
        if len(original_node.body) > 1 or len(found) == 1:
            return updated_node.with_changes(body=found or [cst.Pass()])
        if not found:
            if self._depth:
                return updated_node.with_changes(body=[cst.Pass()])
            return updated_node.with_changes(body=[_NOTHING])
        first = updated_node.with_changes(body=[found[0]], trailing_whitespace=cst.TrailingWhitespace())
        between = [cst.SimpleStatementLine(body=[one]) for one in found[1:-1]]
        last = cst.SimpleStatementLine(body=[found[-1]], trailing_whitespace=updated_node.trailing_whitespace)
        return cst.FlattenSentinel([first, *between, last])

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.BaseSuite:
        """`if ready: from zenml import step`."""
        found = self._statements(original_node.body, updated_node.body)
        return updated_node if found is None else updated_node.with_changes(body=found or [cst.Pass()])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        """Statements of which nothing is left go; the comments above them stay."""
        body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        waiting: list[cst.EmptyLine] = []
        for statement in updated_node.body:
            if isinstance(statement, cst.SimpleStatementLine) and statement.body[0] is _NOTHING:
                waiting += statement.leading_lines
                continue
            body.append(statement.with_changes(leading_lines=[*waiting, *statement.leading_lines]))
            waiting = []
        footer = [*waiting, *updated_node.footer]
        return updated_node.with_changes(body=body, footer=footer)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> Any:
        """Names."""
        return self._expression(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> Any:
        """Dotted names."""
        return self._expression(original_node, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> Any:
        """Calls that became something else, and keywords that stand elsewhere."""
        if original_node in self.edits.expressions:
            return self.edits.expressions[original_node]
        call = _closed(original_node, updated_node, "args")
        if original_node in self.edits.added:
            call = _with(call, self.edits.added[original_node])
        moved = self.edits.moved.get(original_node)
        if moved:
            there = [arg for arg in call.args if arg.keyword is not None and arg.keyword.value in moved]
            here = [arg for arg in call.args if arg not in there]
            options = cst.Call(func=cst.Attribute(value=call.func, attr=cst.Name("with_options")), args=_ended(there))
            call = call.with_changes(func=options, args=_ended(here))
        return call

    def leave_Decorator(self, original_node: cst.Decorator, updated_node: cst.Decorator) -> cst.Decorator:
        """A decorator that gets one more keyword, bare or not."""
        arg = self.edits.decorators.get(original_node)
        if arg is None:
            return updated_node
        function = updated_node.decorator
        call = function if isinstance(function, cst.Call) else cst.Call(func=function)
        return updated_node.with_changes(decorator=_with(call, [arg]))

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> Any:
        """Keywords by another name, or none."""
        if original_node not in self.edits.arguments:
            return updated_node
        edit = self.edits.arguments[original_node]
        if edit is None:
            return cst.RemoveFromParent()
        changed = updated_node.with_changes(keyword=edit.keyword)
        return changed if edit.value is original_node.value else changed.with_changes(value=edit.value)

    def leave_Element(self, original_node: cst.Element, updated_node: cst.Element) -> Any:
        """Elements that are taken out of a list."""
        return cst.RemoveFromParent() if original_node in self.edits.elements else updated_node

    def leave_List(self, original_node: cst.List, updated_node: cst.List) -> cst.BaseExpression:
        """A list without some elements."""
        return _closed(original_node, updated_node, "elements")

    def _expression(self, original_node: cst.CSTNode, updated_node: cst.BaseExpression) -> cst.BaseExpression:
        found = self.edits.expressions.get(original_node)
        if found is None:
            return updated_node
        # What was written in parentheses stays in them.
        return found.with_changes(lpar=updated_node.lpar, rpar=updated_node.rpar)

    def _statements(
        self, original: Sequence[cst.BaseSmallStatement], updated: Sequence[cst.BaseSmallStatement]
    ) -> list[cst.BaseSmallStatement] | None:
        """The statements of a line with its imports written anew; None if none of them is to change."""
        found: list[cst.BaseSmallStatement] = []
        changed = False
        for before, now in zip(original, updated):
            statements = rewritten(before, self.needed)
            changed = changed or statements is not None
            found += [now] if statements is None else statements
        if not changed:
            return None
        return [statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for statement in found]


_NOTHING: Final = cst.Pass()
"""Stands where a statement was of which nothing is left."""


def _closed(original: _Listed, updated: _Listed, field: str) -> _Listed:
    """What was listed, without the comma that would be left at the end when the last one is taken out."""
    before: Sequence[Any] = getattr(original, field)
    now: Sequence[Any] = getattr(updated, field)
    if len(before) == len(now) or not now:
        return updated
    return updated.with_changes(**{field: [*now[:-1], now[-1].with_changes(comma=before[-1].comma)]})


def _with(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """The call with more arguments behind its own; what stood behind the last comma stands there again."""
    given = list(call.args)
    last = given[-1].comma if given else cst.MaybeSentinel.DEFAULT
    if not isinstance(last, cst.Comma):
        return call.with_changes(args=_ended([*map(_spaced, given), *map(_spaced, args)]))
    # `f(\n    a=1,\n)`: the new ones stand on the line of the last one.
    plain = [*given[:-1], given[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT), *args]
    return call.with_changes(args=[*map(_spaced, plain[:-1]), plain[-1].with_changes(comma=last)])


def _spaced(arg: cst.Arg) -> cst.Arg:
    """The argument with a comma behind it."""
    if isinstance(arg.comma, cst.Comma):
        return arg
    return arg.with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))


def _ended(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Arguments of which the last has no comma."""
    return [*args[:-1], *(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in args[-1:])]


def _compiled(source: bytes, where: str) -> None:
    try:
        compile(source, where, "exec", dont_inherit=True)
    except SyntaxError as error:
        place = f"{where}:{error.lineno}" if error.lineno else where
        raise SourceError(
            f"is not Python: {error.msg}", where=place, fix="mend it first; nothing was changed"
        ) from None
    except ValueError as error:
        raise SourceError(f"is not Python: {error}", where=where) from None


def _lines(before: bytes, after: bytes) -> dict[int, int]:
    """Where each line went. Changed ones are counted along, as far as there are lines to go to."""
    old, new = before.splitlines(), after.splitlines()
    found: dict[int, int] = {}
    often = Counter(new)
    alone = {line: place + 1 for place, line in enumerate(new) if often[line] == 1}
    for kind, start, end, there, until in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(start, end):
            nearest = min(there + place - start, max(until - 1, there)) + 1
            # A line that was moved is found again by its text.
            found[place + 1] = nearest if kind == "equal" else alone.get(old[place], nearest)
    return found
