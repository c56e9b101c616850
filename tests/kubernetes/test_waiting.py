"""The elements of a fan-out that wait are told in one line, however many they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kubernetes.server.cluster import LocalCluster

STACK = """
stack = "cluster"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
shares_files = true
"""
PIPELINE = """
import os, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(cache=False, resources=ResourceSettings(cpu_count=8))
def train(number: int) -> int:
    while not os.path.exists("FLAG"):
        time.sleep(0.05)
    return number

@pipeline
def fan_out():
    train.map(list(range(6)))

if __name__ == "__main__":
    fan_out()
"""


def test_one_line_for_all_that_wait(project: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    stack = STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable)
    flag = tmp_path / "flag"
    project.write({"stoker.toml": stack, "train.py": PIPELINE.replace("FLAG", str(flag))})
    lines = []
    with subprocess.Popen(
        [sys.executable, "train.py"],
        cwd=project.folder,
        env={**os.environ, "STOKER_HOME": str(project.home)},
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stderr is not None
        for line in driver.stderr:
            lines.append(line)
            if " waiting: " in line:
                flag.touch()
    assert driver.returncode == 0, lines
    waits = [line for line in lines if " waiting: " in line]
    assert waits[0].strip().partition(" ")[2] == (  # behind the time
        "train: 4 waiting: needs 8 CPUs: 2 nodes have 0 free; the largest node ever has 8; 2 running"
    )
    assert len(waits) <= 2, lines
