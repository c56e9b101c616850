"""`stoker plan FILE --render`: what would be sent, to the letter, and nothing that is secret. No engine runs here."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import CommandLine
from tests.conftest import Project

from stoker.backends.docker import requests as containers
from stoker.backends.docker.settings import ContainerSettings
from stoker.core.devices import Device, Inventory
from stoker.core.plan import Job, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.run.rendering import MASK, mask_secrets, placeholder_leases

EXPECTED = Path(__file__).with_name("expected") / "plan_render.txt"
OFFLINE = {
    "PATH": str(Path(sys.executable).parent),
    "DOCKER_HOST": "unix:///nowhere.sock",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_COLOR": "1",
}
"""No engine and no other program than those of this Python, and a way out that leads nowhere."""
STACK = """
stack = "box"

[stacks.box]
orchestrator = {flavor = "docker", user = "1000:1000"}
step_operators.here = {flavor = "local"}
"""
TRAIN = """
from stoker import pipeline, step
from stoker.config import ContainerSettings, DockerSettings, ResourceSettings

CUDA = DockerSettings(
    parent_image="pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime",
    python_package_installer_args={"system": None},
    requirements=["torchvision", "scikit-learn==1.5.0"],
)


@step(step_operator="here")
def load(count: int, api_key: str) -> list[int]:
    return list(range(count))


@step(
    resources=ResourceSettings(gpu_count=2, memory="4GiB"),
    environment={"HF_TOKEN": "hf-of-the-step", "EPOCHS": "3"},
    settings={
        "docker": CUDA,
        "orchestrator.docker": ContainerSettings(network="host", secrets={"wandb": "env:WANDB_API_KEY"}),
    },
)
def train(numbers: list[int], bucket: str) -> int:
    return sum(numbers)


@step(settings={"docker": CUDA})
def square(number: int) -> int:
    return number * number


@step(settings={"docker": DockerSettings(parent_image="localhost/base:1", skip_build=True)})
def report(total: int, squares: list[int]) -> None:
    print(total, squares)


@pipeline
def training(count: int = 3):
    numbers = load(count, "key-of-the-input")
    report(train(numbers, "s3://me:key-of-the-uri@bucket"), square.map(numbers))


if __name__ == "__main__":
    training()
"""
SECRETS = ("hf-of-the-step", "key-of-the-input", "key-of-the-uri", "key-of-this-process")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A project whose stack has an engine that is not there, and a local step operator; for all tests, as none runs."""
    folder = tmp_path_factory.mktemp("box")
    project = Project(folder / "project", folder / "home").write({"stoker.toml": STACK, "train.py": TRAIN})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**OFFLINE, "WANDB_API_KEY": "key-of-this-process"}.items():
            patch.setenv(name, value)
        yield CommandLine(project)


@pytest.fixture(scope="module")
def shown(box: CommandLine) -> str:
    """The plan and what would be sent, as a person sees it."""
    return box("plan", "train.py", "--render", "--simulate", "2xH100").stdout


@pytest.fixture(scope="module")
def document(box: CommandLine) -> str:
    """The same as JSON."""
    return box("plan", "train.py", "--render", "--json", "--simulate", "2xH100").stdout


def plain(text: str, box: CommandLine) -> str:
    """Without what differs from machine to machine and from one version of Stoker to the next."""
    text = text.replace(str(box.project.folder), "PROJECT").replace(str(box.project.home), "HOME")
    text = re.sub(r"stoker-[\w.]+\+g[0-9a-f]{12}-", "stoker-VERSION-", text)
    text = re.sub(r"bundle-[0-9a-f]{16}", "bundle-DIGEST", text)
    text = re.sub(r"\b[0-9a-f]{32}([0-9a-f]{32})?\b", "DIGEST", text)
    # The folders of sys.path that lie beside the project's are this test's own.
    text = re.sub(r',\s+"/[^"]+"(?=(,\s+"/[^"]+")*\s+\],\n +"checkpoints")', "", text)
    return text.replace(sys.executable, "PYTHON")


def test_everything_that_would_be_sent(box: CommandLine, shown: str) -> None:
    head, found, rendered = shown.partition("\nload  would be sent to here\n")
    assert head.startswith("training: 4 steps on stack 'box'"), "the plan comes first"
    text = plain(found.lstrip("\n") + rendered, box)
    if os.environ.get("UPDATE_GOLDEN"):
        EXPECTED.write_text(text, encoding="utf-8")
    assert text == EXPECTED.read_text(encoding="utf-8")


def test_one_step(box: CommandLine, shown: str) -> None:
    words = ("plan", "train.py", "--simulate", "2xH100")
    for name in ("train", "square[3]"):
        one = box(*words, f"--render={name}").stdout
        heads = [line for line in one.splitlines() if "  would be sent to " in line]
        assert [head.split()[0] for head in heads] == [name.partition("[")[0]]
        assert one[one.index("  by hand: ") :].strip() in shown
    refused = box(*words, "--render=trian", code=2).stderr
    assert "--render: there is no step 'trian' in this pipeline, did you mean 'train'?" in refused
    rendered = json.loads(box(*words, "--render=train", "--json").stdout)["rendered"]
    assert [step["step"] for step in rendered] == ["train"]


@pytest.mark.usefixtures("shown")
def test_nothing_is_sent_built_or_kept(box: CommandLine) -> None:
    assert not box.project.rows("SELECT id FROM runs")
    left = {path.name for path in box.project.home.iterdir()}
    assert "scratch" not in left and not list((box.project.home / "artifacts").glob("**/*.tar"))


def test_no_secret_is_shown(shown: str, document: str) -> None:
    # In a script, the variable is that of the shell.
    for text, begins, variable in (
        (shown, "would be sent to", "--env=HF_TOKEN "),
        (document, '"rendered"', f"HF_TOKEN={MASK}"),
    ):
        rendered = text.partition(begins)[2]
        for secret in SECRETS:
            assert secret not in rendered, secret
        assert variable in rendered and "EPOCHS=3" in rendered
        assert "wandb" in rendered, "which secrets there are is none"


def test_json_has_the_same_under_rendered(box: CommandLine, document: str) -> None:
    made = json.loads(document)
    assert [step["key"] for step in made["steps"]] == ["load", "train", "square", "report"]
    found = {one["step"]: one for one in made["rendered"]}
    assert found["load"]["request"]["message"]["job"] == "RUN/load/1"
    assert found["load"]["dockerfile"] == "" == found["load"]["image"]
    assert found["train"]["dockerfile"].startswith("FROM pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime\n")
    assert found["train"]["files"] == {"stoker-build/requirements-1-listed.txt": "torchvision\nscikit-learn==1.5.0\n"}
    assert found["square"]["dockerfile"] == found["train"]["dockerfile"] and found["square"]["times"] == ["number"]
    assert (found["report"]["image"], found["report"]["dockerfile"]) == ("localhost/base:1", "")
    (container,) = found["train"]["request"]["containers"]
    assert container["document"]["job"]["inputs"]["numbers"] == {"step": "load", "output": "output"}
    assert "rendered" not in box.json("plan", "train.py", "--simulate", "2xH100")


def test_settings_that_no_image_can_have_are_told_after_the_plan(box: CommandLine) -> None:
    done = box("plan", "train.py", "--render", "--simulate", "2xH100", "--set", "docker.requirements=no.txt", code=2)
    assert "training: 4 steps" in done.stdout and "no.txt" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_refused_plan_shows_what_it_would_have_sent(box: CommandLine) -> None:
    told = box("plan", "train.py", "--render", "--simulate", "2xH100;driver=470.82.01", code=3).stdout
    assert "STK203" in told and "train  would be sent to orchestrator" in told


def test_devices_of_a_lease_that_is_still_to_come() -> None:
    """Each node gets its own, by names that stand for UUIDs; where there are none, nothing is promised."""
    card = Device(kind="nvidia", index=3, uuid="GPU-a", name="H100", model="H100", memory=1, links=("GPU-b",))
    source = FunctionSource(kind="module", module="train", qualname="train")
    settings = StepSettings(resources=ResourceSettings(gpu_count=2, nodes=2))
    step = StepPlan(
        key="train", name="train", source=source, outputs=(), unpack=False, inputs={}, settings=settings, backend="x",
        code="",
    )  # fmt: skip
    job = Job(name="RUN/train/1", run="RUN", key="train", attempt=1, step=step, inputs={})
    first, second = placeholder_leases(Inventory(devices=(card,)), job)
    assert [device.uuid for device in first.held] == ["<device 1 of the lease>", "<device 2 of the lease>"]
    assert [device.uuid for device in second.held] == ["<device 3 of the lease>", "<device 4 of the lease>"]
    assert all(device.kind == "nvidia" and device.links == () for device in (*first.held, *second.held))
    assert placeholder_leases(Inventory(), job) == []
    parts = containers.container_requests(
        job, site=Site(artifacts="/a", scratch="/s"), settings=ContainerSettings(), facts=containers.EngineFacts(),
        leases=[first, second],
    )  # fmt: skip
    asked = [part.body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] for part in parts]
    assert asked == [[device.uuid for device in node.held] for node in (first, second)]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("API_KEY=a b c", f"API_KEY={MASK}"),
        ("SSH_PASSPHRASE=a b c", f"SSH_PASSPHRASE={MASK}"),
        ({"OPENAI_APIKEY": "x"}, {"OPENAI_APIKEY": MASK}),
        ("PATH=/bin", "PATH=/bin"),
        ("RUN curl -H x --token=abc y", f"RUN curl -H x --token={MASK} y"),
        ("FROM x\nENV DB_PASSWORD hunter2\nUSER y", f"FROM x\nENV DB_PASSWORD {MASK}\nUSER y"),
        ("FROM x\nENV A=1 HF_TOKEN='a b' B=2", f"FROM x\nENV A=1 HF_TOKEN={MASK} B=2"),
        ("postgresql://me:pw@db/x", "postgresql://me:***@db/x"),
        ({"hub_token": "x", "tokens": "3"}, {"hub_token": MASK, "tokens": "3"}),
        ({"api_key": {"value": {"i": "x"}}}, {"api_key": MASK}),
        ({"api_key": {"step": "load", "output": "output"}}, {"api_key": {"step": "load", "output": "output"}}),
        ({"secret": "", "n": None}, {"secret": "", "n": None}),
        ([{"name": "DB_PASSWORD", "value": "x"}], [{"name": "DB_PASSWORD", "value": MASK}]),
        ([{"name": "MODE", "value": "x"}], [{"name": "MODE", "value": "x"}]),
        ([{"secretKey": "password", "envVar": "DB"}], [{"secretKey": "password", "envVar": "DB"}]),
        ({"secretKey": "abc"}, {"secretKey": MASK}),
        (["a known-value b"], [f"a {MASK} b"]),
    ],
)  # fmt: skip
def test_what_is_hidden(value: Any, shown: Any) -> None:
    assert json.loads(json.dumps(mask_secrets(value, ["known-value"]))) == shown
