"""The class form of a pipeline, by Metaflow's names: `from stoker.flow import FlowSpec, step`.

Names are imported when they are first used. docs/flows.md says of every name of Metaflow's whether and how it is here.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from stoker.core.cards import Artifact as Artifact
    from stoker.core.cards import Frame as Frame
    from stoker.core.cards import Image as Image
    from stoker.core.cards import Markdown as Markdown
    from stoker.core.cards import ProgressBar as ProgressBar
    from stoker.core.cards import Table as Table
    from stoker.core.graph import CaughtFailure as CaughtFailure
    from stoker.core.secret import Secret as Secret
    from stoker.flows.checkpoint import Checkpoint as Checkpoint
    from stoker.flows.client import DataArtifact as DataArtifact
    from stoker.flows.client import Flow as Flow
    from stoker.flows.client import Metaflow as Metaflow
    from stoker.flows.client import Run as Run
    from stoker.flows.client import Step as Step
    from stoker.flows.client import Task as Task
    from stoker.flows.current import current as current
    from stoker.flows.datatools import S3 as S3
    from stoker.flows.decorators import accelerate as accelerate
    from stoker.flows.decorators import airflow_external_task_sensor as airflow_external_task_sensor
    from stoker.flows.decorators import airflow_s3_key_sensor as airflow_s3_key_sensor
    from stoker.flows.decorators import cache as cache
    from stoker.flows.decorators import card as card
    from stoker.flows.decorators import catch as catch
    from stoker.flows.decorators import checkpoint as checkpoint
    from stoker.flows.decorators import conda as conda
    from stoker.flows.decorators import conda_base as conda_base
    from stoker.flows.decorators import deepspeed as deepspeed
    from stoker.flows.decorators import environment as environment
    from stoker.flows.decorators import exit_hook as exit_hook
    from stoker.flows.decorators import gpu_profile as gpu_profile
    from stoker.flows.decorators import huggingface_hub as huggingface_hub
    from stoker.flows.decorators import mpi as mpi
    from stoker.flows.decorators import parallel as parallel
    from stoker.flows.decorators import project as project
    from stoker.flows.decorators import pypi as pypi
    from stoker.flows.decorators import pypi_base as pypi_base
    from stoker.flows.decorators import pytorch_parallel as pytorch_parallel
    from stoker.flows.decorators import resources as resources
    from stoker.flows.decorators import retry as retry
    from stoker.flows.decorators import schedule as schedule
    from stoker.flows.decorators import secrets as secrets
    from stoker.flows.decorators import timeout as timeout
    from stoker.flows.decorators import torchrun as torchrun
    from stoker.flows.decorators import trigger as trigger
    from stoker.flows.decorators import trigger_on_finish as trigger_on_finish
    from stoker.flows.decorators import uv as uv
    from stoker.flows.instance import step as step
    from stoker.flows.mutators import FlowMutator as FlowMutator
    from stoker.flows.mutators import MutableFlow as MutableFlow
    from stoker.flows.mutators import MutableStep as MutableStep
    from stoker.flows.mutators import StepMutator as StepMutator
    from stoker.flows.namespaces import default_metadata as default_metadata
    from stoker.flows.namespaces import default_namespace as default_namespace
    from stoker.flows.namespaces import get_metadata as get_metadata
    from stoker.flows.namespaces import get_namespace as get_namespace
    from stoker.flows.namespaces import metadata as metadata
    from stoker.flows.namespaces import namespace as namespace
    from stoker.flows.parameters import Config as Config
    from stoker.flows.parameters import ConfigValue as ConfigValue
    from stoker.flows.parameters import IncludeFile as IncludeFile
    from stoker.flows.parameters import JSONType as JSONType
    from stoker.flows.parameters import JSONTypeClass as JSONTypeClass
    from stoker.flows.parameters import Parameter as Parameter
    from stoker.flows.parameters import config_expr as config_expr
    from stoker.flows.parsers import conda_environment_yml_parser as conda_environment_yml_parser
    from stoker.flows.parsers import pyproject_toml_parser as pyproject_toml_parser
    from stoker.flows.parsers import requirements_txt_parser as requirements_txt_parser
    from stoker.flows.parsers import yaml_parser as yaml_parser
    from stoker.flows.runner import ExecutingRun as ExecutingRun
    from stoker.flows.runner import NBRunner as NBRunner
    from stoker.flows.runner import Runner as Runner
    from stoker.flows.spec import FlowSpec as FlowSpec
    from stoker.flows.standins import namespaced_event_name as namespaced_event_name
    from stoker.flows.standins import package_sources as package_sources
    from stoker.flows.standins import parallel_imap_unordered as parallel_imap_unordered
    from stoker.flows.standins import parallel_map as parallel_map
    from stoker.flows.standins import profile as profile
    from stoker.flows.user_decorators import USER_SKIP_STEP as USER_SKIP_STEP
    from stoker.flows.user_decorators import UserStepDecorator as UserStepDecorator
    from stoker.flows.user_decorators import user_step_decorator as user_step_decorator

    cards: ModuleType
    datatools: ModuleType
    batch: Callable[..., Any]
    kubernetes: Callable[..., Any]
    ray: Callable[..., Any]
    slurm: Callable[..., Any]

_HOMES = {
    name: module
    for module, names in {
        "stoker.core.cards": "Artifact Frame Image Markdown ProgressBar Table",
        "stoker.core.graph": "CaughtFailure",
        "stoker.core.secret": "Secret",
        "stoker.flows.checkpoint": "Checkpoint",
        "stoker.flows.client": "DataArtifact Flow Metaflow Run Step Task",
        "stoker.flows.current": "current",
        "stoker.flows.datatools": "S3",
        "stoker.flows.decorators": "accelerate airflow_external_task_sensor airflow_s3_key_sensor cache card catch "
        "checkpoint conda conda_base deepspeed environment exit_hook gpu_profile "
        "huggingface_hub mpi parallel project pypi pypi_base pytorch_parallel resources "
        "retry schedule secrets timeout torchrun trigger trigger_on_finish uv",
        "stoker.flows.instance": "step",
        "stoker.flows.mutators": "FlowMutator MutableFlow MutableStep StepMutator",
        "stoker.flows.namespaces": "default_metadata default_namespace get_metadata get_namespace metadata namespace",
        "stoker.flows.parameters": "Config ConfigValue IncludeFile JSONType JSONTypeClass Parameter config_expr",
        "stoker.flows.parsers": "conda_environment_yml_parser pyproject_toml_parser requirements_txt_parser "
        "yaml_parser",
        "stoker.flows.runner": "ExecutingRun NBRunner Runner",
        "stoker.flows.spec": "FlowSpec",
        "stoker.flows.standins": "namespaced_event_name package_sources parallel_imap_unordered parallel_map profile",
        "stoker.flows.user_decorators": "USER_SKIP_STEP UserStepDecorator user_step_decorator",
    }.items()
    for name in names.split()
}
__all__ = list(_HOMES)
__all__ += ["batch", "cards", "datatools", "kubernetes", "ray", "slurm"]

__path__: list[str] = []
"""Makes this module a package, whose modules are served: `stoker.flow.cards`."""


class _Modules:
    """Finds the modules below this one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("stoker.flow."):
            return None
        from stoker.migrate.metaflow import spec_of
        from stoker.migrate.names import fate_of

        return spec_of(name, name.removeprefix("stoker.flow."), lambda theirs: fate_of(theirs).message)


sys.meta_path.append(_Modules)


def __getattr__(name: str) -> Any:
    home = "stoker.flows.standins" if name == "__version__" else _HOMES.get(name)
    if home is not None:
        from stoker.pipelines.scripts import watch_script

        watch_script()
        value = getattr(importlib.import_module(home), name)
    else:
        value = _decorator(name)
    globals()[name] = value
    return value


def _decorator(name: str) -> Any:
    """The decorator of a backend or a launcher, Stoker's own or another distribution's."""
    if not name.startswith("_"):
        from stoker.flows.decorators import KINDS, decorator

        if name in KINDS:
            return decorator(name)
        from stoker.backends.registry import refusal
        from stoker.core.errors import absent

        if refusal(name):
            raise absent(refusal(name), above=2)
        from stoker.migrate import metaflow

        if metaflow.is_served(name):
            return importlib.import_module(f"stoker.flow.{name}")
        if name in metaflow.NAMES:
            raise absent(f"metaflow.{name} is not here: {metaflow.advice(name)}", above=2)
    raise AttributeError(f"module 'stoker.flow' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if __name__ == "__main__":
    from stoker.core.standins import METAFLOW

    METAFLOW.run_main("run …")
