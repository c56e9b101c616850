"""Schedules as CronJobs: their pods are drivers as those of detached runs are (`kubernetes.running.detach`).

https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/
"""

from __future__ import annotations

from typing import Any, Final, Mapping

from stoker.backends.base.backend import DriverStart, TimerJob
from stoker.backends.base.timers import PREFIX
from stoker.backends.kubernetes.api.client import ApiError, Cluster, delete, existing, pages, reached
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.request.jobs import label_text, owner_patch, user_name
from stoker.backends.kubernetes.request.pods import MANAGED_BY
from stoker.backends.kubernetes.running import detach
from stoker.core.errors import BackendError, UsageError

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
        detach.check(self._options, _start(job).facts, who="the schedule")

    def put(self, job: TimerJob) -> str:
        """Create the CronJob with its Secret and config maps, or change those that are there."""
        self.check(job)
        start = _start(job)
        with reached(self._options, patience=detach.ASKED) as cluster:
            batch, core = _paths(cluster.namespace)
            place = f"the CronJob {cluster.namespace}/{job.mark}"
            before = existing(cluster, f"{batch}/{job.mark}")
            if before is not None and before["metadata"].get("labels", {}).get(SCHEDULE) != job.mark:
                raise BackendError(f"{place} is there, and is not Stoker's", fix="give the schedule another --name")
            detach.check_rights(cluster, self._options, start.facts, who="the schedule")
            made: list[str] = []
            try:
                thing = _put(cluster, batch, cron_job(self._options, job), made)
                for kind, body in (
                    ("secrets", detach.secret(self._options, start, "")),
                    *(("configmaps", one) for one in detach.config_maps(start)),
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
        with reached(self._options, patience=detach.ASKED) as cluster:
            path = f"{_paths(cluster.namespace)[0]}/{mark}"
            thing = existing(cluster, path)
            if thing is not None and thing["metadata"].get("labels", {}).get(SCHEDULE) == mark:
                delete(cluster, path)

    def marks(self) -> list[str]:
        """The CronJobs that are schedules of Stoker's and are not suspended."""
        with reached(self._options, patience=detach.ASKED) as cluster:
            path = _paths(cluster.namespace)[0]
            found = [one for page in pages(cluster, path, labelSelector=SCHEDULE) for one in page.get("items") or ()]
        names = [str(one["metadata"]["name"]) for one in found if not one["spec"].get("suspend")]
        return [name for name in names if name.startswith(PREFIX)]


def timer(options: Mapping[str, Any]) -> CronJobs:
    """What starts schedules on a cluster, by settings of the stack."""
    return CronJobs(options)


def cron_job(options: Mapping[str, Any], job: TimerJob) -> dict[str, Any]:
    """The CronJob. Its own policy lets runs overlap: Stoker's decides, and says what it skipped."""
    body = _labelled(detach.job(options, _start(job), user=user_name()), job.mark)
    template = body["spec"]["template"]
    template["metadata"]["labels"] = _labels(job.mark)
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": job.mark, "labels": _labels(job.mark)},
        "spec": {
            "schedule": job.cron.five_fields(),
            "timeZone": job.zone,
            "suspend": job.paused,
            "concurrencyPolicy": "Allow",
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": KEPT,
            "failedJobsHistoryLimit": KEPT,
            "jobTemplate": {"metadata": {"labels": _labels(job.mark)}, "spec": {**body["spec"], "backoffLimit": 2}},
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
