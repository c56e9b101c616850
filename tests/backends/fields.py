"""What each backend makes of each field, as a table: examples by field, and by backend the words for what is honoured.

A new field gets an example; a new backend gets one row in `ROWS`. What is said in refusals and translations is not
written here: that is the finding's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from tests.slurm.test_settings import TAKEN

from stoker.backends.slurm import detach as slurmdetach
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings
from stoker.core.packages import PackageSettings
from stoker.core.resources import ResourceSettings
from stoker.launchers.options import resolve_launch


@attrs.frozen
class Example:
    """A value of a field, and what is asked for besides, before and after. `words` call one that is not the usual."""

    value: Any
    resources: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    options: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    settings: Mapping[str, Any] = attrs.field(factory=dict, kw_only=True)
    words: str = attrs.field(default="", kw_only=True)


@attrs.frozen
class Always:
    """Honoured in every request: what stands in backticks is there before and after."""

    words: str


@attrs.frozen
class Held:
    """Honoured in what no request shows; another test holds it."""

    words: str
    by: str = attrs.field(kw_only=True)


@attrs.frozen
class Enough:
    """Honoured by looking: nothing changes where there is as much, and `more` than there is is refused."""

    words: str
    more: Any
    code: str


Words = str | Always | Held | Enough
"""How a field is honoured. What stands in backticks is in the part of the request that the field changes."""


@attrs.frozen(kw_only=True)
class Row:
    """One backend: by field, how it is honoured. A field without words is translated or refused.

    `options` are those of its part of the stack, `examples` the values of its own settings. `image` is what its steps
    run in. `also` is told beside the requests, of the backend and its options.
    """

    title: str
    resources: Mapping[str, Words]
    step: Mapping[str, Words]
    settings: Mapping[str, Words]
    examples: Mapping[str, Example]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    image: str = ""
    also: Callable[[Any, Mapping[str, Any]], Any] = lambda backend, options: None


ONE: Mapping[str, Any] = {"gpu_count": 1}
RESOURCES: Mapping[str, tuple[Example, ...]] = {
    "cpu_count": (Example(2), Example(0.5, words="a part of one")),
    "gpu_count": (Example(2),),
    "memory": (Example("1GB"),),
    "accelerators": (
        Example("H100", resources=ONE),
        Example(["H100", "A100-80GB"], resources=ONE, words="alternatives"),
        Example("A100-80GB/1g.10gb", resources=ONE, words="a MIG slice"),
    ),
    "gpu_memory": (Example("40GB", resources=ONE),),
    "share": (
        Example(True, resources={"gpu_memory": "10GB", "accelerators": "A100-80GB"}),
        Example(True, resources={"gpu_memory": "10GB"}, words="of any kind"),
    ),
    "gpu_vendor": (Example("nvidia", resources=ONE),),
    "shared_memory": (Example("2GB"),),
    "disk": (Example("1MB"),),
    "nodes": (Example(2),),
    "spot": (Example(True),),
    "extended": (Example({"fpga": 1}),),
}

READY = DockerSettings(parent_image="registry.example/ml:1", skip_build=True, runtime_environment={"HF_HOME": "/cache"})
STEP: Mapping[str, tuple[Example, ...]] = {
    "timeout": (Example(60.0),),
    "environment": (
        Example({"WORD": "a b"}),
        Example({"CUDA_VISIBLE_DEVICES": "0"}, words="which devices it sees"),
    ),
    "launch": (Example(resolve_launch({"launcher": "single"})),),
    "accelerator_policy": (Example("prefer", resources=ONE),),
    "isolation": (Example("fresh"),),
    "docker": (
        Example(READY),
        Example(DockerSettings(parent_image="python:3.11", requirements=["six"]), words="one that is to be built"),
    ),
    "packages": (Example(PackageSettings(pypi={"six": "1.16.0"})),),
}
ELSEWHERE: Mapping[str, str] = {
    "resources": "the table above",
    "retry": "the engine counts attempts",
    "cache": "the engine looks before anything is sent",
    "cache_key": "the engine looks before anything is sent",
    "cache_expires": "the engine looks before anything is sent",
    "on_idle_gpu": "the monitor beside the step judges",
    "monitor": "the monitor beside the step",
    "step_operator": "the planner chooses the backend",
    "backend": "the settings of the backend itself",
}
"""Fields of a step's settings that are no platform's, and whose they are."""

RANKS = "ranks are started where the step runs"
LEASED: Mapping[str, Words] = {
    "gpu_count": "so many devices are leased",
    "accelerators": "devices of this kind are leased",
    "gpu_memory": "only devices with as much are leased",
    "share": "that much of a device is leased, beside others' parts",
    "gpu_vendor": "only devices of this maker are leased",
    "disk": Enough("as much must be free", "1000TB", "STK108"),
}
LIMIT = "the engine ends the step"
COMPARED = Held("compared with what is installed", by="tests/plan/test_environments.py::test_not_satisfied")

LOCAL = Row(
    title="Local",
    options={"cpus": 64, "memory": "256GB", "max_workers": 64},
    resources={**LEASED, "cpu_count": "set aside", "memory": "set aside; more is not stopped"},
    step={
        "timeout": LIMIT,
        "environment": "set for the step",
        "launch": RANKS,
        "accelerator_policy": "it runs on the CPU where there is none",
        "isolation": "a process of its own",
        "packages": COMPARED,
    },
    settings={
        "max_workers": "so many steps at once",
        "cpus": "all steps together have so many",
        "memory": "all steps together have so much",
    },
    examples={"max_workers": Example(3), "cpus": Example(8), "memory": Example("8GB")},
    also=lambda backend, options: to_json(backend.capacity()),
)

DOCKER = Row(
    title="Docker",
    image="registry.example/ml@sha256:" + "ab" * 32,
    resources={
        **LEASED,
        "gpu_count": "so many devices are leased, and given by `DeviceRequests`",
        "cpu_count": "`NanoCpus`",
        "memory": "`Memory`, a limit",
        "shared_memory": "`ShmSize`",
    },
    step={
        "timeout": Held(
            LIMIT, by="tests/engine/test_execution_outcomes.py::test_a_timeout_ends_the_whole_process_group"
        ),
        "environment": "`Env`",
        "launch": RANKS,
        "accelerator_policy": "it runs on the CPU where there is none",
        "isolation": Always("each step is a container, whose `Entrypoint` is a worker"),
        "docker": "the image in which it runs",
        "packages": Held(
            "in the image", by="tests/plan/test_imagepackages.py::test_the_image_has_what_the_step_asks_for"
        ),
    },
    settings={
        "network": "`NetworkMode`",
        "user": "`User`",
        "mounts": "`Mounts`",
        "secrets": "files below /run/secrets",
        "pull": "when the image is fetched",
        "gpus": "`DeviceRequests`",
        "python": "`Entrypoint`",
        "host": "the engine that is asked",
        "shares_files": "what is mounted, and what is brought",
        "keep": "whether failed containers stay",
        "run_options": "`HostConfig`",
    },
    examples={
        "network": Example("ml"),
        "user": Example("image"),
        "mounts": Example(["cache:/cache"]),
        "secrets": Example({"token": "env:PATH"}),
        "pull": Example("always"),
        "gpus": Example("cdi", resources=ONE),
        "python": Example("/opt/conda/bin/python"),
        "host": Example("tcp://engine.example:2376"),
        "shares_files": Example(False),
        "keep": Example(True),
        "run_options": Example({"init": True}),
    },
)


def driver_script(backend: Any, options: Mapping[str, Any]) -> str:
    """The job that drives a run after `--detach`."""
    return slurmdetach.script(SlurmSettings(**options), ["stoker"], "/run", "driver", output="/run/out", limit=None)


SLURM = Row(
    title="Slurm",
    also=driver_script,
    resources={
        "cpu_count": "`--cpus-per-task`",
        "gpu_count": "`--gres`",
        "memory": "`--mem`",
        "accelerators": "`--gres`",
        "disk": "`--tmp`",
        "nodes": "`--nodes`, one step of srun",
        "extended": "`--gres`",
    },
    step={
        "timeout": "the engine ends the step; `--time` is a little longer",
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a job, whose script starts `stoker.worker.boot`"),
        "packages": COMPARED,
    },
    settings={
        **{
            name: f"`--{name.replace('_', '-')}`"
            for name in ("partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude")
        },
        "host": "where sbatch is called",
        "shares_files": "what is brought, and which Python",
        "folder": "`--chdir`, `--output`",
        "python": "the worker's interpreter",
        "time_limit": "`--time`",
        "warn_before": "`--signal`",
        "exclusive": "`--exclusive`",
        "mail_type": "`--mail-type`",
        "mail_user": "`--mail-user`",
        "modules": "`module load`",
        "prolog": "lines before the worker",
        "gpus_as": "`--gpus-per-node`",
        "gres_types": "the type in `--gres`",
        "container": "the worker in an image",
        "mounts": "folders in the image",
        "options": "further options of sbatch",
        "poll": Held(
            "how often the cluster is asked",
            by="tests/slurm/test_pace.py::test_the_controller_is_asked_as_often_as_poll_says",
        ),
        "max_array": Held(
            "`--array`", by="tests/slurm/test_slurm_many.py::test_an_array_has_no_more_tasks_than_it_may"
        ),
        "driver": "what the driver's own job gets",
    },
    examples={
        name: Example(value, resources={"accelerators": "H100:2"}, options={"timeout": 3600.0})
        for name, (value, _) in TAKEN.items()
    }
    | {
        "shares_files": Example(False),
        "gres_types": Example({"H100": "nvidia_h100"}, resources={"accelerators": "H100:2"}),
        "container": Example("apptainer", options={"docker": READY}),
        "mounts": Example(["/data:/data:ro"], options={"docker": READY}, settings={"container": "apptainer"}),
    },
)

RAY = Row(
    title="Ray",
    options={"address": "http://127.0.0.1:8265"},
    resources={
        "cpu_count": "`num_cpus`",
        "gpu_count": "num_gpus of the task",
        "accelerators": "accelerator_type of the task",
        "nodes": "a placement group of so many `nodes`",
        "extended": "custom `resources`",
    },
    step={
        "timeout": Held(LIMIT, by="tests/ray/test_runs.py::test_a_pipeline_with_a_gang_and_a_timeout"),
        "environment": "set for the step",
        "launch": RANKS,
        "accelerator_policy": "it runs on the CPU where no node has any",
        "isolation": Always("each step is a task that starts a process"),
    },
    settings={
        "address": "where the request is sent",
        "token": Held("the request's header", by="tests/ray/test_requests.py::test_who_we_are"),
        "headers": Held("the request's headers", by="tests/ray/test_requests.py::test_who_we_are"),
        "verify": Held(
            "how the connection is made", by="tests/ray/test_certificates.py::test_which_certificates_are_trusted"
        ),
        "shares_files": "what is sent along",
        "python": "the worker's interpreter",
        "resources": "custom `resources`",
        "labels": "a selector of `labels`",
        "accelerators": "accelerator_type of the task",
        "runtime_env": "the task's `runtime_env`",
        "placement": "that of the placement group",
    },
    examples={
        "address": Example("http://head.example:8265"),
        "token": Example("env:PATH"),
        "headers": Example({"X-Team": "ml"}),
        "verify": Example(False),
        "shares_files": Example(False),
        "python": Example("/opt/python/bin/python3"),
        "resources": Example({"fast": 0.5}),
        "labels": Example({"zone": "in(a,b)"}),
        "accelerators": Example({"H100": "my-h100"}, resources={"accelerators": "H100"}),
        "runtime_env": Example({"pip": ["six==1.16.0"]}),
        "placement": Example("PACK", resources={"nodes": 2}),
        "gpu_fraction": Example(0.5, resources=ONE),
    },
)

ROWS: Mapping[str, Row] = {"local": LOCAL, "docker": DOCKER, "slurm": SLURM, "ray": RAY}
NO_PLATFORM: Mapping[str, str] = {"inline": "what --debug makes of `local`, in the driver's own process"}
"""Backends without a column, and why."""


def resources_of(example: Example, more: Mapping[str, Any]) -> ResourceSettings:
    """The request beside an example's value, or with it."""
    return ResourceSettings(**{**example.resources, **more})
