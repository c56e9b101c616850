"""Images that a node builds of a definition: its commands in a container, and jobs with a stand-in for Apptainer."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.servers.containers import Engine
from tests.servers.packageindex import running_index
from tests.servers.slurm import Cluster

from stoker.core.docker import DockerSettings
from stoker.core.errors import SettingsError
from stoker.images.dockerfile import definition, is_definition, undefinable
from stoker.images.spec import spec_of

STACK = """
stack = "cluster"
[stacks.cluster]
orchestrator = {{flavor = "slurm", container = "apptainer", setup = ["export PATH={folder}:$PATH"]}}
"""
PIPELINE = """
from stoker import pipeline, step
from stoker.config import DockerSettings

docker = DockerSettings(
    parent_image="python:3.11-slim", requirements=["six"], environment={"WORD": "it's `$5`"},
    python_package_installer="pip",
)

@step(docker=docker, cache=False)
def train(number: int) -> str:
    import os
    return os.environ["WORD"] + str(number)

@pipeline
def training():
    for number in (1, 2):
        train(number)

if __name__ == "__main__":
    training()
"""
# Apptainer without containers: "build" keeps the definition, and takes its time; "exec" runs the command on the node,
# with the variables of the definition.
APPTAINER = """#!/bin/bash
echo "$1" >> {log}
case $1 in
build)
    [ "$2" = --fakeroot ] && [ ! -e "$3" ] || exit 2
    [ ! -e {log}.broken ] || {{ echo "FATAL: no fakeroot" >&2; exit 255; }}
    sleep 1
    cp "$4" "$3" ;;
exec)
    while [ "${{1%.sif}}" = "$1" ]; do shift; done
    eval "$(sed -n '/^%environment/,$p' "$1" | tail -n +2)"
    shift
    words=("$@")
    exec "${{words[@]/#python3/{python}}}" ;;
esac
"""


def test_the_definition_does_what_the_dockerfile_does(
    engine: Engine, base_image: str, tmp_path: Path, project: Any
) -> None:
    with running_index(tmp_path / "index") as index:
        index.put("helper", "1.5")
        index.put("other", "2.0")
        settings = DockerSettings(
            parent_image=base_image,
            requirements=["helper==1.5", "other"],
            environment={"WORD": "it's `$5` \\ \""},
            runtime_environment={"LATER": "yes"},
            python_package_installer="pip",
            python_package_installer_args={"index-url": index.url},
        )
        text = definition(spec_of(settings, root=tmp_path, python="3.11"))
        assert is_definition(text) and text.startswith(f"Bootstrap: docker\nFrom: {base_image}\n")
        post = text.partition("%post\n")[2].partition("\n%environment\n")[0]
        exports = text.partition("%environment\n")[2]
        code = "import helper, other, os; print(helper.version, other.version, os.environ['WORD'], os.environ['LATER'])"
        shell = f"( {post}\n)\nset -e\n{exports}\npython3 -c {code!r}\nls -d /app /opt/stoker\n"
        ran = engine.run("run", "--rm", "--network=host", base_image, "sh", "-c", shell)
        assert ran.stdout.endswith("1.5 2.0 it's `$5` \\ \" yes\n/app\n/opt/stoker\n"), ran.stdout


def test_what_no_definition_can_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM python:3.11\nVOLUME /data\n")
    docker = DockerSettings(dockerfile="Dockerfile", conda_packages=["ffmpeg"], requirements=["six"])
    assert undefinable(docker) == ["dockerfile", "conda_packages"]
    with pytest.raises(SettingsError, match="COPY --from"):
        definition(spec_of(DockerSettings(conda_packages=["ffmpeg"]), root=tmp_path, python="3.11"))


@pytest.mark.slow
def test_one_job_builds_and_the_others_use_it(project: Any, cluster: Cluster, tmp_path: Path) -> None:
    del cluster
    log, program = tmp_path / "log", tmp_path / "apptainer"
    program.write_text(APPTAINER.format(log=log, python=sys.executable))
    program.chmod(0o755)
    project.write({"stoker.toml": STACK.format(folder=tmp_path), "train.py": PIPELINE})
    planned = project.stoker("plan", "train.py", "--render", "--explain")
    assert "STK262 info" in planned.stdout and "apptainer build --fakeroot" in planned.stdout
    assert "From: python:3.11-slim" in planned.stdout and "is used as it is" not in planned.stdout
    broken = Path(f"{log}.broken")
    broken.touch()
    failed = project.run("train.py", code=1)
    assert "setup-failed" in failed.stderr and "apptainer build" in failed.stderr, failed.stderr
    broken.unlink()
    log.unlink()
    project.run("train.py")
    run = project.client().runs()[0]
    values = sorted(step.outputs["output"].load() for step in run.steps.values())
    assert values == ["it's `$5`1", "it's `$5`2"]
    assert sorted(log.read_text().split()) == ["build", "exec", "exec"]
    (image,) = Path(project.home).rglob("*.sif")
    assert re.fullmatch(r"[0-9a-f]{24}\.sif", image.name) and not list(image.parent.glob("*.def"))
