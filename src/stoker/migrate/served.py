"""Moves a file's imports of ZenML to `stoker.integrations.zenml`, which has ZenML's names, and changes nothing else.

A project is migrated so where Stoker's own words do not say all that it says. Pure: bytes in, bytes and notes out.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Sequence

import attrs
import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from stoker.core.errors import SourceError
from stoker.migrate import zenml
from stoker.migrate.names import Level, MigrationNote

TARGET: Final = "stoker.integrations.zenml"
_IMPORT: Final = re.compile(r"^(?P<before>\s*(?:from|import)\s+)zenml(?P<after>[.\w]*)(?P<rest>\b.*)$")
_SHELL: Final = re.compile(r"^\s*[!%].*\bzenml\b")
_REQUIREMENT: Final = re.compile(
    r"""(?P<quote>["']?)\bzenml(?:\[[^\]]*\])?(?:\s*[=<>!~][^"'#;\n\]]*[^"'#;\n\]\s])?(?P=quote)(?![-_./\w])"""
)


@attrs.frozen(kw_only=True)
class Moved:
    """A file before and after."""

    before: bytes
    after: bytes
    notes: Sequence[MigrationNote] = ()

    @property
    def changed(self) -> bool:
        """Whether anything changes."""
        return self.before != self.after

    @property
    def by_hand(self) -> Sequence[MigrationNote]:
        """The notes about lines that a person must change before the file runs."""
        return [note for note in self.notes if note.level == "by hand"]


def move_imports(source: bytes, where: str) -> Moved:
    """The module with `stoker.integrations.zenml` in place of `zenml`; `SourceError` for a source that is no Python."""
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(source))
    except cst.ParserSyntaxError as error:
        raise SourceError(f"cannot be read: {error.message}", where=f"{where}:{error.raw_line}") from None
    uses = _Uses()
    wrapper.visit(uses)
    return Moved(before=source, after=wrapper.module.visit(_Moving()).bytes, notes=uses.notes())


def move_notebook(source: bytes, where: str) -> Moved:
    """The notebook with `stoker.integrations.zenml` in place of `zenml` in its code."""
    try:
        document = json.loads(source)
        cells = document["cells"]
    except (ValueError, KeyError, TypeError):
        raise SourceError("is no notebook", where=where) from None
    notes: list[MigrationNote] = []
    changed = False
    for number, cell in enumerate(cells, 1):
        if cell.get("cell_type") != "code":
            continue
        lines = cell["source"].splitlines(keepends=True) if isinstance(cell["source"], str) else list(cell["source"])
        moved = [_moved_line(line) for line in lines]
        for line in lines:
            if _SHELL.match(line):
                message = "there is nothing to install for ZenML, to log in to and to register: take it out"
                notes.append(MigrationNote(line=number, level="by hand", name=line.strip()[:60], message=message))
        if moved != lines:
            changed = True
            cell["source"] = "".join(moved) if isinstance(cell["source"], str) else moved
    after = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n" if changed else source
    return Moved(before=source, after=after, notes=notes)


def move_requirements(source: bytes) -> Moved:
    """A requirements file, or a pyproject.toml, with Stoker in place of ZenML."""
    text = source.decode("utf-8", "surrogateescape")
    notes = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            continue
        match = _REQUIREMENT.search(line)
        # `acme-zenml` and the address of a repository are other packages, `zenml = "^0.5"` is a key of a table.
        if (
            match is None
            or re.search(r"[-/_.@\w]$|name\s*=\s*$", line[: match.start()])
            or re.match(r"zenml\s*=[^=]", match[0])
        ):
            continue
        replacement = f"{match['quote']}stoker{match['quote']}"
        lines[number] = line[: match.start()] + replacement + line[match.end() :]
        notes.append(MigrationNote(line=number + 1, level="differs", name=match[0], message="is `stoker` now"))
    return Moved(before=source, after="".join(lines).encode("utf-8", "surrogateescape"), notes=notes)


def _moved_line(line: str) -> str:
    match = _IMPORT.match(line.rstrip("\n"))
    if match is None:
        return line
    before, after, rest = match["before"], match["after"], match["rest"]
    ending = line[len(line.rstrip("\n")) :]
    if "import" in before.split()[:1] and " as " not in rest:
        alias = f"{before}{TARGET} as zenml"
        return (f"{before}{TARGET}{after}; {alias.strip()}" if after else alias) + rest + ending
    return f"{before}{TARGET}{after}{rest}{ending}"


class _Uses(cst.CSTVisitor):
    """Finds the names of ZenML's that a module uses and that are not here."""

    METADATA_DEPENDENCIES = (metadata.PositionProvider, metadata.QualifiedNameProvider)

    def __init__(self) -> None:
        super().__init__()
        self._imported: dict[str, tuple[int, str]] = {}
        """Name as it is imported → its line, and its name in ZenML."""
        self._used: set[str] = set()
        self._annotations = 0

    def notes(self) -> list[MigrationNote]:
        """What to say of them, by line."""
        found = []
        for qualified, (line, theirs) in sorted(self._imported.items(), key=lambda item: item[1]):
            module, _, name = theirs.rpartition(".")
            level: Level = "by hand" if qualified in self._used else "hint"
            message = zenml.advice(name, module)
            if level == "hint":
                message = f"is only named here, which is fine: {message}"
            found.append(MigrationNote(line=line, level=level, name=name, message=message))
        return found

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = "" if node.relative or node.module is None else get_full_name_for_node(node.module) or ""
        theirs = "zenml" + module.removeprefix(TARGET) if f"{module}.".startswith(f"{TARGET}.") else module
        if theirs.partition(".")[0] == "zenml" and not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                name = alias.evaluated_name
                if not _is_here(theirs, name):
                    line = int(self.get_metadata(metadata.PositionProvider, alias).start.line)
                    self._imported.setdefault(f"{module}.{name}", (line, f"{theirs}.{name}"))
        return False

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self._annotations -= 1

    def visit_Name(self, node: cst.Name) -> None:
        if self._annotations:
            return
        names: Any = self.get_metadata(metadata.QualifiedNameProvider, node, set())
        self._used.update(str(name.name) for name in names if str(name.name) in self._imported)


def _is_here(module: str, name: str) -> bool:
    """Whether a name works, or does nothing that a run would miss."""
    below = module.partition(".")[2]
    if zenml.home_of(below, name) is not None or name.isupper():
        return True
    if name.islower():
        return not zenml.is_function(name) and not below.endswith(("steps", "hooks"))
    return name.endswith(zenml.CARRIED) or below.startswith("enums")


class _Moving(cst.CSTTransformer):
    """Rewrites the import statements."""

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        if original_node.relative or original_node.module is None:
            return updated_node
        module = get_full_name_for_node(original_node.module) or ""
        if module.partition(".")[0] != "zenml":
            return updated_node
        return updated_node.with_changes(module=cst.parse_expression(_moved(module)))

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        aliases: list[cst.ImportAlias] = []
        for alias in updated_node.names:
            full = get_full_name_for_node(alias.name) or ""
            if full.partition(".")[0] != "zenml":
                aliases.append(alias)
                continue
            moved: Any = cst.parse_expression(_moved(full))
            if alias.asname is not None:
                aliases.append(alias.with_changes(name=moved))
                continue
            if full != "zenml":
                aliases.append(cst.ImportAlias(name=moved, comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))))
            root: Any = cst.parse_expression(TARGET)
            name = cst.AsName(name=cst.Name("zenml"))
            aliases.append(alias.with_changes(name=root, asname=name))
        return updated_node.with_changes(names=aliases)


def _moved(module: str) -> str:
    return TARGET + module.removeprefix("zenml")
