"""Runs the driver of a detached run as a Job of the cluster that runs its steps.

The driver's pod brings nothing of its own but an image with Python: Stoker comes by config maps, and the stack, the
credentials of database and artifact store, and the values of secrets by a Secret. The Job owns all of them. The user's
code is taken from the artifact store. There the driver reaches the API server by its pod's service account.

It needs the database and the artifact store, in one of two ways: the pods share this machine's home (`shares_files`),
or the database is a PostgreSQL server that pods reach. In the second the pod's home is its own, and the driver sends
the run's logs to the database (`store.logcopies`).

The kubelet starts the driver again that was killed, and the Job controller a pod that was evicted or whose node is
lost. The next start resumes the run (`run.detaching`).
https://kubernetes.io/docs/concepts/workloads/controllers/job/#handling-pod-and-container-failures
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import RESTARTED_BY, SENDS_LOGS, DetachedRun, DriverJob, DriverStart, TimerJob
from stoker.backends.base.drivers import document, loopback
from stoker.backends.base.messages import credentials, is_below
from stoker.backends.base.timers import PREFIX
from stoker.backends.kubernetes.api.access import SERVICE_ACCOUNT
from stoker.backends.kubernetes.api.client import ApiError, Cluster, delete, existing, pages, reached
from stoker.backends.kubernetes.api.follow import main_state
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import condition
from stoker.backends.kubernetes.proof.setup import DRIVER_FIX, account_of_driver, driver_lacks
from stoker.backends.kubernetes.request.check import OWN_IMAGE
from stoker.backends.kubernetes.request.jobs import (
    MESSAGE,
    WORKER,
    label_text,
    owner_patch,
    part_maps,
    secret_of,
    user_name,
    worker_parts,
)
from stoker.backends.kubernetes.request.pods import MANAGED_BY, PodMount, PodRequest, pod_template, program
from stoker.backends.kubernetes.running import driverpod
from stoker.backends.kubernetes.running.ending import DRIVER
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.errors import BackendError, UsageError
from stoker.core.resources import ResourceSettings

CPU: Final = 0.25
"""CPUs that a driver's pod asks for: it computes while steps begin and end."""
TTL: Final = 3600.0
"""Seconds for which a driver's Job stays once it is over, for its log."""
TRIES: Final = 100
"""How often the driver is started again in all: the kubelet waits up to five minutes between two starts, so that a
database may be away for hours. A driver that makes no progress gives its run up much earlier (`run.detaching`)."""
ASKED: Final = 5.0
"""Seconds for an answer while a person waits."""
HOME: Final = "/stoker/home"
"""The home of a pod that does not share this machine's."""
START: Final = "/stoker/start"
_KEY: Final = "start"
_NOT_THE_DRIVERS: Final = frozenset(
    {
        # What a step computes with, and how its job is queued and followed.
        "queue", "queueing", "queue_priority", "topology", "placement", "jobset", "reuse", "idle_after", "qos", "efa",
        "extended_resources", "accelerators", "device_class", "compute_pool", "pod_resources", "runtime_class",
        "use_tmpfs", "tmpfs_size", "tmpfs_path", "tmpfs_tempdir", "port", "privileged", "host_ipc", "grace_period",
        "ttl", "pod_startup_timeout", "pull_timeout",
    }
)  # fmt: skip
"""Fields of the settings that a driver's pod does not take."""
_OWN: Final = ("service_account", "node_selector", "priority_class")
"""Fields that `driver` may have in place of the stack's."""
_PLACE: Final = re.compile(r"the Job ([a-z0-9.-]+)/([a-z0-9.-]+)")


def check(options: Mapping[str, Any], run: DetachedRun, *, who: str = "--detach") -> None:
    """`UsageError` where a driver in a pod would lack something; the cluster is not asked."""
    settings = KubernetesSettings(**options)
    shares = bool(settings.get("shares_files"))
    if run.elsewhere:
        step, flavor = next(iter(run.elsewhere.items()))
        raise UsageError(
            f"{who} puts the driver into a pod of the cluster, which has neither the commands nor the logins that "
            f"start step '{step}' on {flavor}",
            fix="run all steps on the orchestrator, or start the run without --detach",
        )
    if not shares and run.database.startswith("sqlite:"):
        path = run.database.partition("://")[2]
        raise UsageError(
            f"{who} puts the driver into a pod of the cluster, which does not see this machine's database {path}",
            fix='set database = "postgresql://…" in the stack, a server that pods and you reach; or shares_files = '
            "true where the nodes have this home",
        )
    place = "" if settings.get("host_network") or run.database.startswith("sqlite:") else loopback(run.database)
    if place:
        raise UsageError(
            f"{who} puts the driver into a pod of the cluster, for which the database server at {place} is another",
            fix="name the server in the stack's database as pods reach it, or host_network = true where it is on their "
            "nodes",
        )
    if "://" not in run.artifacts.removeprefix("file://") and not shares:
        raise UsageError(
            f"{who} puts the driver into a pod of the cluster, which does not see the artifact store {run.artifacts}",
            fix="name a store that pods reach: artifact_store = 's3://…', or 'pvc://CLAIM' for a claim",
        )


def detach(options: Mapping[str, Any], start: DriverStart) -> DriverJob:
    """Create the Job of a driver; what is refused leaves nothing behind.

    Raises `UsageError` where the pod's account lacks rights, `Away` where the API server does not answer,
    `BackendError` with its words where it refuses.
    """
    check(options, start.facts)
    with reached(options) as cluster:
        namespace = cluster.namespace
        check_rights(cluster, options, start.facts)
        return _create(cluster, options, start, namespace)


def check_rights(cluster: Cluster, options: Mapping[str, Any], run: DetachedRun, *, who: str = "the driver") -> None:
    """`UsageError` where the account of a driver's pod lacks rights, as far as this account may ask."""
    settings, namespace = KubernetesSettings(**options), cluster.namespace
    lacking = driver_lacks(cluster, settings, run.artifacts, namespace)
    if lacking:
        account = f"the service account '{account_of_driver(settings)}' of the namespace '{namespace}'"
        raise UsageError(f"{who} would run as {account}, which may not {lacking}", fix=DRIVER_FIX)


def _create(cluster: Cluster, options: Mapping[str, Any], start: DriverStart, namespace: str) -> DriverJob:
    place = f"the Job {namespace}/{start.name}"
    core, jobs = f"/api/v1/namespaces/{namespace}", f"/apis/batch/v1/namespaces/{namespace}/jobs"
    made: list[str] = []
    try:
        for kind, body in (
            ("secrets", secret(options, start, place)),
            *(("configmaps", body) for body in config_maps(start)),
        ):
            cluster.create(f"{core}/{kind}", body)
            made.append(f"{core}/{kind}/{body['metadata']['name']}")
        thing = cluster.create(jobs, job(options, start, user=user_name()))
        parts, made = made, [f"{jobs}/{start.name}", *made]
        for path in parts:
            cluster.patch(path, owner_patch(thing))
    except BaseException as error:  # also an interrupt leaves nothing behind
        for path in made:
            delete(cluster, path)
        if isinstance(error, ApiError):
            words = refusal_of(error.status, error.words, namespace=namespace)
            raise BackendError(f"the driver's Job is refused: {words.message}", fix=words.fix) from error
        raise
    shares = bool(KubernetesSettings(**options).get("shares_files"))
    return DriverJob(place=place, output=start.output if shares else "")


# What is created: pure


def labels(start: DriverStart, user: str) -> dict[str, str]:
    """The labels of all objects of a driver."""
    return {MANAGED_BY: "stoker", DRIVER: label_text(start.run), "stoker/user": label_text(user)}


def job(options: Mapping[str, Any], start: DriverStart, *, user: str) -> dict[str, Any]:
    """The Job."""
    settings = driver_settings(options, start)
    driver: Mapping[str, Any] = KubernetesSettings(**options).get("driver", {})
    home = _home(settings, start)
    template = pod_template(
        PodRequest(
            resources=ResourceSettings(
                cpu_count=driver.get("cpu_count") or CPU,
                **({"memory": driver["memory"]} if driver.get("memory") else {}),
            ),
            settings=settings,
            image=_image(options),
            command=(
                *(settings.get("executable", "python3"), "-c", program(driverpod)),
                *(f"{START}/{_KEY}", WORKER, home, SERVICE_ACCOUNT, MESSAGE),
            ),
            labels=labels(start, user),
            mounts=[*_mounts(settings, start)],
        )
    )
    template["spec"].update(restartPolicy="OnFailure", automountServiceAccountToken=True)
    ttl = driver.get("ttl")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": start.name, "labels": labels(start, user)},
        "spec": {
            "backoffLimit": TRIES,
            "ttlSecondsAfterFinished": math.ceil(TTL if ttl is None else ttl),
            "template": template,
        },
    }


def secret(options: Mapping[str, Any], start: DriverStart, place: str) -> dict[str, Any]:
    """The Secret with what the pod's program reads: the stack, and variables with credentials."""
    document = gzip.compress(json.dumps(_document(options, start, place), separators=(",", ":")).encode(), 6, mtime=0)
    return secret_of(start.name, labels(start, user_name()), {_KEY: document})


def config_maps(start: DriverStart) -> list[dict[str, Any]]:
    """The config maps with Stoker, for a driver and for the pods of its steps."""
    return part_maps(start.code.bundle, _map_names(start), labels(start, user_name()))


def driver_settings(options: Mapping[str, Any], start: DriverStart) -> KubernetesSettings:
    """The stack's settings as far as they are the driver's, with its own."""
    own: Mapping[str, Any] = KubernetesSettings(**options).get("driver", {})
    given = {name: value for name, value in options.items() if name not in _NOT_THE_DRIVERS}
    if given.get("pod_settings"):
        given["pod_settings"] = {name: part for name, part in given["pod_settings"].items() if name != "resources"}
    given.update({name: own[name] for name in _OWN if name in own})
    settings = KubernetesSettings(**given)
    context = {**settings.get("pod_security_context", {}), **settings.get("security_context", {})}
    if settings.get("shares_files") and "runAsUser" not in context and os.getuid():
        # The home is its owner's alone.
        mine = {"runAsUser": os.getuid(), "runAsGroup": os.getgid()}
        settings = KubernetesSettings(
            **{**given, "pod_security_context": {**settings.get("pod_security_context", {}), **mine}}
        )
    return settings


def _image(options: Mapping[str, Any]) -> str:
    settings = KubernetesSettings(**options)
    driver: Mapping[str, Any] = settings.get("driver", {})
    return str(driver.get("image") or settings.get("image") or OWN_IMAGE)


def _home(settings: KubernetesSettings, start: DriverStart) -> str:
    return start.facts.home if settings.get("shares_files") else HOME


def _map_names(start: DriverStart) -> list[str]:
    return [f"{start.name}-{number}" for number in range(len(worker_parts(start.code.bundle)))]


def _mounts(settings: KubernetesSettings, start: DriverStart) -> Iterator[PodMount]:
    yield PodMount(name="stoker-start", source={"secret": {"secretName": start.name}}, path=START)
    sources = [{"configMap": {"name": name}} for name in _map_names(start)]
    yield PodMount(name="stoker-worker", source={"projected": {"sources": sources}}, path=WORKER)
    brought = [
        *settings.get("persistent_volume_claims", {}).values(),
        *settings.get("host_paths", {}).values(),
        *(str(mount.get("mountPath", "")) for mount in settings.get("volume_mounts", ())),
    ]
    if settings.get("shares_files"):
        for number, folder in enumerate(_folders(start.facts, brought)):
            source = {"hostPath": {"path": folder, "type": "Directory"}}
            yield PodMount(name=f"stoker-folder-{number}", source=source, path=folder, read_only=False)
            brought.append(folder)
    else:
        yield PodMount(name="stoker-home", source={"emptyDir": {}}, path=HOME, read_only=False)
    root = start.code.root
    if start.facts.dynamic and root and not any(is_below(root, path) for path in brought if path):
        # Code that the driver itself runs is unpacked to where it was.
        yield PodMount(name="stoker-code", source={"emptyDir": {}}, path=root, read_only=False)


def _folders(facts: DetachedRun, brought: Sequence[str]) -> list[str]:
    """The folders of this machine that a driver needs and no volume of the settings brings, none below another."""
    wanted = [facts.home, facts.artifacts.removeprefix("file://")]
    if facts.database.startswith("sqlite:"):
        wanted.append(os.path.dirname(facts.database.partition("://")[2].replace("//", "/")))
    folders = sorted({folder for folder in wanted if folder and "://" not in folder}, key=len)
    return [
        folder
        for number, folder in enumerate(folders)
        if not any(is_below(folder, path) for path in (*brought, *folders[:number]) if path)
    ]


def _document(options: Mapping[str, Any], start: DriverStart, place: str) -> dict[str, Any]:
    shares = bool(KubernetesSettings(**options).get("shares_files"))
    own = {
        **credentials(start.facts.artifacts, os.environ),
        "LOGNAME": user_name(),
        RESTARTED_BY: place,
        **({} if shares else {SENDS_LOGS: "1"}),
    }
    return document(start, image=_image(options), environment=own)


# What becomes of it


def has_driver(options: Mapping[str, Any], place: str) -> bool:
    """Whether a driver's Job waits or runs; true where `place` names none."""
    match = _PLACE.search(place)
    if match is None:
        return True
    with reached(options, patience=ASKED) as cluster:
        thing = existing(cluster, f"/apis/batch/v1/namespaces/{match[1]}/jobs/{match[2]}")
    if thing is None:
        return False
    return condition(thing, "Complete") is None and condition(thing, "Failed") is None


def why_no_driver(options: Mapping[str, Any], place: str) -> str:
    """What a driver's pod said at its end; empty for none."""
    match = _PLACE.search(place)
    if match is None:
        return ""
    with reached(options, patience=ASKED) as cluster:
        pods = cluster.get(f"/api/v1/namespaces/{match[1]}/pods", labelSelector=f"job-name={match[2]}")
    ends = [main_state(pod).get("terminated") or {} for pod in pods.get("items") or ()]
    return next((str(end["message"]).strip() for end in ends if end.get("message")), "")


# Schedules as CronJobs, whose pods are drivers as those of detached runs are:
# https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/

SCHEDULE: Final = "stoker/schedule"
"""The label of all objects of a schedule; no label of a driver, so that no sweep of drivers takes them."""
KEPT: Final = 3
"""Jobs that are kept for their logs when they are over; a run's own logs are in the store."""


class CronJobs:
    """The CronJobs of a namespace."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options

    def check(self, job: TimerJob) -> None:
        """It takes what five fields can say, and a driver that a pod can be."""
        job.cron.five_fields()
        check(self._options, _start(job).facts, who="the schedule")

    def put(self, job: TimerJob) -> str:
        """Create the CronJob with its Secret and config maps, or change those that are there."""
        self.check(job)
        start = _start(job)
        with reached(self._options, patience=ASKED) as cluster:
            batch, core = _paths(cluster.namespace)
            place = f"the CronJob {cluster.namespace}/{job.mark}"
            before = existing(cluster, f"{batch}/{job.mark}")
            if before is not None and before["metadata"].get("labels", {}).get(SCHEDULE) != job.mark:
                raise BackendError(f"{place} is there, and is not Stoker's", fix="give the schedule another --name")
            check_rights(cluster, self._options, start.facts, who="the schedule")
            made: list[str] = []
            try:
                thing = _put(cluster, batch, cron_job(self._options, job), made)
                for kind, body in (
                    ("secrets", secret(self._options, start, "")),
                    *(("configmaps", one) for one in config_maps(start)),
                ):
                    owned = _labelled(body, job.mark)
                    owned["metadata"] |= owner_patch({"kind": "CronJob", "apiVersion": "batch/v1", **thing})["metadata"]
                    _put(cluster, f"{core}/{kind}", owned, made)
            except BaseException as error:  # also an interrupt leaves nothing behind
                for path in made:
                    delete(cluster, path)
                if isinstance(error, ApiError):
                    words = refusal_of(error.status, error.words, namespace=cluster.namespace)
                    raise BackendError(f"the CronJob is refused: {words.message}", fix=words.fix) from error
                raise
        return place

    def remove(self, mark: str) -> None:
        """Delete the CronJob, and with it what it owns; its Jobs go on to their end only where they have ended."""
        with reached(self._options, patience=ASKED) as cluster:
            path = f"{_paths(cluster.namespace)[0]}/{mark}"
            thing = existing(cluster, path)
            if thing is not None and thing["metadata"].get("labels", {}).get(SCHEDULE) == mark:
                delete(cluster, path)

    def marks(self) -> list[str]:
        """The CronJobs that are schedules of Stoker's and are not suspended."""
        with reached(self._options, patience=ASKED) as cluster:
            path = _paths(cluster.namespace)[0]
            found = [one for page in pages(cluster, path, labelSelector=SCHEDULE) for one in page.get("items") or ()]
        names = [str(one["metadata"]["name"]) for one in found if not one["spec"].get("suspend")]
        return [name for name in names if name.startswith(PREFIX)]


def timer(options: Mapping[str, Any]) -> CronJobs:
    """What starts schedules on a cluster, by settings of the stack."""
    return CronJobs(options)


def cron_job(options: Mapping[str, Any], timed: TimerJob) -> dict[str, Any]:
    """The CronJob. Its own policy lets runs overlap: Stoker's decides, and says what it skipped."""
    body = _labelled(job(options, _start(timed), user=user_name()), timed.mark)
    template = body["spec"]["template"]
    template["metadata"]["labels"] = _labels(timed.mark)
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": timed.mark, "labels": _labels(timed.mark)},
        "spec": {
            "schedule": timed.cron.five_fields(),
            "timeZone": timed.zone,
            "suspend": timed.paused,
            "concurrencyPolicy": "Allow",
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": KEPT,
            "failedJobsHistoryLimit": KEPT,
            "jobTemplate": {"metadata": {"labels": _labels(timed.mark)}, "spec": {**body["spec"], "backoffLimit": 2}},
        },
    }


def _put(cluster: Cluster, folder: str, body: Mapping[str, Any], made: list[str]) -> dict[str, Any]:
    path = f"{folder}/{body['metadata']['name']}"
    if existing(cluster, path) is not None:
        return cluster.patch(path, body)
    thing = cluster.create(folder, body)
    made.append(path)
    return thing


def _paths(namespace: str) -> tuple[str, str]:
    return f"/apis/batch/v1/namespaces/{namespace}/cronjobs", f"/api/v1/namespaces/{namespace}"


def _labels(mark: str) -> dict[str, str]:
    return {MANAGED_BY: "stoker", SCHEDULE: mark, "stoker/user": label_text(user_name())}


def _labelled(body: Mapping[str, Any], mark: str) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "labels": _labels(mark)}}


def _start(job: TimerJob) -> DriverStart:
    if job.start is None:
        raise UsageError("the schedule names no driver that a pod could be")
    return job.start()
