"""What replaces Metaflow's names when a flow is migrated. A test keeps this table equal to the one in docs/flows.md.

Knows nothing of code: `migrate.names` looks names up here.
"""

from __future__ import annotations

from typing import Final, Literal, Mapping

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
        "noted; `stoker watch-for artifact:NAME --run flow.py` starts a run for each version",
    ),
    "trigger_on_finish": (
        "works differently",
        "noted, as `schedule` is; start the next run at the end of the first, by `Runner`",
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
        "not here",
        "call the package `huggingface_hub` in the step, and save what it brings as an artifact",
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


def advice(name: str) -> str:
    """What to do about a name, with "as above" replaced by the text of the nearest row above."""
    above = ""
    for row, (_, text) in NAMES.items():
        above = text.replace("as above", above, 1) if text.startswith("as above") else text
        if row == name:
            return above
    raise KeyError(name)
