"""Projects whose stack is the tests' cluster: their settings, runs that go on, and what is left of these."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tests.kubernetes.server.cluster import LocalCluster

PLACES = (
    "/apis/batch/v1/namespaces/default/jobs",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/secrets",
    "/api/v1/namespaces/default/services",
)
STACK = """
stack = "cluster"
[stacks.cluster]
{places}
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
image = "team/step:1"
executable = "{python}"
"""
ON_ONE_MACHINE = "shares_files = true"


def stack(cluster: LocalCluster, *more: str, places: str = "", shares: bool = True, kubeconfig: Any = "") -> str:
    """A stack file: further settings of the orchestrator, and what stands before it."""
    text = STACK.format(kubeconfig=kubeconfig or cluster.kubeconfig, python=sys.executable, places=places)
    return "\n".join([text, *([ON_ONE_MACHINE] if shares else ()), *more, ""])


def start(kube: Any, *words: str, **environment: str) -> subprocess.Popen[str]:
    """A run that goes on."""
    return subprocess.Popen(
        [sys.executable, "train.py", *words],
        cwd=kube.folder,
        env={**os.environ, "STOKER_HOME": str(kube.home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def says(kube: Any, *texts: str, times: int = 1, runs: int = 1) -> bool:
    """Whether the steps of so many runs have said each text so often; their logs are read as files, since `stoker logs`
    is a process."""
    logs = ["".join(path.read_text() for path in run.rglob("*.log")) for run in kube.home.glob("logs/*")]
    return sum(all(log.count(text) >= times for text in texts) for log in logs) >= runs


def killed(driver: subprocess.Popen[str]) -> None:
    """Kill a driver, which is told nothing before."""
    driver.kill()
    driver.communicate()


def nothing_left(cluster: LocalCluster, *more: str) -> bool:
    """Whether nothing of runs is there any more."""
    return not any(cluster.get(path)["items"] for path in (*PLACES, *more))
