"""From a run's steps to the body of the request that starts it on Kubeflow Pipelines: pure."""

from __future__ import annotations

import inspect
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base import mailprogram
from stoker.backends.base.backend import Leftover, Sweep, settings_of
from stoker.backends.base.leasing import requested_lease, samples_file
from stoker.backends.base.messages import boot_spec, with_copies
from stoker.backends.kubeflow import compile as kfp
from stoker.backends.kubeflow.settings import FANOUT, PATIENCE, KubeflowSettings
from stoker.backends.kubernetes.request.check import image_of
from stoker.backends.kubernetes.request.pods import PodRequest, pod_template
from stoker.core.orders import BootSpec
from stoker.core.plan import Job, Site, StepPlan, source_keys
from stoker.core.units import UNSET
from stoker.core.words import dashed_name
from stoker.store import notes

GRACE: Final = 25.0
"""Seconds between SIGTERM and SIGKILL of a step: Kubernetes gives a pod of KFP's 30."""
CHECKPOINTS: Final = "/tmp/stoker-checkpoints"
"""Of a pod that does not see the driver's folders."""
AGAIN: Final = 2
"""Further pods of a task beside those for the step's own retries: nodes are drained and lost."""
LABEL: Final = "stoker/run"


def folder_of(artifacts: str) -> str:
    """The folder of an artifact store with all that tasks of Kubeflow read and write beside artifacts."""
    return f"{artifacts}/kubeflow"


def root_of(site: Site, run: str) -> str:
    """The place of a run's notes in the artifact store."""
    return f"{folder_of(site.artifacts)}/{dashed_name(run)}"


def worker_place(site: Site) -> str:
    """Where the archive with Stoker's worker lies, by its digest."""
    return f"{folder_of(site.artifacts)}/{site.bundle.rstrip('/').rpartition('/')[2]}.zip"


def template_of(step: StepPlan, site: Site, options: Mapping[str, Any], *, run: str, mailbox: str) -> dict[str, Any]:
    """The template of a step's pod, as Kubernetes would get it."""
    # A run there has one service account, which its request names.
    settings = attrs.evolve(settings_of(step, KubeflowSettings, options), service_account=UNSET)
    text = inspect.getsource(mailprogram)
    words = (worker_place(site), mailbox, f"{settings.get('patience', PATIENCE):g}")
    template = pod_template(
        PodRequest(
            resources=step.settings.resources,
            settings=settings,
            image=image_of(step, settings),
            command=(settings.get("executable", "python3"), "-c", text, *words),
            environment=dict(step.settings.environment),
            labels={LABEL: dashed_name(run)},
            grace=GRACE,
        )
    )
    container = template["spec"]["containers"][0]
    container["command"], container["args"] = container["command"][:3], list(words)
    return template


def tasks(
    steps: Sequence[StepPlan], site: Site, options: Mapping[str, Any], *, run: str, root: str
) -> dict[str, kfp.Task]:
    """A task for each step."""
    names = kfp.task_names([step.key for step in steps])
    here = {step.key for step in steps}
    made = {}
    for step in steps:
        settings = settings_of(step, KubeflowSettings, options)
        sources = [*step.after, *(key for tree in step.inputs.values() for key in source_keys(tree))]
        made[step.key] = kfp.Task(
            name=names[step.key],
            title=step.key,
            template=template_of(step, site, options, run=run, mailbox=f"{root}/{names[step.key]}"),
            after=tuple(names[key] for key in dict.fromkeys(sources) if key in here and key != step.key),
            retries=step.settings.retry.times + AGAIN,
            slots=settings.get("fanout", FANOUT) if step.mapped else 0,
        )
    return made


def body(
    name: str, pipeline: str, tasks: Iterable[kfp.Task], settings: KubeflowSettings, *, experiment: str = ""
) -> dict[str, Any]:
    """The body of the request that starts the run."""
    spec, platform = kfp.pipeline(kfp.plain_name(pipeline, "pipeline"), f"{name}, by Stoker", list(tasks))
    document: dict[str, Any] = {
        "display_name": name,
        "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platform} if platform else spec,
    }
    if experiment:
        document["experiment_id"] = experiment
    if settings.get("pipeline_root"):
        document["runtime_config"] = {"pipeline_root": settings.get("pipeline_root")}
    if settings.get("service_account"):
        document["service_account"] = settings.get("service_account")
    return document


def job_document(job: Job, site: Site) -> BootSpec:
    """What `worker.boot` is told of a job in a task's pod."""
    lease = requested_lease(job, samples=samples_file(job, site, "kubeflow"))
    return with_copies(
        boot_spec(attrs.evolve(job, secrets={}), site, checkpoints=CHECKPOINTS, grace=GRACE, lease=lease)
    )


# What runs left


def sweep_store(parts: Sequence[Mapping[str, Any]], sweep: Sweep) -> Iterator[Leftover]:
    """Remove the folders of runs of this database that nobody continues, and with the last of all runs the worker."""
    folder = folder_of(sweep.artifacts)
    over = {dashed_name(run) for run in sweep.ours} - {dashed_name(run) for run in sweep.kept}
    names = notes.names(folder)
    runs = [name for name in names if name in over]
    workers = [name for name in names if name.endswith(".zip")]
    others = len(names) > len(runs) + len(workers)
    if not sweep.dry_run:
        for name in runs:
            notes.remove_tree(f"{folder}/{name}")
        for name in () if others else workers:
            notes.remove(f"{folder}/{name}")
    yield Leftover(kind="kubeflow_runs", noun="folder", rest="of runs on Kubeflow", count=len(runs))
