"""A secret reaches a step on Ray, and nothing that the cluster shows or keeps has its value."""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import pytest
from tests.servers.raycluster import TOKEN, RayCluster
from tests.servers.s3 import running as s3_running

from stoker.core.errors import SettingsError, StoreError
from stoker.worker.secrets import BLOCK, seal, unseal

PATIENCE = 120.0
VALUE = "hf_Very-Secret_0123456789"
STACK = """
stack = "ray"
[stacks.ray]
artifact_store = "{store}"
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY"{more}}}
"""
SCRIPT = """
import base64, json, os, subprocess, sys
from pathlib import Path
from stoker import Secret, context, pipeline, step
from stoker.config import ResourceSettings, Retry

KEPT = '''
import json, ray
from ray.experimental import internal_kv
ray.init(address="auto", log_to_driver=False)
keys = internal_kv._internal_kv_list(b"")
assert keys, "the store answers"
print(json.dumps([key.decode("latin-1") for key in keys]))
print([(internal_kv._internal_kv_get(key) or b"").decode("latin-1") for key in keys])
'''

def holders(value):
    # Processes of the cluster in whose environment or command line, as they were started, the value is.
    seen, found = 0, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environ, words = [folder.joinpath(name).read_bytes() for name in ("environ", "cmdline")]
            except OSError:
                continue
            ours = b"RAY_" in environ or b"ray" in words
            seen += ours
            if ours and value.encode() in environ + words:
                found.append(words.decode())
    return [seen > 3, found]

@step(environment={"HF": Secret.env("HF_TOKEN")}, cache=False, resources=ResourceSettings(cpu_count=0.1))
def use(token: str) -> dict:
    assert token == os.environ["HF"] and len(token) == 25
    print("token", token, base64.b64encode(token.encode()).decode(), flush=True)
    asked = {name: text for name, text in os.environ.items() if name != "HF"}
    stored = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, env=asked)
    assert stored.returncode == 0, stored.stderr
    return {"stored": token in stored.stdout, "length": len(stored.stdout), "holders": holders(token)}

@step(cache=False, retry=Retry(1), resources=ResourceSettings(cpu_count=0.1, nodes=2))
def gang(token: str) -> int:
    print("on node", context.node, "with", token)
    if context.attempt == 1 and context.node == 0:
        raise KeyError(token)
    return len(token)

@step(environment={"HF": "secret:env:HF_TOKEN"}, cache=False, resources=ResourceSettings(cpu_count=0.1))
def fails(after: int):
    raise ValueError("bad " + os.environ["HF"])

@pipeline(failure_mode="continue")
def steps(token: str = Secret.env("HF_TOKEN")):
    use(token)
    fails(gang(token))

if __name__ == "__main__":
    steps()
"""


def shown_by(cluster: RayCluster) -> str:
    """All that the dashboard answers about jobs, tasks and runtime environments, with the jobs' logs."""
    texts = []
    details = [f"/api/v0/{what}?detail=true&limit=10000" for what in ("tasks", "runtime_envs", "workers", "objects")]
    jobs = json.loads(answer(cluster, "/api/jobs/"))
    logs = [f"/api/jobs/{job['submission_id']}/logs" for job in jobs if job["submission_id"]]
    for path in ("/api/jobs/", *details, *logs):
        texts.append(answer(cluster, path))
    assert len(logs) > 0 and sum(map(len, texts)) > 1000
    return "\n".join(texts)


def answer(cluster: RayCluster, path: str) -> str:
    """What the dashboard answers; it has an error 500 while one of the processes that it asks in turn is busy."""
    asked = urllib.request.Request(cluster.dashboard + path, headers={"Authorization": f"Bearer {TOKEN}"})
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(asked, timeout=60) as response:
                return str(response.read().decode())
        except urllib.error.HTTPError as error:
            assert error.code == 500 and time.monotonic() < until, (path, error.code, error.read().decode())
            time.sleep(1)


def files_with(value: str, *folders: Path) -> list[str]:
    """The files below folders that contain a text."""
    found = []
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                if path.is_file() and not path.is_symlink() and value.encode() in path.read_bytes():
                    found.append(str(path))
    return found


@pytest.mark.parametrize("shares", [True, False])
def test_the_value_is_in_the_step_and_nowhere_in_the_cluster(
    project: Any, ray_cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shares: bool
) -> None:
    monkeypatch.setenv("TOKEN_OF_RAY", TOKEN)
    with contextlib.ExitStack() as stack:
        store, more = f"{tmp_path}/store", ""
        if not shares:
            (tmp_path / "s3").mkdir()
            s3 = stack.enter_context(s3_running(tmp_path / "s3"))
            store = s3.bucket("artifacts")
            for name, text in s3.environment.items():
                monkeypatch.setenv(name, text)
            variables = ", ".join(f'{name} = "{text}"' for name, text in s3.environment.items())
            more = f", shares_files = false, runtime_env = {{env_vars = {{{variables}}}}}"
        written = STACK.format(address=ray_cluster.dashboard, store=store, more=more)
        project.write({"stoker.toml": written, "steps.py": SCRIPT})
        _run_and_search(project, ray_cluster, tmp_path, store)


def _run_and_search(project: Any, ray_cluster: RayCluster, tmp_path: Path, store: str) -> None:
    ran = project.run("steps.py", env={"HF_TOKEN": VALUE}, code=1, timeout=240.0)
    run = project.client().runs()[0]
    assert run.steps["use"].status == "succeeded" and run.steps["gang"].status == "succeeded", ran.stderr
    assert "ValueError: bad ***env:HF_TOKEN***" in ran.stderr
    seen = run.steps["use"].outputs["output"].load()
    assert seen["stored"] is False and seen["length"] > 1000, "the cluster's key-value store was read"
    assert seen["holders"] == [True, []]
    lines = [line.text for line in run.steps["gang"].logs()]
    assert sum("with ***env:HF_TOKEN***" in line for line in lines) >= 2
    for place in (ran.stdout, ran.stderr, shown_by(ray_cluster)):
        assert VALUE not in place
    assert files_with(VALUE, tmp_path, ray_cluster.folder) == []
    # Both halves go with the jobs.
    assert not list(tmp_path.rglob("sealed-*"))
    system, folder = fsspec.core.url_to_fs(store)
    kept = system.find(folder)
    assert kept and not [name for name in kept if "sealed-" in name or VALUE.encode() in system.cat_file(name)]


def test_each_half_alone_is_noise(tmp_path: Path) -> None:
    values = {"secret:env:HF_TOKEN": VALUE, "secret:file:~/ключ": "ünï\ncode" * 100}
    sealed, other = seal(values, str(tmp_path))
    again, another = seal(values, str(tmp_path))
    assert sealed.place != again.place and sealed.half != again.half and other != another
    assert len(other) % BLOCK == 0 and VALUE.encode() not in other and VALUE not in repr(sealed)
    with pytest.raises(StoreError, match="half of the step's secrets"):
        unseal(sealed)
    Path(sealed.place).write_bytes(other)
    assert unseal(sealed) == values
    Path(sealed.place).write_bytes(another)
    with pytest.raises(SettingsError, match="sealed-"):
        unseal(sealed)
    Path(sealed.place).write_bytes(other[:-1])
    with pytest.raises(StoreError, match="is not the other half"):
        unseal(sealed)
