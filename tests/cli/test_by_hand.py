"""A rendered script runs its step when it is pasted, or says what is missing."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
from tests.cli.byhand import code, paste, result, scripts
from tests.servers.containers import Engine

SECRET = 'environment={"HF_TOKEN": "hf-of-the-step"}'


def test_a_step_of_this_machine(project: Any) -> None:
    project.write({"train.py": code(SECRET)})
    load, total = scripts(project)
    assert "hf-of-the-step" not in load
    refused = paste(load, project.folder)
    assert "alive 1" in refused.stdout or "alive 127" in refused.stdout
    assert "HF_TOKEN: missing: a variable of the step, which is secret" in refused.stderr
    for shell in filter(shutil.which, ("bash", "dash", "zsh")):
        done = paste(load, project.folder, shell, HF_TOKEN="x")
        assert "alive 0" in done.stdout and "loading 3" in done.stdout, (shell, done.stderr)
        assert result(done)["outputs"]["output"]["i"] == "[0,1,2]"
    assert not project.client().runs(), "it is no run"
    unknown = paste(total, project.folder, HF_TOKEN="x")
    assert "alive 1" in unknown.stdout
    assert "missing: the inputs numbers of total are outputs of other steps" in unknown.stderr


def test_masked_values_of_a_document_have_to_be_written(project: Any) -> None:
    text = code().replace("count: int", "api_key: str").replace("load(count)", 'load("key-of-mine")')
    text = text.replace("range(count)", "range(3)").replace('"loading", count', '"loading", len(api_key)')
    project.write({"train.py": text.replace("training(api_key: str = 3)", "training()")})
    load = scripts(project)[0]
    assert "key-of-mine" not in load
    refused = paste(load, project.folder)
    assert "write the values of secrets into the document above: *** stands for each" in refused.stderr
    assert "alive 1" in refused.stdout


STACK = """
stack = "box"
[stacks.box]
orchestrator = {flavor = "docker", network = "host"}
"""


def test_a_container(project: Any, engine: Engine, base_image: str) -> None:
    docker = (
        f"docker=DockerSettings(parent_image={base_image!r}, skip_build=True), environment={{'A_TOKEN': 'secret-1'}}"
    )
    project.write({"stoker.toml": STACK, "train.py": code(docker, "from stoker.config import DockerSettings")})
    load, total = scripts(project, env=engine.environment)
    environment = {**engine.environment, "PATH": f"{engine.client.rpartition('/')[0]}:/usr/bin:/bin"}
    done = paste(load, project.folder, **environment, A_TOKEN="x")
    assert "alive 0" in done.stdout and "loading 3" in done.stdout, done.stderr
    assert result(done)["outputs"]["output"]["i"] == "[0,1,2]"
    assert "missing: the inputs numbers" in paste(total, project.folder, **environment).stderr
    assert not engine.run("ps", "--all", "--quiet", "--filter", "name=stoker-RUN").stdout, "it is removed"
    built = code(
        f"docker=DockerSettings(parent_image={base_image!r}, python_package_installer='pip')",
        "from stoker.config import DockerSettings",
    )
    project.write({"train.py": built})
    load, _ = scripts(project, env=engine.environment)
    done = paste(load, project.folder, **environment)
    assert "IMAGE: missing: the image; export IMAGE with the name that stoker build shows" in done.stderr
    (image,) = json.loads(project.stoker("build", "train.py", "--json", env=engine.environment).stdout)
    done = paste(load, project.folder, **environment, IMAGE=image["tag"])
    assert "loading 3" in done.stdout, done.stderr


@pytest.mark.parametrize("words", [(), ("--set", "resources.nodes=2")])
def test_the_structure_stays_in_json(project: Any, words: tuple[str, ...]) -> None:
    project.write({"train.py": code()})
    step = json.loads(project.stoker("plan", "train.py", "--render", "--json", *words).stdout)["rendered"][0]
    assert step["request"]["message"]["job"] == "RUN/load/1" and step["script"].startswith("(\nset -eu\n")
    assert ("runs as 2 nodes" in step["script"]) == bool(words)
