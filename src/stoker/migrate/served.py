"""Moves a file's imports of ZenML to `stoker.integrations.zenml`, which has ZenML's names, and changes nothing else.

A project is migrated so where Stoker's own words do not say all that it says. Pure: bytes in, bytes and notes out.
Also what import statements of ZenML and Metaflow bind names to, and each name's new module; the others stay.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Iterable, Mapping, Sequence

import attrs
import libcst as cst
from libcst import metadata
from libcst.helpers import get_full_name_for_node

from stoker.core.errors import SourceError
from stoker.migrate import zenml
from stoker.migrate.names import Level, MigrationNote, fate_of, is_source_module

_CONTEXT_NAMES: Final = ("context", "step_context", "stoker_context")
TARGET: Final = "stoker.integrations.zenml"
_IMPORT: Final = re.compile(r"^(?P<before>\s*(?:from|import)\s+)zenml(?P<after>[.\w]*)(?P<rest>\b.*)$")
_SHELL: Final = re.compile(r"^\s*[!%].*\bzenml\b")
_REQUIREMENT: Final = re.compile(
    r"""(?P<quote>["']?)\bzenml(?:\[[^\]]*\])?(?:\s*[=<>!~][^"'#;\n\]]*[^"'#;\n\]\s])?(?P=quote)(?![-_./\w])"""
)


class Bindings(cst.CSTVisitor):
    """Collects the bindings of a module; read its attributes after the visit."""

    METADATA_DEPENDENCIES = (metadata.QualifiedNameProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.flows = False
        """Whether the module imports Metaflow."""
        self.pipelines = False
        """Whether the module imports ZenML."""
        self.modules: dict[str, str] = {}
        """Name that an `import` binds → its module."""
        self.steps: set[str] = set()
        """Functions that are ZenML's steps."""
        self.instances: dict[str, str] = {}
        """Name that only ever holds the result of a call → the call: "Client" or "get_step_context"."""
        self.context = _CONTEXT_NAMES[0]
        """A name that is free for `stoker.context`."""
        self.names: set[str] = set()
        """Every name in the module."""
        self._ambiguous: set[str] = set()
        """Names that are also bound to something else, and so are no instances."""

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        """Note which framework is imported, and the names that are bound."""
        self._note_framework(module_of(node))
        if not isinstance(node.names, cst.ImportStar):
            self.names.update(alias.evaluated_alias or alias.evaluated_name for alias in node.names)
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        """Note the modules that are bound to names."""
        for alias in node.names:
            name, full = binding_of(alias)
            self.names.add(name)
            self._note_framework(full)
            if is_source_module(full, flows=False):
                self.modules[name] = full if alias.asname is not None else name
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        """Note functions that are decorated as steps."""
        for decorator in node.decorators:
            function = decorator.decorator
            while isinstance(function, cst.Call):
                function = function.func
            name = self._qualified(function)
            if name.startswith("zenml.") and name.endswith(".step"):
                self.steps.add(node.name.value)

    def visit_Name(self, node: cst.Name) -> None:
        """Note every name."""
        self.names.add(node.value)

    def visit_Param(self, node: cst.Param) -> None:
        """A parameter may hold anything."""
        self._ambiguous.add(node.name.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        """Note instances, as in `client = Client()`."""
        function = self._qualified(node.value.func) if isinstance(node.value, cst.Call) else ""
        kind = function.rpartition(".")[2] if function.startswith("zenml.") else ""
        for target in node.targets:
            if not isinstance(target.target, cst.Name):
                continue
            name = target.target.value
            if kind in ("Client", "get_step_context"):
                if self.instances.setdefault(name, kind) != kind:
                    self._ambiguous.add(name)
            else:
                self._ambiguous.add(name)

    def leave_Module(self, original_node: cst.Module) -> None:
        """Decide what depends on the whole module."""
        del original_node
        self.instances = {name: kind for name, kind in self.instances.items() if name not in self._ambiguous}
        self.context = next((name for name in _CONTEXT_NAMES if name not in self.names), "the_step_context")

    def _note_framework(self, module: str) -> None:
        root = module.partition(".")[0]
        self.flows = self.flows or root == "metaflow"
        self.pipelines = self.pipelines or root == "zenml"

    def _qualified(self, node: cst.CSTNode) -> str:
        return qualified_name(self.get_metadata(metadata.QualifiedNameProvider, node, set()), flows=self.flows)


def qualified_name(names: object, *, flows: bool) -> str:
    """The first of a name's possible meanings that comes from ZenML or Metaflow; empty if none does."""
    assert isinstance(names, (set, frozenset))
    for name in sorted(names, key=lambda one: str(one.name)):
        full = str(name.name)
        if name.source == metadata.QualifiedNameSource.IMPORT and is_source_module(
            full.rpartition(".")[0] or full, flows=flows
        ):
            return full
    return ""


@attrs.define(kw_only=True)
class Needed:
    """The imports that the migrated code needs."""

    context: str = "context"
    """The name that `stoker.context` is bound to."""
    flows: bool = False
    """Whether the code imports Metaflow."""
    names_in_use: set[str] = attrs.field(factory=set)
    """Every name in the code: an import must not rebind one of them."""
    untranslated: set[str] = attrs.field(factory=set)
    """Qualified names with a use that could not be translated; their import stays."""
    modules: dict[str, set[str]] = attrs.field(factory=dict)
    """Name that `import zenml` binds → the modules that its uses need now."""
    aliased: dict[str, str] = attrs.field(factory=dict)
    """Name of `modules` whose alias can stay → its one module."""
    remaining: set[str] = attrs.field(factory=set)
    """Names of `modules` whose old import must stay beside the new one."""
    imported: set[str] = attrs.field(factory=set)
    """Modules that a rewritten statement imports already."""


def module_of(node: cst.ImportFrom) -> str:
    """The module of `from module import …`; empty for a relative one."""
    if node.relative or node.module is None:
        return ""
    return get_full_name_for_node(node.module) or ""


def binding_of(alias: cst.ImportAlias) -> tuple[str, str]:
    """The name that `import a.b as c` binds, and the module."""
    full = get_full_name_for_node(alias.name) or ""
    return alias.evaluated_alias or full.partition(".")[0], full


def rewrite_import(node: cst.BaseSmallStatement, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    """The statements that replace an import, none if it is not needed; None for a statement that stays."""
    if isinstance(node, cst.ImportFrom):
        return _rewrite_from(node, needed)
    if isinstance(node, cst.Import):
        return _rewrite_plain(node, needed)
    return None


def _rewrite_from(node: cst.ImportFrom, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    module = module_of(node)
    if isinstance(node.names, cst.ImportStar) or not is_source_module(module, flows=needed.flows):
        return None
    groups: dict[str, list[cst.ImportAlias]] = {}
    for alias in node.names:
        for target, placed in _targets_of(f"{module}.{alias.evaluated_name}", alias, needed):
            groups.setdefault(target or module, []).append(placed)
    return [_from_import(node, target, aliases) for target, aliases in groups.items()]


def _targets_of(qualified: str, alias: cst.ImportAlias, needed: Needed) -> list[tuple[str, cst.ImportAlias]]:
    """The modules to import a name from ("" is the old one), each with its alias; none if the name is not needed."""
    fate = fate_of(qualified)
    old_import = [("", alias)] if fate.kind == "gone" or qualified in needed.untranslated else []
    if fate.kind == "moved":
        rebinds = fate.name != alias.evaluated_name and fate.name in needed.names_in_use
        # The code uses the new name for something else: the import keeps its old name as an alias.
        name = _as_name(alias.evaluated_name) if rebinds and alias.asname is None else alias.asname
        return [(fate.module, alias.with_changes(name=cst.Name(fate.name), asname=name))]
    if fate.kind == "call" and fate.module:
        name = None if needed.context == fate.name else _as_name(needed.context)
        return [*old_import, (fate.module, alias.with_changes(name=cst.Name(fate.name), asname=name))]
    return old_import


def _as_name(name: str) -> cst.AsName:
    return cst.AsName(name=cst.Name(name))


def _from_import(node: cst.ImportFrom, module: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """An import statement for some of the names of `node`, with its layout and their comments."""
    assert not isinstance(node.names, cst.ImportStar)
    last = aliases[-1]
    if node.lpar is None:
        last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    elif isinstance(last.comma, cst.Comma):
        last = last.with_changes(comma=_last_comma(last.comma, node.names[-1].comma))
    return node.with_changes(module=_dotted(module), names=[*aliases[:-1], last])


def _last_comma(comma: cst.Comma, closing: cst.Comma | cst.MaybeSentinel) -> cst.Comma:
    """The comma before the closing parenthesis: with its own comment, and the line break of the old last comma."""
    space = comma.whitespace_after
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma.with_changes(whitespace_after=cst.SimpleWhitespace(""))
    last = closing.whitespace_after if isinstance(closing, cst.Comma) else None
    if not isinstance(last, cst.ParenthesizedWhitespace):
        return comma.with_changes(whitespace_after=space.with_changes(indent=True, last_line=cst.SimpleWhitespace("")))
    return comma.with_changes(whitespace_after=space.with_changes(indent=last.indent, last_line=last.last_line))


def _rewrite_plain(node: cst.Import, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    migrating = [alias for alias in node.names if is_source_module(binding_of(alias)[1], flows=needed.flows)]
    if not migrating:
        return None
    staying = [alias for alias in node.names if alias not in migrating]
    aliases = [cst.ImportAlias(name=alias.name, asname=alias.asname) for alias in staying]
    for alias in migrating:
        aliases += _modules_for(alias, needed)
    return [node.with_changes(names=[alias]) for alias in aliases]


def _modules_for(alias: cst.ImportAlias, needed: Needed) -> Iterable[cst.ImportAlias]:
    """The aliases that replace one module of an `import`."""
    name, full = binding_of(alias)
    if name in needed.aliased and name not in needed.remaining:
        return [alias.with_changes(name=_dotted(needed.aliased[name]), comma=cst.MaybeSentinel.DEFAULT)]
    old_import = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)] if name in needed.remaining else []
    default = {"stoker" if full.startswith("zenml") else "stoker.flow"} if not old_import else set()
    modules = sorted((needed.modules.get(name) or default) - needed.imported)
    needed.imported.update(modules)
    return [*old_import, *(cst.ImportAlias(name=_dotted(module)) for module in modules)]


def _dotted(module: str) -> cst.Attribute | cst.Name:
    """A module's name as an expression."""
    first, *parts = module.split(".")
    expression: cst.Attribute | cst.Name = cst.Name(first)
    for part in parts:
        expression = cst.Attribute(value=expression, attr=cst.Name(part))
    return expression


def dotted(module: str, name: str) -> cst.Attribute | cst.Name:
    """`module.name` as an expression."""
    return _dotted(f"{module}.{name}")


def aliases_of(
    modules: Mapping[str, set[str]], keeps_names: Mapping[str, bool], roots: Mapping[str, str]
) -> dict[str, str]:
    """The names that `import … as name` binds and whose uses all keep their names in one module, with that module."""
    return {
        name: next(iter(targets))
        for name, targets in modules.items()
        if len(targets) == 1 and keeps_names.get(name, False) and name != roots[name].partition(".")[0]
    }


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
