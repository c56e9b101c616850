"""A rendered job, pasted into a shell, runs in the cluster."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from tests.cli.byhand import code, paste, scripts
from tests.kubernetes.drivers import stack
from tests.kubernetes.server.cluster import LocalCluster

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
        files = dict(word.removeprefix("--from-file=").split("=") for word in words[4:])
        data = {{key: base64.b64encode(open(path, "rb").read()).decode() for key, path in files.items()}}
        ask("POST", "/api/v1/namespaces/default/secrets", {{"metadata": {{"name": words[3]}}, "data": data}})
    elif words == ["create", "-f", "-"]:
        ask("POST", "/api/v1/namespaces/default/configmaps?fieldValidation=Strict", json.load(sys.stdin))
    elif words == ["apply", "-f", "-"]:
        import yaml
        ask("POST", "/apis/batch/v1/namespaces/default/jobs?fieldValidation=Strict", yaml.safe_load(sys.stdin))
    else:
        sys.exit(f"unknown: {{words}}")
except urllib.error.HTTPError as error:
    sys.exit(error.read().decode())
"""


def test_a_job_is_created_by_hand(project: Any, cluster: LocalCluster, tmp_path: Path) -> None:
    project.write({"stoker.toml": stack(cluster), "train.py": code()})
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


PLAIN = """
    from stoker import pipeline, step

    @step(step_operator="kubernetes")
    def train() -> int:
        return 1

    @pipeline
    def training():
        train()
"""


def test_a_request_without_a_kubeconfig(project: Any, tmp_path: Path, used_home: Path) -> None:
    project.write({"p.py": PLAIN})
    nowhere = {"KUBECONFIG": "", "HOME": str(tmp_path)}
    shown = project.stoker("plan", "p.py", "--render", env=nowhere, code=3).stdout
    assert "there is no kubeconfig" in shown, "a run is refused"
    _, _, text = shown.partition("kubectl apply -f - <<'END'\n")
    job = yaml.safe_load(text.partition("\nEND\n")[0])
    assert job["kind"] == "Job"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == [
        "python3", "/stoker/job/pod.py", "/stoker/job/jobs", "/stoker/worker", "/dev/termination-log"
    ]  # fmt: skip
    assert "--context" not in shown, "kubectl takes its own"
    rendered = json.loads(project.stoker("plan", "p.py", "--render", "--json", env=nowhere, code=3).stdout)["rendered"]
    assert rendered[0]["request"]["server"] == rendered[0]["request"]["namespace"] == "UNKNOWN"
    assert "//" not in "".join(container["command"])
