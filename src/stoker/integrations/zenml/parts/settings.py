"""ZenML's options, settings, hooks and run configurations in Stoker's words; what has none is left out, and that is
said once.

What steps must know of their pipeline, its `extra` and its model, they get as the variable `PIPELINE`. A hook runs in a
process of its own after its step, whose exception is gone by then: one of its class is made of what was recorded of it.
ZenML's local stack leaves out images, clusters and resources, and so does `Room`: a step gets no more of this machine
than there is, its accelerators where there are some, and no image. On a stack with a platform nothing is left out.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Final, Mapping

import attrs

from stoker import stacks
from stoker.backends.kubernetes import settings as kubernetes
from stoker.backends.registry import BACKENDS
from stoker.core import docker, resources
from stoker.core.errors import NotFound, SettingsError, UsageError
from stoker.core.graph import GraphNode
from stoker.core.protocol import HookFacts
from stoker.core.settings import COMPONENTS, Layer, Retry
from stoker.integrations.zenml.parts import note
from stoker.integrations.zenml.parts.versions import Model
from stoker.migrate import zenml
from stoker.settings.options import OPTIONS
from stoker.worker.context import enter

PIPELINE: Final = "STOKER_ZENML_PIPELINE"
"""The variable in which a step finds its pipeline's name, `extra` and model, as JSON."""

IN_HOOK: Final = 0
"""The number of the attempt that a hook has in its context."""
_CALLER: Final = f"{__name__}:call_hook"
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_HERE: Final = ("local", "inline")
_WANTED: Final = {"cpu_count": "CPUs", "memory": "memory"}
_KEPT: Final = frozenset({"model", "extra", "substitutions", "output_materializers", "parameters"})
"""Options that steps and pipelines of this package look at themselves."""


def DockerSettings(**fields: Any) -> docker.DockerSettings:
    """The image of a step; fields that only ZenML needs are left out."""
    fields = _known("DockerSettings", docker.DockerSettings, fields)
    if isinstance(fields.get("requirements"), (list, tuple)):
        fields["requirements"] = [line for line in fields["requirements"] if not zenml.ITSELF.fullmatch(line.strip())]
    for name in ("environment", "runtime_environment"):
        if isinstance(fields.get(name), Mapping):
            fields[name] = {
                key: str(value).lower() if isinstance(value, bool) else value for key, value in fields[name].items()
            }
    build = fields.get("build_config")
    if build is not None:
        given = build if isinstance(build, Mapping) else vars(build)
        options = given.get("build_options") or given.get("options") or {}
        options = options if isinstance(options, Mapping) else vars(options)
        ignored = {"dockerignore": given["dockerignore"]} if given.get("dockerignore") else {}
        fields["build_config"] = {"options": dict(options), **ignored}
    return docker.DockerSettings(**fields)


def ResourceSettings(**fields: Any) -> resources.ResourceSettings:
    """What a step needs."""
    return resources.ResourceSettings(**_known("ResourceSettings", resources.ResourceSettings, fields))


def KubernetesSettings(**fields: Any) -> kubernetes.KubernetesSettings:
    """What steps on a cluster need."""
    return kubernetes.KubernetesSettings(**_known("KubernetesSettings", kubernetes.KubernetesSettings, fields))


def KubernetesPodSettings(**fields: Any) -> kubernetes.KubernetesPodSettings:
    """What a step's pod is to be."""
    return kubernetes.KubernetesPodSettings(**_known("KubernetesPodSettings", kubernetes.KubernetesPodSettings, fields))


def StepRetryConfig(max_retries: int = 1, delay: float = 0, backoff: float = 0) -> Retry:
    """How often a step is tried again; a wait of 0 and a factor of 0 are none."""
    return Retry(times=max_retries, delay=delay, backoff=max(backoff, 1))


def _retry(times: int = 1, max_retries: int | None = None, **waits: float) -> Retry:
    """The fields of a run configuration, by ZenML's names or Stoker's."""
    return StepRetryConfig(times if max_retries is None else max_retries, **waits)


def options_of(options: Mapping[str, Any], *, step: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options as Stoker has them, and those that ZenML's steps and pipelines here look at themselves."""
    own: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for given, value in options.items():
        name = zenml.OPTIONS.get(given, given)
        if given in _KEPT:
            others[given] = value
        elif given in zenml.DROPPED_OPTIONS or value is None:
            continue
        elif given in zenml.MISSING_OPTIONS:
            note(f"{given}= is left out: {zenml.instead_of(given)}")
        elif name == "settings":
            own.update(settings_of(value))
        elif name == "retry":
            own["retry"] = _retry(**value) if isinstance(value, Mapping) else value
        elif name == "failure_mode":
            own[name] = "continue" if str(getattr(value, "value", value)).startswith("continue") else "fail_fast"
        elif name in zenml.HOOKS:
            own[name] = hook_of(name, value)
        elif name == "tags":
            own[name] = [str(getattr(tag, "name", tag)) for tag in value]
        else:
            own[name] = value
    if step:
        own.pop("tags", None)
    return own, others


def settings_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a `settings=` mapping stands for, with the settings of Stoker's own platforms."""
    options: dict[str, Any] = {}
    platforms: dict[str, Any] = {}
    for key, value in settings.items():
        component, _, flavor = str(key).partition(".")
        if key == "docker":
            options[key] = DockerSettings(**value) if isinstance(value, Mapping) else value
        elif key == "resources":
            options[key] = ResourceSettings(**value) if isinstance(value, Mapping) else value
        elif key in OPTIONS and component not in COMPONENTS and not isinstance(value, SimpleNamespace):
            options[key] = value
        elif component in COMPONENTS and (
            attrs.has(type(value)) or (isinstance(value, Mapping) and zenml.fits(flavor, value))
        ):
            platforms[key] = value
        else:
            note(f"settings of '{key}' are left out: a stack of stoker.toml says what its platform needs")
    return {**options, "settings": platforms} if platforms else options


def _known(owner: str, kind: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    known = {field.name for field in attrs.fields(kind)}
    for name in fields.keys() - known:
        note(f"{owner}({name}=…) is left out: {getattr(kind, 'INSTEAD', {}).get(name, 'nothing here has this field')}")
    return {
        name: getattr(value, "value", value) for name, value in fields.items() if name in known and value is not None
    }


def facts_of(name: str, others: Mapping[str, Any]) -> dict[str, str]:
    """The environment by which a pipeline's steps know its `extra` and its model."""
    model, extra = others.get("model"), others.get("extra")
    if model is None and not extra:
        return {}
    asked = None if model is None else {"name": model.name, "version": model.asked}
    return {PIPELINE: json.dumps({"name": name, "extra": extra or {}, "model": asked}, default=str)}


@attrs.frozen(kw_only=True)
class RunConfiguration:
    """What a file of `config_path=` says."""

    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments of the pipeline."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """Options of the pipeline, by ZenML's names."""
    steps: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Step → its options and `parameters`."""

    def parameters_of(self, step: str) -> Mapping[str, Any]:
        """Arguments of a step."""
        return self.steps.get(step, {}).get("parameters") or {}

    def options_of(self, step: str) -> dict[str, Any]:
        """Options of a step, by ZenML's names."""
        return {name: value for name, value in self.steps.get(step, {}).items() if name in _CONFIGURED}


_CONFIGURED: Final = frozenset(
    {"extra", "model", "settings", "step_operator", "retry", "environment", "tags", "on_failure", "on_success"}
    | {*zenml.OPTIONS, *zenml.OPTIONS.values()}
)
"""Options that a run configuration may have, by ZenML's names or Stoker's."""


def read_run_configuration(path: Any) -> RunConfiguration:
    """Read a run configuration."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise NotFound(f"there is no run configuration {path}") from None
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the run configuration cannot be read: {error}", where=str(path)) from None
    if not isinstance(document, dict):
        raise SettingsError(
            "the run configuration is no mapping", where=str(path), fix="write keys such as parameters:"
        )
    options = {name: value for name, value in document.items() if name in _CONFIGURED and value is not None}
    if isinstance(options.get("model"), Mapping):
        options["model"] = Model(**options["model"])
    steps = {name: step or {} for name, step in (document.get("steps") or {}).items()}
    return RunConfiguration(parameters=document.get("parameters") or {}, options=options, steps=steps)


class Hook:
    """A function of the user's that is called as ZenML does: `on_failure(exception)`, `on_success()`, once a step."""

    __stoker_caller__ = _CALLER

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__stoker_function__ = function

    def __call__(self, facts: HookFacts) -> None:
        call_hook(self.__stoker_function__, facts)


def hook_of(option: str, given: Any) -> Any:
    """What stands in Stoker's options for a hook; a text names its function, "package.module.function"."""
    if isinstance(given, Hook):
        return given
    if isinstance(given, str):
        module, _, name = given.rpartition(".")
        try:
            given = getattr(importlib.import_module(module), name)
        except (ImportError, ValueError, AttributeError) as error:
            raise UsageError(
                f"{option}={given!r} cannot be imported: {error}", fix="give the function itself"
            ) from error
    return Hook(given) if callable(given) else given


def call_hook(hook: Callable[..., Any], facts: HookFacts) -> None:
    """Call a hook with what its parameters ask for: the exception and, in old releases, the step's context."""
    with enter({"run": facts.run, "key": facts.step, "attempt": IN_HOOK}):
        given: dict[str, Any] = {}
        for name, parameter in inspect.signature(hook).parameters.items():
            kind = parameter.annotation
            if isinstance(kind, str):
                kind = getattr(hook, "__globals__", {}).get(kind)
            if getattr(kind, "__name__", "") == "StepContext":
                given[name] = kind()
            elif facts.status != "succeeded" and parameter.kind not in _VARIADIC:
                given[name] = exception_of(facts)
        hook(**given)


def exception_of(facts: HookFacts) -> BaseException:
    """The step's exception; a `RuntimeError` where none ended it (its memory, its time limit, its machine)."""
    module, _, name = facts.type.rpartition(".")
    message = facts.message.removeprefix(f"{name}: ")  # what alone would say nothing, as a KeyError's, has it before it
    try:
        kind: Any = getattr(importlib.import_module(module or "builtins"), name)
        error: BaseException = _made(kind, message)
    except Exception:  # a local class, a module that is the program itself, a constructor of the user's
        error = _made(RuntimeError, message)
    if facts.traceback:
        error.add_note(facts.traceback)
    return error


def _made(kind: Any, message: str) -> Any:
    """An exception of a class whose text is `message`."""
    error = kind.__new__(kind, message)
    if str(error) == message:
        return error
    members = {"__str__": lambda self: message, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    said = type(kind.__name__, (kind,), members)
    return said.__new__(said, message)


@attrs.frozen
class Room:
    """What this machine has for steps."""

    cpus: float
    memory: int

    def fitted(self, node: GraphNode) -> GraphNode:
        """The step as it can be had here."""
        step = attrs.evolve(node.step, layers=self.layers(node.step.layers, node.key))
        return attrs.evolve(node, step=step, layers=self.layers(node.layers, node.key))

    def layers(self, layers: tuple[Layer, ...], owner: str) -> tuple[Layer, ...]:
        """Layers of settings without what is not here."""
        return tuple(attrs.evolve(layer, values=self._values(layer.values, owner)) for layer in layers)

    def _values(self, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        operator = values.get("step_operator")
        for key, value in values.items():
            component, _, flavor = key.partition(".")
            if key == "docker" and not operator:
                note("the images of steps (settings of 'docker') are left out: they run in this Python")
            elif component in COMPONENTS and flavor and not _is_there(component, flavor):
                note(f"settings of '{key}' are left out: the steps run on this machine")
            elif key == "step_operator" and isinstance(value, str) and not _is_operator(value):
                note(f"step '{owner}' runs on this machine: no stack has a step operator '{value}'")
            elif key == "resources" and isinstance(value, Mapping):
                kept[key] = self._resources(value, owner)
                if any(value.get(name) for name in ("gpu_count", "accelerators")):
                    kept.setdefault("accelerator_policy", "prefer")
            else:
                kept[key] = value
                if key == "launch":
                    kept.setdefault("accelerator_policy", "prefer")
        return kept

    def _resources(self, wanted: Mapping[str, Any], owner: str) -> dict[str, Any]:
        fitting = dict(wanted)
        for name, most in (("cpu_count", self.cpus), ("memory", self.memory)):
            if isinstance(wanted.get(name), (int, float)) and wanted[name] > most:
                fitting[name] = most
                note(f"'{owner}' asks for more {_WANTED[name]} than this machine has: it gets what there is")
        return fitting


def _is_there(component: str, flavor: str) -> bool:
    if flavor == "*":
        return False
    if component == "orchestrator":
        return flavor in _HERE
    return any(part.flavor == flavor for stack in stacks.stacks() for part in stack.step_operators.values())


def _is_operator(name: str) -> bool:
    return BACKENDS.canonical(name) in BACKENDS or any(name in stack.step_operators for stack in stacks.stacks())
