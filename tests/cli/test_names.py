"""`stoker artifacts`, `stoker models`, `stoker pull`: what has a name, from the run that makes it to another store."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.servers.sshd import ALIAS, Sshd, ssh_server  # noqa: F401  # fixture
from tests.waiting import until

from stoker.client import Client
from stoker.core.errors import DamagedArtifact

CHURN = """
    from pathlib import Path
    from typing import Annotated

    import numpy as np

    from stoker import Artifact, artifact, log_metadata, log_metrics, pipeline, save_artifact, step


    @step
    def clean(rows: int) -> Annotated[np.ndarray, Artifact("clean", tags=["raw"])]:
        log_metadata({"rows": rows}, artifact="clean")
        return np.arange(rows)


    @step
    def train(data: np.ndarray, auc: float) -> tuple[
        Annotated[Path, Artifact("org/net")], Annotated[dict, Artifact("settings")]
    ]:
        log_metrics({"auc": auc})
        save_artifact("fine", "report")
        Path("net").mkdir(exist_ok=True)
        Path("net/config.json").write_text('{"auc": %g}' % auc)
        Path("net/model.safetensors").write_bytes(bytes(9000))
        Path("net/stoker.json").write_text("theirs")
        return Path("net"), {"auc": auc}


    @pipeline(model="churn")
    def training(rows: int = 10, auc: float = 0.5):
        train(clean(rows), auc)


    @step
    def total(data: np.ndarray) -> int:
        return int(data.sum())


    @pipeline
    def summing(data=artifact("clean")):
        total(data)
"""


@pytest.fixture
def churn(stoker: Any) -> Any:
    """The command line in a project whose model has two versions."""
    stoker.project.write({"churn.py": CHURN})
    for auc in (0.5, 0.75):
        stoker("run", "churn.py:training", "--auc", str(auc))
    return stoker


def test_names_from_the_run_to_a_stage(churn: Any) -> None:
    listed = {one["name"]: one for one in churn.json("artifacts", "list")}
    assert {name: one["version"] for name, one in listed.items()} == {
        "clean": 1,  # the second run took it from the cache
        "org/net": 2,
        "settings": 2,
        "report": 2,
    }
    assert listed["clean"]["metadata"] == {"rows": 10}
    assert listed["clean"]["tags"] == ["raw"]
    shown = churn.json("artifacts", "show", "org/net@2")
    assert shown["inputs"] == {"data": f"{shown['run']}/clean.clean"}
    assert shown["models"] == ["churn@2"]

    churn("models", "promote", "churn@1", "production", "--why", "the first")
    churn("models", "rule", "churn", "production", "auc >= production")
    churn("models", "promote", "churn@2", "production", "--why", "better")
    refused = churn("models", "promote", "churn@1", "production", code=2)
    assert "auc >= production (auc is 0.5, and not >= 0.75)" in refused.stderr
    model = churn.json("models", "show", "churn@production")
    assert (model["version"], model["metrics"]) == (2, {"auc": 0.75})
    assert [(one["version"], one["stage"], one["displaced"], one["why"]) for one in model["history"]] == [
        (2, "production", 1, "better"),
        (1, "production", None, "the first"),
    ]
    changes = churn.json("models", "diff", "churn@1", "2")
    assert changes["metrics"] == {"auc": [0.5, 0.75]} == changes["parameters"]
    assert changes["artifacts"].keys() == {"org/net", "settings"}  # both runs saved the same report
    assert "artifact   org/net" in churn("models", "diff", "churn@1", "2").stdout

    text = churn("models", "show", "churn").stdout
    assert "rule for production: auc >= production" in text and "2 became production, in place of 1" in text
    assert "belongs to model" in churn("artifacts", "rm", "settings@2", code=2).stderr
    assert "is in stage 'production'" in churn("models", "rm", "churn@2", code=2).stderr
    churn("models", "rm", "churn@1")
    churn("artifacts", "rm", "settings@1")
    assert [one["version"] for one in churn.json("models", "list")] == [2]


def test_an_input_by_name_is_found_when_a_run_is_planned(churn: Any) -> None:
    missing = churn("run", "churn.py:summing", "--data", "artifact:clean@7", code=2)
    assert "artifact 'clean' has no version 7; the latest is 1" in missing.stderr
    assert "did you mean 'clean'" in churn("plan", "churn.py:summing", "--data", "artifact:cleen", code=2).stderr
    churn("artifacts", "tag", "clean@1", "prod")
    churn("run", "churn.py:summing", "--data", "artifact:clean@tag:prod")
    run = churn.json("show", "latest")
    assert run["parameters"] == {"data": "artifact:clean@tag:prod"}
    users = churn.json("artifacts", "show", "clean")["users"]
    assert f"{run['id']}/total.data" in users


def test_pulled_as_it_was(churn: Any, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    churn("pull", "artifact:org/net@1", str(folder))
    assert json.loads((folder / "config.json").read_text()) == {"auc": 0.5}
    assert (folder / "model.safetensors").stat().st_size == 9000
    assert (folder / "stoker.json").read_text() == "theirs"
    whole = tmp_path / "whole"
    files = churn.json("pull", "model:churn@latest", str(whole))["files"]
    assert {os.path.relpath(file, whole) for file in files} == {
        "clean/clean.npy",
        "org/net",
        "report/report.txt",
        "settings/settings.json",
    }
    assert json.loads((whole / "settings" / "settings.json").read_text()) == {"auc": 0.75}
    assert json.loads((whole / "stoker.json").read_text())["version"] == 2
    assert "is in the way" in churn("pull", "model:churn@1", str(whole), code=2).stderr
    (tmp_path / "taken" / "settings.json").mkdir(parents=True)
    assert "cannot be written" in churn("pull", "artifact:settings", str(tmp_path / "taken"), "--force", code=4).stderr
    assert os.listdir(tmp_path / "taken") == ["settings.json"]  # nothing half-written is left
    churn("pull", "model:churn@1", str(whole), "--force")
    assert json.loads((whole / "org" / "net" / "config.json").read_text()) == {"auc": 0.5}


def test_a_model_goes_to_another_store_in_one_file(churn: Any, tmp_path: Path) -> None:
    churn("models", "promote", "churn@2", "production")
    file = tmp_path / "churn.zip"
    churn("models", "export", "churn@production", str(file))
    there = {"STOKER_HOME": str(tmp_path / "there")}
    churn("models", "import", str(file), "--name", "churn-of-theirs", env=there)
    model = churn.json("models", "show", "churn-of-theirs", env=there)
    assert (model["version"], model["stage"], model["metrics"]) == (1, "", {"auc": 0.75})
    assert model["metadata"]["imported.from"].startswith("churn@2 by ")
    net = churn.json("artifacts", "show", "org/net", env=there)
    assert net["inputs"] == {"data": f"{net['run']}/clean.clean"}
    assert churn.json("show", net["run"], env=there)["pipeline"] == "training"
    folder = tmp_path / "net"
    churn("pull", "artifact:org/net", str(folder), env=there)
    assert (folder / "model.safetensors").stat().st_size == 9000
    churn("gc", env=there)
    assert churn.json("store", "check", env=there)["whole"]
    churn("models", "import", str(file), env=there)  # once more: its artifacts are there
    assert [one["version"] for one in churn.json("artifacts", "list", "net", env=there)] == [1]

    # A store of an earlier version names what is larger than a chunk by the SHA-256 of all bytes.
    large, renamed = bytes(9 << 20), tmp_path / "old.zip"
    name = hashlib.sha256(large).hexdigest()
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(renamed, "w") as copy:
        manifest = json.loads(whole.read("stoker-model.json"))
        wire = {"d": name, "s": "bytes", "t": "builtins.bytes", "n": len(large)}
        part = {**manifest["artifacts"][0], "name": "weights", "wire": wire}
        copy.writestr("stoker-model.json", json.dumps({**manifest, "artifacts": [part], "runs": []}))
        copy.writestr(f"blobs/{name}", large)
    churn("models", "import", str(renamed), "--name", "old", env=there)
    churn("pull", "artifact:weights", str(tmp_path / "weights"), env=there)
    assert (tmp_path / "weights" / "weights.bin").read_bytes() == large
    assert churn.json("store", "check", env=there)["whole"]

    damaged = tmp_path / "damaged.zip"
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(damaged, "w") as copy:
        for entry in whole.namelist():
            data = whole.read(entry)
            copy.writestr(entry, data[:-1] + b"!" if entry.startswith("blobs/") else data)
    empty = {"STOKER_HOME": str(tmp_path / "empty")}
    assert "is damaged" in churn("models", "import", str(damaged), code=4, env=empty).stderr
    assert churn.json("models", "list", env=empty) == []
    assert "no exported model" in churn("models", "import", str(churn.project.folder / "churn.py"), code=2).stderr
    odd = tmp_path / "odd.zip"
    for changes in ({"runs": [{"runs": []}]}, {"artifacts": [{"wire": {}}]}):
        with zipfile.ZipFile(file) as whole, zipfile.ZipFile(odd, "w") as copy:
            manifest = json.loads(whole.read("stoker-model.json"))
            copy.writestr("stoker-model.json", json.dumps({**manifest, **changes}))
        assert churn("models", "import", str(odd), code=None, env=empty).returncode in (2, 4)
        assert churn.json("models", "list", env=empty) == churn.json("artifacts", "list", env=empty) == []


GROWING = """
from stoker import pipeline, step

@step
def make(n: int) -> bytes:
    return b"m" * n

@step
def numbers() -> list[int]:
    return [200_000, 250_000]

@step
def grow(n: int) -> bytes:
    return b"g" * n

@step
def total(parts: list[bytes], first: bytes) -> int:
    return sum(map(len, parts)) + len(first)

@pipeline
def growing():
    return total(grow.map(numbers()), make(300_000))

if __name__ == "__main__":
    run = growing()
    print("total", run.steps["total"].output.load())
"""


@pytest.fixture
def far(project: Any, ssh_server: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """A project whose steps run here, and whose artifacts lie behind a login node."""
    monkeypatch.setenv("STOKER_SSH_CONFIG", str(ssh_server.config))
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    text = f'stack = "far"\n[stacks.far]\nartifact_store = "ssh://{ALIAS}{tmp_path}/far"\n'
    monkeypatch.chdir(project.folder)
    return project.write({"train.py": GROWING, "stoker.toml": text})


def test_a_run_is_pulled_and_loaded_without_a_connection(
    far: Any,
    ssh_server: Sshd,  # noqa: F811
    tmp_path: Path,
) -> None:
    ran = far.stoker("run", "train.py")
    assert "total 750000" in ran.stdout, ran.stderr
    shutil.rmtree(tmp_path / "cache")
    pulled = json.loads(far.stoker("pull", "last", "make", "--json").stdout)
    assert pulled["ok"] and [(part["step"], part["size"], part["here"]) for part in pulled["artifacts"]] == [
        ("make", 300_000, False)
    ]
    text = far.stoker("pull", "last").stderr
    assert "fetched 2 artifacts" in text and "; 1 were here" in text and "grow[0].output" in text
    assert "nothing to fetch: 3 artifacts are here already (" in far.stoker("pull", "last").stderr
    assert "nothing to fetch: the values are small" in far.stoker("pull", "last", "total").stderr
    until(lambda: not ssh_server.sessions(), what="a connection outlived the command")
    ssh_server.refuse()
    try:
        run = Client().run("last")
        assert len(run.steps["make"].output.load()) == 300_000
        assert list(map(len, run.steps["grow"].output.load())) == [200_000, 250_000]
    finally:
        ssh_server.admit()
    shutil.rmtree(tmp_path / "cache")
    digest = run.steps["make"].output.digest
    (tmp_path / "far" / "objects" / digest[:2] / digest[2:]).unlink()
    broken = far.stoker("pull", "last", code=4)

    assert f"make.output: the artifact {digest} is not in ssh://" in broken.stderr and "fetched 2" in broken.stderr
    with pytest.raises(DamagedArtifact, match="is not in"):
        Client().run("last").steps["make"].output.load()
    far.stoker("pull", "last", "nothing", code=2)


def test_artifacts_of_this_machine_are_here(project: Any) -> None:
    project.write({"train.py": GROWING})
    project.stoker("run", "train.py")
    assert "nothing to fetch: the artifacts lie in" in project.stoker("pull", "last").stderr
