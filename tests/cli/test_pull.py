"""`stoker pull`: what steps made comes from another machine, and is loaded without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.servers.sshd import ALIAS, Sshd, ssh_server  # noqa: F401  # fixture
from tests.waiting import until

from stoker.client import Client
from stoker.core.errors import DamagedArtifact

PIPELINE = """
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
    return project.write({"train.py": PIPELINE, "stoker.toml": text})


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
    project.write({"train.py": PIPELINE})
    project.stoker("run", "train.py")
    assert "nothing to fetch: the artifacts lie in" in project.stoker("pull", "last").stderr
