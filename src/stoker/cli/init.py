"""`stoker init [DIR]`: a small project that runs, with its test, its stack and its CI file.

Two answers, on a terminal or by options, say what the pipeline is and where it is to run. No file that is there is
written over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final, Mapping, Sequence

import click

from stoker.backends.registry import BACKENDS
from stoker.core.errors import UsageError
from stoker.report.streams import echo, say
from stoker.stacks import DEFAULT, FILE

PIPELINE: Final = "pipeline.py"
TEST: Final = "test_pipeline.py"
CI: Final = ".github/workflows/pipeline.yml"
IGNORED: Final = (".stoker/", "__pycache__/", ".pytest_cache/")
"""Lines of `.gitignore`."""
_NOT_OFFERED: Final = ("inline",)
"""Backends that are no place of their own."""

_TRAINING: Final = '''
"""Fit a line to numbers: load, train, evaluate."""

from stoker import log_metrics, pipeline, step


@step
def load(count: int) -> list[tuple[float, float]]:
    return [(x / count, 3 * x / count + 1) for x in range(count)]


@step
def train(points: list[tuple[float, float]], rate: float, epochs: int) -> dict[str, float]:
    slope = shift = 0.0
    for epoch in range(epochs):
        errors = [(x, slope * x + shift - y) for x, y in points]
        slope -= rate * sum(2 * error * x for x, error in errors) / len(points)
        shift -= rate * sum(2 * error for _, error in errors) / len(points)
        log_metrics({"loss": sum(error * error for _, error in errors) / len(points)}, step=epoch)
    return {"slope": slope, "shift": shift}


@step
def evaluate(model: dict[str, float], points: list[tuple[float, float]]) -> float:
    return max(abs(model["slope"] * x + model["shift"] - y) for x, y in points)


@pipeline
def training(count: int = 50, rate: float = 0.5, epochs: int = 200):
    points = load(count)
    evaluate(train(points, rate, epochs), points)


if __name__ == "__main__":
    training()
'''
_DATA: Final = '''
"""Clean several files side by side, and sum them up."""

from stoker import pipeline, step


@step
def find(files: int) -> list[str]:
    return [f"value,{number}\\nvalue,\\nvalue,{number + 1}" for number in range(files)]


@step
def clean(text: str) -> list[int]:
    return [int(value) for _, value in (line.split(",") for line in text.splitlines()) if value]


@step
def summarize(parts: list[list[int]]) -> dict[str, int]:
    numbers = [number for part in parts for number in part]
    return {"rows": len(numbers), "sum": sum(numbers)}


@pipeline
def cleaning(files: int = 4):
    summarize(clean.map(find(files)))


if __name__ == "__main__":
    cleaning()
'''
_FLOW: Final = '''
"""Try several rates side by side, and keep the best."""

from stoker.flow import FlowSpec, Parameter, step


class Search(FlowSpec):
    best_of = Parameter("best_of", default=3)

    @step
    def start(self):
        self.rates = [0.1 * number for number in range(1, self.best_of + 1)]
        self.next(self.train, foreach="rates")

    @step
    def train(self):
        self.rate = self.input
        self.loss = abs(self.rate - 0.2)
        self.next(self.choose)

    @step
    def choose(self, inputs):
        self.rate = min(inputs, key=lambda task: task.loss).rate
        self.next(self.end)

    @step
    def end(self):
        print("best rate", self.rate)


if __name__ == "__main__":
    Search()
'''
_TEST: Final = '''
"""The pipeline runs on this machine, with a store of its own."""

from pipeline import {name}


def test_{name}(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STACK", "local")
    run = {name}({arguments})
    assert run.status == "succeeded"
    assert {check}
'''
_FLOW_TEST: Final = '''
"""The flow runs on this machine, with a store of its own."""

from pathlib import Path

from stoker.flow import Runner


def test_search(tmp_path, monkeypatch):
    monkeypatch.setenv("STOKER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STOKER_STACK", "local")
    with Runner(str(Path(__file__).with_name("pipeline.py")), show_output=False) as runner:
        done = runner.run(best_of=4)
        assert done.status == "successful", done.stderr
        assert done.run.data.rate == 0.2
'''
KINDS: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "training": (
        _TRAINING,
        "training",
        _TEST.format(name="training", arguments="epochs=400", check='run.steps["evaluate"].load() < 0.1'),
        "--epochs 400",
    ),
    "data": (
        _DATA,
        "cleaning",
        _TEST.format(
            name="cleaning",
            arguments="files=2",
            check='run.steps["summarize"].load() == {"rows": 4, "sum": 4}',
        ),
        "--files 8",
    ),
    "flow": (_FLOW, "Search", _FLOW_TEST, "--best-of 5"),
}
"""Kind of project → its pipeline, the pipeline's name, its test, and an option to try."""
_PARTS: Final[Mapping[str, tuple[str, str]]] = {
    "docker": ('# settings.docker.requirements = ["numpy"]', ""),
    "slurm": ("", '# host = "ssh://login"  # from another machine than the login node\n# partition = "gpu"'),
    "ray": ("", 'address = "http://127.0.0.1:8265"'),
    "kubernetes": ('artifact_store = "pvc://stoker"  # a claim, or s3://BUCKET/PREFIX', 'namespace = "default"'),
    "kubeflow": ('artifact_store = "s3://BUCKET/PREFIX"', 'host = "https://KUBEFLOW/pipeline"'),
    "skypilot": ('artifact_store = "s3://BUCKET/PREFIX"', '# infra = "aws"'),
    "sagemaker": ('artifact_store = "s3://BUCKET/PREFIX"', '# region = "eu-west-1"\n# role = "arn:aws:iam::…"'),
    "batch": ('artifact_store = "s3://BUCKET/PREFIX"', '# region = "eu-west-1"\n# iam_role = "arn:aws:iam::…"'),
}
"""Backend → lines of its stack, and of its orchestrator."""
_CI: Final = """
name: pipeline
on: [push, pull_request]
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install stoker pytest
      - run: stoker plan --stack local
      - run: python -m pytest
"""


def places() -> list[str]:
    """Where a project can run: this machine first."""
    return sorted((name for name in BACKENDS.names() if name not in _NOT_OFFERED), key=lambda name: name != DEFAULT)


@click.command("init")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".", metavar="[DIR]")
@click.option("--kind", type=click.Choice(list(KINDS)), help="What the pipeline does; asked for on a terminal.")
@click.option("--where", metavar="BACKEND", help="Where it is to run: local, docker, slurm, kubernetes, …")
def command(*, folder: Path, kind: str | None, where: str | None) -> None:
    """Make a small project that runs: a pipeline, stoker.toml, a test and a CI file.

    Asks two questions on a terminal; elsewhere, what no option says is a training on this machine. Writes over no file.
    """
    asks = sys.stdin.isatty()
    if kind is None:
        kind = (
            click.prompt("What", type=click.Choice(list(KINDS)), default="training", err=True) if asks else "training"
        )
    if where is None:
        where = click.prompt("Where", type=click.Choice(places()), default=DEFAULT, err=True) if asks else DEFAULT
    if BACKENDS.canonical(where) not in places():
        raise UsageError(f"--where {where}: there is no such backend", fix=f"name one of {', '.join(places())}")
    where = BACKENDS.canonical(where)
    taken = [name for name in (PIPELINE, TEST, FILE) if (folder / name).exists()]
    if taken:
        fix = "name a folder that is not there yet: stoker init DIR"
        raise UsageError(f"there is a project already: {', '.join(str(folder / name) for name in taken)}", fix=fix)
    for name, text in files(kind, where, folder.absolute().name).items():
        _write(folder / name, text)
    _ignore(folder / ".gitignore")
    _say_what_next(folder, kind, where)


def _asked(what: str, answers: Sequence[str]) -> str:
    answer: str = click.prompt(what, type=click.Choice(answers), default=answers[0], err=True)
    return answer


def files(kind: str, where: str, title: str) -> dict[str, str]:
    """The files of a project by their names."""
    program, name, test, option = KINDS[kind]
    return {
        PIPELINE: program.lstrip("\n"),
        TEST: test.lstrip("\n"),
        FILE: stack_text(where),
        CI: _CI.lstrip("\n"),
        "README.md": _readme(title, name, option, where),
    }


def stack_text(where: str) -> str:
    """`stoker.toml` of a project that runs on a backend."""
    text = f'[run]\npipeline = "{PIPELINE}"  # what `stoker run` and `stoker plan` take where no file is named\n'
    if where == DEFAULT:
        return f'{text}\n[stacks.{DEFAULT}.settings]\ntimeout = "1h"  # of every step\n'
    of_stack, of_orchestrator = _PARTS.get(where, ("", ""))
    tables = [
        f"stack = {json.dumps(where)}  # `--stack {DEFAULT}` runs on this machine\n\n{text}",
        *([f"[stacks.{where}]\n{of_stack}\n"] if of_stack else []),
        f"[stacks.{where}.orchestrator]\nflavor = {json.dumps(where)}\n{of_orchestrator}".rstrip() + "\n",
    ]
    return "\n".join(tables)


def _readme(title: str, name: str, option: str, where: str) -> str:
    here = "" if where == DEFAULT else f" --stack {DEFAULT}"
    return f"""# {title}

`{PIPELINE}` has the pipeline `{name}`, `{FILE}` says where it runs.

```console
$ stoker plan{here}          # what would run
$ stoker run{here} {option}  # run it
$ python -m pytest    # the test
```
"""


def _write(path: Path, text: str) -> None:
    """Write a file that is not there; one that is there is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        say(f"{path}: kept as it is")
        return
    say(f"{path}: written")


def _ignore(path: Path) -> None:
    """Add the lines to `.gitignore` that it lacks."""
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in IGNORED if line not in before.splitlines()]
    if missing:
        end = "\n" if before and not before.endswith("\n") else ""
        with path.open("a", encoding="utf-8") as file:
            file.write(end + "\n".join(missing) + "\n")
        say(f"{path}: added {', '.join(missing)}" if before else f"{path}: written")


def _say_what_next(folder: Path, kind: str, where: str) -> None:
    """The three commands that come next, on stdout."""
    enter = "" if folder == Path() else f"cd {folder} && "
    option = KINDS[kind][3]
    if where == DEFAULT:
        commands = (f"{enter}stoker plan", f"stoker run {option}", "python -m pytest")
    else:
        commands = (f"{enter}stoker run --stack {DEFAULT}", f"stoker doctor --stack {where}", "stoker run")
    echo("next:\n" + "\n".join(f"  {one}" for one in commands))
