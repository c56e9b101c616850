"""What replaces ZenML's names, options and fields when a pipeline is migrated, and what to do where nothing does.

The names are those of ZenML 0.93 and of the releases before it that pipelines still import from. ZenML offers most of
them from several modules, so they stand here by their last part. Knows nothing of code.
"""

from __future__ import annotations

import re
from typing import Final, Iterable, Mapping

import attrs

from stoker.backends.registry import BACKENDS, refusal
from stoker.core.docker import DockerSettings
from stoker.settings.options import settings_class

TARGETS: Final[Mapping[str, tuple[str, str]]] = {
    "step": ("stoker", "step"),
    "pipeline": ("stoker", "pipeline"),
    "Client": ("stoker", "Client"),
    "cleanup_gpu_memory": ("stoker", "cleanup_memory"),
    "ResourceSettings": ("stoker.config", "ResourceSettings"),
    "DockerSettings": ("stoker.config", "DockerSettings"),
    "StepRetryConfig": ("stoker.config", "Retry"),
    "KubernetesOrchestratorSettings": ("stoker.config", "KubernetesSettings"),
    "KubernetesStepOperatorSettings": ("stoker.config", "KubernetesSettings"),
    "KubernetesPodSettings": ("stoker.config", "KubernetesPodSettings"),
    **{
        f"Skypilot{cloud}OrchestratorSettings": (
            "stoker.integrations.skypilot.flavors",
            f"Skypilot{cloud}OrchestratorSettings",
        )
        for cloud in ("AWS", "GCP", "Azure", "Lambda", "Kubernetes")
    },
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

_METADATA: Final = "there is no metadata beside artifacts: return the values as an output, or print them"
_ARTIFACTS: Final = "a step's artifacts are what it returns; `Client().run(ID).steps[KEY].load()` reads them back"
_MODELS: Final = "there is no model registry: return the model, and find it by the run's tags"
_SERVING: Final = "pipelines are not served here; call the pipeline, or `stoker run FILE`"
PLATFORM: Final = (
    "what the step needs goes into ResourceSettings(…), its image into DockerSettings(…), and where it runs into a "
    "stack of stoker.toml; `stoker stacks` lists what there is"
)

MISSING: Final[Mapping[str, str]] = {
    "ArtifactConfig": 'name the output by a text: Annotated[int, "count"]; tags and versions of outputs are not here',
    "ExternalArtifact": "give the value to the step as an argument",
    "Model": _MODELS,
    "Tag": 'write tags as texts: @pipeline(tags=["nightly"])',
    "add_tags": '@pipeline(tags=["nightly"]) or --tag nightly',
    "remove_tags": "a run keeps the tags that it was started with",
    "get_pipeline_context": "give the pipeline an argument; `context.run_id` is known in its steps",
    "PipelineContext": "give the pipeline an argument; `context.run_id` is known in its steps",
    "StepContext": "write no type: `from stoker import context` is the step's",
    "load_artifact": _ARTIFACTS,
    "save_artifact": _ARTIFACTS,
    "register_artifact": _ARTIFACTS,
    "log_metadata": _METADATA,
    "bulk_log_metadata": _METADATA,
    "log_artifact_metadata": _METADATA,
    "log_step_metadata": _METADATA,
    "log_model_metadata": _METADATA,
    "link_artifact_to_model": _MODELS,
    "show": "`stoker runs` and `stoker show latest` are what there is to look at",
    "unmapped": "`step.map(…)` iterates over positional arguments, and keywords are fixed: give the value as a keyword",
    "BaseStep": "write the step as a function with @step; its settings are arguments",
    "BasePipeline": "write the pipeline as a function with @pipeline",
    "BaseParameters": "give the step the parameters as arguments, or a dataclass",
    "Output": 'write tuple[Annotated[int, "count"], …]',
    "Schedule": "`stoker schedule add` runs a pipeline at set times",
    "CachePolicy": "what a result depends on is fixed; cache_key= adds to it and cache=False leaves it out",
    "ByteUnit": 'sizes are texts: "16GB", "16GiB"',
    "PythonEnvironmentExportMethod": "replicate_local_python_environment=True",
    "DockerBuildConfig": 'build_config={"options": {…}, "dockerignore": "…"}',
    "DockerBuildOptions": 'build_config={"options": {…}}',
    "StoreConfiguration": "database and artifact_store of a stack in stoker.toml",
    "BaseMaterializer": "write a serializer: docs/guide/artifacts.md, Your own formats",
    "alerter_failure_hook": "write on_failure= as a function of yours that sends the message",
    "alerter_success_hook": "write on_success= as a function of yours that sends the message",
    "SagemakerStepOperatorSettings": 'settings={"step_operator.sagemaker": SagemakerSettings(…)} from stoker.config',
    "SagemakerOrchestratorSettings": 'settings={"orchestrator.sagemaker": SagemakerSettings(…)} from stoker.config; '
    "each step is a training job",
    "LocalDockerOrchestratorSettings": 'settings={"orchestrator.docker": ContainerSettings(…)} from stoker.config; its '
    "run_args are run_options, and GPUs come from ResourceSettings(gpu_count=…)",
}
"""name without a replacement → what to do instead"""

ENDINGS: Final[Mapping[str, str]] = {
    "OrchestratorSettings": PLATFORM,
    "StepOperatorSettings": PLATFORM,
    "DeployerSettings": _SERVING,
    "DeploymentSettings": _SERVING,
    "Materializer": MISSING["BaseMaterializer"],
    "ExperimentTrackerSettings": "call the tracker's own package in the step",
}
"""ending of a name → what to do instead"""

MODULES: Final[Mapping[str, str]] = {
    "zenml.integrations": "use the tool's own package in the step",
    "zenml.materializers": MISSING["BaseMaterializer"],
    "zenml.models": "what runs left is read by stoker.Client",
    "zenml.enums": "settings are plain texts here",
}
"""module → what to do instead of names that no other table has"""

NOTHING: Final = "nothing here has this name; look for what it does in docs/guide"

OPTIONS: Final[Mapping[str, str]] = {"enable_cache": "cache", "execution_mode": "failure_mode"}
"""keyword of @step, @pipeline and .with_options → its name in Stoker"""

KEPT_OPTIONS: Final = frozenset(
    {
        "name",
        "settings",
        "step_operator",
        "environment",
        "on_failure",
        "on_success",
        "retry",
        "dynamic",
        "tags",
        "after",
        "id",
    }
)
DROPPED_OPTIONS: Final[Mapping[str, str]] = {
    "enable_artifact_metadata": "type, size, shape and digest of an output are always kept",
    "enable_artifact_visualization": "nothing is drawn when an output is saved",
    "enable_step_logs": "what a step writes is always kept",
    "enable_pipeline_logs": "what a step writes is always kept",
}
"""keyword that is removed → why nothing is lost"""

MISSING_OPTIONS: Final[Mapping[str, str]] = {
    "experiment_tracker": "remove it, and call the tracker's own package in the step",
    "output_materializers": "remove it: a value's type chooses its serializer; docs/guide/artifacts.md",
    "secrets": "remove it; environment= takes variables, and a stack's docker orchestrator takes secrets",
    "extra": "remove it; give the step an argument",
    "model": f"remove it: {_MODELS}",
    "substitutions": "remove it, and write the name in full",
    "cache_policy": "remove it; cache=False, cache_key= and cache_expires= say the rest",
    "runtime": "remove it; step_operator= and the stack say where a step runs",
    "heartbeat_healthy_threshold": "remove it; timeout= limits an attempt",
    "depends_on": "remove it; call the other pipeline first",
    "on_init": "remove it, and write a first step",
    "on_init_kwargs": "remove it, and write a first step",
    "on_cleanup": "remove it; on_success= and on_failure= are told how a run ended",
    "config_path": "remove it, and run with `stoker run FILE --config RUN.yaml`",
    "schedule": "remove it; `stoker schedule add` runs a pipeline at set times",
    "run_name": "remove it, and run with --name NAME",
    "unlisted": "remove it: every run is kept",
    "parameters": "give the step its arguments where it is called",
    **dict.fromkeys(
        ("requirements", "required_integrations", "dockerignore_file", "docker_configuration"),
        'what an image needs is said by settings={"docker": DockerSettings(…)}',
    ),
}
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
HOMES: Final[Mapping[str, tuple[str, ...]]] = {
    f"{_PARTS}.steps": ("pipeline", "step", "BasePipeline", "BaseParameters", "BaseStep", "Output"),
    f"{_PARTS}.settings": ("DockerSettings", "KubernetesPodSettings", "ResourceSettings", "StepRetryConfig"),
    f"{_PARTS}.versions": ("ExternalArtifact", "Model"),
    f"{_PARTS}.context": (
        *("PipelineContext", "StepContext", "get_pipeline_context", "get_step_context"),
        *("ArtifactConfig", "add_tags", "load_artifact", "log_artifact_metadata", "log_metadata", "log_model_metadata"),
        *("log_model_version_metadata", "log_step_metadata", "save_artifact"),
    ),
    f"{_PARTS}.client": ("Client", "alerter_failure_hook", "alerter_success_hook", "get_tracking_uri"),
    f"{_PARTS}.materializers": ("BaseMaterializer", "PydanticMaterializer"),
    f"{_PARTS}.plain": (
        *("Schedule", "Tag", "__version__", "get_environment", "get_logger", "get_run_url", "link_artifact_to_model"),
        *(
            "register_artifact",
            "show",
            "unmapped",
            "GlobalConfiguration",
            "integration_registry",
            "materializer_registry",
        ),
    ),
    f"{_PARTS}.words": (
        *("ArtifactType", "CSVString", "DType", "ExecutionMode", "ExecutionStatus", "HTMLString", "JSONString"),
        *("LoggingLevels", "MarkdownString", "MetadataResourceTypes", "ModelStages", "PythonEnvironmentExportMethod"),
        *("PythonPackageInstaller", "SorterOps", "StackComponentType", "StorageSize", "Uri", "VisualizationType"),
    ),
}
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

COMPONENTS: Final[Mapping[str, str]] = {
    "experiment_tracker": "call the tracker's own package in the step",
    "model_registry": "versions and stages are those of `Client().model(NAME)`; docs/guide/artifacts.md",
    "model_deployer": _SERVING,
    "annotator": "call the annotator's own package in the step",
    "feature_store": "call the feature store's own package in the step",
    "data_validator": "call the validator's own package in the step",
    "alerter": "send the message in a hook (on_failure=, on_success=) or in the step",
    "image_builder": "images are built as the stack's docker settings say; docs/guide/containers.md",
    "container_registry": "the stack's registry is that of stoker.toml; docs/guide/containers.md",
}
"""Kind of a component of ZenML's stack → what to do here."""


CARRIED: Final = (
    "ExperimentTracker",
    "Materializer",
    "Settings",
    "Parameters",
    "Config",
    "Configuration",
    "Requirements",
)
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
            return (refusal(name.removesuffix(ending)) if text is PLATFORM else "") or text
    return next((text for start, text in MODULES.items() if f"{module}.".startswith(f"{start}.")), NOTHING)
