"""What a worker is told of a job and of its step, as JSON; the same for every backend whose workers are ours."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, Final, Mapping

import attrs

from stoker.core.codec import to_json
from stoker.core.launch import DEFAULTS, plain
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.words import dashed
from stoker.worker.forked import documents

if TYPE_CHECKING:
    from stoker.core.devices import Lease

LOOPBACK: Final = "127.0.0.1"


def job_message(job: Job, number: int) -> dict[str, Any]:
    """What a worker is told of a job; `number` stands for its step."""
    message: dict[str, Any] = {"job": job.name, "step": number, "inputs": job.inputs}
    if job.marked:
        message["mark"] = True
    if job.kind == "step" and job.step.settings.timeout is not None:
        message["timed"] = True
    if job.kind == "step" and job.name != f"{job.run}/{job.key}/{job.attempt}":
        message["context"] = {"run": job.run, "key": job.key, "attempt": job.attempt}  # the name does not say it
    launch = job.step.settings.launch
    if job.kind == "step" and launch is None and nodes_of(job) > 1:
        launch = DEFAULTS
    if job.kind == "step" and launch is not None:
        message["launch"] = plain(launch)
    if job.kind == "hook":
        message["kind"] = "hook"
        message["hook"] = documents([job.hook])[0]
        message["told"] = dict(job.told)
    return message


def nodes_of(job: Job) -> int:
    """On how many nodes a job runs."""
    return int(job.step.settings.resources.get("nodes", 1)) if job.kind == "step" else 1


def gang_document(job: Job, folder: str, topology: str = "stoker") -> dict[str, Any]:
    """How the nodes of an attempt find each other (`worker.cluster`): the same document for all of them."""
    launch = job.step.settings.launch
    return {
        "topology": topology,
        "note": os.path.join(folder, f"gang-{dashed(job.name)}.json"),
        "token": os.urandom(16).hex(),
        "timeout": DEFAULTS.gang_timeout if launch is None else launch.gang_timeout,
    }


def node_environment(node: int, nodes: int) -> dict[str, str]:
    """The variables by which a node on this machine learns its place."""
    return {
        "STOKER_NODE_RANK": str(node),
        "STOKER_NODES": str(nodes),
        "STOKER_HEAD_ADDR": LOOPBACK,
        "STOKER_NODE_ADDR": LOOPBACK,
    }


def boot_document(
    job: Job,
    site: Site,
    *,
    checkpoints: str,
    grace: float,
    lease: Lease | None = None,
    gang: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    warning: float = 0.0,
) -> dict[str, Any]:
    """What `worker.boot` is told of a job that runs elsewhere; `grace` are the seconds between SIGTERM and the end.

    `warning`: seconds before the limit of the job's time in which the platform sends SIGUSR1, 0 where it does not.

    A lease whose devices are not known is filled in there, with those that the platform gave.
    """
    message = job_message(job, 0)
    message.pop("mark", None)  # it runs one job: nobody stands behind it
    message["timed"] = True
    if lease is not None:
        message["accelerators"] = to_json(lease)
    if gang is not None:
        message["gang"] = gang
    return {
        "version": 1,
        "job": message,
        "step": step_document(job.step),
        "blobs": site.artifacts,
        "package": site.package,
        "root": site.code_root,
        "folder": site.folder,
        "path": [entry for entry in site.path if not site.package or is_below(entry, site.code_root)],
        "checkpoints": checkpoints,
        "environment": dict(environment or {}),
        "simulate": site.simulate,
        "grace": grace,
        "warning": warning,
    }


def request_digest(job: Job) -> str:
    """What a job asks for, whichever attempt it is: what runs elsewhere with the same digest does the same."""
    step = job.step
    asked = {
        "inputs": job.inputs,
        "code": step.code,
        "source": attrs.asdict(step.source if job.hook is None else job.hook),
        "image": step.image,
        "settings": to_json(step.settings),
        "told": job.told,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:32]


def is_below(path: str, root: str) -> bool:
    """Whether a path is `root` or in it."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def step_document(step: StepPlan) -> dict[str, Any]:
    """What a worker is told of a step, once."""
    document = {
        "name": step.name,
        "source": documents([step.source])[0],
        "outputs": [output.name for output in step.outputs],
        "unpack": step.unpack,
        "split": list(step.split),
        "environment": dict(step.settings.environment),
    }
    if step.runner:
        document["runner"] = step.runner
    return document
