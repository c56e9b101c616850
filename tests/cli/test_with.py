"""One command line for everything that can be run: `--with`, `--environment` and the options of every run."""

from __future__ import annotations

import json
from typing import Any

import pytest

STACKS = """
    [stacks.hpc]
    orchestrator = "slurm"

    [stacks.mixed]
    orchestrator = "local"
    step_operators.cluster = {flavor = "slurm"}

    [stacks.double]
    step_operators.small = {flavor = "slurm"}
    step_operators.large = {flavor = "slurm", partition = "large"}

    [stacks.named]
    step_operators.x = {flavor = "aws_batch", queue = "gpus"}
"""
FLOW = """
    from stoker.flow import FlowSpec, Parameter, step


    class Small(FlowSpec):
        lr = Parameter("lr", default=0.5)

        @step
        def start(self):
            self.next(self.end)

        @step
        def end(self):
            print("lr is", self.lr)


    if __name__ == "__main__":
        Small()
"""


@pytest.fixture
def two(stoker: Any) -> Any:
    """A project with a pipeline and a flow."""
    path = stoker.project.folder / "stoker.toml"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    stoker.project.write({"flow.py": FLOW, "more.toml": STACKS})
    path.write_text(before + (stoker.project.folder / "more.toml").read_text(encoding="utf-8"), encoding="utf-8")
    return stoker


def steps_of(stoker: Any, *words: str, code: int | None = 3) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(stoker("plan", "--json", *words, code=code).stdout)["steps"]
    return steps


def test_every_step_runs_where_the_command_line_says(two: Any) -> None:
    words = ("--with", "slurm:partition=gpu,gpu=2,memory=16000")
    for step in steps_of(two, "train.py", "--stack", "hpc", *words):
        assert step["settings"]["backend"]["orchestrator"]["partition"] == "gpu"
        resources = step["settings"]["resources"]
        assert (resources["gpu_count"], resources["memory"]) == (2, 16_000_000_000)
    for step in steps_of(two, "train.py", "--stack", "mixed", *words):
        assert (step["backend"], step["settings"]["backend"]["step_operator"]["partition"]) == ("cluster", "gpu")
    for step in steps_of(two, "flow.py", "--stack", "hpc", *words):
        assert step["settings"]["backend"]["orchestrator"]["partition"] == "gpu"
        assert step["settings"]["resources"]["memory"] == 16_000_000_000
    explained = two("plan", "train.py", "--stack", "mixed", "--explain", *words, code=3).stdout
    assert 'step_operator.partition = "gpu"' in explained and "--with slurm:partition=gpu" in explained


def test_a_set_is_stronger(two: Any) -> None:
    words = ("--with", "resources:gpu=2", "--set", "resources.gpu_count=4")
    assert {step["settings"]["resources"]["gpu_count"] for step in steps_of(two, "train.py", *words)} == {4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--with", "slrum"], "--with slrum: there is no backend called 'slrum', did you mean 'slurm'?"),
        (["--with", "retry:times=3"], "there is no backend called 'retry'"),
        (["--with", "slurm:particion=gpu"], "SlurmSettings has no field 'particion', did you mean 'partition'"),
        (["--with", "slurm:partition"], "'partition' is not word=value\n  fix: write slurm:partition=VALUE"),
        (["--with", "slurm:"], "nothing stands behind the colon"),
        (["--with", "resources"], "it asks for nothing\n  fix: write --with resources:gpu=1"),
        (["--with", "resources:gpus=2"], "resources has no 'gpus', did you mean 'gpu'?"),
        (["--with", "slurm:gpu=two"], "--with slurm:gpu=two: gpu_count: 'two' is not a whole number"),
        (["--with", "slurm:gpu=1,gpu=2"], "gpu is given twice"),
        (["--with", "slurm:time_limit=soon"], "time_limit: 'soon' is not a duration"),
        (["--with", "slurm", "--with", "ray"], "every step is to run on slurm and on ray\n  fix: keep one of the two"),
        (
            ["--stack", "double", "--with", "slurm"],
            "several step operators of stack 'double' are: small, large\n  fix: name one: @step(step_operator=",
        ),
        (["--with", "kubernetes:nod=1"], "KubernetesSettings has no field 'nod'"),
        (["--with"], "--with needs a value\n  fix: write --with BACKEND"),
        (["--wiht", "slurm"], "has no parameter for --wiht, did you mean '--with'"),
        (["--set", "orchestrator.slrum.partition=x"], "has no field 'slrum', did you mean 'slurm'?"),
        (["--environment", "pipy"], "--environment=pipy: packages: environment: 'pipy' is not one of local, pypi"),
        (["--detach=maybe"], "--detach takes no value, got 'maybe'\n  fix: write --detach alone"),
    ],
)
def test_mistakes(words: list[str], message: str, two: Any) -> None:
    assert message in two("run", "train.py", *words, code=2).stderr


def test_a_script_by_itself_refuses_the_same(two: Any) -> None:
    for words, message in ((["--with", "slrum"], "did you mean 'slurm'?"), (["--detach=maybe"], "takes no value")):
        assert message in two.project.run("train.py", *words, code=2).stderr


@pytest.mark.parametrize("name", ["batch", "aws_batch"])
def test_a_backend_that_no_stack_names(name: str, two: Any) -> None:
    for file in ("train.py", "flow.py"):
        finished = two("plan", file, "--with", f"{name}:gpu=2,queue=gpus,region=eu-west-1", "--json", code=3)
        plan = json.loads(finished.stdout)
        assert {step["backend"] for step in plan["steps"]} == {"batch"}
        assert {step["settings"]["backend"]["step_operator"]["queue"] for step in plan["steps"]} == {"gpus"}
        assert plan["settings"]["backend"]["batch"]["region"] == "eu-west-1", "for the whole run, of a flow, too"
        found = {finding["code"]: finding for finding in plan["findings"]}
        assert "s3://" in found["STK313"]["fix"], "the bucket is asked for"
        assert "stoker stacks setup batch --artifact-store s3://BUCKET/PREFIX" in found["STK192"]["fix"]
        assert "STK103" not in found, "what this machine lacks does not matter there"


@pytest.mark.parametrize(("stack", "name"), [("local", "batch"), ("named", "x")])
def test_both_spellings_in_a_stack_and_on_a_step(stack: str, name: str, two: Any) -> None:
    for words in (("--with", "batch:gpu=1"), ("--with", "aws_batch:gpu=1"), ("--set", "step_operator=aws_batch")):
        assert {step["backend"] for step in steps_of(two, "train.py", "--stack", stack, *words)} == {name}


def test_options_before_the_file(two: Any) -> None:
    two("run", "--tag", "early", "--with=local", "train.py", "--tag", "late")
    (run,) = two.json("runs")
    assert run["tags"] == ["early", "late"]


def test_a_flow_takes_the_options_of_every_run(two: Any) -> None:
    two.project.write({"run.yaml": "parameters:\n  lr: 4\n"})
    two.project.run("flow.py", "run", "--name", "nightly", "--tag", "x", "--config", "run.yaml", "--no-cache")
    two("run", "flow.py", "--name=nightly", "--config", "run.yaml", "--max-workers", "1")
    runs = two.json("runs")
    assert [run["pipeline"] for run in runs] == ["nightly", "nightly"]
    assert [run["parameters"]["lr"] for run in runs] == [4.0, 4.0]
    assert "x" in runs[1]["tags"]
    message = "--config run.yml: no such Config, and no such file"
    assert message in two.project.run("flow.py", "run", "--config", "run.yml", code=2).stderr
    for option in ("--with DECORATOR", "--name NAME", "--no-cache", "--max-workers N"):
        assert option in two("run", "flow.py", "--help").stdout
        assert option in two.project.run("flow.py", "run", "--help").stdout


@pytest.mark.parametrize(
    "backend", ["aws_batch", "docker", "kubeflow", "kubernetes", "ray", "sagemaker", "skypilot", "slurm"]
)
def test_what_would_be_sent_needs_nothing_that_it_is_sent_to(backend: str, two: Any) -> None:
    """Rendering asks no cluster, endpoint or program: the plan says what is missing, and the request is shown."""
    nothing = {"KUBECONFIG": "/nowhere", "KF_PIPELINES_ENDPOINT": "", "PATH": "/usr/bin:/bin", "RAY_ADDRESS": ""}
    nothing |= {"AWS_EC2_METADATA_DISABLED": "true", "DOCKER_HOST": "unix:///nowhere.sock"}
    shown = two("plan", "train.py", "--render", "--with", backend, code=None, env=nothing)
    assert shown.returncode in (0, 3), shown.stderr
    assert "stoker" in shown.stdout and "Traceback" not in shown.stderr
    assert len(shown.stdout.splitlines()) > 20, shown.stdout
