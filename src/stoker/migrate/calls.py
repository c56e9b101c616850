"""Translates the arguments of ZenML's calls: keywords of decorators, fields of settings.

Each function inspects one call and puts the changes into `Edits`; `migrate.rewrite` applies them.
"""

from __future__ import annotations

from typing import Any, Callable, Final, Mapping, TypeGuard

import attrs
import libcst as cst

from stoker.backends.kubernetes.settings import KubernetesPodSettings, KubernetesSettings
from stoker.backends.registry import BACKENDS, refusal
from stoker.backends.skypilot.settings import SkypilotSettings
from stoker.core.settings import COMPONENTS, DockerSettings, ResourceSettings
from stoker.migrate import zenml
from stoker.migrate.names import Level
from stoker.settings.options import OPTIONS

AddNote = Callable[[cst.CSTNode, Level, str, str], None]


@attrs.define
class Edits:
    """The changes to make to nodes of the code."""

    arguments: dict[cst.Arg, cst.Arg | None] = attrs.field(factory=dict)
    """Argument → its replacement; None removes it."""
    elements: set[cst.BaseElement] = attrs.field(factory=set)
    """List elements to remove."""
    expressions: dict[cst.CSTNode, cst.BaseExpression] = attrs.field(factory=dict)
    """Expression → its replacement."""
    moved: dict[cst.Call, frozenset[str]] = attrs.field(factory=dict)
    """Call → the keywords that move into `.with_options(…)`."""
    added: dict[cst.Call, list[cst.Arg]] = attrs.field(factory=dict)
    """Call → arguments to append."""
    decorators: dict[cst.Decorator, cst.Arg] = attrs.field(factory=dict)
    """Decorator → a keyword to append."""


def edit_options(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Translate the keywords of `@step`, `@pipeline` and `.with_options`."""
    for arg, name in _keywords(call, add_note):
        if name in zenml.OPTIONS:
            edits.arguments[arg] = with_keyword(arg, zenml.OPTIONS[name])
        elif name in zenml.DROPPED_OPTIONS:
            edits.arguments[arg] = None
            add_note(arg, "differs", name, f"taken out: {zenml.DROPPED_OPTIONS[name]}")
        elif name in zenml.MISSING_OPTIONS:
            add_note(arg, "by hand", name, zenml.MISSING_OPTIONS[name])
        elif name in zenml.HOOKS:
            add_note(arg, "differs", name, zenml.HOOKS[name])
        elif name not in zenml.KEPT_OPTIONS and name not in OPTIONS:
            add_note(arg, "by hand", name, "there is no such option: docs/guide/settings.md lists them")
        if name == "settings" and isinstance(arg.value, cst.Dict):
            _check_settings(arg.value, add_note)


def edit_docker_settings(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Check the fields of DockerSettings, and remove ZenML from its requirements."""
    _check_fields(call, DockerSettings, zenml.MISSING_FIELDS, add_note)
    for arg, name in _keywords(call):
        if name != "requirements" or not isinstance(arg.value, (cst.List, cst.Tuple)):
            continue
        for element in arg.value.elements:
            text = literal(element.value)
            if isinstance(text, str) and zenml.ITSELF.fullmatch(text.strip()):
                edits.elements.add(element)
                add_note(element, "differs", text, "taken out: Stoker brings itself into the images that it builds")


def check_resources(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Check the fields of ResourceSettings."""
    del edits
    _check_fields(call, ResourceSettings, {}, add_note)


def check_kubernetes(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Check the fields of Kubernetes' settings, which have ZenML's names too."""
    del edits
    _check_fields(call, KubernetesSettings, KubernetesSettings.INSTEAD, add_note)


def check_skypilot(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Check the fields of SkyPilot's settings, which have ZenML's names too."""
    del edits
    _check_fields(call, SkypilotSettings, SkypilotSettings.INSTEAD, add_note)


def check_pod(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Check the fields of a pod's settings."""
    del edits
    _check_fields(call, KubernetesPodSettings, {}, add_note)


def edit_retry(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Translate StepRetryConfig's fields to Retry's, whose wait doubles by default where ZenML's is constant."""
    arguments = {name: arg for arg, name in _keywords(call, add_note)}
    for name, arg in arguments.items():
        if name not in zenml.RETRY_KEPT:
            add_note(arg, "by hand", name, "there is no such field of Retry: docs/guide/running.md, Retries")
        elif name in zenml.RETRY_FIELDS:
            edits.arguments[arg] = with_keyword(arg, zenml.RETRY_FIELDS[name])
    if "max_retries" not in arguments and len(call.args) == len(arguments):
        edits.added.setdefault(call, []).append(_keyword("times", cst.Integer("1")))
    if "backoff" not in arguments and "delay" in arguments:
        edits.added.setdefault(call, []).append(_keyword("backoff", cst.Integer("1")))
    elif "backoff" in arguments:
        value = literal(arguments["backoff"].value)
        if value == 0:
            edits.arguments[arguments["backoff"]] = arguments["backoff"].with_changes(value=cst.Integer("1"))
        elif not isinstance(value, int):
            add_note(arguments["backoff"], "differs", "backoff", "here it is 1 or more, and 1 keeps the wait as it is")


def drop_arguments(call: cst.Call, edits: Edits, add_note: AddNote) -> None:
    """Drop all arguments: `cleanup_gpu_memory(force=True)` becomes `cleanup_memory()`."""
    del add_note
    for arg in call.args:
        edits.arguments[arg] = None


CALLS: Final[Mapping[str, Callable[[cst.Call, Edits, AddNote], None]]] = {
    "step": edit_options,
    "pipeline": edit_options,
    "DockerSettings": edit_docker_settings,
    "ResourceSettings": check_resources,
    "StepRetryConfig": edit_retry,
    "KubernetesOrchestratorSettings": check_kubernetes,
    "KubernetesStepOperatorSettings": check_kubernetes,
    "KubernetesPodSettings": check_pod,
    **{name: check_skypilot for name in zenml.TARGETS if name.startswith("Skypilot")},
    "cleanup_gpu_memory": drop_arguments,
}
"""name in ZenML → the function that translates its calls"""

_TIGHT: Final = cst.AssignEqual(whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace(""))


def add_gpu_count(
    function: cst.FunctionDef, launch: cst.Call, step: cst.Decorator, edits: Edits, add_note: AddNote
) -> None:
    """Ask for the GPUs of a step under `run_with_accelerate`: Stoker leases them, ZenML's ranks use all they see."""
    arguments = {name: arg.value for arg, name in _keywords(launch)}
    if _is_true(arguments.get("cpu")):
        return
    step_arguments = {name: arg.value for arg, name in _keywords(step.decorator)} if _is_call(step.decorator) else {}
    settings = step_arguments.get("settings")
    literal_settings = isinstance(settings, cst.Dict) and all(
        isinstance(one, cst.DictElement) for one in settings.elements
    )
    if "resources" in step_arguments or (literal_settings and "resources" in _keys(settings)):
        return
    count = literal(arguments["num_processes"]) if "num_processes" in arguments else None
    if not isinstance(count, int) or "num_machines" in arguments or (settings is not None and not literal_settings):
        message = 'say resources={"gpu_count": …} at the step, or cpu=True for ranks on CPUs'
        add_note(function.name, "by hand", function.name.value, message)
        return
    gpu_count = cst.parse_expression(f'{{"gpu_count": {count}}}')
    edits.decorators[step] = _keyword("resources", gpu_count)
    message = f'added resources={{"gpu_count": {count}}}: ranks get the GPUs that their step asks for'
    add_note(step, "differs", function.name.value, message)


def output_name(call: cst.Call) -> cst.BaseExpression | None:
    """The name in an ArtifactConfig that has nothing but a name; None for any other."""
    if len(call.args) != 1 or (call.args[0].keyword is not None and call.args[0].keyword.value != "name"):
        return None
    return call.args[0].value if isinstance(literal(call.args[0].value), str) else None


def literal(node: cst.BaseExpression) -> Any:
    """The value of a constant; None for anything else."""
    if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.Integer, cst.Float)):
        return node.evaluated_value
    return None


def with_keyword(arg: cst.Arg, name: str) -> cst.Arg:
    """The argument under another keyword."""
    return arg.with_changes(keyword=cst.Name(name))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    return cst.Arg(keyword=cst.Name(name), value=value, equal=_TIGHT)


def _is_call(node: cst.BaseExpression) -> TypeGuard[cst.Call]:
    return isinstance(node, cst.Call)


def _is_true(node: cst.BaseExpression | None) -> bool:
    return isinstance(node, cst.Name) and node.value == "True"


def _keys(mapping: cst.BaseExpression | None) -> list[Any]:
    """The constant keys of a dict display."""
    elements = mapping.elements if isinstance(mapping, cst.Dict) else ()
    return [literal(element.key) for element in elements if isinstance(element, cst.DictElement)]


def _keywords(call: cst.Call, add_note: AddNote | None = None) -> list[tuple[cst.Arg, str]]:
    """The keyword arguments with their names; adds a note for `**`, which cannot be inspected."""
    keywords = []
    for arg in call.args:
        if arg.keyword is not None:
            keywords.append((arg, arg.keyword.value))
        elif arg.star == "**" and add_note is not None:
            add_note(arg, "differs", "**", "what is given by ** was not looked at")
    return keywords


def _check_fields(call: cst.Call, kind: type, missing: Mapping[str, str], add_note: AddNote) -> None:
    fields = attrs.fields_dict(kind)
    aliases: Mapping[str, str] = getattr(kind, "ALIASES", {})
    for arg, name in _keywords(call, add_note):
        if name not in fields and name not in aliases:
            message = missing.get(name, f"there is no such field; {kind.__name__} has {', '.join(fields)}")
            add_note(arg, "by hand", name, message)


def _check_settings(mapping: cst.Dict, add_note: AddNote) -> None:
    """Check the keys of a `settings=` dict display."""
    for element in mapping.elements:
        key = literal(element.key) if isinstance(element, cst.DictElement) else None
        if not isinstance(key, str):
            continue
        part, _, flavor = key.partition(".")
        if part in COMPONENTS and flavor and flavor not in BACKENDS:
            backends = ", ".join(sorted(BACKENDS.names()))
            message = refusal(flavor) or f"there is no backend '{flavor}' here, but {backends}"
            add_note(element, "by hand", key, message)
        elif part not in COMPONENTS and key not in OPTIONS:
            add_note(element, "by hand", key, "there is no such setting: docs/guide/settings.md lists them")
