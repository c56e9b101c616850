"""Schedules as CronJobs: what the API server gets, and that a Job of it runs the pipeline in a pod, once."""

from __future__ import annotations

import time
from typing import Any

import kubernetes_validate
import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_detach import give_rights, stack
from tests.kubernetes.test_pods import VERSIONS

from stoker.backends.kubernetes.running.timers import SCHEDULE
from stoker.store.schedules import Schedules

CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CORE = "/api/v1/namespaces/default"
YEAR = 366 * 86400.0
PROGRAM = """
    from helper import twice
    from stoker import pipeline, step


    @step(cache=False)
    def one(n: int) -> int:
        return twice(n)


    @pipeline
    def training(n: int = 1):
        one(n)
"""


def listed(cluster: LocalCluster, folder: str) -> list[Any]:
    found: list[Any] = cluster.get(f"{folder}?labelSelector={SCHEDULE}")["items"]
    return found


def until_succeeded(cluster: LocalCluster, job: str) -> None:
    cluster.wait(lambda: (cluster.get(job).get("status") or {}).get("succeeded"), 120.0)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cron_job_runs_the_pipeline_in_a_pod(
    project: Any, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    project.write(
        {
            "stoker.toml": stack(cluster),
            "train.py": PROGRAM,
            "helper.py": "def twice(n):\n    return 2 * n\n",
        }
    )
    words = ("--n", "4", "--zone", "Europe/Berlin", "--name", "nightly")
    refused = project.stoker("schedule", "add", "0 6 */2 * 1", "train.py", *words, code=2).stderr
    assert "needs a day's number and its weekday, which this scheduler cannot say" in refused
    assert not listed(cluster, CRON_JOBS)
    refused = project.stoker("schedule", "add", "0 6 * * 7", "train.py", *words, code=2).stderr
    assert "the schedule would run as the service account 'driver' of the namespace 'default', which may not" in refused
    assert not listed(cluster, CRON_JOBS) and project.stoker("schedule", "list", "--json").stdout == "[]\n"
    give_rights(cluster)
    said = project.stoker("schedule", "add", "0 6 * * 7", "train.py", *words).stderr
    assert "'nightly' is added: the CronJob default/stoker-nightly-" in said
    (found,) = listed(cluster, CRON_JOBS)
    mark, uid = found["metadata"]["name"], found["metadata"]["uid"]
    spec = found["spec"]
    assert (spec["schedule"], spec["timeZone"], spec["suspend"]) == ("0 6 * * 0", "Europe/Berlin", False)
    for version in VERSIONS:
        kubernetes_validate.validate({"apiVersion": "batch/v1", "kind": "CronJob", **found}, version, strict=True)
    owned = [*listed(cluster, f"{CORE}/secrets"), *listed(cluster, f"{CORE}/configmaps")]
    assert len(owned) >= 2
    assert {one["metadata"]["ownerReferences"][0]["uid"] for one in owned} == {uid}

    project.stoker("schedule", "add", "0 0 1 1 *", "train.py", *words)
    (found,) = listed(cluster, CRON_JOBS)
    assert (found["metadata"]["uid"], found["spec"]["schedule"]) == (uid, "0 0 1 1 *")
    schedules = Schedules(project.client().store.records.database)
    schedules.pause("nightly", paused=False, now=time.time() - YEAR)  # as if it had been added a year ago
    for name in ("train.py", "helper.py"):  # pods have no folder of the person's
        (project.folder / name).unlink()
    for number in range(2):  # what the controller does, which may do it twice
        body = {**found["spec"]["jobTemplate"], "metadata": {"name": f"nightly-{number}", "labels": {SCHEDULE: mark}}}
        cluster.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", **body})
        until_succeeded(cluster, f"{JOBS}/nightly-{number}")
    log = (project.home / "schedules" / "nightly.log").read_text()
    assert len(project.client().runs()) == 1, log
    (run,) = project.client().runs()
    assert run.status == "succeeded" and run.steps["one"].load() == 8, log
    assert run.cause.startswith("schedule 'nightly', due 20") and "somebody else has it" in log

    project.stoker("schedule", "pause", "nightly")
    assert listed(cluster, CRON_JOBS)[0]["spec"]["suspend"] is True
    project.stoker("schedule", "rm", "nightly")
    cluster.wait(lambda: not listed(cluster, CRON_JOBS) and not listed(cluster, f"{CORE}/secrets"), 60.0)


def test_a_cron_job_of_somebody_else_stays(project: Any, cluster: LocalCluster) -> None:
    give_rights(cluster)
    project.write({"stoker.toml": stack(cluster), "train.py": PROGRAM, "helper.py": "def twice(n): return n\n"})
    project.stoker("schedule", "add", "0 6 * * *", "train.py", "--name", "mine")
    (found,) = listed(cluster, CRON_JOBS)
    mark = found["metadata"]["name"]
    cluster.delete(f"{CRON_JOBS}/{mark}")
    body = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": mark}, "spec": found["spec"]}
    cluster.create(CRON_JOBS, body)
    assert "nothing starts it any more" in project.stoker("schedule", "list").stderr
    assert "is there, and is not Stoker's" in project.stoker("schedule", "resume", "mine", code=4).stderr
    project.stoker("schedule", "rm", "mine")
    assert cluster.get(f"{CRON_JOBS}/{mark}")["metadata"]["name"] == mark
