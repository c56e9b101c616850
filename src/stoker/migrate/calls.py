"""Arguments of ZenML's calls as they are written here: keywords of decorators, fields of settings.

Each function looks at one call and puts what becomes of its arguments into `Edits`; the code is changed elsewhere.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Final, Mapping, TypeGuard

import attrs
import libcst as cst

from stoker.config import DockerSettings, ResourceSettings
from stoker.core.plugins import BACKENDS
from stoker.core.settings import COMPONENTS
from stoker.migrate import zenml
from stoker.migrate.names import Level
from stoker.settings.options import COMPONENT_SETTINGS, OPTIONS

Tell = Callable[[cst.CSTNode, Level, str, str], None]

_ITSELF: Final = re.compile(r"zenml\s*(\[[^\]]*\])?\s*([=<>!~].*)?")


@attrs.define
class Edits:
    """What becomes of nodes of the code. None stands for one that is taken out; `after` are calls' moved keywords."""

    arguments: dict[cst.Arg, cst.Arg | None] = attrs.field(factory=dict)
    elements: set[cst.BaseElement] = attrs.field(factory=set)
    expressions: dict[cst.CSTNode, cst.BaseExpression] = attrs.field(factory=dict)
    moved: dict[cst.Call, frozenset[str]] = attrs.field(factory=dict)
    added: dict[cst.Call, list[cst.Arg]] = attrs.field(factory=dict)
    decorators: dict[cst.Decorator, cst.Arg] = attrs.field(factory=dict)


def options(call: cst.Call, edits: Edits, tell: Tell) -> None:
    """Keywords of `@step`, `@pipeline` and `.with_options`."""
    for arg, name in _keywords(call, tell):
        if name in zenml.OPTIONS:
            edits.arguments[arg] = renamed(arg, zenml.OPTIONS[name])
        elif name in zenml.DROPPED_OPTIONS:
            edits.arguments[arg] = None
            tell(arg, "differs", name, f"taken out: {zenml.DROPPED_OPTIONS[name]}")
        elif name in zenml.MISSING_OPTIONS:
            tell(arg, "by hand", name, zenml.MISSING_OPTIONS[name])
        elif name in zenml.HOOKS:
            tell(arg, "differs", name, zenml.HOOKS[name])
        elif name not in zenml.KEPT_OPTIONS and name not in OPTIONS:
            tell(arg, "by hand", name, "there is no such option: docs/guide/settings.md lists them")
        if name == "settings" and isinstance(arg.value, cst.Dict):
            _settings(arg.value, tell)


def docker(call: cst.Call, edits: Edits, tell: Tell) -> None:
    """Fields of DockerSettings; ZenML itself is no requirement any more."""
    _fields(call, DockerSettings, zenml.MISSING_FIELDS, tell)
    for arg, name in _keywords(call):
        if name != "requirements" or not isinstance(arg.value, (cst.List, cst.Tuple)):
            continue
        for element in arg.value.elements:
            text = literal(element.value)
            if isinstance(text, str) and _ITSELF.fullmatch(text.strip()):
                edits.elements.add(element)
                tell(element, "differs", text, "taken out: Stoker brings itself into the images that it builds")


def resources(call: cst.Call, edits: Edits, tell: Tell) -> None:
    """Fields of ResourceSettings."""
    del edits
    _fields(call, ResourceSettings, {}, tell)


def retry(call: cst.Call, edits: Edits, tell: Tell) -> None:
    """StepRetryConfig's fields become Retry's. A wait without a factor stays the same there, and doubles here."""
    given = {name: arg for arg, name in _keywords(call, tell)}
    for name, arg in given.items():
        if name not in zenml.RETRY_KEPT:
            tell(arg, "by hand", name, "there is no such field of Retry: docs/guide/running.md, Retries")
        elif name in zenml.RETRY_FIELDS:
            edits.arguments[arg] = renamed(arg, zenml.RETRY_FIELDS[name])
    if "max_retries" not in given and len(call.args) == len(given):
        edits.added.setdefault(call, []).append(_keyword("times", cst.Integer("1")))
    if "backoff" not in given and "delay" in given:
        edits.added.setdefault(call, []).append(_keyword("backoff", cst.Integer("1")))
    elif "backoff" in given:
        value = literal(given["backoff"].value)
        if value == 0:
            edits.arguments[given["backoff"]] = given["backoff"].with_changes(value=cst.Integer("1"))
        elif not isinstance(value, int):
            tell(given["backoff"], "differs", "backoff", "here it is 1 or more, and 1 keeps the wait as it is")


def cleanup(call: cst.Call, edits: Edits, tell: Tell) -> None:
    """`cleanup_gpu_memory(force=True)` is `cleanup_memory()`."""
    del tell
    for arg in call.args:
        edits.arguments[arg] = None


CALLS: Final[Mapping[str, Callable[[cst.Call, Edits, Tell], None]]] = {
    "step": options,
    "pipeline": options,
    "DockerSettings": docker,
    "ResourceSettings": resources,
    "StepRetryConfig": retry,
    "cleanup_gpu_memory": cleanup,
}
"""name of ZenML's → what looks at its calls"""

_TIGHT: Final = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))


def launched(function: cst.FunctionDef, launch: cst.Call, step: cst.Decorator, edits: Edits, tell: Tell) -> None:
    """GPUs for a step under `run_with_accelerate`. There its ranks took what they found; here they are asked for."""
    given = {name: arg.value for arg, name in _keywords(launch)}
    if _is_true(given.get("cpu")):
        return
    of_step = {name: arg.value for arg, name in _keywords(step.decorator)} if _is_call(step.decorator) else {}
    settings = of_step.get("settings")
    written = isinstance(settings, cst.Dict) and all(isinstance(one, cst.DictElement) for one in settings.elements)
    if "resources" in of_step or (written and "resources" in _keys(settings)):
        return
    count = literal(given["num_processes"]) if "num_processes" in given else None
    if not isinstance(count, int) or "num_machines" in given or (settings is not None and not written):
        told = 'say resources={"gpu_count": …} at the step, or cpu=True for ranks on CPUs'
        tell(function.name, "by hand", function.name.value, told)
        return
    asked = cst.parse_expression(f'{{"gpu_count": {count}}}')
    edits.decorators[step] = _keyword("resources", asked)
    told = f'added resources={{"gpu_count": {count}}}: ranks get the GPUs that their step asks for'
    tell(step, "differs", function.name.value, told)


def named_output(call: cst.Call) -> cst.BaseExpression | None:
    """The name that an ArtifactConfig says, where it says nothing else."""
    if len(call.args) != 1 or (call.args[0].keyword is not None and call.args[0].keyword.value != "name"):
        return None
    return call.args[0].value if isinstance(literal(call.args[0].value), str) else None


def literal(node: cst.BaseExpression) -> Any:
    """The value of a constant; None for anything else."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.Integer, cst.Float)):
        return node.evaluated_value
    return None


def renamed(arg: cst.Arg, name: str) -> cst.Arg:
    """The argument by another keyword."""
    return arg.with_changes(keyword=cst.Name(name))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(keyword=cst.Name(name), value=value, equal=_TIGHT)


def _is_call(node: cst.BaseExpression) -> TypeGuard[cst.Call]:
    return isinstance(node, cst.Call)


def _is_true(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def _keys(mapping: cst.BaseExpression | None) -> list[Any]:
    """The constant keys of a mapping that is written out."""
    elements = mapping.elements if isinstance(mapping, cst.Dict) else ()
    return [literal(element.key) for element in elements if isinstance(element, cst.DictElement)]


def _keywords(call: cst.Call, tell: Tell | None = None) -> list[tuple[cst.Arg, str]]:
    """The arguments that have a keyword; what stands behind `**` cannot be seen."""
    found = []
    for arg in call.args:
        if arg.keyword is not None:
            found.append((arg, arg.keyword.value))
        elif arg.star == "**" and tell is not None:
            tell(arg, "differs", "**", "what is given by ** was not looked at")
    return found


def _fields(call: cst.Call, kind: type, missing: Mapping[str, str], tell: Tell) -> None:
    known = attrs.fields_dict(kind)
    for arg, name in _keywords(call, tell):
        if name not in known:
            told = missing.get(name, f"there is no such field; {kind.__name__} has {', '.join(known)}")
            tell(arg, "by hand", name, told)


def _settings(mapping: cst.Dict, tell: Tell) -> None:
    """The keys of a `settings=` that is written out."""
    for element in mapping.elements:
        key = literal(element.key) if isinstance(element, cst.DictElement) else None
        if not isinstance(key, str):
            continue
        part, _, flavor = key.partition(".")
        if part in COMPONENTS and flavor and flavor not in BACKENDS and flavor not in COMPONENT_SETTINGS:
            there = ", ".join(sorted({*BACKENDS, *COMPONENT_SETTINGS}))
            tell(element, "by hand", key, f"there is no backend '{flavor}' here, but {there}")
        elif part not in COMPONENTS and key not in OPTIONS:
            tell(element, "by hand", key, "there is no such setting: docs/guide/settings.md lists them")
