"""What decorators do where a task runs: environment, secrets, checkpoints, configs, ranks, profiles, one's own."""

from __future__ import annotations

import json
import re
from typing import Any

FEATURES = """
import functools
import os
import signal
from stoker.flow import (
    Config, FlowSpec, IncludeFile, Parameter, cache, card, checkpoint, config_expr, current, environment, project, pypi,
    resources, retry, schedule, secrets, step, user_step_decorator,
)

LOG = os.environ.get("LOG", "log")

def note(word):
    with open(LOG, "a") as file:
        file.write(word + chr(10))

@user_step_decorator
def timed(step_name, flow, inputs=None, attributes=None):
    note(f"before {step_name} {attributes}")
    yield
    flow.timed = True
    note(f"after {step_name}")

def plain(function):
    @functools.wraps(function)
    def wrapper(self):
        note("plain")
        function(self)
    return wrapper

@project(name="ours")
@schedule(daily=True)
class Base(FlowSpec):
    config = Config("config", default="config.json")
    text = IncludeFile("text", default="text.txt")
    raw = IncludeFile("raw", is_text=False, required=False)

    @card
    @pypi(packages={"attrs": ">=22"})
    @timed(word=1)
    @environment(vars={"A": "b", "N": 1})
    @resources(cpu=config.cpu, memory=config_expr("config.memory * 2"))
    @step
    def start(self):
        assert os.environ["A"] == "b" and os.environ["N"] == "1"
        assert self.config.cpu == self.config["cpu"]
        assert self.helper() == 1
        self.next(self.secret)

    def helper(self):
        return 1

class Features(Base):
    @plain
    @secrets(sources=["env:TOKEN", "file:.env"])
    @step
    def secret(self):
        assert self.timed
        self.lengths = [len(os.environ[name]) for name in ("TOKEN", "OTHER")]
        assert current.project_name == "ours" and current.branch_name == "user." + current.username
        self.next(self.train)

    @checkpoint
    @retry(times=2)
    @step
    def train(self):
        place = os.path.join(current.checkpoint.directory, "epoch")
        self.begun = int(open(place).read()) if current.checkpoint.is_loaded else 0
        assert current.retry_count == self.begun, (current.retry_count, self.begun)
        with open(place, "w") as file:
            file.write(str(self.begun + 1))
        current.checkpoint.save(name=f"epoch_{self.begun}")
        if self.begun < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        assert [found["name"] for found in current.checkpoint.list()] == ["epoch_2", "epoch_1", "epoch_0"]
        self.scratch = current.tempdir
        self.next(self.known)

    @cache
    @step
    def known(self):
        note("known")
        self.x = 1
        self.next(self.end)

    @step
    def end(self):
        assert "OTHER" not in os.environ and not os.path.exists(self.scratch)
        print("text", self.text, "raw", self.raw, "user", current.username, sorted(current.tags))

if __name__ == "__main__":
    Features()
"""


def test_features(project: Any) -> None:
    project.write(
        {
            "features.py": FEATURES,
            "config.json": '{"cpu": 1, "memory": 500}',
            "other.json": '{"cpu": 0.5, "memory": 100}',
            "text.txt": "hello",
            ".env": "# ours\nexport OTHER='four'\n",
        }
    )
    env = {"TOKEN": "secret-token", "STOKER_USER": "ann"}
    project.run("features.py", "run", "--tag", "t", env=env)
    run = project.client().runs()[0]
    assert run.steps["secret"].outputs["lengths"].load() == [12, 4]
    assert [attempt.failure.cause if attempt.failure else "" for attempt in run.steps["train"].attempts] == [
        "killed",
        "killed",
        "",
    ]
    words = (project.folder / "log").read_text().split("\n")[:-1]
    assert words == ["before start {'word': 1}", "after start", "plain", "known"]
    said = [line.text for line in run.steps["end"].logs()]
    assert said == ["text hello raw None user ann ['t']"]
    assert "secret-token" not in json.dumps(project.rows("SELECT plan FROM plans"))
    # @cache: the same code and the same artifacts; another config does not matter to it.
    (project.folder / "log").unlink()
    project.run("features.py", "run", "--config", "config", "other.json", "--raw", "text.txt", env=env)
    newest = project.client().runs()[0]
    assert newest.steps["known"].status == "succeeded", "the config is a parameter, which the step could have read"
    project.run("features.py", "--config=config=other.json", "run", "--raw", "text.txt", env=env)
    plan = json.loads(project.stoker("plan", "features.py", "--json", env=env).stdout)
    asked = plan["steps"][0]["settings"]["resources"]
    assert (asked["cpu_count"], asked["memory"]) == (1, 1000 * 10**6)
    again = project.run("features.py", "run", "--with", "checkpoint", "--without", "secrets", env=env, code=1)
    assert "OTHER" in again.stderr, "without its decorator the step has no such variable"
    missing = project.run("features.py", "run", code=1)
    assert "the secret TOKEN is not set" in missing.stderr
    assert "is not JSON" in project.run("features.py", "run", "--config-value", "config", "{", env=env, code=2).stderr
    assert "no such Config" in project.run("features.py", "run", "--config", "c", "x", env=env, code=2).stderr


RANKS = """
import sys
from stoker.flow import FlowSpec, Parameter, current, step, torchrun

class Ranks(FlowSpec):
    fail = Parameter("fail", default=False)
    nodes = Parameter("nodes", default=2)

    @step
    def start(self):
        self.next(self.train, num_parallel=self.nodes)

    @torchrun(nproc_per_node=2)
    @step
    def train(self):
        current.torch.run("ranks.py", entrypoint_args={"word": "w", "fail": self.fail})
        self.done = True
        self.next(self.join)

    @step
    def join(self, inputs):
        assert all(found.done for found in inputs)
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Ranks()
"""
SCRIPT = """
import argparse
import os
import sys
parser = argparse.ArgumentParser()
parser.add_argument("--word")
parser.add_argument("--fail", action="store_true")
given = parser.parse_args()
if given.fail:
    sys.exit(3)
# In one piece: the ranks of a node share its stream, and Python may be told not to buffer.
sys.stdout.write(f"{given.word} rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n")
"""


def test_ranks_by_torchrun_on_every_node(project: Any) -> None:
    project.write({"flow.py": RANKS, "ranks.py": SCRIPT})
    project.run("flow.py", "run", timeout=240)
    train = project.client().runs()[0].steps["train"]
    words = {line.text for line in train.logs() if line.text.startswith("w rank")}
    assert words == {f"w rank {rank} of 4" for rank in range(4)}
    failed = project.run("flow.py", "run", "--fail", "true", "--nodes", "1", code=1, timeout=240)
    assert "torchrun ended with exit code" in failed.stderr


PROFILE = """
import os
import signal
from stoker.flow import FlowSpec, catch, current, gpu_profile, resources, step

class Profile(FlowSpec):
    @gpu_profile(interval=0.1)
    @resources(gpu=1)
    @step
    def start(self):
        self.devices = [device.model for device in current.devices]
        self.next(self.killed)

    @catch(var="failure")
    @gpu_profile(artifact_prefix="p_")
    @resources(gpu=2)
    @step
    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)
        self.next(self.end)

    @step
    def end(self):
        assert self.failure.cause == "killed"

if __name__ == "__main__":
    Profile()
"""


def test_profiles_also_of_a_task_that_was_killed(project: Any) -> None:
    said = project.write({"flow.py": PROFILE}).run("flow.py", "run", "--simulate", "4xH100-80GB").stderr
    # The table at the run's end and the record say the same of the task whose failure was caught.
    assert re.search(r"^  ✓ killed +succeeded", said, re.MULTILINE), said
    assert project.client().runs()[0].steps["killed"].status == "succeeded"
    end = project.client().runs()[0].steps["end"].outputs
    assert end["gpu_profile_num_gpus"].load() == 1 and end["p_num_gpus"].load() == 2
    data = end["gpu_profile_data"].load()
    assert data["devices"][0]["memory"] > 70_000 and "H100" in data["devices"][0]["name"]
    shown = data["profile"][data["devices"][0]["device_id"]]
    assert len(shown["timestamp"]) == len(shown["gpu_utilization"]) == len(shown["memory_total"])
    assert len(end["p_data"].load()["devices"]) == 2
    # Without any GPU the task runs, and the profile says why it is empty.
    project.run("flow.py", "run")
    end = project.client().runs()[0].steps["end"].outputs
    assert end["gpu_profile_num_gpus"].load() == 0 and "no GPU" in end["gpu_profile_data"].load()["error"]
