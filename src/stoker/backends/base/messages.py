"""What a worker is told of a job and of its step; the same for every backend whose workers are ours.

Secrets are files, and credentials for the artifact store: they are read when a job is sent and go into its container
only: neither into the image, nor into what an engine shows of the container, nor into the plan.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final, Hashable, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.errors import BackendError
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import GangTask, StepTask, Topology, WorkerJob
from stoker.core.settings import DEFAULTS
from stoker.core.values import IdentityKey
from stoker.core.words import dashed_name

if TYPE_CHECKING:
    from stoker.core.devices import Lease
    from stoker.core.orders import BootSpec
    from stoker.core.protocol import FunctionSource

CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    # What each protocol's library reads of its environment.
    # https://boto3.amazonaws.com/v1/documentation/api/latest/guide/configuration.html#using-environment-variables
    # and https://s3fs.readthedocs.io/en/latest/#credentials
    "s3": ("AWS_", "FSSPEC_S3"),
    "s3a": ("AWS_", "FSSPEC_S3"),
    # https://gcsfs.readthedocs.io/en/latest/#credentials
    "gs": ("GOOGLE_", "GCSFS_", "CLOUDSDK_", "FSSPEC_GS", "FSSPEC_GCS"),
    "gcs": ("GOOGLE_", "GCSFS_", "CLOUDSDK_", "FSSPEC_GS", "FSSPEC_GCS"),
    # https://github.com/fsspec/adlfs#setting-credentials
    "az": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    "abfs": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    "abfss": ("AZURE_", "FSSPEC_AZ", "FSSPEC_ABFS"),
    # https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    "hf": ("HF_TOKEN", "HF_ENDPOINT"),
}
"""protocol of the artifact store → beginnings of the variables that open it"""
LOOPBACK: Final = "127.0.0.1"
KEPT: Final = 2
"""How many copies of a step's checkpoints the artifact store keeps: the newest, and the one before it, in case the
newest turns out to be damaged."""


def credentials(store: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which the artifact store is opened; none for one that is a folder."""
    protocol, there, _ = store.partition("://")
    beginnings = CREDENTIALS.get(protocol, (f"FSSPEC_{protocol.upper()}",)) if there else ()
    if not beginnings:
        return {}
    return {name: text for name, text in environment.items() if name.startswith(beginnings)}


def contents(sources: Mapping[str, str]) -> dict[str, bytes]:
    """What each secret's file holds; a source that is not there is a `BackendError` that names it."""
    data = {}
    for name, source in sources.items():
        missing = missing_source(source)
        if missing:
            raise BackendError(f"the secret '{name}' is not there: {missing}", fix=source_fix(source))
        data[name] = _content(source)
    return data


def missing_source(source: str) -> str:
    """Why a secret cannot be read; empty where it can."""
    if source.startswith("env:"):
        variable = source.removeprefix("env:")
        return "" if variable in os.environ else f"the environment variable {variable} is not set"
    path = os.path.expanduser(source)
    return "" if os.access(path, os.R_OK) and os.path.isfile(path) else f"the file {source} cannot be read"


def source_fix(source: str) -> str:
    """What to do where a secret is not at the place that is named."""
    return f"export {source.removeprefix('env:')}=…" if source.startswith("env:") else "name another file, or env:NAME"


def _content(source: str) -> bytes:
    if source.startswith("env:"):
        return os.environ[source.removeprefix("env:")].encode("utf-8", "surrogateescape")
    with open(os.path.expanduser(source), "rb") as file:
        return file.read()


def worker_job(job: Job, number: int) -> WorkerJob:
    """What a worker is told of a job; `number` stands for its step."""
    launch = job.step.settings.launch
    if launch is None and nodes_of(job) > 1:
        launch = DEFAULTS
    has_default_name = job.name == f"{job.run}/{job.key}/{job.attempt}"
    is_step = job.kind == "step"
    every, losses = job.step.settings.checkpoint_every, job.step.losses
    context: dict[str, Any] = {} if has_default_name else {"run": job.run, "key": job.key, "attempt": job.attempt}
    if every is not None:
        context["cadence"] = every if losses is None else to_json(losses)
    return WorkerJob(
        job=job.name,
        step=number,
        inputs=job.inputs,
        kind=job.kind,
        mark=job.marked,
        timed=is_step and job.step.settings.timeout is not None,
        context=context if is_step else {},
        launch=launch if is_step else None,
        hook=job.hook,
        told=job.told,
        secrets=job.secrets,
    )


def nodes_of(job: Job) -> int:
    """On how many nodes a job runs."""
    return int(job.step.settings.resources.get("nodes", 1)) if job.kind == "step" else 1


def least_nodes(job: Job) -> int:
    """With how many of its nodes a job goes on where others go away; 0 where it needs all of them."""
    launch = job.step.settings.launch
    if launch is None or nodes_of(job) == 1:
        return 0
    from stoker.launchers.registry import LAUNCHERS  # only for steps on several nodes

    return LAUNCHERS.load(launch.launcher).least_nodes(launch.arguments)


def gang_task(job: Job, folder: str, topology: str | Topology = "stoker", *, token: str | None = None) -> GangTask:
    """How the nodes of an attempt find each other (`worker.cluster`): the same document for all of them.

    `topology` is a platform of `worker.cluster.TOPOLOGIES`, or the variables by which another one tells a node its
    place.
    """
    launch = job.step.settings.launch
    return GangTask(
        topology=topology if isinstance(topology, str) else "",
        variables=None if isinstance(topology, str) else topology,
        note=os.path.join(folder, f"gang-{dashed_name(job.name)}.json"),
        token=os.urandom(16).hex() if token is None else token,
        timeout=DEFAULTS.gang_timeout if launch is None else launch.gang_timeout,
        least=least_nodes(job),
    )


def node_environment(node: int, nodes: int) -> dict[str, str]:
    """The variables by which a node on this machine learns its place."""
    return {
        "STOKER_NODE_RANK": str(node),
        "STOKER_NODES": str(nodes),
        "STOKER_HEAD_ADDR": LOOPBACK,
        "STOKER_NODE_ADDR": LOOPBACK,
    }


def boot_spec(
    job: Job,
    site: Site,
    *,
    checkpoints: str,
    grace: float,
    lease: Lease | None = None,
    gang: GangTask | None = None,
    environment: Mapping[str, str] | None = None,
    warning: float = 0.0,
) -> BootSpec:
    """What `worker.boot` is told of a job that runs elsewhere. A lease without "devices" is filled in there, with those
    that the platform gave."""
    from stoker.core.orders import BootSpec

    # It runs one job, so that nobody stands behind it.
    message = attrs.evolve(worker_job(job, 0), mark=False, timed=True, accelerators=lease, gang=gang)
    return BootSpec(
        job=message,
        step=step_task(job.step),
        blobs=site.artifacts,
        package=site.package,
        root=site.code_root,
        folder=site.folder,
        path=tuple(entry for entry in site.path if not site.package or is_below(entry, site.code_root)),
        checkpoints=checkpoints,
        environment=dict(environment or {}),
        simulate=site.simulate,
        grace=grace,
        warning=warning,
    )


def with_copies(spec: BootSpec) -> BootSpec:
    """The document of a job whose folder of checkpoints is its node's own: it is copied to the artifact store."""
    return attrs.evolve(spec, keep=KEPT if spec.job.kind == "step" else 0)


def request_digest(job: Job) -> str:
    """What a job asks for, whichever attempt it is: what runs elsewhere with the same digest does the same."""
    request = {
        **_request_of(IdentityKey(job.step), IdentityKey(job.hook)),
        "inputs": _sorted_text(job.inputs),
        "told": "{}" if job.told is None else _sorted_text(to_json(job.told)),
    }
    text = ", ".join(f'"{name}": {request[name]}' for name in sorted(request))
    return hashlib.sha256(f"{{{text}}}".encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=64)
def _request_of(step: IdentityKey[StepPlan], hook: IdentityKey[FunctionSource | None]) -> Mapping[str, str]:
    """What all jobs of a step ask for alike, as texts of JSON."""
    plan = step.value
    request = {
        "code": plan.code,
        "source": attrs.asdict(plan.source if hook.value is None else hook.value),
        "image": plan.image,
        # Without data it is what it was before there was any: jobs of an earlier version are still known by it.
        "settings": {
            name: value
            for name, value in to_json(plan.settings).items()
            if plan.data or name not in ("data", "data_cache")
        },
        **({"data": to_json(plan.data)} if plan.data else {}),
    }
    return {name: _sorted_text(value) for name, value in request.items()}


def _sorted_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or in it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def step_task(step: StepPlan) -> StepTask:
    """What a worker is told of a step, once."""
    return StepTask(
        name=step.name,
        source=step.source,
        outputs=tuple(output.name for output in step.outputs),
        unpack=step.unpack,
        split=step.split,
        environment=dict(step.settings.environment),
        runner=step.runner,
        track=step.settings.track,
        previews=step.settings.previews,
        data=step.data,
        data_cache=step.settings.data_cache if step.data else None,
    )


def task_key(step: StepPlan) -> Hashable:
    """Equal for steps with equal tasks: a chain of a thousand calls of one function is one task to a worker, which is
    sent once."""
    return (
        step.name,
        step.source,
        tuple([output.name for output in step.outputs]),
        step.unpack,
        step.split,
        tuple(step.settings.environment.items()),
        step.runner,
        step.settings.track,
        step.settings.previews,
        tuple(step.data.items()),
        step.settings.data_cache if step.data else None,
    )
