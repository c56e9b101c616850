"""`stoker init [DIR]`: a small project that runs, with its test, its stack and its CI file.

Two answers, on a terminal or by options, say what the pipeline is and where it is to run. No file that is there is
written over.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final, Mapping

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

_TEXTS: Final = Path(__file__).with_name("project")
"""The folder of the files that a project gets: a pipeline and its test for each kind, and what CI does."""
KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "training": ("training", "--epochs 400"),
    "data": ("cleaning", "--files 8"),
    "flow": ("Search", "--best-of 5"),
}
"""Kind of project → its pipeline's name, and an option to try."""
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


def files(kind: str, where: str, title: str) -> dict[str, str]:
    """The files of a project by their names."""
    name, option = KINDS[kind]
    return {
        PIPELINE: _text(f"{kind}.txt"),
        TEST: _text(f"{kind}_test.txt"),
        FILE: stack_text(where),
        CI: _text("ci.yml"),
        "README.md": _readme(title, name, option, where),
    }


def _text(name: str) -> str:
    return (_TEXTS / name).read_text(encoding="utf-8")


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
    _, option = KINDS[kind]
    if where == DEFAULT:
        commands = (f"{enter}stoker plan", f"stoker run {option}", "python -m pytest")
    else:
        commands = (f"{enter}stoker run --stack {DEFAULT}", f"stoker doctor --stack {where}", "stoker run")
    echo("next:\n" + "\n".join(f"  {one}" for one in commands))
