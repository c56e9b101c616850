"""Rewrites import statements of ZenML and Metaflow: each name comes from its new module, the others stay."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

import attrs
import libcst as cst
from libcst.helpers import get_full_name_for_node

from stoker.migrate.names import fate_of, is_source_module


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
