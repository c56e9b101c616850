"""`stoker advise`: what steps used, and a patch after which they plan with what was suggested."""

from __future__ import annotations

import json
import subprocess
from typing import Any

SIZED = '''"""A training: café."""
from stoker import pipeline, step
from stoker.config import ResourceSettings

BIG = "3GB"

@step(
    resources=ResourceSettings(cpu_count=2, memory='3GB'),  # as müch as it may
    timeout="8h",
    cache=False,
)
def train() -> int:
    return len(bytearray(100_000_000))

@step(resources={"memory": "3GB"}, cache=False)
def evaluate(x: int) -> int:
    return x

@step(resources=ResourceSettings(memory=BIG), cache=False)
def named(x: int) -> int:
    return x

more = {"resources": {"memory": "3GB"}}

@step(cache=False, **more)
def starred(x: int) -> int:
    return x

@step(cache=False)
def plain(x: int) -> int:
    return x

@pipeline
def sized():
    plain(starred(named(evaluate(train()))))
'''
FLOW = """
from stoker.flow import FlowSpec, resources, step

class Flow(FlowSpec):
    @resources(memory=3000, cpu=2)
    @step
    def start(self):
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Flow()
"""
STACK = """stack = "mine"
[stacks.mine]
settings.resources = {memory = "3GB"}  # of each step
[stacks.mine.prices]
date = "2026-11-01"
source = "our contract"
cpu = 0.04
memory = 0.005
"""


def test_the_patched_files_plan_with_what_is_suggested(project: Any) -> None:
    project.write({"sized.py": SIZED, "stoker.toml": STACK})
    project.stoker("run", "sized.py")
    found = json.loads(project.stoker("advise", "latest", "--json").stdout)["settings"]
    assert {(one["step"], one["setting"]) for one in found} >= {("train", "timeout")}
    assert all(one["used"] < one["suggested"] < one["asked"] for one in found)
    assert all((one["saving"] or 0) > 0 for one in found if one["setting"] != "timeout")
    assert "sized.py:7 @step" in project.stoker("advise", "latest", "train").stdout
    given = project.stoker("advise", "latest", "--patch")
    assert "resources.memory of named: BIG is computed, or has a name" in given.stderr
    assert "resources.memory of starred: it comes in by **" in given.stderr
    assert "sized.py" in given.stdout and "stoker.toml" in given.stdout
    subprocess.run(["git", "init", "-q", "."], cwd=project.folder, check=True)
    subprocess.run(["git", "apply", "-"], cwd=project.folder, input=given.stdout.encode(), check=True)
    assert "# as müch as it may" in (project.folder / "sized.py").read_text(encoding="utf-8")
    assert "memory='" in (project.folder / "sized.py").read_text(encoding="utf-8"), "in quotes as they were"
    plans = json.loads(project.stoker("plan", "sized.py", "--json").stdout)["steps"]
    settings = {step["key"]: step["settings"] for step in plans}
    for one in found:
        if one["step"] not in ("named", "starred"):
            value: Any = settings[one["step"]]
            for name in one["setting"].split("."):
                value = value[name]
            assert value == one["suggested"], one
    again = project.stoker("advise", "latest", "--patch")
    assert again.stdout.strip() == "" and "not what the run had" in again.stderr


def test_a_flow_is_patched_in_its_own_words(project: Any) -> None:
    project.write({"flow.py": FLOW})
    project.run("flow.py", "run")
    patch = project.stoker("advise", "latest", "--patch").stdout
    assert "-    @resources(memory=3000, cpu=2)" in patch
    # How many cores it keeps busy depends on the machine's other work.
    assert "+    @resources(memory=256, cpu=" in patch
