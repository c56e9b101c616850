"""What replaces Metaflow's names when a flow is migrated, and Metaflow's modules, served below the module that users
import: `….exception` of `MetaflowNotFound`.

Knows nothing of code: `migrate.names` looks names up here. A test keeps `NAMES` equal to the table in docs/flows.md.
Served modules have no files: `HOMES` says where their names live, and `stoker.flow` lets the import system find them
by `spec_of`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, Literal

from stoker.core.errors import RefusedName, absent

State = Literal["works", "works differently", "not here"]

TARGET: Final = "stoker.flow"

NAMES: Final[Mapping[str, tuple[State, str]]] = {
    "FlowSpec": ("works", ""),
    "step": ("works", "also `@step(start=True)`, `@step(end=True)`; a step that is the only one is both"),
    "current": (
        "works differently",
        (
            "`task_id` is the task's key, such as `train[3]`; `tempdir` is the task's own; `current.devices` and "
            "`current.parameters` are more; no `trigger`"
        ),
    ),
    "Parameter": ("works", "of click's words `envvar`, `is_flag`, `hidden` and `metavar`; others are refused"),
    "JSONType": ("works", ""),
    "JSONTypeClass": ("works", ""),
    "IncludeFile": ("works differently", "the content is an artifact as any other; local files"),
    "Config": ("works", "`--config NAME FILE`, `--config-value NAME JSON`"),
    "ConfigValue": ("works", ""),
    "config_expr": ("works", "sees the flow's configs and its module's names"),
    "user_step_decorator": ("works", "also `--with NAME:word=1`"),
    "UserStepDecorator": ("works", ""),
    "USER_SKIP_STEP": ("works", ""),
    "StepMutator": (
        "works differently",
        "what `add_decorator` returns has `name` and `values`; its class is never changed: every run has one below it",
    ),
    "FlowMutator": ("works differently", "as above; no `add_to_package`"),
    "resources": (
        "works differently",
        "units, every word of `ResourceSettings`, and devices that are there are leased",
    ),
    "kubernetes": (
        "works differently",
        "runs on the stack's Kubernetes cluster; `KubernetesSettings` has more words; no default of CPU or memory",
    ),
    "batch": (
        "works differently",
        "runs on the stack's AWS Batch; `trainium` and `inferentia` count devices, of several cores each",
    ),
    "retry": ("works differently", "waits only where `minutes_between_retries` is given"),
    "catch": (
        "works differently",
        (
            "the value is a `CaughtFailure`, not an exception, with Metaflow's `type`, `exception` and `stacktrace`; "
            "also on the nodes of a gang; not on a step that itself splits or chooses by a value"
        ),
    ),
    "timeout": ("works differently", "the task's process is ended; no exception is raised in it"),
    "environment": ("works", ""),
    "secrets": (
        "works differently",
        (
            "sources are `env:NAME`, `file:PATH`, `aws-secrets-manager.NAME` and inline ones; those of "
            "Google and Azure are refused"
        ),
    ),
    "card": (
        "works differently",
        (
            "every task has a page, on which its cards stand; `card view` writes a file; the type `default` "
            "shows parts alone"
        ),
    ),
    "cards": ("works differently", "`VegaChart` draws lines and areas, without a network; `Frame` is more"),
    "parallel": ("works", "`num_parallel` alone does it"),
    "pytorch_parallel": (
        "works differently",
        "torch's variables are set on every node in any case, and no backend is forced",
    ),
    "pypi": (
        "works differently",
        (
            "also without `--environment`: what is missing here is then refused; steps that find all packages here "
            "run as they are; also `sources`, `extra_indices`, `index_url`"
        ),
    ),
    "conda": (
        "works differently",
        "as above, with `channels`; needs micromamba, mamba or conda here; beside `@pypi`, both count",
    ),
    "pypi_base": ("works differently", "as above"),
    "conda_base": ("works differently", "as above"),
    "project": ("works differently", "tags runs; nothing is deployed"),
    "schedule": ("works differently", "noted; `python flow.py schedule create` has it run at its times"),
    "trigger": (
        "works differently",
        "noted; `stoker watch-for --run flow.py` waits for it: an event is a new version of the artifact of its name",
    ),
    "trigger_on_finish": (
        "works differently",
        "noted; `stoker watch-for --run flow.py` starts a run for each of the other's that succeeds",
    ),
    "exit_hook": (
        "works differently",
        "the functions are called in the process that started the run, and see what that has in memory",
    ),
    "airflow_external_task_sensor": ("works differently", "noted; there is no Airflow deployer"),
    "airflow_s3_key_sensor": ("works differently", "noted; there is no Airflow deployer"),
    "Metaflow": ("works", ""),
    "Flow": ("works", ""),
    "Run": ("works differently", "`code` is there for every run; `trigger` is None; a failed run is `finished`"),
    "Step": ("works", ""),
    "Task": (
        "works differently",
        "ids are keys such as `train[1]`; `exception` is a `CaughtFailure`; `environment_info` is None",
    ),
    "DataArtifact": ("works differently", "`sha` is a SHA-256"),
    "namespace": ("works", ""),
    "get_namespace": ("works", ""),
    "default_namespace": ("works", ""),
    "metadata": ("works differently", 'takes the name of a stack, whose store is read: `metadata("team")`'),
    "get_metadata": ("works", "`stack@NAME`"),
    "default_metadata": ("works", ""),
    "inspect_spin": ("not here", 'what `spin --persist` keeps is in the same store: `Flow("Train.spin")`'),
    "Runner": (
        "works differently",
        "options of the command line as keywords; `spin` returns an `ExecutingRun`, which has `.task`",
    ),
    "NBRunner": (
        "works differently",
        "takes the imports, functions and values that the flow needs from other cells, too",
    ),
    "Deployer": ("not here", "there is no deployer; `python flow.py schedule create` has it run at set times"),
    "DeployedFlow": ("not here", "as above"),
    "NBDeployer": ("not here", "as above"),
    "S3": (
        "works differently",
        (
            "`run=` keeps files in the folder `data` of the artifact store; a root may be a folder, or any "
            "URL that fsspec opens; `s3fs` instead of `boto3`"
        ),
    ),
    "datatools": ("works differently", "it has `S3`, its objects and its errors"),
    "parallel_map": ("works", ""),
    "parallel_imap_unordered": ("works", ""),
    "profile": ("works", "`stoker show` has times, CPU and memory of every task"),
    "package_sources": ("works differently", "does nothing: code is read where it is, without a package"),
    "namespaced_event_name": ("works", ""),
    "yaml_parser": ("works", ""),
    "requirements_txt_parser": ("works", ""),
    "pyproject_toml_parser": ("works", ""),
    "conda_environment_yml_parser": ("works", ""),
    "checkpoint": (
        "works differently",
        "also `eager`; `resume` takes checkpoints of unfinished tasks along; files are kept as they are; no card",
    ),
    "Checkpoint": (
        "works differently",
        "in a task, in what it started, and outside: `Checkpoint().list(task=…)`, `load`",
    ),
    "gpu_profile": (
        "works differently",
        (
            "the receipt's samples: only the task's own devices, numbers, also after SIGKILL; its card is "
            "the task's page, with the receipt and charts"
        ),
    ),
    "torchrun": (
        "works differently",
        "`current.torch.run(…)` on one node or a gang; as many ranks as the node has devices",
    ),
    "accelerate": ("works differently", "`current.accelerate.run(…)`; Metaflow has none"),
    "deepspeed": ("works differently", "`current.deepspeed.run(…)`, without ssh"),
    "mpi": (
        "works differently",
        "`current.mpi` on all nodes, without ssh, with Open MPI 4; every node runs the step, and calls it",
    ),
    "uv": ("works differently", "as `pypi`; no decorator of Metaflow's own"),
    "metaflow_ray": ("not here", "start Ray in a `num_parallel`: `current.parallel.main_ip` is the head"),
    "model": ("not here", '`stoker.save_artifact(Path(folder), "name")` in the step gives it a name and versions'),
    "load_model": ("not here", '`stoker.load_artifact("name")` loads its newest version'),
    "huggingface_hub": (
        "works differently",
        "`load` and `loaded`, planned and [shared by steps](guide/data.md); no `snapshot_download` in the step",
    ),
    "tensorboard": ("not here", "write events into a folder that `@checkpoint` keeps, or call `stoker.log_metrics`"),
    "nim": ("not here", "call the model's server by its address in the step"),
}
"""name → (state, how it differs or what to do instead), in the order of docs/flows.md."""

MODULES: Final[Mapping[str, str]] = {
    "metaflow.cards": "a card has Markdown, Table, Image, Artifact and ProgressBar of stoker.flow",
    "metaflow.plugins.cards": "what stands on a card is Markdown, Table, Image, Artifact, ProgressBar or Frame of "
    "stoker.flow, or another component of stoker.flow.cards",
    "metaflow.plugins": "Metaflow's plugins are not here; a decorator of yours may be written with "
    "@user_step_decorator",
    "metaflow.user_decorators": "MutableFlow, MutableStep, FlowMutator, StepMutator and UserStepDecorator are in "
    "stoker.flow",
    "metaflow.decorators": "write a decorator with @user_step_decorator, or a plain one with functools.wraps",
    "metaflow.exception": "errors are those of stoker.core.errors: StokerError is the root, UsageError is for wrong "
    "calls",
    "metaflow.metaflow_config": "configuration stands in stoker.toml and in STOKER_… variables",
    "metaflow._vendor": "import the package itself: `import click`",
    "metaflow.integrations": "there is no such integration here",
    "metaflow_extensions": "extensions of Metaflow are not loaded here",
    "metaflow_ray": "start Ray in a num_parallel: current.parallel.main_ip is the head",
}
"""module → what to do about a name of it that is in no table"""

DECORATOR_MODULES: Final = ("gpu_profile", "metaflow_gpu_profile")
"""Modules that offer `gpu_profile`: a file copied from the extension's repository, or its package.
https://github.com/outerbounds/metaflow-gpu-profile"""

CURRENT: Final[Mapping[str, str]] = {
    "trigger": "nothing here waits for events; give the run a parameter",
}
"""attribute of `current` → what to do instead"""


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
    *("KUBERNETES_NAMESPACE", "OTEL_ENDPOINT", "S3_ENDPOINT_URL", "SERVICE_AUTH_KEY", "SERVICE_URL", "TEMPDIR"),
    "UI_URL",
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
    "client.core": {**_CLIENT, "stoker.flows.provenance": ("Metadata", "MetaflowCode")},
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
        *("R", "_vendor", "cli", "cli_args", "cli_components", "clone_util", "cmd", "cmd_with_io", "datastore"),
        *("debug", "unbounded_foreach", "user_configs", "user_decorators", "vendor"),
        *("event_logger", "events", "extension_support", "graph", "lint", "meta_files", "metadata_provider"),
        *("metaflow_config_funcs", "metaflow_environment", "metaflow_git", "mflog", "monitor"),
        *("package", "packaging_sys", "plugins", "procpoll", "pylint_wrapper", "runner", "runtime", "sidecar"),
        *("system", "system_context", "tagging_util", "task", "tracing", "tuple_util", "tutorials"),
    }
)
"""Modules of Metaflow 2.19.39 that are not here, or only in part: an import says so in a sentence."""


def advice(name: str) -> str:
    """What to do about a name, with "as above" replaced by the text of the nearest row above."""
    above = ""
    for row, (_, text) in NAMES.items():
        above = text.replace("as above", above, 1) if text.startswith("as above") else text
        if row == name:
            return above
    raise KeyError(name)


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
