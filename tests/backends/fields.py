"""What each backend makes of each field, as a table: examples by field, and by backend the words for what is honoured.

A new field gets an example; a new backend gets one row in `ROWS`. What is said in refusals and translations is not
written here: that is the finding's own.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
from tests.slurm.test_settings import TAKEN

from stoker.backends.base.backend import DetachedRun, DriverStart
from stoker.backends.kubernetes.running import detach as k8sdetach
from stoker.backends.slurm import detach as slurmdetach
from stoker.backends.slurm.settings import SlurmSettings
from stoker.core.codec import to_json
from stoker.core.docker import DockerSettings
from stoker.core.packages import PackageSettings
from stoker.core.plan import Code
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


def alike(names: str) -> dict[str, Words]:
    """Fields that a request calls by their own names."""
    return {name: f"`{name}`" for name in names.split()}


def named(names: str) -> dict[str, Words]:
    """Fields whose names a request writes in camel case."""
    return {name: "`" + re.sub("_(.)", lambda found: found[1].upper(), name) + "`" for name in names.split()}


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
    "health_check": "the gate in the job makes it",
    "on_idle_gpu": "the monitor beside the step judges",
    "monitor": "the monitor beside the step",
    "checkpoint_every": "the worker says when a checkpoint is due",
    "track": "the worker wraps the libraries where the step runs",
    "data": "the worker brings it where the step runs",
    "data_cache": "the worker looks there before it brings data",
    "previews": "the worker makes them where the step runs",
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
        "isolation": "a container of its own, whose `Entrypoint` runs one job",
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
        "reuse": "whether one container takes several steps: its `Entrypoint`",
        "idle_after": "when a container without a step ends",
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
        "reuse": Example(False),
        "idle_after": Example("5m"),
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
        "job_name": "`--job-name`",
        "comment": "the beginning of `--comment`",
        "modules": "`module load`",
        "setup": "lines before the worker",
        "conda": "`conda activate`",
        "venv": "`bin/activate`",
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
            "`--array`",
            by="tests/slurm/test_slurm_many.py::test_alike_jobs_are_arrays_of_no_more_tasks_than_they_may_have",
        ),
        "reuse": Held(
            "jobs take further steps", by="tests/slurm/test_slurm_pool.py::test_steps_in_a_row_share_one_job"
        ),
        "idle_after": Held(
            "when such a job leaves", by="tests/slurm/test_slurm_pool.py::test_a_job_leaves_when_no_step_comes"
        ),
        "max_jobs": Held(
            "how many such jobs there are",
            by="tests/slurm/test_slurm_pool.py::test_a_killed_drivers_steps_are_found_and_run_once",
        ),
        "array_parallelism": Held("`--array=…%N`", by="tests/slurm/test_script.py::test_an_arrays_parallelism"),
        "max_submit": Held(
            "how many jobs are in the queue",
            by="tests/slurm/test_slurm_pool.py::test_max_submit_and_a_full_cluster_make_steps_wait",
        ),
        "submit_rate": Held(
            "how often sbatch is called",
            by="tests/slurm/test_slurm_pool.py::test_submissions_of_a_minute_are_counted",
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
        "idle_after": "how long the run's Ray job waits for further steps",
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
        "idle_after": Example(5.0),
    },
)

KUBECONFIGS = Path(__file__).parents[1] / "kubernetes" / "kubeconfigs"
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
POD = {"labels": {"team": "ml"}}


def driver_job(backend: Any, options: Mapping[str, Any]) -> Any:
    """The Job that drives a run after `--detach`."""
    facts = DetachedRun(home="/run", database="postgresql://db/stoker", artifacts="s3://bucket")
    with tempfile.TemporaryDirectory() as folder:
        start = DriverStart(
            run="1",
            name="driver",
            words=("-m", "stoker"),
            environment={},
            folder="/run",
            output="/run/out",
            facts=facts,
            code=Code(bundle=f"{folder}/bundle"),
            stack="",
        )
        return k8sdetach.job(options, start, user="me")


KUBERNETES = Row(
    title="Kubernetes",
    also=driver_job,
    options={"kubeconfig": str(KUBECONFIGS / "two.yaml"), "image": "team/train:1"},
    resources={
        "cpu_count": "`requests/cpu`",
        "gpu_count": "`nvidia.com/gpu`",
        "memory": "`requests/memory` and `limits/memory`",
        "accelerators": "labels of the node: `nodeAffinity`",
        "gpu_memory": "labels of the node: `nodeAffinity`",
        "gpu_vendor": Always("the vendor's resource: `nvidia.com/gpu`"),
        "shared_memory": "`sizeLimit` of what is mounted at /dev/shm",
        "disk": "`ephemeral-storage`, a limit",
        "nodes": "`completions` of an Indexed Job",
        "spot": "such nodes are preferred, and their taints tolerated: `tolerations`",
    },
    step={
        "timeout": Held(
            LIMIT, by="tests/engine/test_execution_outcomes.py::test_a_timeout_ends_the_whole_process_group"
        ),
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a Job, whose pod starts a process: `batch/v1`"),
        "docker": "the image of the container: `containers/0/image`",
        "packages": Held("in the image", by="tests/kubernetes/test_check.py::test_packages_become_part_of_the_image"),
    },
    settings={
        **named(
            "image_pull_policy image_pull_secrets env_from node_selector affinity tolerations volumes "
            "volume_mounts host_network privileged"
        ),
        "context": "which cluster is asked: `server`",
        "kubeconfig": "which cluster is asked: `server`",
        "shares_files": "folders of the node are mounted: `hostPath`",
        "pools": Held(
            "what an autoscaler may add",
            by="tests/kubernetes/test_nodes.py::test_pools_that_an_autoscaler_may_add_are_respected",
        ),
        "namespace": "where the Job is",
        "image": "the image of steps that name none: `containers/0/image`",
        "executable": "the worker's interpreter: `command`",
        "service_account": "`serviceAccountName`",
        "secrets": "`envFrom`",
        "config_maps": "`envFrom`",
        "env": "`env` of the container",
        "priority_class": "`priorityClassName`",
        "labels": "`labels` of the pod",
        "annotations": "`annotations` of the pod",
        "use_tmpfs": "a file system in `Memory`",
        "tmpfs_tempdir": "`TMPDIR`",
        "tmpfs_size": "`sizeLimit`",
        "tmpfs_path": "`mountPath`",
        "persistent_volume_claims": "`persistentVolumeClaim`",
        "host_paths": "`hostPath`",
        "port": "`containerPort`",
        "host_ipc": "`hostIPC`",
        "security_context": "`securityContext` of the container",
        "pod_security_context": "`securityContext` of the pod",
        "runtime_class": "`runtimeClassName`",
        "scheduler": "`schedulerName`",
        "grace_period": "`terminationGracePeriodSeconds`",
        "pod_startup_timeout": Held(
            "the driver ends a job that waits longer",
            by="tests/kubernetes/test_runs.py::test_a_wait_that_takes_longer_than_it_may",
        ),
        "pull_timeout": Held(
            "the driver ends a job whose image cannot be pulled for longer",
            by="tests/kubernetes/test_pending.py::test_a_registry_that_no_node_reaches_is_given_up",
        ),
        "ttl": "`ttlSecondsAfterFinished`",
        "reuse": Held(
            "pods take further steps", by="tests/kubernetes/test_pools.py::test_steps_share_a_pod_and_nothing_else"
        ),
        "idle_after": Held(
            "when such a pod leaves",
            by="tests/kubernetes/test_pools.py::test_a_pod_that_leaves_without_a_driver_says_what_it_did",
        ),
        "queue": "Kueue's label, and `suspend`",
        "queueing": "`schedulerName`, and a PodGroup",
        "queue_priority": "`priority-class`",
        "topology": "`topologyKey`",
        "placement": "`podAntiAffinity`",
        "jobset": "a JobSet",
        "compute_pool": "`nodeSelector`",
        "hostname_resolution_timeout": "`timeout` of the gang",
        "qos": "`limits/cpu`",
        "extended_resources": "requests and limits: `example.com/fpga`",
        "efa": "`vpc.amazonaws.com/efa`",
        "accelerators": "labels of the node: `nodeAffinity`",
        "resource_names": "the resource that is asked for: `nvidia.com/gpu.shared`",
        "mig_strategy": "the resource of a slice: `nvidia.com/gpu`",
        "tpu_topology": "`gke-tpu-topology`",
        "device_class": "`resourceClaims`",
        "driver": "what the driver's own Job gets",
        "pod_settings": "`labels` and all the others",
        "pod_resources": "`resources` of the container",
        "pod_spec": "`hostname` and all others",
        "overlay": "merged into the pod last",
    },
    examples={
        "context": Example("there"),
        "kubeconfig": Example(str(KUBECONFIGS / "other.yaml")),
        "shares_files": Example(True),
        "pools": Example([{"name": "h100", "accelerators": "H100:8", "nodes": 4}]),
        "namespace": Example("other"),
        "image": Example("team/other:2"),
        "image_pull_policy": Example("Always"),
        "image_pull_secrets": Example(["regcred"]),
        "executable": Example("/opt/conda/bin/python"),
        "service_account": Example("trainer"),
        "secrets": Example(["hub"]),
        "config_maps": Example(["conf"]),
        "env": Example({"HF_HOME": "/cache"}),
        "env_from": Example([{"secretRef": {"name": "hub"}}]),
        "node_selector": Example({"pool": "gpu"}),
        "affinity": Example(
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ZONE]}}}
        ),
        "tolerations": Example([{"key": "gpu", "operator": "Exists"}]),
        "priority_class": Example("high"),
        "labels": Example({"team": "ml"}),
        "annotations": Example({"team": "ml"}),
        "use_tmpfs": Example(True),
        "tmpfs_tempdir": Example(False, settings={"use_tmpfs": True}),
        "tmpfs_size": Example(512, settings={"use_tmpfs": True}),
        "tmpfs_path": Example("/fast", settings={"use_tmpfs": True}),
        "persistent_volume_claims": Example({"data": "/data"}),
        "host_paths": Example(["/data"]),
        "volumes": Example([CLAIM]),
        "volume_mounts": Example([{"name": "data", "mountPath": "/data"}], settings={"volumes": [CLAIM]}),
        "port": Example(8080),
        "reuse": Example(False),
        "idle_after": Example("5m"),
        "host_network": Example(True),
        "host_ipc": Example(True),
        "privileged": Example(True),
        "security_context": Example({"runAsUser": 1000}),
        "pod_security_context": Example({"fsGroup": 1000}),
        "runtime_class": Example("nvidia"),
        "scheduler": Example("mine"),
        "grace_period": Example("2m"),
        "pod_startup_timeout": Example("1h"),
        "pull_timeout": Example("5m"),
        "ttl": Example("1h"),
        "queue": Example("ml"),
        "queueing": Example("volcano"),
        "queue_priority": Example("high", settings={"queue": "ml"}),
        "topology": Example("rack", resources={"nodes": 2}),
        "placement": Example("STRICT_SPREAD", resources={"nodes": 2}),
        "jobset": Example(True, resources={"nodes": 2}),
        "compute_pool": Example("a100"),
        "hostname_resolution_timeout": Example(60, resources={"nodes": 2}),
        "qos": Example("Guaranteed", resources={"cpu_count": 2, "memory": "1GB"}),
        "extended_resources": Example({"example.com/fpga": "1"}),
        "efa": Example(4),
        "accelerators": Example({"H100": {"pool": "h100"}}, resources={"accelerators": "H100"}),
        "resource_names": Example({"nvidia": "nvidia.com/gpu.shared"}, resources=ONE),
        "mig_strategy": Example("single", resources={"accelerators": "A100-80GB/1g.10gb"}),
        "tpu_topology": Example("4x4", resources={"accelerators": "tpu-v5e:4"}),
        "device_class": Example("gpu.nvidia.com", resources=ONE),
        "driver": Example({"memory": "2GiB"}),
        "pod_settings": Example(POD),
        "pod_resources": Example({"limits": {"cpu": "4"}}),
        "pod_spec": Example({"hostname": "trainer"}),
        "overlay": Example({"metadata": {"annotations": {"a": "b"}}}),
    },
)

KFP_SCHEMA = "tests/kubeflow/test_compile.py::test_all_that_can_be_said_is_in_the_schema"
KFP_LOGIN = "tests/kubeflow/test_runs.py::test_devices_logins_caches_and_a_lost_answer"

KUBEFLOW = Row(
    title="Kubeflow",
    options={"host": "http://127.0.0.1:9", "image": "team/train:1"},
    resources={
        "cpu_count": "`resourceCpuRequest`",
        "gpu_count": "`accelerator`",
        "memory": "`resourceMemoryRequest` and `resourceMemoryLimit`",
        "accelerators": "labels of the node: `nodeAffinity`",
        "gpu_memory": "labels of the node: `nodeAffinity`",
        "gpu_vendor": Always("the vendor's resource: `nvidia.com/gpu`"),
        "shared_memory": "`sizeLimit` of what is mounted at /dev/shm",
        "spot": "such nodes are preferred, and their taints tolerated: `tolerations`",
    },
    step={
        "timeout": Held(
            LIMIT, by="tests/engine/test_execution_outcomes.py::test_a_timeout_ends_the_whole_process_group"
        ),
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a task, whose pod starts a process: `retryPolicy`"),
        "docker": "the image of the container: `container/image`",
        "packages": Held("in the image", by="tests/kubernetes/test_check.py::test_packages_become_part_of_the_image"),
    },
    settings={
        **{name: words for name, words in KUBERNETES.settings.items() if name not in ("shares_files", "pools")},
        "host": Held("where the API is asked", by="tests/kubeflow/test_runs.py::test_a_pipeline_with_a_fan_out"),
        "experiment": Held("the run's experiment", by=KFP_LOGIN),
        "pipeline_root": "`pipeline_root`",
        "token": Held("the request's header", by="tests/kubeflow/test_api.py::test_a_token_is_read_for_each_request"),
        "iap_client_id": Held(
            "a token for the proxy", by="tests/kubeflow/test_api.py::test_a_proxy_of_google_by_gcloud"
        ),
        "username": Held("the login", by=KFP_LOGIN),
        "password": Held("the login", by=KFP_LOGIN),
        "verify": Held(
            "how the connection is made", by="tests/kubeflow/test_api.py::test_whose_certificate_is_trusted"
        ),
        "patience": "how long a task waits for its order",
        "fanout": Held("pods of a fan-out", by=KFP_SCHEMA),
        "shares_files": Held("a store that is a folder", by="tests/kubeflow/test_runs.py::test_a_killed_driver"),
        "namespace": Held("the profile's namespace", by="tests/kubeflow/test_api.py::test_experiments_of_a_namespace"),
        "image": "the image of steps that name none: `container/image`",
        "image_pull_secrets": "`imagePullSecret`",
        "service_account": "`service_account` of the run",
        "env": "`env` of the container",
        "labels": "`podMetadata/labels`",
        "annotations": "`podMetadata/annotations`",
        "affinity": "`nodeAffinity`",
        "persistent_volume_claims": "`pvcMount`",
        "volumes": Held("mounted by volume_mounts", by=KFP_SCHEMA),
        "volume_mounts": "`pvcMount`",
        "qos": "`resourceCpuLimit`",
        "extended_resources": "`accelerator`",
        "pod_resources": "`resourceCpuLimit`",
    },
    examples={
        **KUBERNETES.examples,
        "host": Example("http://127.0.0.1:8"),
        "experiment": Example("trials"),
        "pipeline_root": Example("s3://bucket/kfp"),
        "token": Example("env:PATH"),
        "iap_client_id": Example("client"),
        "username": Example("ada"),
        "password": Example("env:PATH"),
        "verify": Example(False),
        "patience": Example("1h"),
        "fanout": Example(4),
    },
)

SKY_RUN = "tests/skypilot/test_runs.py::test_a_pipeline_with_a_fan_out"
SKY_COST = "tests/skypilot/test_requests.py::test_what_a_run_may_cost"
SKY_CALL = "tests/skypilot/test_command.py::test_which_server_is_asked"

SKYPILOT = Row(
    title="SkyPilot",
    resources={
        "cpu_count": "`cpus`: at least as many",
        "gpu_count": "`accelerators`",
        "memory": "`memory`: at least as much",
        "accelerators": "`accelerators`; alternatives are tried in order",
        "gpu_memory": "`accelerators` with so much memory",
        "gpu_vendor": "`accelerators` of this vendor",
        "disk": "`disk_size`",
        "nodes": "`num_nodes`, which run the step together",
        "spot": "`use_spot`, as a managed job",
    },
    step={
        "timeout": Held(
            LIMIT, by="tests/engine/test_execution_outcomes.py::test_a_timeout_ends_the_whole_process_group"
        ),
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a process of its own: `run`"),
        "docker": "the container's image: `image_id`",
        "packages": "installed when the machine is set up: `pip install`",
    },
    settings={
        **alike(
            "infra cloud region zone instance_type cpus memory accelerators accelerator_args use_spot "
            "job_recovery disk_size disk_tier network_tier local_disk ports labels any_of ordered image_id envs "
            "file_mounts"
        ),
        "docker_run_args": "`run_options` of the container",
        "num_nodes": "`num_nodes`, which run the step together",
        "max_hourly_cost": "`max_hourly_cost`, and a limit on the plan",
        "max_run_cost": Held("a limit on the plan", by=SKY_COST),
        "cluster_name": "the cluster of the launch: `mine`",
        "task_name": "`name` of the task",
        "managed": "`jobs` launch",
        "retry_until_up": "`--retry-until-up`",
        "idle_minutes_to_autostop": "`autostop/idle_minutes`",
        "down": "`autostop/down`, and what happens at the end",
        "clusters": Held("how many clusters of a kind a run has", by=SKY_RUN),
        "patience": "how long a machine waits for its next order",
        "setup_commands": "`setup`",
        "secrets": "`secrets` of the task, and `--secret`",
        "resources_settings": "`resources` as they are",
        "task_settings": "the task's fields as they are",
        "executable": "the interpreter of `run`",
        "shares_files": "whether checkpoints are copied to the artifact store",
        "sky": Held("the command that is called", by=SKY_RUN),
        "api_server": Held("the server that the command asks", by=SKY_CALL),
    },
    examples={
        "infra": Example("aws/us-east-1"),
        "cloud": Example("gcp"),
        "region": Example("us-central1"),
        "zone": Example("us-central1-a"),
        "instance_type": Example("p3.8xlarge"),
        "cpus": Example("2"),
        "memory": Example("16+"),
        "accelerators": Example("V100:2"),
        "accelerator_args": Example({"runtime_version": "tpu-vm-base"}),
        "use_spot": Example(True),
        "job_recovery": Example({"max_restarts_on_errors": 2}),
        "disk_size": Example(100),
        "disk_tier": Example("high"),
        "network_tier": Example("best"),
        "local_disk": Example("nvme:1000+"),
        "ports": Example(["8080"]),
        "labels": Example({"team": "ml"}),
        "any_of": Example([{"infra": "aws"}, {"infra": "gcp"}]),
        "ordered": Example([{"infra": "aws"}, {"infra": "gcp"}]),
        "image_id": Example("docker:team/train:1"),
        "docker_run_args": Example(["--ipc=host"]),
        "num_nodes": Example(2),
        "max_hourly_cost": Example(3.5),
        "max_run_cost": Example(100.0),
        "cluster_name": Example("mine"),
        "task_name": Example("trial"),
        "managed": Example(True),
        "retry_until_up": Example(True),
        "idle_minutes_to_autostop": Example(5),
        "down": Example(False),
        "clusters": Example(2),
        "patience": Example("1h"),
        "setup_commands": Example(["sudo apt-get install -y git"]),
        "envs": Example({"HF_HOME": "/cache"}),
        "secrets": Example(["HOME"]),
        "file_mounts": Example({"/data": "s3://bucket/data"}),
        "resources_settings": Example({"priority_class": "high"}),
        "task_settings": Example({"volumes": {"/mnt": "disk"}}),
        "executable": Example("/opt/python/bin/python3"),
        "shares_files": Example(True),
        "sky": Example("/opt/sky/bin/sky"),
        "api_server": Example("https://sky.example.org"),
    },
)

BATCH_CLIENT = "tests/aws_batch/test_client.py::test_the_account_that_is_asked"
BATCH_QUEUES = "tests/aws_batch/test_queues.py::test_chosen"
BATCH_SCHEDULES = "tests/aws_batch/test_schedules.py::test_a_job_of_eventbridge_is_the_driver"
FARGATE: Mapping[str, Any] = {"platform": "FARGATE", "execution_role": "arn:aws:iam::123456789012:role/e"}
BATCH = Row(
    title="AWS Batch",
    options={"queue": "q", "image": "team/train:1", "region": "eu-west-1"},
    resources={
        "cpu_count": "vCPUs, whole ones but on Fargate: `resourceRequirements`",
        "gpu_count": "`GPU`",
        "memory": "`resourceRequirements`, a limit",
        "gpu_memory": Held("a queue whose instances have as much", by=BATCH_QUEUES),
        "gpu_vendor": Held("a queue with such devices", by=BATCH_QUEUES),
        "spot": Held("a queue of spot instances goes before others", by=BATCH_QUEUES),
        "shared_memory": "`sharedMemorySize`",
        "nodes": "a multi-node parallel job: `numNodes`",
        "extended": "`consumableResourceProperties`",
    },
    step={
        "timeout": "by the engine, and two minutes later by AWS Batch: `attemptDurationSeconds`",
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a job, whose container runs it alone: `jobName`"),
        "docker": "the image of the container: `image`",
        "packages": Held("in the image", by="tests/kubernetes/test_check.py::test_packages_become_part_of_the_image"),
    },
    settings={
        **named(
            "share_identifier repository_credentials secrets user privileged enable_execute_command ulimits "
            "max_swap swappiness ephemeral_storage log_driver attempts assign_public_ip platform_version "
            "cpu_architecture"
        ),
        "region": Held("whose services are asked", by=BATCH_CLIENT),
        "profile": Held("whose services are asked", by=BATCH_CLIENT),
        "endpoint_url": Held("whose services are asked", by=BATCH_CLIENT),
        "queues": "among which `jobQueue` is chosen",
        "schedule_role": Held("EventBridge's, for schedules", by=BATCH_SCHEDULES),
        "driver": Held("what the job of a schedule's driver gets", by=BATCH_SCHEDULES),
        "queue": "`jobQueue`",
        "platform": "`platformCapabilities`",
        "instance_type": "`instanceTypes`",
        "scheduling_priority": "`schedulingPriorityOverride`",
        "image": "the image of steps that name none: `image`",
        "executable": "the worker's interpreter: `command`",
        "iam_role": "`jobRoleArn`",
        "execution_role": "`executionRoleArn`",
        "readonly_root": "`readonlyRootFilesystem`",
        "init_process": "`initProcessEnabled`",
        "use_tmpfs": "`tmpfs`",
        "tmpfs_tempdir": "`TMPDIR`",
        "tmpfs_size": "`size` of the tmpfs",
        "tmpfs_path": "`containerPath` of the tmpfs",
        "efa": "`uverbs0` and all others",
        "host_volumes": "`sourcePath`",
        "efs_volumes": "`efsVolumeConfiguration`",
        "log_options": "`logConfiguration`",
        "aws_batch_tags": "`tags`",
        "retry_rules": "`evaluateOnExit`",
        "overlay": "merged into the container last",
    },
    examples={
        "region": Example("us-east-1"),
        "profile": Example("other"),
        "endpoint_url": Example("http://127.0.0.1:8"),
        "queues": Example({"q": ["FARGATE"]}, settings={"execution_role": FARGATE["execution_role"]}),
        "schedule_role": Example("arn:aws:iam::123456789012:role/scheduler"),
        "driver": Example({"queue": "other-q", "memory": "2GiB"}),
        "queue": Example("other-q"),
        "platform": Example("FARGATE", settings={"execution_role": FARGATE["execution_role"]}),
        "instance_type": Example("p4d.24xlarge", resources={"nodes": 2}),
        "share_identifier": Example("team"),
        "scheduling_priority": Example(5, settings={"share_identifier": "team"}),
        "image": Example("team/other:2"),
        "executable": Example("/opt/conda/bin/python"),
        "iam_role": Example("arn:aws:iam::123456789012:role/job"),
        "execution_role": Example("arn:aws:iam::123456789012:role/e"),
        "repository_credentials": Example(
            "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hub",
            settings={"execution_role": FARGATE["execution_role"]},
        ),
        "secrets": Example(
            {"TOKEN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:t"},
            settings={"execution_role": FARGATE["execution_role"]},
        ),
        "user": Example("1000"),
        "privileged": Example(True),
        "readonly_root": Example(True, settings={"use_tmpfs": True}),
        "init_process": Example(True),
        "enable_execute_command": Example(True),
        "ulimits": Example({"nofile": 4096}),
        "max_swap": Example(1024),
        "swappiness": Example(10, settings={"max_swap": 1024}),
        "use_tmpfs": Example(True),
        "tmpfs_tempdir": Example(False, settings={"use_tmpfs": True}),
        "tmpfs_size": Example(512, settings={"use_tmpfs": True}),
        "tmpfs_path": Example("/fast", settings={"use_tmpfs": True}),
        "efa": Example(4, resources={"nodes": 2}),
        "host_volumes": Example(["/data"]),
        "efs_volumes": Example({"fs-12345678": "/efs"}),
        "ephemeral_storage": Example(100, settings=FARGATE),
        "log_driver": Example("json-file"),
        "log_options": Example(["awslogs-group:/team/train"]),
        "aws_batch_tags": Example({"team": "ml"}),
        "attempts": Example(3, settings={"retry_rules": [{"onExitCode": "75", "action": "RETRY"}]}),
        "retry_rules": Example([{"onExitCode": "75", "action": "RETRY"}], settings={"attempts": 3}),
        "assign_public_ip": Example(True, settings=FARGATE),
        "platform_version": Example("1.4.0", settings=FARGATE),
        "cpu_architecture": Example("ARM64", settings=FARGATE),
        "overlay": Example({"ulimits": [{"name": "core", "softLimit": 0, "hardLimit": 0}]}),
    },
)

SAGEMAKER_CLIENT = "tests/sagemaker/test_client.py::test_a_name_is_taken_once"
SAGEMAKER_TYPES = "tests/sagemaker/test_instances.py::test_chosen"
SAGEMAKER_VPC: Mapping[str, Any] = {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
SAGEMAKER = Row(
    title="SageMaker",
    options={
        "role": "arn:aws:iam::123456789012:role/training",
        "image": "registry.example/team/train:1",
        "repository_access": "Vpc",
        "region": "eu-west-1",
        **SAGEMAKER_VPC,
    },
    resources={
        "cpu_count": Held("an instance with as many, and no limit within it", by=SAGEMAKER_TYPES),
        "gpu_count": "an instance with as many: `InstanceType`",
        "accelerators": "an instance with these; of alternatives the first that there is: `InstanceType`",
        "gpu_memory": "an instance with as much: `InstanceType`",
        "gpu_vendor": Held("an instance with such devices", by=SAGEMAKER_TYPES),
        "disk": Held("`VolumeSizeInGB`, 30 at least", by="tests/sagemaker/test_requests.py::test_exact_and_valid"),
        "nodes": "`InstanceCount`",
        "spot": "`EnableManagedSpotTraining`",
    },
    step={
        "timeout": "by the engine, and two minutes later by SageMaker: `MaxRuntimeInSeconds`",
        "environment": "set for the step",
        "launch": RANKS,
        "isolation": Always("each step is a training job, whose container runs it alone: `TrainingJobName`"),
        "docker": "the image of the container: `TrainingImage`",
        "packages": Held("in the image", by="tests/kubernetes/test_check.py::test_packages_become_part_of_the_image"),
    },
    settings={
        "region": Held("whose services are asked", by=SAGEMAKER_CLIENT),
        "profile": Held("whose services are asked", by=BATCH_CLIENT),
        "endpoint_url": Held("whose services are asked", by=SAGEMAKER_CLIENT),
        "role": "`RoleArn`",
        "image": "the image of steps that name none: `TrainingImage`",
        "executable": "the worker's interpreter: `ContainerEntrypoint`",
        "repository_access": "`TrainingRepositoryAccessMode`",
        "repository_credentials": "`TrainingRepositoryCredentialsProviderArn`",
        "instance_type": "`InstanceType`",
        "volume_size": "`VolumeSizeInGB`",
        "volume_kms_key": "`VolumeKmsKeyId`",
        "output_kms_key": "`KmsKeyId`",
        "keep_alive": "`KeepAlivePeriodInSeconds`",
        "training_plan": "`TrainingPlanArn`",
        "subnets": "`Subnets`",
        "security_groups": "`SecurityGroupIds`",
        "encrypt_traffic": "`EnableInterContainerTrafficEncryption`",
        "max_runtime": "`MaxRuntimeInSeconds`",
        "max_wait": "`MaxWaitTimeInSeconds`",
        "max_pending": "`MaxPendingTimeInSeconds`",
        "retry_attempts": "`MaximumRetryAttempts`",
        "tags": "`Tags`",
        "experiment": "`ExperimentName`",
        "remote_debug": "`EnableRemoteDebug`",
        "overlay": "merged into the request last",
    },
    examples={
        "region": Example("us-east-1"),
        "profile": Example("other"),
        "endpoint_url": Example("http://127.0.0.1:8"),
        "role": Example("arn:aws:iam::123456789012:role/other"),
        "image": Example("registry.example/team/other:2"),
        "executable": Example("/opt/conda/bin/python"),
        "repository_access": Example("Platform"),
        "repository_credentials": Example("arn:aws:lambda:eu-west-1:123456789012:function:login"),
        "instance_type": Example("ml.m5.2xlarge"),
        "volume_size": Example(200),
        "volume_kms_key": Example("alias/volumes"),
        "output_kms_key": Example("alias/output"),
        "keep_alive": Example(600),
        "training_plan": Example("arn:aws:sagemaker:eu-west-1:123456789012:training-plan/reserved-capacity"),
        "subnets": Example(["subnet-2"]),
        "security_groups": Example(["sg-2"]),
        "encrypt_traffic": Example(True),
        "max_runtime": Example(7200),
        "max_wait": Example(900000, resources={"spot": True}),
        "max_pending": Example(7200),
        "retry_attempts": Example(3),
        "tags": Example({"team": "ml"}),
        "experiment": Example("digits"),
        "remote_debug": Example(True),
        "overlay": Example({"HyperParameters": {"lr": "0.1"}}),
    },
)

ROWS: Mapping[str, Row] = {
    "local": LOCAL,
    "docker": DOCKER,
    "slurm": SLURM,
    "ray": RAY,
    "kubernetes": KUBERNETES,
    "kubeflow": KUBEFLOW,
    "batch": BATCH,
    "sagemaker": SAGEMAKER,
    "skypilot": SKYPILOT,
}
NO_PLATFORM: Mapping[str, str] = {"inline": "what --debug makes of `local`, in the driver's own process"}
"""Backends without a column, and why."""


def resources_of(example: Example, more: Mapping[str, Any]) -> ResourceSettings:
    """The request beside an example's value, or with it."""
    return ResourceSettings(**{**example.resources, **more})
