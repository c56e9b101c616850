"""What replaces ZenML's names, options and fields when a pipeline is migrated, and what to do where nothing does.

The names are those of ZenML 0.93 and of the releases before it that pipelines still import from. ZenML offers most of
them from several modules, so they stand here by their last part. `zenml.json` beside this module has the tables whose
rows are texts; names that have the same text share a row. Knows nothing of code.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, Iterable, Mapping

import attrs

from stoker.backends.registry import BACKENDS, refusal
from stoker.core.docker import DockerSettings
from stoker.settings.options import settings_class

_DATA: Final[Mapping[str, Any]] = json.loads(Path(__file__).with_name("zenml.json").read_text(encoding="utf-8"))


def _table(name: str) -> dict[str, str]:
    return {one: text for names, text in _DATA[name].items() for one in names.split()}


TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    **{name: ("stoker", name) for name in ("step", "pipeline", "Client")},
    **{name: ("stoker.config", name) for name in ("ResourceSettings", "DockerSettings", "KubernetesPodSettings")},
    **dict.fromkeys(
        ("KubernetesOrchestratorSettings", "KubernetesStepOperatorSettings"), ("stoker.config", "KubernetesSettings")
    ),
    **{
        f"Skypilot{cloud}OrchestratorSettings": (
            "stoker.integrations.skypilot.flavors",
            f"Skypilot{cloud}OrchestratorSettings",
        )
        for cloud in ("AWS", "GCP", "Azure", "Lambda", "Kubernetes")
    },
    "StepRetryConfig": ("stoker.config", "Retry"),
    "cleanup_gpu_memory": ("stoker", "cleanup_memory"),
    "run_with_accelerate": ("stoker.integrations.huggingface", "run_with_accelerate"),
    "get_logger": ("logging", "getLogger"),
}
"""name → (module, name) that replaces it; `migrate.calls` translates the arguments of calls"""

ITSELF: Final = re.compile(r"zenml\s*(\[[^\]]*\])?\s*([=<>!~].*)?")
"""ZenML as a requirement."""

CONTEXT: Final = "get_step_context"
"""A call of it becomes `stoker.context`, which is not called."""

LITERALS: Final[Mapping[str, str]] = {
    "PythonPackageInstaller.PIP": '"pip"',
    "PythonPackageInstaller.UV": '"uv"',
    "ExecutionMode.FAIL_FAST": '"fail_fast"',
    "ExecutionMode.CONTINUE_ON_FAILURE": '"continue"',
}
"""member of an enum → the literal that replaces it"""

ENUMS: Final[Mapping[str, str]] = {
    "PythonPackageInstaller": 'write "uv" or "pip"',
    "ExecutionMode": 'write failure_mode="fail_fast" or "continue"',
}
"""enum → what to write for a use that is not in `LITERALS`"""

UNWRAPPED: Final = "ArtifactConfig"
"""`Annotated[int, ArtifactConfig(name="count")]` becomes `Annotated[int, "count"]`."""

PLATFORM: Final = (
    "what the step needs goes into ResourceSettings(…), its image into DockerSettings(…), and where it runs into a "
    "stack of stoker.toml; `stoker stacks` lists what there is"
)

MISSING: Final = _table("missing")
"""name without a replacement → what to do instead"""

ENDINGS: Final = _table("endings")
"""ending of a name → what to do instead"""

MODULES: Final = _table("modules")
"""module → what to do instead of names that no other table has"""

NOTHING: Final = "nothing here has this name; look for what it does in docs/guide"

OPTIONS: Final[Mapping[str, str]] = {"enable_cache": "cache", "execution_mode": "failure_mode"}
"""keyword of @step, @pipeline and .with_options → its name in Stoker"""

KEPT_OPTIONS: Final = frozenset(_DATA["kept options"].split())
DROPPED_OPTIONS: Final = _table("dropped options")
"""keyword that is removed → why nothing is lost"""

MISSING_OPTIONS: Final = _table("missing options")
"""keyword → what to do about it"""

_HOOK: Final = "the function is given one argument, what happened, or none: docs/guide/running.md, Hooks"
HOOKS: Final[Mapping[str, str]] = {"on_failure": _HOOK, "on_success": _HOOK}
"""keyword that stays → how it differs"""

RETRY_FIELDS: Final[Mapping[str, str]] = {"max_retries": "times"}
RETRY_KEPT: Final = frozenset({"max_retries", "delay", "backoff"})

MISSING_FIELDS: Final[Mapping[str, str]] = DockerSettings.INSTEAD
"""field of DockerSettings → what to do about it"""

CLIENT: Final[Mapping[str, str]] = {"get_pipeline_run": "run", "list_pipeline_runs": "runs"}
"""method of Client → its replacement, which takes other arguments"""

CONTEXT_PATHS: Final[Mapping[str, str]] = {
    "pipeline_run.id": "run_id",
    "step_run.name": "step",
    "step_name": "step",
}
"""attribute path of a step's context → its name in Stoker"""


_PARTS: Final = "stoker.integrations.zenml.parts"
HOMES: Final = {f"{_PARTS}.{module}": tuple(names.split()) for module, names in _DATA["homes"].items()}
"""Module of Stoker → names of ZenML that are served from it, from whichever module of ZenML's they are imported."""

SAME_HOMES: Final[Mapping[str, tuple[str, str]]] = {
    name: target for name, target in TARGETS.items() if target[0] not in ("stoker", "logging", "stoker.config")
} | {
    **{name: (f"{_PARTS}.plain", name) for name in ("cleanup_gpu_memory", "run_with_accelerate")},
    "KubernetesOrchestratorSettings": (f"{_PARTS}.settings", "KubernetesSettings"),
    "KubernetesStepOperatorSettings": (f"{_PARTS}.settings", "KubernetesSettings"),
}
"""Name → (module, name) of Stoker that is served for it."""

MODULE_HOMES: Final[Mapping[tuple[str, str], tuple[str, str]]] = {
    ("steps", "step"): (f"{_PARTS}.steps", "old_step"),
    ("metadata.metadata_types", "Path"): (f"{_PARTS}.words", "Path"),
    ("io", "fileio"): (f"{_PARTS}.fileio", ""),
    ("utils", "io_utils"): (f"{_PARTS}.fileio", ""),
    ("utils", "yaml_utils"): (f"{_PARTS}.fileio", ""),
    ("utils", "string_utils"): (f"{_PARTS}.fileio", ""),
}
"""(module of ZenML, name) → (module, name; "" is the module itself), where the name alone does not say what is meant"""

FILES: Final = ("io.fileio", "io.utils", "utils.io_utils", "utils.yaml_utils", "utils.string_utils")
"""Modules of ZenML whose functions are those of one module here."""

COMPONENTS: Final = _table("components")
"""Kind of a component of ZenML's stack → what to do here."""


CARRIED: Final = tuple(_DATA["carried endings"].split())
"""Endings of names that are carried without a row of `HOMES`: they hold fields, or do what Stoker does by itself."""


def homes() -> Mapping[str, tuple[str, str]]:
    """Name of ZenML → (module, name) that `stoker.integrations.zenml` serves for it."""
    return {**{name: (module, name) for module, names in HOMES.items() for name in names}, **SAME_HOMES}


def home_of(module: str, name: str) -> tuple[str, str] | None:
    """What is served for a name of one of ZenML's modules, without `zenml.`; None where nothing is."""
    if module in FILES:
        return (f"{_PARTS}.fileio", name)
    return MODULE_HOMES.get((module, name)) or homes().get(name)


def instead_of(option: str) -> str:
    """What to do in place of an option of `MISSING_OPTIONS`, for who leaves it where it is."""
    return MISSING_OPTIONS[option].removeprefix("remove it").lstrip(",: ").removeprefix("and ")


def fits(flavor: str, fields: Iterable[str]) -> bool:
    """Whether a platform of Stoker's has all of these settings."""
    if flavor not in BACKENDS:
        return False
    known = {field.name for field in attrs.fields(settings_class(BACKENDS.canonical(flavor)))}
    return known.issuperset(fields)


def is_function(name: str) -> bool:
    """Whether a name in lower case is that of a step or a function, rather than of a module."""
    return name in MISSING or name.endswith(("_step", "_hook"))


def advice(name: str, module: str) -> str:
    """What to do about a name of a module that has no replacement."""
    if name in MISSING:
        return MISSING[name]
    for ending, text in ENDINGS.items():
        if name.endswith(ending):
            return (refusal(name.removesuffix(ending)) if text == PLATFORM else "") or text
    return next((text for start, text in MODULES.items() if f"{module}.".startswith(f"{start}.")), NOTHING)
