"""`stoker exec`, `dump` and `forward`: real steps and ranks on this machine, which are entered while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.screen import Terminal

from stoker.backends.base.backend import RunningAttempt
from stoker.backends.registry import BACKENDS
from stoker.core.errors import UsageError

STOKER = str(Path(sys.executable).with_name("stoker"))
PROGRAM = """
import http.server
import threading
import time
from pathlib import Path

from stoker import pipeline, step
from stoker.config import ResourceSettings

def stand_here(name: str) -> None:
    Path(name).touch()
    while not Path("end").exists():
        time.sleep(0.05)

@step(cache=False, resources=ResourceSettings(gpu_count=1), environment={"COLOUR": "blue"})
def serves() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Path("port").write_text(str(server.server_port))
    stand_here("served")

@step(cache=False)
def plain(value: int) -> None:
    stand_here(f"plain{value}")

@pipeline(failure_mode="continue")
def standing():
    serves()
    plain.map([7])

if __name__ == "__main__":
    standing()
"""


@pytest.fixture
def environment(project: Any) -> dict[str, str]:
    return {**os.environ, "SHELL": "/bin/sh", "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "2xH100"}


@pytest.fixture
def standing(project: Any, environment: dict[str, str]) -> Iterator[str]:
    project.write({"standing.py": PROGRAM})
    run = project.run("standing.py", "--detach", env=environment).stdout.strip()
    watching = [STOKER, "watch", run]
    with Terminal(watching, folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: all((project.folder / name).exists() for name in ("served", "plain7")))
    yield run
    (project.folder / "end").touch()
    project.stoker("cancel", run, "--now", code=None)


def test_a_command_has_the_steps_environment_folder_and_devices(
    project: Any, environment: dict[str, str], standing: str
) -> None:
    script = 'echo "$COLOUR $CUDA_VISIBLE_DEVICES $STOKER_FORK_SERVER"; pwd; command -v python; exit 7'
    done = project.stoker("exec", standing, "serves", "--", "sh", "-c", script, code=7, env=environment)
    variables, folder, python = done.stdout.splitlines()
    assert variables.split() == ["blue", "GPU-simulated-0000-0000-0000-000000000000"]
    assert folder == str(project.folder)
    assert Path(python).parent == Path(sys.executable).parent
    assert "/no/program" in project.stoker("exec", standing, "serves", "/no/program", code=127).stderr
    assert project.client().run(standing).steps["serves"].status == "running", "the step goes on"


def test_without_a_command_it_is_a_shell_on_a_terminal(
    project: Any, environment: dict[str, str], standing: str
) -> None:
    words = [STOKER, "exec", standing, "plain[0]"]
    with Terminal(words, folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: text.rstrip().endswith(("#", "$", ">")))
        terminal.send("echo $((6 * 7))\n")
        terminal.wait_for(lambda text: "42" in text)
        terminal.send("exit 3\n")
        assert terminal.end() == 3


def test_stacks_come_from_py_spy_and_without_it_from_the_process(
    project: Any, environment: dict[str, str], standing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spy in (True, False):
        if not spy:
            # As in a container that has none: neither on PATH nor beside the step's Python.
            from stoker.worker import besidescript

            text = Path(besidescript.__file__).read_text(encoding="utf-8").replace('"py-spy"', '"no-such-program"')
            other = project.folder / "script.py"
            other.write_text(text, encoding="utf-8")
            monkeypatch.setattr(besidescript, "__file__", str(other))
            from stoker.run import beside

            printed = beside.dump(beside.reach(project.client(), standing, "serves"), rank=None)
            assert "most recent call first" in printed
        else:
            printed = project.stoker("dump", standing, "serves", env=environment).stdout
        assert printed.startswith("pid ") and "stand_here" in printed and "standing.py" in printed, printed
    assert project.client().run(standing).steps["serves"].status == "running", "the signal did not end it"


def test_a_port_is_reached(project: Any, environment: dict[str, str], standing: str) -> None:
    port = (project.folder / "port").read_text()
    words = [STOKER, "forward", standing, "serves", port, "--local", "0"]
    with subprocess.Popen(
        words, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as forwarding:
        assert forwarding.stdout is not None
        address = forwarding.stdout.readline().strip()
        for _ in range(2):
            with urllib.request.urlopen(f"http://{address}/standing.py", timeout=60) as answer:
                assert b"stand_here" in answer.read()
        forwarding.send_signal(2)
        assert forwarding.wait(60) == 130
    taken = project.stoker("forward", standing, "serves", port, code=2, env=environment)
    assert "STK349" in taken.stderr, "the step itself has that port of this machine"
    assert "Connection refused" in project.stoker("forward", standing, "serves", "1", code=2, env=environment).stderr


@pytest.mark.parametrize(
    ("name", "identity", "way"),
    [
        ("kubeflow", {"job": "task train of the Kubeflow run r1", "id": "r1"}, "pipeline/runid=r1"),
        ("batch", {"job": "the job j1 of AWS Batch", "id": "j1"}, "aws ecs execute-command"),
        ("sagemaker", {"job": "the training job t1", "name": "t1"}, "--target sagemaker-training-job:t1_algo-1"),
        ("skypilot", {"job": "SkyPilot's managed job s1", "name": "s1", "managed": True}, "sky jobs logs --name s1"),
    ],
)
def test_a_platform_without_a_way_names_its_own_tool(name: str, identity: dict[str, Any], way: str) -> None:
    attempt = RunningAttempt(run="r", key="train", attempt=1, host="here", identity=identity)
    beside = BACKENDS.load(name).beside
    assert beside is not None
    with pytest.raises(UsageError, match="STK345") as refused:
        list(beside({}, attempt))
    assert str(identity["job"]) in refused.value.message and way in refused.value.fix


def test_what_cannot_be_is_refused_in_words(project: Any, environment: dict[str, str], standing: str) -> None:
    def refused(*words: str) -> str:
        return str(project.stoker(*words, code=2, env=environment).stderr)

    assert "STK347" in refused("exec", standing, "plain", "--", "true")
    assert "STK347" in refused("exec", standing, "serves", "--rank", "3", "--", "true")
    project.stoker("exec", standing, "serves", "--rank", "0", "--", "true", env=environment)  # its only process
    assert "STK347" in refused("exec", standing, "serves", "--rank=3", "--", "true")
    assert "--rank takes the number" in refused("exec", standing, "serves", "--rank", "one", "--", "true")
    assert "did you mean 'serves'" in refused("dump", standing, "servs")
    (project.folder / "end").touch()
    project.client().run(standing).wait(120)
    assert "STK346" in refused("dump", standing, "serves")
