"""Whole runs on a cluster behind a real SSH server: with the folders of this machine, and without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers import sshd
from tests.servers.s3 import S3
from tests.servers.slurm import Cluster, until
from tests.servers.sshd import ALIAS, Sshd

PIPELINE = """
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
    print("squaring", x, "as", os.environ["SLURM_ARRAY_TASK_ID"])
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
    return sum(numbers)

@pipeline
def count(n: int = 3):
    return total(square.map(make(n)))

if __name__ == "__main__":
    run = count()
    print("total", run.steps["total"].output.load())
"""
HELPER = "def numbers(n):\n    return list(range(n))\n"


@pytest.fixture(scope="session")
def login_node(slurm_cluster: Cluster) -> Iterator[Sshd]:
    """A host that people log in to; whoever is in has the cluster's commands."""
    sshd.refuse(sshd.absence())
    with sshd.running(slurm_cluster.environment) as server:
        yield server


@pytest.fixture(params=["shared", "apart"])
def far(
    request: pytest.FixtureRequest,
    project: Any,
    slurm_cluster: Cluster,
    login_node: Sshd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A project whose stack is the cluster behind its login node; Slurm is not known on this machine."""
    shared = request.param == "shared"
    store = ""
    if not shared:
        server: S3 = request.getfixturevalue("s3_server")
        for name, text in server.environment.items():
            monkeypatch.setenv(name, text)
        store = f'artifact_store = "{server.bucket(tmp_path.name.replace("_", "-")[:40])}/artifacts"\n'
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(login_node.config))
    stack = f'flavor = "slurm", host = "ssh://{ALIAS}", poll = 0.2, python = "{sys.executable}", '
    stack += f"shares_files = {str(shared).lower()}"
    stack += f', folder = "{tmp_path}/shared folder"' if shared else ""
    stack += f', prolog = ["export BEGUN={tmp_path}/begun GATE={tmp_path}/gate"]'
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
def test_a_run_over_ssh(far: Any, login_node: Sshd, tmp_path: Path) -> None:
    """Two steps and a fan-out; the connection is cut in the middle, and comes back."""
    driver = started(far)
    try:
        until(lambda: (tmp_path / "begun").exists() or driver.poll() is not None, seconds=300)
        if driver.poll() is not None:
            pytest.fail("\n".join(driver.communicate()))
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
    assert all(f"squaring {number} as {number}" in squared for number in range(3)), "one array"
    said = far.stoker("logs", "last", "total").stdout
    assert "devices 2" in said and "after the gate" in said
    attempt = far.client().run("last").steps["total"].attempts[-1]
    assert attempt.receipt is not None and attempt.receipt.simulated
    assert attempt.tracks, "samples came back"
    until(lambda: not login_node.sessions(), why=lambda: "a connection outlived the run")
