"""Images are built from their lock: what was published since changes nothing, here and on another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine
from tests.servers.packageindex import running_index

PARENT = "python:3.11-slim"
STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host"}
"""
TRAIN = """
    from stoker import pipeline, step
    from stoker.config import DockerSettings

    docker = DockerSettings(
        parent_image="PARENT",
        requirements=["trainer"],
        python_package_installer="pip",
        python_package_installer_args={"index-url": "URL"},
    )

    @step(settings={"docker": docker})
    def train() -> int:
        return 1

    @pipeline
    def training():
        train()

    if __name__ == "__main__":
        training()
"""


@pytest.mark.slow
def test_a_build_installs_the_lock_however_late_it_is(
    project: Any, engine: Engine, base_image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    monkeypatch.delenv("STOKER_OFFLINE")
    # The name says which Python the image has, and that it has nothing else.
    engine.run("tag", base_image, PARENT)
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("helper", "1.0")
        index.put("trainer", "1.0", requires=["helper"])
        project.write({"stoker.toml": STACK, "train.py": TRAIN.replace("URL", index.url).replace("PARENT", PARENT)})
        first = built(project)
        index.put("helper", "2.0")
        index.put("trainer", "2.0", requires=["helper"])
        index.put("attrs", "9001.0")
        assert project.stoker("plan", "train.py", "--lock=stoker.lock").returncode == 0
        engine.run("rmi", "--force", first["tag"])
        # Another user, with nothing but the project's files.
        again = built(project, STOKER_HOME=str(tmp_path / "other-home"))
        assert (again["tag"], again["reused"]) == (first["tag"], False)
        versions = "import helper, trainer, attrs; print(helper.version, trainer.version, attrs.version)"
        printed = engine.run("run", "--rm", "--network", "none", again["reference"], "python3", "-c", versions).stdout
        assert printed == "1.0 1.0 9000.0\n"
        # Newer ones come when they are asked for.
        told = project.stoker("plan", "train.py", "--lock=stoker.lock", "--upgrade")
        assert "stoker.lock has 1 lock" in told.stderr
        newer = built(project)
        assert newer["tag"] != first["tag"]
        printed = engine.run("run", "--rm", "--network", "none", newer["reference"], "python3", "-c", versions).stdout
        assert printed == "2.0 2.0 9001.0\n"
        # A wheel that is not what was locked is not installed.
        index.put("helper", "2.0", requires=["trainer"])
        engine.run("rmi", "--force", newer["tag"])
        refused = project.stoker("build", "train.py", "--set", "docker.build_config.options={nocache: true}", code=None)
        assert refused.returncode != 0 and "HASH" in refused.stderr.upper()


@pytest.mark.slow
def test_packages_of_the_parent_stay_once_they_are_known(
    project: Any, engine: Engine, base_image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    monkeypatch.delenv("STOKER_OFFLINE")
    with running_index(tmp_path / "index") as index:
        index.put_what_the_worker_needs()
        index.put("helper", "1.0")
        index.put("trainer", "1.0", requires=["helper"])
        parent = f"FROM {base_image}\nRUN python3 -m pip install --index-url {index.url} helper==1.0 attrs==9000.0\n"
        engine.run("build", "--network=host", "--tag=team/parent:1", "-", input=parent.encode())
        index.put("helper", "2.0")
        text = TRAIN.replace("URL", index.url).replace("PARENT", "team/parent:1")
        project.write({"stoker.toml": STACK, "train.py": text})
        assert "predicted: what else the parent image has" in project.stoker("plan", "train.py", "--lock").stdout
        image = built(project)
        versions = "import helper, trainer; print(helper.version, trainer.version)"
        printed = engine.run("run", "--rm", "--network", "none", image["reference"], "python3", "-c", versions).stdout
        assert printed == "1.0 1.0\n"
        # The build has read it: from now on a plan knows what stays.
        shown = project.stoker("plan", "train.py", "--lock").stdout
        assert "of the parent image: attrs 9000.0, helper 1.0" in shown and "\n  trainer==1.0\n" in shown
        assert built(project)["reused"], "the lock is the one that was built"


def built(project: Any, **environment: str) -> dict[str, Any]:
    """What `stoker build` says of the only image."""
    done = project.stoker("build", "train.py", "--json", env=environment)
    (image,) = json.loads(done.stdout)
    return dict(image)
