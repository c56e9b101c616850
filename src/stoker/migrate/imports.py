"""Import statements of ZenML's and Metaflow's names, written anew: each name where it is now, the rest as it was."""

from __future__ import annotations

from typing import Iterable, Mapping, Sequence

import attrs
import libcst as cst
from libcst.helpers import get_full_name_for_node

from stoker.migrate.names import fate_of, is_ours


@attrs.define(kw_only=True)
class Needed:
    """What the code still needs of its imports, as the survey found it.

    `context` is the name by which the code says `stoker.context`. `kept` are qualified names that are used in a way
    that was not translated. `modules` has, by the name that `import zenml` binds, the modules that its uses need now;
    `aliased` those of which the alias can stay, with their one module; `old` those that must stay beside. `taken` are
    names that the code has for something else, maybe.
    """

    context: str = "context"
    flows: bool = False
    taken: set[str] = attrs.field(factory=set)
    kept: set[str] = attrs.field(factory=set)
    modules: dict[str, set[str]] = attrs.field(factory=dict)
    aliased: dict[str, str] = attrs.field(factory=dict)
    old: set[str] = attrs.field(factory=set)
    written: set[str] = attrs.field(factory=set)


def module_of(node: cst.ImportFrom) -> str:
    """The module of `from module import …`; empty for a relative one."""
    if node.relative or node.module is None:
        return ""
    return get_full_name_for_node(node.module) or ""


def bound(alias: cst.ImportAlias) -> tuple[str, str]:
    """Of `import a.b as c`: the name that it binds, and the module."""
    full = get_full_name_for_node(alias.name) or ""
    return alias.evaluated_alias or full.partition(".")[0], full


def rewritten(node: cst.BaseSmallStatement, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    """The statements that stand for an import, none if it is not needed; None for one that is not of those."""
    if isinstance(node, cst.ImportFrom):
        return _from(node, needed)
    if isinstance(node, cst.Import):
        return _plain(node, needed)
    return None


def _from(node: cst.ImportFrom, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    module = module_of(node)
    if isinstance(node.names, cst.ImportStar) or not is_ours(module, flows=needed.flows):
        return None
    groups: dict[str, list[cst.ImportAlias]] = {}
    for alias in node.names:
        for target, placed in _placed(f"{module}.{alias.evaluated_name}", alias, needed):
            groups.setdefault(target or module, []).append(placed)
    return [_group(node, target, aliases) for target, aliases in groups.items()]


def _placed(qualified: str, alias: cst.ImportAlias, needed: Needed) -> list[tuple[str, cst.ImportAlias]]:
    """The modules from which a name is imported now ("" is the old one), and how; none where it is not needed."""
    fate = fate_of(qualified)
    kept = [("", alias)] if fate.kind == "gone" or qualified in needed.kept else []
    if fate.kind == "moved":
        taken = fate.name != alias.evaluated_name and fate.name in needed.taken
        # Where the new name is the code's own, what was imported keeps the one that it had.
        name = _called(alias.evaluated_name) if taken and alias.asname is None else alias.asname
        return [(fate.module, alias.with_changes(name=cst.Name(fate.name), asname=name))]
    if fate.kind == "call" and fate.module:
        name = None if needed.context == fate.name else _called(needed.context)
        return [*kept, (fate.module, alias.with_changes(name=cst.Name(fate.name), asname=name))]
    return kept


def _called(name: str) -> cst.AsName:
    return cst.AsName(name=cst.Name(name))


def _group(node: cst.ImportFrom, module: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """The statement for some of an import's names, in its layout and with the comments beside them."""
    assert not isinstance(node.names, cst.ImportStar)
    last = aliases[-1]
    if node.lpar is None:
        last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    elif isinstance(last.comma, cst.Comma):
        last = last.with_changes(comma=_closing(last.comma, node.names[-1].comma))
    return node.with_changes(module=_dotted(module), names=[*aliases[:-1], last])


def _closing(comma: cst.Comma, closing: cst.Comma | cst.MaybeSentinel) -> cst.Comma:
    """A comma before the closing parenthesis: its own comment, and the line break of the last one."""
    space = comma.whitespace_after
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma.with_changes(whitespace_after=cst.SimpleWhitespace(""))
    last = closing.whitespace_after if isinstance(closing, cst.Comma) else None
    if not isinstance(last, cst.ParenthesizedWhitespace):
        return comma.with_changes(whitespace_after=space.with_changes(indent=True, last_line=cst.SimpleWhitespace("")))
    return comma.with_changes(whitespace_after=space.with_changes(indent=last.indent, last_line=last.last_line))


def _plain(node: cst.Import, needed: Needed) -> Sequence[cst.BaseSmallStatement] | None:
    ours = [alias for alias in node.names if is_ours(bound(alias)[1], flows=needed.flows)]
    if not ours:
        return None
    others = [alias for alias in node.names if alias not in ours]
    aliases = [cst.ImportAlias(name=alias.name, asname=alias.asname) for alias in others]
    for alias in ours:
        aliases += _modules(alias, needed)
    return [_import(node, alias) for alias in aliases]


def _modules(alias: cst.ImportAlias, needed: Needed) -> Iterable[cst.ImportAlias]:
    """What stands for one module of an `import`."""
    name, full = bound(alias)
    if name in needed.aliased and name not in needed.old:
        return [alias.with_changes(name=_dotted(needed.aliased[name]), comma=cst.MaybeSentinel.DEFAULT)]
    kept = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)] if name in needed.old else []
    default = {"stoker" if full.startswith("zenml") else "stoker.flow"} if not kept else set()
    found = sorted((needed.modules.get(name) or default) - needed.written)
    needed.written.update(found)
    return [*kept, *(cst.ImportAlias(name=_dotted(module)) for module in found)]


def _import(node: cst.Import, alias: cst.ImportAlias) -> cst.Import:
    return node.with_changes(names=[alias])


def _dotted(module: str) -> cst.Attribute | cst.Name:
    """A module's name as an expression."""
    first, *rest = module.split(".")
    expression: cst.Attribute | cst.Name = cst.Name(first)
    for part in rest:
        expression = cst.Attribute(value=expression, attr=cst.Name(part))
    return expression


def dotted(module: str, name: str) -> cst.Attribute | cst.Name:
    """`module.name` as an expression."""
    return _dotted(f"{module}.{name}")


def aliases_of(modules: Mapping[str, set[str]], alike: Mapping[str, bool], roots: Mapping[str, str]) -> dict[str, str]:
    """Of the names that `import … as name` binds, those whose uses all lead to one module under their own names."""
    return {
        name: next(iter(found))
        for name, found in modules.items()
        if len(found) == 1 and alike.get(name, False) and name != roots[name].partition(".")[0]
    }
