"""A flow on a stack whose orchestrator is a container engine: run, and resumed after a failure."""

from __future__ import annotations

from typing import Any

import pytest
from tests.servers.containers import Engine

STACK = """
stack = "engine"
[stacks.engine]
orchestrator = {flavor = "docker", network = "host", mounts = ["FLAGS"]}
[stacks.engine.settings.docker]
parent_image = "BASE"
skip_build = true
"""
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


@pytest.mark.slow
def test_a_flow_runs_and_resumes_in_containers(
    project: Any, engine: Engine, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.socket)
    flag = project.folder / "flags" / "flag"
    flag.parent.mkdir()
    stack = STACK.replace("BASE", base_image).replace("FLAGS", str(flag.parent))
    project.write({"stoker.toml": stack, "boxed.py": FLOW})
    failed = project.run("boxed.py", "run", "--flag", str(flag), code=1)
    assert "not yet" in failed.stderr, failed.stderr
    flag.touch()
    project.run("boxed.py", "resume")
    run, origin = project.client().runs()
    assert (run.status, run.origin, origin.status) == ("succeeded", origin.id, "failed")
    assert [line.text.startswith("made in ") for line in run.steps["end"].logs()][-1:] == [True]
    assert (run.steps["start"].status, len(origin.steps["start"].attempts)) == ("cached", 1)
