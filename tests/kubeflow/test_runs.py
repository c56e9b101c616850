"""Runs on Kubeflow Pipelines from end to end: the endpoint runs what was compiled by KFP's own local runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kubeflow.endpoint import Endpoint
from tests.kubernetes.server.cluster import LocalCluster
from tests.programs import SQUARES, WAITS
from tests.servers.programs import ORDINARY, asking
from tests.servers.s3 import S3
from tests.waiting import until

STACK = """
stack = "kf"
[stacks.kf]
orchestrator = {{flavor = "kubeflow", host = "{host}", patience = "60s", shares_files = true, {claim}{more}}}
"""


def _stack(project: Any, host: str, more: str = "") -> str:
    """`STACK` whose pods mount a claim where the artifacts are: KFP's local runner, on this machine, needs none."""
    return STACK.format(host=host, claim=f'persistent_volume_claims = {{shared = "{project.home}"}}', more=more)


STRUCTURES = """
import sys
from pathlib import Path

from stoker import context, pipeline, step
from stoker.config import Retry
from stoker.core.errors import RunFailed

@step
def prepare() -> None:
    print("prepared")
    print("on stderr", file=sys.stderr)

@step
def write(text: str) -> Path:
    Path("data.txt").write_text(text)
    return Path("data.txt")

@step
def length(data: Path) -> int:
    return len(data.read_text())

@step(retry=Retry(2))
def shout(text: str) -> str:
    if text == "c" and context.attempt == 1:
        raise ValueError("not yet")
    return text.upper() if text != "c" else text

@step
def joined(parts: list[str]) -> str:
    return "".join(parts)

@step
def fails(text: str) -> int:
    raise ValueError(text)

@pipeline
def inner(text: str = "abc"):
    return length.with_options(id="measured")(write(text))

@pipeline
def outer():
    ready = prepare()
    shout.with_options(after=ready, id="once")("x")
    again = shout.map(shout.map(["a", "b", "c"]))
    fails(joined(again))
    inner("four")

if __name__ == "__main__":
    try:
        outer()
    except RunFailed:
        pass
    finally:
        print("cleaned up")
"""


@pytest.mark.slow
def test_structures_of_kfp_as_they_are_written_here(project: Any, endpoint: Endpoint) -> None:
    """Order without data, names, files, loops of several steps, a collector, a pipeline in another, an exit handler."""
    stack = _stack(project, endpoint.host, ", fanout = 2") + "settings.failure_mode = 'continue'\n"
    project.write({"outer.py": STRUCTURES, "stoker.toml": stack})
    done = project.run("outer.py", timeout=240.0)
    assert done.stdout == "cleaned up\n", done.stderr
    run = project.client().runs()[0]
    assert {key: step.status for key, step in run.steps.items() if step.status != "succeeded"} == {"fails": "failed"}
    assert run.steps["once"].output.load() == "X" and run.steps["joined"].output.load() == "ABc"
    assert run.steps["inner.measured"].output.load() == 4
    assert [line.text for line in run.steps["prepare"].logs()] == ["prepared", "on stderr"]
    tasks = endpoint.tasks("run-0")
    assert tasks["once"]["dependentTasks"] == ["prepare"]
    assert tasks["inner-measured"]["dependentTasks"] == ["inner-write"]


@pytest.mark.slow
def test_driver_and_pods_share_nothing_but_an_object_store(
    project: Any, endpoint: Endpoint, s3_server: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    stack = STACK.format(host=endpoint.host, claim="fanout = 2", more="").replace("shares_files = true, ", "")
    store = f'artifact_store = "{s3_server.bucket("kubeflow")}/store"\n'
    stack = stack.replace("orchestrator", f"{store}orchestrator", 1)
    project.write({"squares.py": SQUARES.replace("total(square.map(load()))", "load()"), "stoker.toml": stack})
    assert "plain Python lacks s3fs" in project.run("squares.py", code=3).stderr
    project.write({"stoker.toml": stack.replace("fanout = 2", "fanout = 2, image = 'team/train:1'")})
    project.run("squares.py", timeout=240.0)
    run = project.client().runs()[0]
    assert run.steps["load"].output.load() == [1, 2, 3, 4]
    assert [line.text for line in run.steps["load"].logs()] == ["hello you alone", "on stderr"]
    assert endpoint.wait("run-0") == 0, endpoint.log("run-0")


def _started(project: Any, endpoint: Endpoint, tmp_path: Path, program: str = WAITS) -> subprocess.Popen[bytes]:
    project.write({"long.py": program, "stoker.toml": _stack(project, endpoint.host)})
    driver = _driver(project, "long.py")
    until(lambda: (tmp_path / "waits").exists())
    return driver


def _driver(project: Any, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "STOKER_HOME": str(project.home)}
    return subprocess.Popen([sys.executable, *words], cwd=project.folder, env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_cancelled_run(project: Any, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKS", str(tmp_path))
    driver = _started(project, endpoint, tmp_path)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120.0) == 130
    [run] = project.client().runs()
    assert run.status == "cancelled"
    assert run.steps["waits"].status == "cancelled" and run.steps["after"].status == "skipped"
    endpoint.wait("run-0")
    assert endpoint.runs["run-0"]["terminated"]
    assert not (tmp_path / "after").exists()


@pytest.mark.slow
def test_the_end_of_the_run_there(
    project: Any, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody ends it in Kubeflow: the step is lost, and a resumed run starts another one for what is left. Its pods
    go on when its driver is killed: the next driver adopts what runs, and gives the rest to the same run."""
    monkeypatch.setenv("MARKS", str(tmp_path))
    # Nothing that is killed writes last words.
    main = 'if __name__ == "__main__":\n'
    soon = f"{main}    from stoker.backends.kubeflow import backend\n    backend.LAST_WORDS = 1.0\n"
    driver = _started(project, endpoint, tmp_path, WAITS.replace(main, soon))
    endpoint.kill("run-0")
    assert driver.wait(120.0) == 1
    [run] = project.client().runs()
    assert run.steps["waits"].failure.cause == "worker-lost"
    assert "the Kubeflow run is FAILED" in run.steps["waits"].failure.message
    resumed = _driver(project, "-m", "stoker", "resume", run.id)
    until(lambda: (tmp_path / "waits").read_text() == "xx")
    resumed.kill()
    resumed.wait()
    (tmp_path / "go").touch()
    project.stoker("resume", run.id, timeout=240.0)
    run = project.client().run(run.id)
    assert run.status == "succeeded" and run.steps["after"].output.load() == 3
    assert [(tmp_path / name).read_text() for name in ("begin", "waits", "after")] == ["x", "xx", "x"]
    assert list(endpoint.runs) == ["run-0", "run-1"] and set(endpoint.tasks("run-1")) == {"waits", "after"}
    until(lambda: endpoint.wait("run-1") == 0)
    left = project.home / "artifacts" / "kubeflow"
    assert sorted(path.name for path in left.iterdir() if path.suffix != ".zip") == [run.id]
    project.stoker("gc", "--dry-run")
    assert len(list(left.iterdir())) == 2
    assert json.loads(project.stoker("gc", "--json").stdout)["kubeflow_runs"] == 1
    assert not list(left.iterdir()), "the orders of the run, and the worker"


GANG = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step(cache=False)
def load() -> int:
    return 20

@step(cache=False, step_operator="gangs", resources=ResourceSettings(nodes=2, cpu_count=0.1))
def ranks(x: int) -> int:
    return x + context.world_size

@step(cache=False)
def total(x: int) -> int:
    return x + 20

@pipeline
def gang():
    total(ranks(load()))

if __name__ == "__main__":
    gang()
"""


@pytest.mark.slow
def test_a_gang_runs_beside_the_pipeline(project: Any, endpoint: Endpoint, cluster: LocalCluster) -> None:
    """A step on several nodes is refused as a task, with the lines by which it runs as a JobSet of the same cluster."""
    cluster.ask("install", group="jobset.x-k8s.io")
    stack = _stack(project, endpoint.host)
    project.write({"gang.py": GANG.replace('step_operator="gangs", ', ""), "stoker.toml": stack})
    refused = project.run("gang.py", code=3).stderr
    assert "STK296" in refused and "step_operators.gangs = {flavor = 'kubernetes'" in refused, refused
    operator = f"step_operators.gangs = {{flavor = 'kubernetes', kubeconfig = '{cluster.kubeconfig}', jobset = true, "
    operator += f"executable = '{sys.executable}', image = 'team/step:1', shares_files = true}}\n"
    project.write({"gang.py": GANG, "stoker.toml": stack + operator})
    project.run("gang.py", timeout=240.0)
    run = project.client().runs()[0]
    assert run.status == "succeeded" and run.steps["total"].output.load() == 42
    assert set(endpoint.tasks("run-0")) == {"load", "total"} and cluster.counts()["create jobsets"] == 1


DEVICES = """
from stoker import context, pipeline, step
from stoker.config import ResourceSettings

@step
def data() -> int:
    return 2

@step(cache=False, resources=ResourceSettings(gpu_count=1, accelerators="H100", memory="1GB"))
def train(x: int) -> list[str]:
    return [device.uuid for device in context.devices] * x

@pipeline
def devices():
    train(data())

if __name__ == "__main__":
    devices()
"""


@pytest.mark.slow
def test_devices_logins_caches_and_a_lost_answer(project: Any, tmp_path: Path) -> None:
    """Behind Dex's form; the answer to the first run's creation is lost. The second run's first step is cached."""
    with Endpoint(tmp_path / "kubeflow", login=("ada@example.org", "secret")) as endpoint:
        more = ', username = "ada@example.org", password = "env:KF_PASSWORD", experiment = "trials"'
        project.write({"devices.py": DEVICES, "stoker.toml": _stack(project, endpoint.host, more)})
        words = ["devices.py", "--simulate", "1xH100"]
        refused = project.run(*words, env={"KF_PASSWORD": "wrong"}, code=1)
        assert "does not accept the login of ada@example.org" in refused.stderr
        endpoint.lose_next_answer = True
        for _ in range(2):
            project.run(*words, env={"KF_PASSWORD": "secret"}, timeout=240.0)
        second, first = project.client().runs()[:2]
        assert first.status == second.status == "succeeded"
        assert len(first.steps["train"].output.load()) == 2
        assert second.steps["data"].status == "cached"
        receipt = first.steps["train"].receipt
        assert receipt is not None and receipt.whole and receipt.devices
        assert list(endpoint.runs) == ["run-0", "run-1"]
        assert set(endpoint.tasks("run-0")) == {"data", "train"} and set(endpoint.tasks("run-1")) == {"train"}
        assert [one["display_name"] for one in endpoint.experiments.values()] == ["trials"]
        for id in endpoint.runs:
            assert endpoint.wait(id) == 0, endpoint.log(id)


def test_what_must_be_known_before(project: Any) -> None:
    code = SQUARES.replace("@pipeline\n", "@pipeline(dynamic=True)\n")
    project.write({"squares.py": code, "stoker.toml": _stack(project, "http://127.0.0.1:9")})
    refused = project.run("squares.py", code=3)
    assert "STK299" in refused.stderr and "remove dynamic=True" in refused.stderr
    flow = "from stoker.flow import FlowSpec, step\n\nclass Flow(FlowSpec):\n    @step\n    def start(self):\n"
    flow += "        self.next(self.end)\n\n    @step\n    def end(self):\n        pass\n"
    project.write({"flow.py": flow})
    refused = project.stoker("run", "flow.py", code=3).stderr
    assert (
        "'Flow' is a flow, and its steps are to run on kubeflow" in refused and "write it as a pipeline, or" in refused
    )
    hook = "def note(told):\n    print(told.status)\n\n@pipeline(on_failure=note)\n"
    project.write({"squares.py": SQUARES.replace("@pipeline\n", hook)})
    refused = project.run("squares.py", code=3)
    assert "STK299 error: squares.py:24: 'squares' has hooks (on_failure), and kubeflow is to call" in refused.stderr
    assert "call the function where the pipeline is called" in refused.stderr


def test_an_endpoint_that_does_not_answer_refuses_nothing(project: Any) -> None:
    program = asking(*ORDINARY, 'accelerators="tpu-v5e:4"', "cpu_count=8, spot=True")
    stack = STACK.format(host="http://127.0.0.1:9", claim="image = 'ghcr.io/team/train:1'", more="")
    stack = stack.replace("shares_files = true, ", "").replace(
        "orchestrator", "artifact_store = 's3://bucket/store'\norchestrator", 1
    )
    project.write({"train.py": program, "stoker.toml": stack})
    done = project.stoker("plan", "train.py", "--json", code=None)
    errors = [one for one in json.loads(done.stdout)["findings"] if one["level"] == "error"]
    assert (done.returncode, errors) == (0, []), done.stderr


def test_a_login_that_is_not_there(project: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan can be made without it, and says that a run cannot."""
    stack = _stack(project, "http://127.0.0.1:9", ", token = 'env:KF_TOKEN'")
    project.write({"squares.py": SQUARES, "stoker.toml": stack})
    planned = project.stoker("plan", "squares.py").stdout
    assert "STK300 warning: squares.py:23 step 'load'" in planned
    assert "whose token is not there: the environment variable KF_TOKEN is not set" in planned
    assert "fix: export KF_TOKEN=…" in planned
    assert "STK300" not in project.stoker("plan", "squares.py", env={"KF_TOKEN": "x"}).stdout


def test_a_folder_that_no_pod_mounts(project: Any) -> None:
    """KFP has no words for folders of nodes: a claim at the place of the artifacts is the only way to share files."""
    stack = STACK.format(host="http://127.0.0.1:9", claim="fanout = 2", more="")
    project.write({"squares.py": SQUARES, "stoker.toml": stack})
    refused = project.stoker("plan", "squares.py", code=3).stdout
    assert "STK283 error: squares.py:23 step 'load'" in refused
    assert f": mounts no claim at the artifact store {project.home}/artifacts" in refused
    assert "name one by KubeflowSettings(image=" in refused, "the class of this backend's settings"
    assert f"persistent_volume_claims = {{ CLAIM = '{project.home}/artifacts' }}" in refused
    for store in ("pvc://team", str(project.folder)):
        elsewhere = stack.replace("shares_files = true, ", "")
        named = elsewhere.replace("orchestrator", f"artifact_store = '{store}'\norchestrator", 1)
        project.write({"stoker.toml": named})
        refused = project.stoker("plan", "squares.py", code=3).stdout
        assert f"runs in a pod, which does not see the artifact store {store}" in refused
        assert "artifact_store = 's3://…', 'gs://…' or 'az://…'" in refused
    project.write({"stoker.toml": _stack(project, "http://127.0.0.1:9")})
    assert "STK283" not in project.stoker("plan", "squares.py").stdout


@pytest.mark.slow
def test_by_hand_with_kfps_own_command(project: Any, endpoint: Endpoint) -> None:
    """What `plan --render` prints goes into a shell: KFP's own client starts the run, and the pod runs the step."""
    code = SQUARES.replace("total(square.map(load()))", "load()")
    project.write({"squares.py": code, "stoker.toml": _stack(project, endpoint.host)})
    project.run("squares.py", timeout=240.0)
    text = project.stoker("plan", "squares.py", "--render").stdout
    script = text[text.index("\n(\n") + 1 : text.index("\n)\n") + 3]
    assert "pipelineInfo" in script and "kfp --endpoint" in script
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    project.command(["bash", "-c", script], env={"PATH": path}, timeout=240.0)
    until(lambda: list(project.home.glob("artifacts/kubeflow/RUN/0/load/00000/result.json")))
    assert "hello you alone" in endpoint.log("run-1")
