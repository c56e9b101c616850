"""`--detach` and schedules on a cluster: the driver runs in a pod by its service account, outlives its process and its
pod, and is started by a CronJob."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.kubernetes import drivers
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_claims import make_claim
from tests.kubernetes.test_pods import VERSIONS
from tests.servers import postgres
from tests.servers.postgres import Server

from stoker.backends.base.backend import DetachedRun, DriverStart
from stoker.backends.base.drivers import _READERS
from stoker.backends.kubernetes.api import rbac
from stoker.backends.kubernetes.proof import setup
from stoker.backends.kubernetes.request import jobs
from stoker.backends.kubernetes.request.pods import program
from stoker.backends.kubernetes.running import detach, driverpod, ending
from stoker.backends.kubernetes.running.detach import SCHEDULE
from stoker.client.leftjobs import note_lost_driver
from stoker.core.errors import UsageError
from stoker.core.plan import Code
from stoker.store.rows import DRIVER_PLACE, RunRow
from stoker.store.schedules import Schedules

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PROGRAM = """
    import os
    import time

    from stoker import pipeline, step
    from stoker.config import Secret


    @step(cache=False)
    def first(folder: str, word: str) -> int:
        with open(f"{folder}/begins", "a") as file:
            file.write(f"first {len(word)}\\n")
        print("the first step")
        return 1


    @step(cache=False)
    def lasting(number: int, folder: str) -> int:
        with open(f"{folder}/begins", "a") as file:
            file.write("lasting\\n")
        print("it lasts", flush=True)
        while not os.path.exists(f"{folder}/flag"):
            time.sleep(0.05)
        print("no longer", flush=True)
        return number + 1


    @pipeline(dynamic=True)
    def deciding(folder: str):
        if first(folder, "word") == 1:
            lasting(1, folder)


    @pipeline
    def planned(folder: str):
        lasting(first(folder, Secret.named("a-word")), folder)
"""


class Detached:
    """A detached run whose second step runs until the test says so."""

    def __init__(self, client: Any, project: Any, cluster: LocalCluster, folder: Path, name: str) -> None:
        self.client, self.project, self.cluster, self.folder = client, project, cluster, folder
        done = project.stoker(
            "run",
            f"train.py:{name}",
            "--detach",
            "--folder",
            str(folder),
            env={"STOKER_SECRET_A_WORD": "a long secret word"},
        )
        self.id = done.stdout.strip()
        assert f"goes on by itself: the Job default/stoker-driver-{self.id}" in done.stderr

    def until_begun(self) -> None:
        self.cluster.wait(lambda: len(self.begins()) == 2 or self.assert_running(), 120.0)

    def assert_running(self) -> None:
        run = self.client.run(self.id)
        assert run.status == "running", (run.status, run.error, self.output())

    def begins(self) -> list[str]:
        path = self.folder / "begins"
        return path.read_text().splitlines() if path.exists() else []

    def output(self) -> str:
        path = self.project.home / "logs" / self.id / "driver.out"
        return str(path.read_text()) if path.exists() else ""

    def row(self) -> Any:
        return self.client.store.records.run(self.id)

    def until_driven(self, sessions: int) -> None:
        """Wait until a driver has taken the run over for that time."""
        self.cluster.wait(lambda: self.row().sessions == sessions and "pid" in self.row().driver, 120.0)

    def pod(self) -> str:
        """The driver's pod that runs."""
        (name,) = [name for name in self.cluster.pids() if "stoker-driver-" in name]
        return name.partition("/")[2]

    def ended(self) -> Any:
        """The run, when it has ended; each step began once."""
        (self.folder / "flag").touch()
        run = self.client.run(self.id).wait(120)
        assert run.status == "succeeded", (run.error, self.output())
        assert len(self.begins()) == 2, self.output()
        assert run.steps["lasting"].load() == 2 and len(run.steps["lasting"].attempts) == 1
        job = f"{JOBS}/stoker-driver-{self.id}"
        self.cluster.wait(lambda: detach.condition(self.cluster.get(job), "Complete"), 60.0)
        return run


def stack(cluster: LocalCluster, *, places: str = "", more: str = "shares_files = true", nodes: str = "") -> str:
    driver = f'driver = {{service_account = "driver", memory = "1GiB", node_selector = {{{nodes}}}}}'
    return drivers.stack(cluster, more, driver, places=places, shares=False)


def give_rights(cluster: LocalCluster, store: str = "") -> None:
    """What `stoker stacks setup` makes for the driver's account."""
    options = {"kubeconfig": str(cluster.kubeconfig), "driver": "service_account=driver"}
    preparation = setup.prepare(options, store)
    assert preparation is not None and preparation.apply is not None
    assert preparation.what == "ServiceAccount driver, Role stoker, RoleBinding stoker-default-driver"
    preparation.apply()
    assert setup.prepare(options, store) is None


def names(cluster: LocalCluster, kind: str) -> list[str]:
    selector = f"?labelSelector={ending.DRIVER}"
    path = JOBS if kind == "jobs" else f"/api/v1/namespaces/default/{kind}"
    return [one["metadata"]["name"] for one in cluster.get(path + selector)["items"]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_driver_outlives_its_process_and_its_pod(
    project: Any, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step begins twice; the home is shared, and rights are those that setup gives the driver's account."""
    # An image in which nothing is installed.
    venv.create(tmp_path / "bare", symlinks=True)
    text = stack(cluster).replace(sys.executable, str(tmp_path / "bare" / "bin" / "python"))
    project.write({"train.py": PROGRAM, "stoker.toml": text})
    monkeypatch.chdir(project.folder)
    cluster.create("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "driver"}})
    lacking = project.stoker(
        "run",
        "train.py:planned",
        "--detach",
        "--folder",
        str(tmp_path),
        code=2,
        env={"STOKER_SECRET_A_WORD": "12345678"},
    )
    assert "as the service account 'driver' of the namespace 'default', which may not create, get" in lacking.stderr
    assert project.stoker("runs", "--json").stdout.strip() == "[]" and not names(cluster, "secrets")
    cluster.delete("/api/v1/namespaces/default/serviceaccounts/driver")
    give_rights(cluster)

    run = Detached(project.client(), project, cluster, tmp_path, "planned")
    run.until_begun()
    run.until_driven(1)
    cluster.wait(lambda: run.output().count("it lasts") == 1, 60.0)
    os.kill(run.row().driver["pid"], signal.SIGKILL)
    run.until_driven(2)
    # What an adopted job wrote is read again: its signals have their handlers by then.
    cluster.wait(lambda: run.output().count("it lasts") == 2, 60.0)
    pod = run.pod()
    # Asked to go by SIGTERM, it leaves the run to the next pod.
    cluster.delete(f"/api/v1/namespaces/default/pods/{pod}")
    run.until_driven(3)
    assert run.pod() != pod
    assert f"this driver leaves; jobs go on, and the Job default/stoker-driver-{run.id} drives the run" in run.output()
    ended = run.ended()
    assert run.begins() == ["first 18", "lasting"], "with the value of its secret"
    assert "a long secret word" not in run.output() and ended.sessions == 3
    assert "it lasts" in project.stoker("logs", run.id, "lasting").stdout
    project.stoker("gc")
    assert not [name for kind in ("jobs", "secrets", "configmaps") for name in names(cluster, kind)]


@pytest.fixture
def database() -> Iterator[str]:
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    server = Server(programs)
    server.start()
    try:
        yield server.uri
    finally:
        server.stop("immediate")
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nothing_is_shared_but_a_database_and_a_claim(
    project: Any,
    cluster: LocalCluster,
    tmp_path: Path,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """A dynamic pipeline's code is brought, logs are read from here, and a run is cancelled from here."""
    claim = make_claim(cluster)
    places = f'artifact_store = "pvc://{claim}"\ndatabase = "${{STORE}}"'
    project.write(
        {
            "project/train.py": PROGRAM,
            "project/stoker.toml": stack(cluster, places=places, more="host_network = true", nodes='kind = "late"'),
        }
    )
    folder, home = project.folder, project.folder / "project"
    monkeypatch.setenv("STORE", database)
    monkeypatch.setattr(project, "folder", home)
    monkeypatch.chdir(home)
    give_rights(cluster, f"pvc://{claim}")
    client = project.client()
    request.addfinalizer(client.store.close)
    run = Detached(client, project, cluster, tmp_path, "deciding")
    shown = project.stoker("show", run.id).stdout
    assert f"has not begun yet: the Job default/stoker-driver-{run.id}" in shown and "writes to" not in shown
    # The driver cannot read this folder: what it runs is what was sent.
    home.rename(folder / "aside")
    home.mkdir()
    (home / "stoker.toml").write_text((folder / "aside" / "stoker.toml").read_text())
    cluster.add_node("late", labels={"kind": "late"})
    run.until_begun()
    cluster.wait(lambda: "it lasts" in project.stoker("logs", run.id, "lasting").stdout or time.sleep(0.5), 60.0)
    run.until_driven(1)
    # Another pod begins in an empty home; the logs of the first one stay.
    cluster.delete(f"/api/v1/namespaces/default/pods/{run.pod()}", gracePeriodSeconds=0)
    run.until_driven(2)
    log = project.stoker("logs", run.id).stdout
    assert [log.count(text) for text in ("the first step", "it lasts")] == [1, 1], log
    project.stoker("cancel", run.id)
    assert run.client.run(run.id).wait(60).status == "cancelled"
    job = f"{JOBS}/stoker-driver-{run.id}"
    cluster.wait(lambda: detach.condition(cluster.get(job), "Complete"), 60.0)
    cluster.wait(lambda: not [name for name in cluster.pids() if "stoker-store" not in name], 60.0)


def test_a_driver_that_cannot_begin_says_why(
    project: Any, cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_READERS, "s3", "no_such_package")
    monkeypatch.chdir(project.write({"stoker.toml": stack(cluster)}).folder)
    for item in rbac.manifests("default", "system:serviceaccount:default:default", cluster=False):
        path = setup.PATHS[item["kind"]][0].format(namespace="default")
        cluster.create(path, item)
    options = {"kubeconfig": str(cluster.kubeconfig), "image": "team/step:1", "executable": sys.executable}
    (tmp_path / "driver-1").mkdir()
    job = detach.detach(options, driver_start(tmp_path / "driver-1"))
    assert job.place == "the Job default/stoker-driver-01abc" and not job.output
    cluster.wait(lambda: not detach.has_driver(options, job.place), 60.0)
    # Somebody looks at the run, and it is no longer awaited.
    store = project.client().store
    waiting = {DRIVER_PLACE: job.place}
    row = RunRow(id="01abc", pipeline="p", created=time.time(), stack="cluster", token="t", driver=waiting)
    store.records.create_run(row, plan="{}")
    assert note_lost_driver(store, store.records.run("01abc"))
    error = store.records.run("01abc").error
    assert f"{job.place}, which was to start its driver, is not in the queue any more: the image team/step:1" in error
    assert "no_such_package; name another one by driver = {image = …}" in error


def facts(**more: Any) -> DetachedRun:
    return DetachedRun(
        **{"home": "/home/me/.stoker", "database": "postgresql://me@db/stoker", "artifacts": "s3://b", **more}
    )


@pytest.mark.parametrize(
    ("options", "run", "words"),
    [
        ({}, {"database": "sqlite:////home/me/.stoker/stoker.db"}, "does not see this machine's database /"),
        ({}, {"database": "postgresql://me:pw@localhost:5432/x"}, "the database server at localhost is another"),
        ({}, {"database": "postgresql://me@db,127.0.0.1:5433/x"}, "the database server at 127.0.0.1 is another"),
        ({}, {"database": "postgresql:///x?host=/run/postgresql"}, "the database server at /run/postgresql is another"),
        ({}, {"artifacts": "/data/artifacts"}, "does not see the artifact store /data/artifacts"),
        ({"shares_files": True}, {"elsewhere": {"fit": "slurm"}}, "that start step 'fit' on slurm"),
    ],
)
def test_what_a_pod_could_not_do_is_refused(options: dict[str, Any], run: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)) as caught:
        detach.check(options, facts(**run))
    assert caught.value.fix and "pw" not in str(caught.value)
    detach.check({"shares_files": True}, facts(database="sqlite:////home/me/.stoker/stoker.db", artifacts="/data"))
    detach.check({"host_network": True}, facts(database="postgresql://me@localhost/x", artifacts="pvc://runs"))


def driver_start(bundle: Path, **more: Any) -> DriverStart:
    return DriverStart(
        run="01abc",
        name="stoker-driver-01abc",
        words=("-m", "stoker", "resume", "01abc", "--stack", "cluster"),
        environment={"STOKER_DETACHED": "token"},
        folder="/home/me/project",
        output="/home/me/.stoker/logs/01abc/driver.out",
        facts=facts(**more),
        code=Code(package="d1", root="/home/me/project", bundle=str(bundle)),
        stack="[stacks.cluster]\n",
    )


SETTINGS: dict[str, Any] = {
    "image": "team/train:1",
    "service_account": "trainer",
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "team", "operator": "Exists"}],
    "queue": "ml",
    "env": {"KUBERNETES_SERVICE_HOST": "192.0.2.10"},
    "overlay": {"metadata": {"annotations": {"a": "b"}}},
    "driver": {"node_selector": {"pool": "cpu"}, "memory": "1GiB", "ttl": "2h", "service_account": "driver"},
}


@pytest.mark.parametrize("kind", ["shared", "alone"])
def test_the_job(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "driver-1").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 1000)
    options = {**SETTINGS, "shares_files": kind == "shared"}
    more: dict[str, Any] = {"dynamic": kind == "alone"}
    if kind == "shared":
        more |= {"database": "sqlite:////home/me/.stoker/stoker.db", "artifacts": "file:///data/artifacts"}
    start = driver_start(tmp_path / "driver-1", **more)
    made = detach.job(options, start, user="me")
    command = made["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2] == program(driverpod)
    for version in VERSIONS:
        for thing in (made, detach.secret(options, start, "the Job default/x"), *detach.config_maps(start)):
            kubernetes_validate.validate(thing, version, strict=True)
    command[2] = "PROGRAM"
    golden = Path(__file__).parent / "golden" / "drivers" / f"{kind}.json"
    text = json.dumps(made, indent=1, sort_keys=True) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_the_rights_of_a_driver_are_no_rights_on_the_cluster() -> None:
    alone, claims = rbac.driver_rights((), claims=False), rbac.driver_rights((), claims=True)
    assert not any(right.cluster for right in claims)
    assert {right.resource for right in claims} - {right.resource for right in alone} == {"persistentvolumeclaims"}
    assert jobs.RUN != ending.DRIVER, "a driver ends what has the label of its run"


CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
CORE = "/api/v1/namespaces/default"
YEAR = 366 * 86400.0
TIMED = """
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
            "train.py": TIMED,
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

    project.stoker("schedule", "add", "0 0 1 1 *", "train.py", *words, "--zone", "UTC")  # no image need know another
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
    project.write({"stoker.toml": stack(cluster), "train.py": TIMED, "helper.py": "def twice(n): return n\n"})
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
