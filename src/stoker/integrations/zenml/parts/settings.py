"""ZenML's options, settings and run configurations in Stoker's words; what has none is left out, and that is said once.

What steps must know of their pipeline, its `extra` and its model, they get as the variable `PIPELINE`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Mapping

import attrs

from stoker.backends.kubernetes import settings as kubernetes
from stoker.core import docker, resources
from stoker.core.errors import NotFound, SettingsError
from stoker.core.settings import COMPONENTS, Retry
from stoker.integrations.zenml.parts.hooks import hook_of
from stoker.integrations.zenml.parts.notes import note
from stoker.integrations.zenml.parts.versions import Model
from stoker.migrate import zenml
from stoker.settings.options import OPTIONS

PIPELINE: Final = "STOKER_ZENML_PIPELINE"
"""The variable in which a step finds its pipeline's name, `extra` and model, as JSON."""

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
