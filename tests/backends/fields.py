"""What each backend makes of each field, as a table: examples by field, and by backend the words for what is honoured.

A new field gets an example; a new backend gets one row in `ROWS`. What is said in refusals and translations is not
written here: that is the finding's own.
"""

from __future__ import annotations

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

    `own` has the words of its own settings, each with a value or an `Example`. `options` are those of its part of the
    stack. `image` is what its steps run in. `also` is told beside the requests, of the backend and its options.
    """

    title: str
    resources: Mapping[str, Words]
    step: Mapping[str, Words]
    own: Mapping[str, tuple[Words | None, Any]]
    options: Mapping[str, Any] = attrs.field(factory=dict)
    image: str = ""
    also: Callable[[Any, Mapping[str, Any]], Any] = lambda backend, options: None

    @property
    def settings(self) -> Mapping[str, Words]:
        """How each of its own settings is honoured."""
        return {name: words for name, (words, _) in self.own.items() if words is not None}

    @property
    def examples(self) -> Mapping[str, Example]:
        """A value of each of its own settings."""
        return {name: one if isinstance(one, Example) else Example(one) for name, (_, one) in self.own.items()}


def pairs(words: Mapping[str, Words], examples: Mapping[str, Example]) -> dict[str, tuple[Words | None, Any]]:
    """A row's own settings, of which words and examples come from elsewhere."""
    return {name: (words.get(name), example) for name, example in examples.items()}


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
    own={
        "max_workers": ("so many steps at once", 3),
        "cpus": ("all steps together have so many", 8),
        "memory": ("all steps together have so much", "8GB"),
    },
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
    own={
        "network": ("`NetworkMode`", "ml"),
        "user": ("`User`", "image"),
        "mounts": ("`Mounts`", ["cache:/cache"]),
        "secrets": ("files below /run/secrets", {"token": "env:PATH"}),
        "pull": ("when the image is fetched", "always"),
        "gpus": ("`DeviceRequests`", Example("cdi", resources=ONE)),
        "python": ("`Entrypoint`", "/opt/conda/bin/python"),
        "host": ("the engine that is asked", "tcp://engine.example:2376"),
        "shares_files": ("what is mounted, and what is brought", False),
        "keep": ("whether failed containers stay", True),
        "reuse": ("whether one container takes several steps: its `Entrypoint`", False),
        "idle_after": ("when a container without a step ends", "5m"),
        "run_options": ("`HostConfig`", {"init": True}),
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
    own=pairs(
        {
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
        {
            name: Example(value, resources={"accelerators": "H100:2"}, options={"timeout": 3600.0})
            for name, (value, _) in TAKEN.items()
        }
        | {
            "shares_files": Example(False),
            "gres_types": Example({"H100": "nvidia_h100"}, resources={"accelerators": "H100:2"}),
            "container": Example("apptainer", options={"docker": READY}),
            "mounts": Example(["/data:/data:ro"], options={"docker": READY}, settings={"container": "apptainer"}),
        },
    ),
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
    own={
        "address": ("where the request is sent", "http://head.example:8265"),
        "token": (Held("the request's header", by="tests/ray/test_requests.py::test_who_we_are"), "env:PATH"),
        "headers": (Held("the request's headers", by="tests/ray/test_requests.py::test_who_we_are"), {"X-Team": "ml"}),
        "verify": (
            Held(
                "how the connection is made", by="tests/ray/test_certificates.py::test_which_certificates_are_trusted"
            ),
            False,
        ),
        "shares_files": ("what is sent along", False),
        "python": ("the worker's interpreter", "/opt/python/bin/python3"),
        "resources": ("custom `resources`", {"fast": 0.5}),
        "labels": ("a selector of `labels`", {"zone": "in(a,b)"}),
        "accelerators": (
            "accelerator_type of the task",
            Example({"H100": "my-h100"}, resources={"accelerators": "H100"}),
        ),
        "runtime_env": ("the task's `runtime_env`", {"pip": ["six==1.16.0"]}),
        "placement": ("that of the placement group", Example("PACK", resources={"nodes": 2})),
        "gpu_fraction": (None, Example(0.5, resources=ONE)),
        "idle_after": ("how long the run's Ray job waits for further steps", 5.0),
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
    own={
        "context": ("which cluster is asked: `server`", "there"),
        "kubeconfig": ("which cluster is asked: `server`", str(KUBECONFIGS / "other.yaml")),
        "shares_files": ("folders of the node are mounted: `hostPath`", True),
        "pools": (
            Held(
                "what an autoscaler may add",
                by="tests/kubernetes/test_nodes.py::test_pools_that_an_autoscaler_may_add_are_respected",
            ),
            [{"name": "h100", "accelerators": "H100:8", "nodes": 4}],
        ),
        "namespace": ("where the Job is", "other"),
        "image": ("the image of steps that name none: `containers/0/image`", "team/other:2"),
        "image_pull_policy": ("`imagePullPolicy`", "Always"),
        "image_pull_secrets": ("`imagePullSecrets`", ["regcred"]),
        "executable": ("the worker's interpreter: `command`", "/opt/conda/bin/python"),
        "service_account": ("`serviceAccountName`", "trainer"),
        "secrets": ("`envFrom`", ["hub"]),
        "config_maps": ("`envFrom`", ["conf"]),
        "env": ("`env` of the container", {"HF_HOME": "/cache"}),
        "env_from": ("`envFrom`", [{"secretRef": {"name": "hub"}}]),
        "node_selector": ("`nodeSelector`", {"pool": "gpu"}),
        "affinity": (
            "`affinity`",
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [ZONE]}}},
        ),
        "tolerations": ("`tolerations`", [{"key": "gpu", "operator": "Exists"}]),
        "priority_class": ("`priorityClassName`", "high"),
        "labels": ("`labels` of the pod", {"team": "ml"}),
        "annotations": ("`annotations` of the pod", {"team": "ml"}),
        "use_tmpfs": ("a file system in `Memory`", True),
        "tmpfs_tempdir": ("`TMPDIR`", Example(False, settings={"use_tmpfs": True})),
        "tmpfs_size": ("`sizeLimit`", Example(512, settings={"use_tmpfs": True})),
        "tmpfs_path": ("`mountPath`", Example("/fast", settings={"use_tmpfs": True})),
        "persistent_volume_claims": ("`persistentVolumeClaim`", {"data": "/data"}),
        "host_paths": ("`hostPath`", ["/data"]),
        "volumes": ("`volumes`", [CLAIM]),
        "volume_mounts": (
            "`volumeMounts`",
            Example([{"name": "data", "mountPath": "/data"}], settings={"volumes": [CLAIM]}),
        ),
        "port": ("`containerPort`", 8080),
        "reuse": (
            Held(
                "pods take further steps", by="tests/kubernetes/test_pools.py::test_steps_share_a_pod_and_nothing_else"
            ),
            False,
        ),
        "idle_after": (
            Held(
                "when such a pod leaves",
                by="tests/kubernetes/test_pools.py::test_a_pod_that_leaves_without_a_driver_says_what_it_did",
            ),
            "5m",
        ),
        "host_network": ("`hostNetwork`", True),
        "host_ipc": ("`hostIPC`", True),
        "privileged": ("`privileged`", True),
        "security_context": ("`securityContext` of the container", {"runAsUser": 1000}),
        "pod_security_context": ("`securityContext` of the pod", {"fsGroup": 1000}),
        "runtime_class": ("`runtimeClassName`", "nvidia"),
        "scheduler": ("`schedulerName`", "mine"),
        "grace_period": ("`terminationGracePeriodSeconds`", "2m"),
        "pod_startup_timeout": (
            Held(
                "the driver ends a job that waits longer",
                by="tests/kubernetes/test_runs.py::test_a_wait_that_takes_longer_than_it_may",
            ),
            "1h",
        ),
        "pull_timeout": (
            Held(
                "the driver ends a job whose image cannot be pulled for longer",
                by="tests/kubernetes/test_pending.py::test_a_registry_that_no_node_reaches_is_given_up",
            ),
            "5m",
        ),
        "ttl": ("`ttlSecondsAfterFinished`", "1h"),
        "queue": ("Kueue's label, and `suspend`", "ml"),
        "queueing": ("`schedulerName`, and a PodGroup", "volcano"),
        "queue_priority": ("`priority-class`", Example("high", settings={"queue": "ml"})),
        "topology": ("`topologyKey`", Example("rack", resources={"nodes": 2})),
        "placement": ("`podAntiAffinity`", Example("STRICT_SPREAD", resources={"nodes": 2})),
        "jobset": ("a JobSet", Example(True, resources={"nodes": 2})),
        "compute_pool": ("`nodeSelector`", "a100"),
        "hostname_resolution_timeout": ("`timeout` of the gang", Example(60, resources={"nodes": 2})),
        "qos": ("`limits/cpu`", Example("Guaranteed", resources={"cpu_count": 2, "memory": "1GB"})),
        "extended_resources": ("requests and limits: `example.com/fpga`", {"example.com/fpga": "1"}),
        "efa": ("`vpc.amazonaws.com/efa`", 4),
        "accelerators": (
            "labels of the node: `nodeAffinity`",
            Example({"H100": {"pool": "h100"}}, resources={"accelerators": "H100"}),
        ),
        "resource_names": (
            "the resource that is asked for: `nvidia.com/gpu.shared`",
            Example({"nvidia": "nvidia.com/gpu.shared"}, resources=ONE),
        ),
        "mig_strategy": (
            "the resource of a slice: `nvidia.com/gpu`",
            Example("single", resources={"accelerators": "A100-80GB/1g.10gb"}),
        ),
        "tpu_topology": ("`gke-tpu-topology`", Example("4x4", resources={"accelerators": "tpu-v5e:4"})),
        "device_class": ("`resourceClaims`", Example("gpu.nvidia.com", resources=ONE)),
        "driver": ("what the driver's own Job gets", {"memory": "2GiB"}),
        "pod_settings": ("`labels` and all the others", POD),
        "pod_resources": ("`resources` of the container", {"limits": {"cpu": "4"}}),
        "pod_spec": ("`hostname` and all others", {"hostname": "trainer"}),
        "overlay": ("merged into the pod last", {"metadata": {"annotations": {"a": "b"}}}),
    },
)

KFP_SCHEMA = "tests/kubeflow/test_compile.py::test_all_that_can_be_said_is_in_the_schema"
KFP_STRUCTURES = "tests/kubeflow/test_runs.py::test_structures_of_kfp_as_they_are_written_here"
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
    own=pairs(
        {
            **{name: words for name, words in KUBERNETES.settings.items() if name not in ("shares_files", "pools")},
            "host": Held("where the API is asked", by=KFP_STRUCTURES),
            "experiment": Held("the run's experiment", by=KFP_LOGIN),
            "pipeline_root": "`pipeline_root`",
            "token": Held(
                "the request's header", by="tests/kubeflow/test_api.py::test_a_token_is_read_for_each_request"
            ),
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
            "shares_files": Held("a store that is a folder", by=KFP_STRUCTURES),
            "namespace": Held(
                "the profile's namespace", by="tests/kubeflow/test_api.py::test_experiments_of_a_namespace"
            ),
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
        {
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
    ),
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
    own={
        "infra": ("`infra`", "aws/us-east-1"),
        "cloud": ("`cloud`", "gcp"),
        "region": ("`region`", "us-central1"),
        "zone": ("`zone`", "us-central1-a"),
        "instance_type": ("`instance_type`", "p3.8xlarge"),
        "cpus": ("`cpus`", "2"),
        "memory": ("`memory`", "16+"),
        "accelerators": ("`accelerators`", "V100:2"),
        "accelerator_args": ("`accelerator_args`", {"runtime_version": "tpu-vm-base"}),
        "use_spot": ("`use_spot`", True),
        "job_recovery": ("`job_recovery`", {"max_restarts_on_errors": 2}),
        "disk_size": ("`disk_size`", 100),
        "disk_tier": ("`disk_tier`", "high"),
        "network_tier": ("`network_tier`", "best"),
        "local_disk": ("`local_disk`", "nvme:1000+"),
        "ports": ("`ports`", ["8080"]),
        "labels": ("`labels`", {"team": "ml"}),
        "any_of": ("`any_of`", [{"infra": "aws"}, {"infra": "gcp"}]),
        "ordered": ("`ordered`", [{"infra": "aws"}, {"infra": "gcp"}]),
        "image_id": ("`image_id`", "docker:team/train:1"),
        "docker_run_args": ("`run_options` of the container", ["--ipc=host"]),
        "num_nodes": ("`num_nodes`, which run the step together", 2),
        "max_hourly_cost": ("`max_hourly_cost`, and a limit on the plan", 3.5),
        "max_run_cost": (Held("a limit on the plan", by=SKY_COST), 100.0),
        "cluster_name": ("the cluster of the launch: `mine`", "mine"),
        "task_name": ("`name` of the task", "trial"),
        "managed": ("`jobs` launch", True),
        "retry_until_up": ("`--retry-until-up`", True),
        "idle_minutes_to_autostop": ("`autostop/idle_minutes`", 5),
        "down": ("`autostop/down`, and what happens at the end", False),
        "clusters": (Held("how many clusters of a kind a run has", by=SKY_RUN), 2),
        "patience": ("how long a machine waits for its next order", "1h"),
        "setup_commands": ("`setup`", ["sudo apt-get install -y git"]),
        "envs": ("`envs`", {"HF_HOME": "/cache"}),
        "secrets": ("`secrets` of the task, and `--secret`", ["HOME"]),
        "file_mounts": ("`file_mounts`", {"/data": "s3://bucket/data"}),
        "resources_settings": ("`resources` as they are", {"priority_class": "high"}),
        "task_settings": ("the task's fields as they are", {"volumes": {"/mnt": "disk"}}),
        "executable": ("the interpreter of `run`", "/opt/python/bin/python3"),
        "shares_files": ("whether checkpoints are copied to the artifact store", True),
        "sky": (Held("the command that is called", by=SKY_RUN), "/opt/sky/bin/sky"),
        "api_server": (Held("the server that the command asks", by=SKY_CALL), "https://sky.example.org"),
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
    own={
        "region": (Held("whose services are asked", by=BATCH_CLIENT), "us-east-1"),
        "profile": (Held("whose services are asked", by=BATCH_CLIENT), "other"),
        "endpoint_url": (Held("whose services are asked", by=BATCH_CLIENT), "http://127.0.0.1:8"),
        "queues": (
            "among which `jobQueue` is chosen",
            Example({"q": ["FARGATE"]}, settings={"execution_role": FARGATE["execution_role"]}),
        ),
        "schedule_role": (
            Held("EventBridge's, for schedules", by=BATCH_SCHEDULES),
            "arn:aws:iam::123456789012:role/scheduler",
        ),
        "driver": (
            Held("what the job of a schedule's driver gets", by=BATCH_SCHEDULES),
            {"queue": "other-q", "memory": "2GiB"},
        ),
        "queue": ("`jobQueue`", "other-q"),
        "platform": (
            "`platformCapabilities`",
            Example("FARGATE", settings={"execution_role": FARGATE["execution_role"]}),
        ),
        "instance_type": ("`instanceTypes`", Example("p4d.24xlarge", resources={"nodes": 2})),
        "share_identifier": ("`shareIdentifier`", "team"),
        "scheduling_priority": ("`schedulingPriorityOverride`", Example(5, settings={"share_identifier": "team"})),
        "image": ("the image of steps that name none: `image`", "team/other:2"),
        "executable": ("the worker's interpreter: `command`", "/opt/conda/bin/python"),
        "iam_role": ("`jobRoleArn`", "arn:aws:iam::123456789012:role/job"),
        "execution_role": ("`executionRoleArn`", "arn:aws:iam::123456789012:role/e"),
        "repository_credentials": (
            "`repositoryCredentials`",
            Example(
                "arn:aws:secretsmanager:eu-west-1:123456789012:secret:hub",
                settings={"execution_role": FARGATE["execution_role"]},
            ),
        ),
        "secrets": (
            "`secrets`",
            Example(
                {"TOKEN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:t"},
                settings={"execution_role": FARGATE["execution_role"]},
            ),
        ),
        "user": ("`user`", "1000"),
        "privileged": ("`privileged`", True),
        "readonly_root": ("`readonlyRootFilesystem`", Example(True, settings={"use_tmpfs": True})),
        "init_process": ("`initProcessEnabled`", True),
        "enable_execute_command": ("`enableExecuteCommand`", True),
        "ulimits": ("`ulimits`", {"nofile": 4096}),
        "max_swap": ("`maxSwap`", 1024),
        "swappiness": ("`swappiness`", Example(10, settings={"max_swap": 1024})),
        "use_tmpfs": ("`tmpfs`", True),
        "tmpfs_tempdir": ("`TMPDIR`", Example(False, settings={"use_tmpfs": True})),
        "tmpfs_size": ("`size` of the tmpfs", Example(512, settings={"use_tmpfs": True})),
        "tmpfs_path": ("`containerPath` of the tmpfs", Example("/fast", settings={"use_tmpfs": True})),
        "efa": ("`uverbs0` and all others", Example(4, resources={"nodes": 2})),
        "host_volumes": ("`sourcePath`", ["/data"]),
        "efs_volumes": ("`efsVolumeConfiguration`", {"fs-12345678": "/efs"}),
        "ephemeral_storage": ("`ephemeralStorage`", Example(100, settings=FARGATE)),
        "log_driver": ("`logDriver`", "json-file"),
        "log_options": ("`logConfiguration`", ["awslogs-group:/team/train"]),
        "aws_batch_tags": ("`tags`", {"team": "ml"}),
        "attempts": ("`attempts`", Example(3, settings={"retry_rules": [{"onExitCode": "75", "action": "RETRY"}]})),
        "retry_rules": (
            "`evaluateOnExit`",
            Example([{"onExitCode": "75", "action": "RETRY"}], settings={"attempts": 3}),
        ),
        "assign_public_ip": ("`assignPublicIp`", Example(True, settings=FARGATE)),
        "platform_version": ("`platformVersion`", Example("1.4.0", settings=FARGATE)),
        "cpu_architecture": ("`cpuArchitecture`", Example("ARM64", settings=FARGATE)),
        "overlay": ("merged into the container last", {"ulimits": [{"name": "core", "softLimit": 0, "hardLimit": 0}]}),
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
    own={
        "region": (Held("whose services are asked", by=SAGEMAKER_CLIENT), "us-east-1"),
        "profile": (Held("whose services are asked", by=BATCH_CLIENT), "other"),
        "endpoint_url": (Held("whose services are asked", by=SAGEMAKER_CLIENT), "http://127.0.0.1:8"),
        "role": ("`RoleArn`", "arn:aws:iam::123456789012:role/other"),
        "image": ("the image of steps that name none: `TrainingImage`", "registry.example/team/other:2"),
        "executable": ("the worker's interpreter: `ContainerEntrypoint`", "/opt/conda/bin/python"),
        "repository_access": ("`TrainingRepositoryAccessMode`", "Platform"),
        "repository_credentials": (
            "`TrainingRepositoryCredentialsProviderArn`",
            "arn:aws:lambda:eu-west-1:123456789012:function:login",
        ),
        "instance_type": ("`InstanceType`", "ml.m5.2xlarge"),
        "volume_size": ("`VolumeSizeInGB`", 200),
        "volume_kms_key": ("`VolumeKmsKeyId`", "alias/volumes"),
        "output_kms_key": ("`KmsKeyId`", "alias/output"),
        "keep_alive": ("`KeepAlivePeriodInSeconds`", 600),
        "training_plan": (
            "`TrainingPlanArn`",
            "arn:aws:sagemaker:eu-west-1:123456789012:training-plan/reserved-capacity",
        ),
        "subnets": ("`Subnets`", ["subnet-2"]),
        "security_groups": ("`SecurityGroupIds`", ["sg-2"]),
        "encrypt_traffic": ("`EnableInterContainerTrafficEncryption`", True),
        "max_runtime": ("`MaxRuntimeInSeconds`", 7200),
        "max_wait": ("`MaxWaitTimeInSeconds`", Example(900000, resources={"spot": True})),
        "max_pending": ("`MaxPendingTimeInSeconds`", 7200),
        "retry_attempts": ("`MaximumRetryAttempts`", 3),
        "tags": ("`Tags`", {"team": "ml"}),
        "experiment": ("`ExperimentName`", "digits"),
        "remote_debug": ("`EnableRemoteDebug`", True),
        "overlay": ("merged into the request last", {"HyperParameters": {"lr": "0.1"}}),
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
