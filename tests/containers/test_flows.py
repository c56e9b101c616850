"""A flow of Metaflow's on a stack whose orchestrator is a container engine: run, and resumed after a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.servers.containers import Engine

FLOW = """
import os
from stoker.flow import FlowSpec, Parameter, step

class Boxed(FlowSpec):
    flag = Parameter("flag", default="")

    @step
    def start(self):
        self.word = "made in " + os.getcwd()
        self.next(self.end)

    @step
    def end(self):
        if not os.path.exists(self.flag):
            raise ValueError("not yet")
        print(self.word)

if __name__ == "__main__":
    Boxed()
"""


PIPELINE = """
import os
from stoker import pipeline, step

@step(step_operator="docker")
def inside() -> str:
    return os.readlink("/proc/self/ns/mnt")

@step
def outside(namespace: str) -> bool:
    return os.readlink("/proc/self/ns/mnt") == namespace

@pipeline
def both():
    outside(inside())

if __name__ == "__main__":
    both()
"""


@pytest.mark.slow
def test_containers_that_no_stack_names(
    project: Any, engine: Engine, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    flag = project.folder / "flags" / "flag"
    flag.parent.mkdir()
    project.write({"boxed.py": FLOW, "both.py": PIPELINE})
    image = ("--set", f"docker.parent_image={base_image}", "--set", "docker.skip_build=true")
    where = f'docker:network=host,mounts=["{flag.parent}"]'
    project.run("boxed.py", "run", "--with", where, *image, "--flag", str(flag), code=1)
    flag.touch()
    project.run("boxed.py", "resume")
    run, origin = project.client().runs()
    assert (run.status, run.origin, origin.status) == ("succeeded", origin.id, "failed")
    assert {attempt.backend for step in run.steps.values() for attempt in step.attempts} == {"docker"}
    docker = [f"--set=steps.inside.docker.{setting}" for setting in (f"parent_image={base_image}", "skip_build=true")]
    project.stoker("run", "both.py", *docker, "--set", "steps.inside.step_operator.network=host")
    assert project.client().runs()[0].steps["outside"].output.load() is False
    # What a killed driver leaves is looked for on that engine, though no file names it.
    (part,) = (project.home / "usual-parts").iterdir()
    assert json.loads(part.read_text(encoding="utf-8"))["backend"] == "docker"
    assert "containers" in project.stoker("gc", "--dry-run", "--json").stdout
