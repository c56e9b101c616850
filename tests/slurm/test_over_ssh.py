"""Whole runs on a cluster behind a real SSH server: with this machine's folders, with SSH alone, and with a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.screen import Terminal
from tests.servers.s3 import S3
from tests.servers.slurm import Cluster
from tests.servers.sshd import ALIAS, Sshd
from tests.waiting import until

PIPELINE = """
import contextlib
import json
import os
import socket
import sys
import time
import helper
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step
def make(n: int) -> list[int]:
    print("made by", os.environ["SLURM_JOB_ID"])
    return helper.numbers(n)

@step
def square(x: int) -> int:
    print("squaring", x, "as", os.environ.get("SLURM_ARRAY_TASK_ID", "any"))
    return x * x

@step(resources=ResourceSettings(gpu_count=2))
def total(numbers: list[int]) -> int:
    from stoker import context
    print("devices", len(context.devices))
    begun, gate = os.environ["BEGUN"], os.environ["GATE"]
    open(begun, "w").close()
    while not os.path.exists(gate):
        time.sleep(0.05)
    print("after the gate")
    time.sleep(2)  # devices are sampled once a second
    return sum(numbers)

@pipeline
def count(n: int = 3):
    return total(square.map(make(n)))

if __name__ == "__main__":
    run = count()
    print("total", run.steps["total"].output.load())
"""
HELPER = "def numbers(n):\n    return list(range(n))\n"


@pytest.fixture(
    params=["apart", pytest.param("shared", marks=pytest.mark.long), "bucket"],
)
def far(
    request: pytest.FixtureRequest,
    project: Any,
    slurm_cluster: Cluster,
    login_node: Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A project whose stack is the cluster behind its login node; Slurm is not known on this machine.

    Apart, the nodes' Python has no package at all, and the artifacts are where the stack has them by default.
    """
    shared = request.param == "shared"
    store, python = "", sys.executable
    if request.param == "apart":
        python = f"{tmp_path}/bare/bin/python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{tmp_path}/bare"], check=True)
        monkeypatch.setenv("STOKER_CACHE", f"{tmp_path}/cache")
    if request.param == "bucket":
        server: S3 = request.getfixturevalue("s3_server")
        for name, text in server.environment.items():
            monkeypatch.setenv(name, text)
        store = f'artifact_store = "{server.bucket(tmp_path.name.replace("_", "-")[:40])}/artifacts"\n'
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(login_node.config))
    stack = f'flavor = "slurm", host = "ssh://{ALIAS}", poll = 0.2, python = "{python}", '
    stack += f"shares_files = {str(shared).lower()}"
    stack += f', folder = "{tmp_path}/shared folder", reuse = false' if shared else ""
    stack += f', setup = ["export BEGUN={tmp_path}/begun GATE={tmp_path}/gate"]'
    project.write(
        {
            "train.py": PIPELINE,
            "helper.py": HELPER,
            "stoker.toml": f'stack = "far"\n[stacks.far]\n{store}orchestrator = {{ {stack} }}\n',
        }
    )
    assert "SLURM_CONF" not in os.environ
    yield project
    slurm_cluster.end_jobs()


def started(project: Any, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "train.py", *arguments],
        cwd=project.folder,
        env={**os.environ, "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "4xV100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)  # seven processes import s3fs, on two cores that may be busy
def test_a_run_over_ssh(far: Any, login_node: Sshd, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Two steps and a fan-out; the connection is cut in the middle, and comes back."""
    driver = started(far)
    try:
        until(lambda: (tmp_path / "begun").exists() or driver.poll() is not None, seconds=300)
        if driver.poll() is not None:
            pytest.fail("\n".join(driver.communicate()))
        enter(far)
        login_node.refuse()
        try:
            login_node.cut()
            (tmp_path / "gate").touch()
        finally:
            login_node.admit()
        out, err = driver.communicate(timeout=500)
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.communicate()
    assert driver.returncode == 0, err
    assert "total 5" in out
    assert re.search(r"made by \d+", far.stoker("logs", "last", "make").stdout)
    squared = far.stoker("logs", "last", "square").stdout
    array = "reuse = false" in (far.folder / "stoker.toml").read_text()
    assert all(f"squaring {number} as {number if array else 'any'}" in squared for number in range(3))
    said = far.stoker("logs", "last", "total").stdout
    assert "devices 2" in said and "after the gate" in said
    attempt = far.client().run("last").steps["total"].attempts[-1]
    assert attempt.receipt is not None and attempt.receipt.simulated
    assert attempt.tracks, "samples came back"
    if request.node.callspec.params["far"] == "apart":
        store = login_node.home / ".stoker" / "slurm" / "artifacts"
        assert list(store.glob("objects/*/*")), "the code at least"
    until(lambda: not login_node.sessions(), what="a connection outlived the run")


def enter(far: Any) -> None:
    """A command with its input and its exit code, a terminal and the stacks of a step behind the login node."""

    def is_placed() -> bool:  # the driver looks now and then which job has taken the step
        steps = json.loads(far.stoker("show", "last", "--json").stdout)["steps"]
        return any(step["key"] == "total" and (step["placement"] or {}).get("id") for step in steps)

    until(is_placed)
    words = ["exec", "last", "total", "--", "sh", "-c"]
    done = far.stoker(*words, 'cat; echo "$SLURM_JOB_ID it\'s"; exit 5', input="typed\n", code=5)
    assert re.fullmatch(r"typed\n\d+ it's\n", done.stdout), done
    assert "train.py" in far.stoker("dump", "last", "total").stdout
    environment = {**os.environ, "STOKER_HOME": str(far.home)}
    stoker = str(Path(sys.executable).with_name("stoker"))
    with Terminal(
        [stoker, *words, "read line; echo $((line * 7)); stty size"], folder=far.folder, env=environment
    ) as there:
        there.send("6\n")
        there.wait_for(lambda text: "42" in text and "30 100" in text)
        assert there.end() == 0


PLAIN = """
from stoker import pipeline, step

@step(cache=False)
def make() -> bytes:
    return b"x" * 100_000

@pipeline
def plain():
    make()

if __name__ == "__main__":
    plain()
"""


@pytest.mark.timeout(300)
def test_a_folder_that_takes_nothing(
    project: Any, login_node: Sshd, slurm_cluster: Cluster, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not be written, or its disk is full: the run says so before a job is submitted."""
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(login_node.config))
    monkeypatch.setenv("STOKER_CACHE", str(small.parent / "cache"))
    stack = (
        f'flavor = "slurm", host = "ssh://{ALIAS}", poll = 0.2, folder = "{small}/jobs", python = "{sys.executable}"'
    )
    project.write({"train.py": PLAIN, "stoker.toml": f'stack = "far"\n[stacks.far]\norchestrator = {{ {stack} }}\n'})
    before = len(slurm_cluster.jobs())
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    refused = project.run("train.py", code=4)
    assert "Read-only file system" in refused.stderr and "Traceback" not in refused.stderr
    problems = [check for check in project_doctor(project) if check["problem"]]
    assert problems and all(check["fix"] for check in problems)
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    ballast = small / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    refused = project.run("train.py", code=4)
    assert f"the disk of the artifact store ssh://{ALIAS}" in refused.stderr and "is full" in refused.stderr
    assert "make room there" in refused.stderr and "Traceback" not in refused.stderr
    assert any("full" in check["problem"] for check in project_doctor(project))
    assert len(slurm_cluster.jobs()) == before, "nothing was submitted"


def project_doctor(project: Any) -> list[dict[str, str]]:
    """What `stoker doctor` says of the stack."""
    report = json.loads(project.stoker("doctor", "--stack", "far", "--json", "--wait", "20", code=4).stdout)
    checks: list[dict[str, str]] = report["checks"]
    return checks
