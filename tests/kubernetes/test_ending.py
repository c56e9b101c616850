"""The worker's config maps stay as long as a run uses them, and finished Jobs are deleted beside the watch."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import ApiError, Cluster
from stoker.backends.kubernetes.request.jobs import worker_names
from stoker.backends.kubernetes.running.ending import Deletions
from stoker.backends.kubernetes.running.handles import JobObject
from stoker.backends.kubernetes.running.sending import bring_worker, leave_worker, sweep_workers
from stoker.backends.kubernetes.settings import KubernetesSettings

MAPS = "/api/v1/namespaces/default/configmaps"
WORKERS = f"{MAPS}?labelSelector=stoker/worker"


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    """A folder as that of a worker, in two config maps."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "worker.bin").write_bytes(os.urandom(1_200_000))
    return str(folder)


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Cluster]:
    client = Cluster(KubernetesSettings(kubeconfig=str(cluster.kubeconfig)), os.environ)
    yield client
    client.close()


def names(cluster: LocalCluster) -> list[str]:
    """The config maps with a worker."""
    return [one["metadata"]["name"] for one in cluster.get(WORKERS)["items"]]


def test_the_last_run_removes_them(cluster: LocalCluster, client: Cluster, bundle: str) -> None:
    bring_worker(client, "default", "one", bundle)
    bring_worker(client, "default", "two", bundle)
    bring_worker(client, "default", "two", bundle)
    assert names(cluster) == sorted(worker_names(bundle)) and len(names(cluster)) == 2
    leave_worker(client, "default", "one", bundle)
    assert len(names(cluster)) == 2
    leave_worker(client, "default", "two", bundle)
    leave_worker(client, "default", "two", bundle)
    assert names(cluster) == []


def test_a_run_that_comes_while_the_last_one_leaves_keeps_them(
    cluster: LocalCluster, client: Cluster, bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at who is left and the deletion."""
    bring_worker(client, "default", "one", bundle)
    delete = client.delete

    def late(path: str, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(client, "delete", delete)
        bring_worker(client, "default", "two", bundle)
        return delete(path, **options)

    monkeypatch.setattr(client, "delete", late)
    leave_worker(client, "default", "one", bundle)
    assert len(names(cluster)) == 2


@pytest.mark.long
def test_many_runs_come_and_go(cluster: LocalCluster, bundle: str) -> None:
    """A run that has brought the worker finds it for as long as it stays."""
    missing: list[str] = []

    def runs(number: int) -> None:
        client = Cluster(KubernetesSettings(kubeconfig=str(cluster.kubeconfig)), os.environ)
        for turn in range(8):
            bring_worker(client, "default", f"run-{number}-{turn}", bundle)
            for name in worker_names(bundle):
                try:
                    client.get(f"{MAPS}/{name}")
                except ApiError as error:
                    missing.append(error.message)
            leave_worker(client, "default", f"run-{number}-{turn}", bundle)
        client.close()

    threads = [threading.Thread(target=runs, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert missing == [] and names(cluster) == []


def test_a_sweep_leaves_those_of_others(cluster: LocalCluster, client: Cluster, bundle: str) -> None:
    bring_worker(client, "default", "ours", bundle)
    bring_worker(client, "default", "theirs", bundle)
    assert sweep_workers(client, "default", "ours".__eq__, lonely=True, dry_run=False) == 0
    assert len(names(cluster)) == 2
    leave_worker(client, "default", "theirs", bundle)
    assert sweep_workers(client, "default", "ours".__eq__, lonely=True, dry_run=True) == 2
    assert len(names(cluster)) == 2, "a dry run"
    assert sweep_workers(client, "default", "ours".__eq__, lonely=False, dry_run=False) == 2
    cluster.create(MAPS, {"metadata": {"name": "stoker-worker-old", "labels": {"stoker/worker": "true"}}})
    assert sweep_workers(client, "default", "ours".__eq__, lonely=False, dry_run=False) == 0
    assert sweep_workers(client, "default", "ours".__eq__, lonely=True, dry_run=False) == 1
    assert names(cluster) == []


class Client:
    """Stands for the thread's own client."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True


def place(name: str) -> JobObject:
    return JobObject(name=name, namespace="default", run="run1")


def test_a_slow_server_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The first deletion hangs while the others are added; then one gets no answer, and one is refused."""
    began, released, asked = threading.Event(), threading.Event(), []
    answers: dict[str, list[Exception]] = {
        "silent": [Away("no answer", fix="")],
        "refused": [ApiError(403, "Forbidden", "jobs is forbidden", {})],
    }

    def delete(client: Any, place: JobObject) -> None:
        asked.append(place.name)
        began.set()
        assert released.wait(30.0)
        if answers.get(place.name):
            raise answers[place.name].pop()

    client: Any = Client()
    deletions = Deletions(client, delete)
    deletions.add(place("slow"))
    assert began.wait(30.0)
    for name in ("silent", "refused", "last"):
        deletions.add(place(name))
    assert asked == ["slow"]
    released.set()
    assert deletions.finish() and client.closed
    assert asked == ["slow", "silent", "silent", "refused", "last"]
    assert "the Job default/refused is over and stays" in caplog.text and "jobs is forbidden" in caplog.text


@pytest.mark.parametrize("leaves", ["finish", "abandon"])
def test_a_driver_that_leaves_does_not_wait_for_ever(leaves: str) -> None:
    tried = threading.Semaphore(0)

    def delete(client: Any, place: JobObject) -> None:
        tried.release()
        raise Away("no answer", fix="")

    client: Any = Client()
    deletions = Deletions(client, delete)
    deletions.add(place("one"))
    assert tried.acquire(timeout=30.0)
    if leaves == "abandon":
        deletions.abandon()
    assert not deletions.finish() and client.closed
