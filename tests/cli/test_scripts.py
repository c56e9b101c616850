"""Programs of the kinds that people have: each runs as it is, or the error names the line to change."""

# ruff: noqa: E501, ISC004  # a program is one line, as long as it is

from __future__ import annotations

import sys
from typing import Any

import pytest

STEPS = """
from stoker import pipeline, step

@step
def train() -> object:
    return {value}

@pipeline
def pipe() -> object:
    return train()
"""
GUARD = """
if __name__ == "__main__":
    print("got", pipe().steps["train"].output.load())
"""
PARSER = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--title", default="none")
"""
RUNS: dict[str, tuple[str, str, str]] = {
    "argparse at module level": (PARSER + "args = parser.parse_args()", "args.lr", GUARD),
    "argparse in a function that the step calls": (
        PARSER + "def arguments(): return parser.parse_args()",
        "arguments().lr",
        GUARD,
    ),
    "argparse under the guard, in a global": (
        PARSER + "args = parser.parse_known_args()[0]",
        "vars(args)['lr']",
        GUARD,
    ),
    "sys.argv at module level": ("import sys\nLR = float(sys.argv[sys.argv.index('--lr') + 1])", "LR", GUARD),
    "sys.argv in the step": ("import sys", "float(sys.argv[2])", GUARD),
    "getopt": (
        "import getopt, sys\noptions = dict(getopt.getopt(sys.argv[1:], '', ['lr='])[0])",
        "float(options['--lr'])",
        GUARD,
    ),
    "optparse": (
        "import optparse\nparser = optparse.OptionParser()\nparser.add_option('--lr', type=float)\noptions, _ = parser.parse_args()",
        "options.lr",
        GUARD,
    ),
    "a dataclass of arguments": (
        PARSER
        + "import dataclasses\n@dataclasses.dataclass\nclass Config:\n    lr: float\nargs = parser.parse_args()\nconfig = Config(args.lr)",
        "config.lr",
        GUARD,
    ),
    "click under the guard": (
        "import click, sys",
        "float(sys.argv[2])",
        "\n@click.command()\n@click.option('--lr', type=float)\ndef main(lr):\n    print('got', pipe().steps['train'].output.load())\n"
        "if __name__ == '__main__':\n    main()\n",
    ),
    "click that is called without a guard": (
        "import click, sys",
        "float(sys.argv[2])",
        "\n@click.command()\n@click.option('--lr', type=float)\ndef main(lr):\n    print('got', pipe().steps['train'].output.load())\n"
        "main()\n",
    ),
    "sys.exit(main()) without a guard": (
        "import sys",
        "3.0",
        "\ndef main():\n    print('got', pipe().steps['train'].output.load())\nsys.exit(main())\n",
    ),
    "what programs do at their beginning": (
        "from __future__ import annotations\n"
        "import atexit, faulthandler, logging, multiprocessing, os, pathlib, random, signal, sys, warnings\n"
        "logging.basicConfig(level=logging.INFO, force=True)\nwarnings.filterwarnings('error')\nrandom.seed(3)\n"
        "faulthandler.enable()\natexit.register(lambda: None)\nsignal.signal(signal.SIGTERM, lambda *_: None)\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"
        "HERE = pathlib.Path(__file__).parent\nos.chdir(HERE)\nsys.path.insert(0, str(HERE / 'lib'))\nimport beside\n"
        "os.environ.setdefault('LR_OF_TEST', '3.0')\nLR = float(os.environ['LR_OF_TEST'])\n"
        "DATA = HERE / 'lib' / 'lr.txt'",
        "{logging.getLogger().level and LR, beside.LR, float(DATA.read_text()), float(open('lib/lr.txt').read())}.pop()",
        GUARD,
    ),
    "a class of the script": (
        "class Model:\n    def __init__(self, lr): self.lr = lr\nMODEL = Model(3.0)",
        "MODEL",
        GUARD.replace(".load()", ".load().lr"),
    ),
    "a pool": (
        "import multiprocessing\ndef one(x): return float(x)",
        "sum(multiprocessing.get_context('spawn').Pool(1).map(one, [1, 2]))",
        GUARD,
    ),
    "an exported notebook": (
        "# In[1]:\ntry:\n    get_ipython().run_line_magic('matplotlib', 'inline')\nexcept NameError:\n    pass",
        "3.0",
        GUARD,
    ),
    "no guard": ("", "3.0", "\nrun = pipe()\nprint('got', run.steps['train'].output.load())\n"),
}


def write(project: Any, head: str, value: str, end: str, name: str = "train.py") -> None:
    project.write({name: head + STEPS.format(value=value) + end, "lib/beside.py": "LR = 3.0\n", "lib/lr.txt": "3.0"})


LONG = (
    *("argparse under the guard, in a global", "sys.argv in the step", "optparse", "a dataclass of arguments"),
    *("click that is called without a guard", "sys.exit(main()) without a guard", "an exported notebook"),
)
"""Kinds of which another one stays in the short form that is read in the same way."""


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long if kind in LONG else ()) for kind in RUNS])
def test_a_script_runs_as_it_is(kind: str, project: Any) -> None:
    write(project, *RUNS[kind])
    reads = any(word in "".join(RUNS[kind]) for word in ("argv", "argparse", "optparse"))
    words = ["--lr", "3"] if reads else []
    ran = project.command([sys.executable, "train.py", *words])
    assert "got 3.0" in ran.stdout, ran.stdout + ran.stderr
    if kind not in ("optparse", "getopt"):  # which know no other word
        assert "✓ pipe" in project.stoker("run", "train.py", "--no-cache", *words).stderr


@pytest.mark.parametrize("form", ["module", "link", "stdin", "-c", "a name", "zip"])
def test_a_script_runs_however_it_is_started(form: str, project: Any) -> None:
    head, value, end = RUNS["argparse at module level"]
    if form == "module":
        write(project, "from .beside import LR\n" + head, "args.lr + 0 * LR", end, "pkg/train.py")
        project.write({"pkg/__init__.py": "", "pkg/beside.py": "LR = 3.0\n"})
        command = ["-m", "pkg.train"]
    else:
        name = "lüge und wahrheit-1.py" if form == "a name" else "train.py"
        write(project, head, value, end, name)
        command = [name]
    text = head + STEPS.format(value=value) + end
    if form == "link":
        (project.folder / "link.py").symlink_to("train.py")
        command = ["link.py"]
    elif form == "-c":
        command = ["-c", text]
    elif form == "stdin":
        command = ["-"]
    elif form == "zip":
        import zipapp

        write(project, head, value, "", "app/steps.py")
        project.write({"app/__main__.py": "from steps import pipe\n" + end})
        zipapp.create_archive(project.folder / "app", project.folder / "app.pyz")
        command = ["app.pyz"]
    ran = project.command([sys.executable, *command, "--lr", "3"], input=text if form == "stdin" else None)
    assert "got 3.0" in ran.stdout, ran.stdout + ran.stderr


def test_what_a_step_reads_of_the_command_line_counts(project: Any) -> None:
    head, value, _ = RUNS["argparse at module level"]
    end = GUARD.replace("print(", "run = pipe(); print(run.steps['train'].status); print(").replace(
        "pipe().steps", "run.steps"
    )
    write(project, head, value, end)

    def status(*words: str) -> str:
        return str(project.command([sys.executable, "train.py", *words]).stdout.split()[0])

    assert status("--lr", "3") == "succeeded"
    assert status("--lr", "3", "--title", "other") == "cached"
    assert status("--lr", "4") == "succeeded"
    for whole in ("repr(args) and args.lr", "parser.parse_args().lr", "float(__import__('sys').argv[2])"):
        write(project, head, whole, end)
        assert status("--lr", "3") == "succeeded"
        assert status("--lr", "3", "--title", "other") == "succeeded", whole
        assert status("--lr", "3", "--title", "other") == "cached", whole


def test_a_script_that_leaves_is_told_by_line(project: Any) -> None:
    head = "import sys\nif not getattr(sys, 'first_time', False) and __name__ != '__main__':\n    sys.exit(2)\n"
    write(project, head, "3.0", GUARD)
    failed = project.command([sys.executable, "train.py"], code=1)
    assert "ends the process when a worker imports it" in failed.stderr, failed.stderr
    assert 'move line 3 below `if __name__ == "__main__":`' in failed.stderr


def test_an_option_of_both_is_refused(project: Any) -> None:
    head, value, end = RUNS["argparse at module level"]
    write(project, head + "\n", value, end)
    text = (project.folder / "train.py").read_text().replace("--title", "--name")
    (project.folder / "train.py").write_text(text)
    refused = project.stoker("run", "train.py", "--lr", "3", "--name", "mine", code=2).stderr
    assert "--name is an option of every run, and train.py has one of that name" in refused
    project.stoker("run", "--name", "ours", "train.py", "--", "--lr", "3", "--name", "mine")


def test_a_secret_on_the_command_line_is_masked_where_it_is_shown(project: Any) -> None:
    head, _, end = RUNS["argparse at module level"]
    write(
        project,
        head.replace("args = parser.parse_args()", "") + 'parser.add_argument("--api-key")\nargs = parser.parse_args()',
        "args.api_key is not None and 3.0",
        end,
    )
    words = ["train.py", "--with", "docker", "--", "--lr", "3", "--api-key", "abcdefgh12345678"]
    for option in ("--json", "--render"):
        shown = project.stoker("plan", option, *words, code=None)
        assert "abcdefgh" not in shown.stdout + shown.stderr
        assert "--lr" in shown.stdout and "***" in shown.stdout
