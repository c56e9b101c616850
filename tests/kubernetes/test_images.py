"""Packages of a step become part of its image: built here, pushed to the stack's registry, and run by the cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.server.cluster import LocalCluster
from tests.servers.containers import Engine
from tests.servers.packageindex import running_index

STACK = """
stack = "cluster"
[stacks.cluster.container_registry]
uri = "{registry}/ml"
[stacks.cluster.orchestrator]
flavor = "kubernetes"
kubeconfig = "{kubeconfig}"
executable = "{runtime}"
shares_files = true
reuse = false  # what is executed in a pod would be another container here
"""
PIPELINE = """
from stoker import pipeline, step
from stoker.config import DockerSettings, PackageSettings

docker = DockerSettings(
    parent_image={base!r}, build_config={{"options": {{"network": "host"}}}}, python_package_installer="pip"
)

packages = PackageSettings(pypi={{"trainer": "1.0"}}, index_url={url!r})

@step(cache=False, settings={{"docker": docker}}, packages=packages)
def train() -> str:
    import os, trainer
    return f"{{trainer.version}} {{os.path.exists('/.dockerenv')}}"

@pipeline
def training():
    return train()

if __name__ == "__main__":
    print("trained with", training().steps["train"].output.load())
"""
RUNTIME = """#!{python}
# A container runtime for the tests' kubelet, which only starts processes: runs the pod's image with what the pod has.
import json, os, sys, urllib.request
path = "{server}/api/v1/namespaces/default/pods/" + os.environ["HOSTNAME"]
with urllib.request.urlopen(urllib.request.Request(path, headers={{"Authorization": "Bearer {token}"}})) as answer:
    pod = json.load(answer)
image = pod["spec"]["containers"][0]["image"]
variables = [f"--env={{name}}" for name in os.environ if name.startswith(("STOKER", "JOB_"))]
mounts = [f"--volume={{folder}}:{{folder}}" for folder in {folders!r}]
words = ["docker", "run", "--rm", "--network=host", *mounts, *variables, image, "python3", *sys.argv[1:]]
os.environ["DOCKER_HOST"] = {socket!r}
os.execv({client!r}, words)
"""


@pytest.mark.slow
@pytest.mark.long
def test_packages_are_in_the_image_that_the_pod_runs(
    project: Any,
    cluster: LocalCluster,
    engine: Engine,
    base_image: str,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    monkeypatch.delenv("STOKER_OFFLINE")
    runtime = tmp_path / "runtime"
    folders = [str(cluster.folder), str(project.home)]
    runtime.write_text(
        RUNTIME.format(
            python=sys.executable,
            server=cluster.url,
            token=cluster.token,
            folders=folders,
            socket=engine.socket,
            client=engine.client,
        )
    )
    runtime.chmod(0o755)
    stack = STACK.format(registry=registry, kubeconfig=cluster.kubeconfig, runtime=runtime)
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs(working=True)
        index.put("trainer", "1.0")
        project.write({"stoker.toml": stack, "train.py": PIPELINE.format(base=base_image, url=index.url)})
        first = project.run("train.py", timeout=240.0)
    assert "trained with 1.0 True" in first.stdout, first.stdout + first.stderr
    assert "built the image of step 'train' in " in first.stderr, first.stderr
    planned = project.stoker("plan", "train.py", "--render").stdout
    assert f"{registry}/ml/stoker" in planned
