"""Modules of Metaflow by their names, served below the module that users import: `….exception` of `MetaflowNotFound`.

They have no files: a table says where their names live, and the module above lets the import system find them here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from stoker.core.errors import RefusedName, absent

_COMPONENTS: Final = (
    *("Artifact", "Error", "EventsTimeline", "Image", "JSONViewer", "Markdown", "MetaflowCardComponent"),
    *("ProgressBar", "PythonCode", "Table", "ValueBox", "VegaChart", "YAMLViewer"),
)
_CLIENT: Final[Mapping[str, Sequence[str]]] = {
    "stoker.flows.client": ("DataArtifact", "Flow", "Metaflow", "MetaflowObject", "Run", "Step", "Task"),
    "stoker.flows.namespaces": (
        *("default_metadata", "default_namespace", "get_metadata"),
        *("get_namespace", "metadata", "namespace"),
    ),
}
_S3: Final = {
    "stoker.flows.datatools": ("RangeInfo", "S3", "S3GetObject", "S3Object", "S3PutObject"),
    "stoker.flows.exceptions": (
        *("MetaflowS3AccessDenied", "MetaflowS3Exception", "MetaflowS3InsufficientDiskSpace"),
        *("MetaflowS3InvalidObject", "MetaflowS3InvalidRange", "MetaflowS3NotFound", "MetaflowS3URLException"),
    ),
}
_CONFIGURATION: Final = (
    *("DATASTORE_SYSROOT_AZURE", "DATASTORE_SYSROOT_GS", "DATASTORE_SYSROOT_LOCAL", "DATASTORE_SYSROOT_S3"),
    *("DATATOOLS_S3ROOT", "DEFAULT_DATASTORE", "DEFAULT_ENVIRONMENT", "DEFAULT_METADATA", "DEFAULT_SECRETS_ROLE"),
    *(
        "KUBERNETES_NAMESPACE",
        "OTEL_ENDPOINT",
        "S3_ENDPOINT_URL",
        "SERVICE_AUTH_KEY",
        "SERVICE_URL",
        "TEMPDIR",
        "UI_URL",
    ),
)
_PARSERS: Final = ("conda_environment_yml_parser", "pyproject_toml_parser", "requirements_txt_parser")
_MUTATORS: Final = {
    "stoker.flows.mutators": ("FlowMutator", "MutableFlow", "MutableStep", "StepMutator"),
    "stoker.flows.user_decorators": ("USER_SKIP_STEP", "UserStepDecorator", "user_step_decorator"),
}

HOMES: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "cards": {
        "stoker.core.cards": _COMPONENTS,
        "stoker.flows.cardclient": ("get_cards",),
        "stoker.flows.cardtypes": ("MetaflowCard", "render_safely"),
    },
    "plugins.cards.card_client": {"stoker.flows.cardclient": ("Card", "CardContainer", "get_cards")},
    "plugins.cards.card_modules.card": {
        "stoker.core.cards": ("MetaflowCardComponent",),
        "stoker.flows.cardtypes": ("MetaflowCard",),
    },
    "plugins.cards.card_modules.basic": {
        "stoker.core.cards": ("DefaultComponent",),
        "stoker.flows.cardtypes": ("BlankCard", "DefaultCard", "TaskSpecCard"),
    },
    "plugins.cards.card_modules.components": {
        "stoker.core.cards": (*_COMPONENTS, "UserComponent"),
        "stoker.flows.standins": ("with_default_component_id",),
    },
    "plugins.cards.card_modules.renderer_tools": {"stoker.flows.cardtypes": ("render_safely",)},
    "plugins.cards.card_modules.test_cards": {
        "stoker.flows.cardtypes": (
            *("TestEditableCard", "TestEditableCard2", "TestErrorCard", "TestJSONComponent", "TestMockCard"),
            *("TestNonEditableCard", "TestPathSpecCard", "TestRefreshCard", "TestRefreshComponentCard"),
            *("TestStringComponent", "TestTimeoutCard", "_component_values_to_hash"),
        )
    },
    "client": _CLIENT,
    "client.core": {**_CLIENT, "stoker.flows.facts": ("Metadata", "MetaflowCode")},
    "exception": {
        "stoker.flows.exceptions": (
            *("CommandException", "ExternalCommandFailed", "InvalidDecoratorAttribute", "MetaflowDataMissing"),
            *("MetaflowException", "MetaflowExceptionWrapper", "MetaflowInternalError", "MetaflowInvalidPathspec"),
            *("MetaflowNamespaceMismatch", "MetaflowNotFound", "MetaflowTaggingError", "MetaflowUnknownUser"),
            *("MissingInMergeArtifactsException", "ParameterFieldFailed", "ParameterFieldTypeMismatch"),
            "UnhandledInMergeArtifactsException",
        )
    },
    "metaflow_current": {"stoker.flows.current": ("current",)},
    "parameters": {"stoker.flows.parameters": ("JSONType", "JSONTypeClass", "Parameter")},
    "includefile": {"stoker.flows.parameters": ("IncludeFile",), "stoker.flows.standins": ("IncludedFile",)},
    "plugins.cards.exception": {"stoker.flows.exceptions": ("CardNotPresentException",)},
    "plugins.catch_decorator": {"stoker.flows.exceptions": ("FailureHandledByCatch",)},
    "plugins.timeout_decorator": {"stoker.flows.exceptions": ("TimeoutException",)},
    "runner.metaflow_runner": {"stoker.flows.runner": ("ExecutingRun", "Runner")},
    "datatools": _S3,
    "decorators": {"stoker.flows.instance": ("step",)},
    "flowspec": {"stoker.flows.instance": ("INTERNAL_ARTIFACTS_SET",), "stoker.flows.spec": ("FlowSpec",)},
    "integrations": {"stoker.flows.standins": ("ArgoEvent",)},
    "metaflow_config": {"stoker.flows.standins": _CONFIGURATION},
    "metaflow_version": {"stoker.flows.standins": ("get_version",)},
    "version": {"stoker.flows.standins": ("metaflow_version",)},
    "metaflow_profile": {"stoker.flows.standins": ("profile",)},
    "multicore_utils": {"stoker.flows.standins": ("MulticoreException", "parallel_imap_unordered", "parallel_map")},
    "plugins.argo.argo_events": {"stoker.flows.standins": ("ArgoEvent", "ArgoEventException")},
    "plugins.datatools": _S3,
    "plugins.datatools.s3": _S3,
    "plugins.datatools.s3.s3": _S3,
    "plugins.namespaced_events": {"stoker.flows.standins": ("namespaced_event_name",)},
    "plugins.package_sources": {"stoker.flows.standins": ("package_sources",)},
    "plugins.parsers": {"stoker.flows.parsers": ("yaml_parser",)},
    "plugins.pypi.parsers": {"stoker.flows.parsers": (*_PARSERS, "ParserValueError")},
    "plugins.secrets.secrets_func": {"stoker.flows.secretsources": ("get_secret",)},
    "profilers": {"stoker.flows.decorators": ("gpu_profile",)},
    "runner.nbrun": {"stoker.flows.runner": ("NBRunner",)},
    "user_configs.config_parameters": {"stoker.flows.parameters": ("Config", "ConfigValue", "config_expr")},
    "user_decorators.mutable_flow": {"stoker.flows.mutators": ("MutableFlow",)},
    "user_decorators.mutable_step": {"stoker.flows.mutators": ("MutableStep",)},
    "user_decorators.user_flow_decorator": {"stoker.flows.mutators": ("FlowMutator",)},
    "user_decorators.user_step_decorator": _MUTATORS,
    "util": {"stoker.flows.standins": ("get_username", "is_stringish")},
}
"""Module of Metaflow → module of Stoker → names that it has for it."""

OTHERS: Final = frozenset(
    {
        *(
            "R",
            "_vendor",
            "cli",
            "cli_args",
            "cli_components",
            "clone_util",
            "cmd",
            "cmd_with_io",
            "datastore",
            "debug",
        ),
        *("event_logger", "events", "extension_support", "graph", "lint", "meta_files", "metadata_provider"),
        *("metaflow_config_funcs", "metaflow_environment", "metaflow_git", "mflog", "monitor"),
        *("package", "packaging_sys", "plugins", "procpoll", "pylint_wrapper", "runner", "runtime", "sidecar"),
        *("system", "system_context", "tagging_util", "task", "tracing", "tuple_util", "tutorials"),
        *("_vendor", "unbounded_foreach", "user_configs", "user_decorators", "vendor"),
    }
)
"""Modules of Metaflow 2.19.39 that are not here, or only in part: an import says so in a sentence."""


def homes_of(module: str) -> dict[str, str]:
    """Name → module of Stoker, for one module of Metaflow; empty for a package that only holds others."""
    return {name: home for home, names in HOMES.get(module, {}).items() for name in names}


def is_served(module: str) -> bool:
    """Whether a module of Metaflow, such as `plugins.cards`, is in the table or holds one that is."""
    return any(f"{known}.".startswith(f"{module}.") for known in HOMES)


def has(module: str, name: str) -> bool:
    """Whether a module of Metaflow, "" for the top, has a name here, which may be a module."""
    return name in homes_of(module) or is_served(f"{module}.{name}".lstrip("."))


class ServedModule(ModuleType):
    """A module whose names are imported from their homes when they are first used."""

    def __init__(self, name: str, module: str, advice: Callable[[str], str]) -> None:
        super().__init__(name, f"Names of `metaflow.{module}`; docs/flows.md says how they differ.")
        self.__path__: list[str] = []
        self._module = module
        self._advice = advice
        self._homes = homes_of(module)
        self.__all__ = sorted(self._homes)

    def __getattr__(self, name: str) -> Any:
        if name in self._homes:
            value = getattr(importlib.import_module(self._homes[name]), name)
            setattr(self, name, value)
            return value
        if name.startswith("_"):
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}'")
        theirs = f"metaflow.{self._module}.{name}"
        raise absent(f"{theirs} is not here: {self._advice(theirs)}")

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self._homes})


class _Served(Loader):
    def __init__(self, module: str, advice: Callable[[str], str]) -> None:
        self._module = module
        self._advice = advice

    def create_module(self, spec: ModuleSpec) -> ServedModule:
        return ServedModule(spec.name, self._module, self._advice)

    def exec_module(self, module: ModuleType) -> None:
        """All is there: names come when they are used."""


def spec_of(name: str, module: str, advice: Callable[[str], str]) -> ModuleSpec | None:
    """How the import system gets a module of Metaflow under a name; None for a name that Metaflow has not either.

    `advice` says what to do about a name of Metaflow's, such as `metaflow.tracing`, that is not here.
    """
    if is_served(module):
        return ModuleSpec(name, _Served(module, advice), is_package=True)
    if module.partition(".")[0] in OTHERS or is_served(module.partition(".")[0]):
        raise RefusedName(f"metaflow.{module} is not here: {advice(f'metaflow.{module}')}")
    return None
