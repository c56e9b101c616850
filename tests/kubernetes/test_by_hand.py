"""A rendered job, pasted into a shell, runs in the cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tests.cli.byhand import code, paste, scripts
from tests.kubernetes.server.cluster import LocalCluster
from tests.kubernetes.test_runs import STACK

# kubectl itself may not be installed where tests run: this does to the API server what it does for these commands.
KUBECTL = """#!{python}
import base64, json, sys, urllib.request, urllib.error
words = sys.argv[1:]
assert words[:4] == ["--context", "test", "--namespace", "default"] and words[4] == "--kubeconfig", words
words = words[6:]

def ask(method, path, body=None):
    request = urllib.request.Request("{url}" + path, None if body is None else json.dumps(body).encode(), method=method)
    request.add_header("Authorization", "Bearer {token}")
    request.add_header("Content-Type", "application/json")
    return urllib.request.urlopen(request)

try:
    if words[:2] == ["get", "configmap"]:
        ask("GET", "/api/v1/namespaces/default/configmaps/" + words[2])
    elif words[:3] == ["create", "secret", "generic"]:
        key, _, path = words[4].removeprefix("--from-file=").partition("=")
        data = {{key: base64.b64encode(open(path, "rb").read()).decode()}}
        ask("POST", "/api/v1/namespaces/default/secrets", {{"metadata": {{"name": words[3]}}, "data": data}})
    elif words == ["create", "-f", "-"]:
        ask("POST", "/api/v1/namespaces/default/configmaps?fieldValidation=Strict", json.load(sys.stdin))
    elif words == ["apply", "-f", "-"]:
        ask("POST", "/apis/batch/v1/namespaces/default/jobs?fieldValidation=Strict", json.load(sys.stdin))
    else:
        sys.exit(f"unknown: {{words}}")
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
"""


def test_a_job_is_created_by_hand(project: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    project.write(
        {"stoker.toml": STACK.format(kubeconfig=cluster.kubeconfig, python=sys.executable), "train.py": code()}
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    kubectl = programs / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable, url=cluster.url, token=cluster.token))
    kubectl.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    load, total = scripts(project)
    elsewhere = load.replace(sys.executable, "/no/python")
    assert "missing: the config map" in paste(elsewhere, project.folder, PATH=path).stderr
    project.run("train.py")  # saves the code, and takes the worker away again
    done = paste(load, project.folder, PATH=path)
    assert "its output: kubectl" in done.stdout, done.stderr

    def log() -> str:
        pods = cluster.get("/api/v1/namespaces/default/pods")["items"]
        ended = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Succeeded"]
        return str(cluster.request("GET", f"/api/v1/namespaces/default/pods/{ended[0]}/log")[1]) if ended else ""

    assert "loading 3" in cluster.wait(log)
    assert "missing: the inputs numbers of total" in paste(total, project.folder, PATH=path).stderr
