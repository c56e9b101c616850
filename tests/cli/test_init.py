"""`stoker init`, and the pipeline that a run without a file finds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import pytest

from stoker import stacks
from stoker.cli import init
from stoker.cli.main import invoke
from stoker.settings.options import settings_class

KEPT = "mine\n"
LAST = {"training": ("evaluate", 0), "data": ("summarize", {"rows": 8, "sum": 16}), "flow": ("end", None)}
"""Kind → its last step, and what that makes by default, where it is one value."""


@pytest.mark.parametrize("kind", init.KINDS)
def test_a_project_runs_and_so_does_its_test(kind: str, project: Any) -> None:
    project.write({"README.md": KEPT, ".gitignore": "data/\n__pycache__/"})
    made = project.stoker("init", "--kind", kind)
    assert made.stdout.splitlines()[0] == "next:" and "README.md: kept as it is" in made.stderr
    assert (project.folder / "README.md").read_text() == KEPT
    ignored = (project.folder / ".gitignore").read_text().splitlines()
    assert ignored == ["data/", "__pycache__/", ".stoker/", ".pytest_cache/"]
    for line in made.stdout.splitlines()[1:]:
        program, *words = line.split()
        project.command([sys.executable, *words]) if program == "python" else project.stoker(*words)
    project.stoker("run", "--quiet")
    run = project.client().run("latest")
    name, value = LAST[kind]
    assert run.status == "succeeded" and name in run.steps
    if kind == "data":
        assert run.steps[name].load() == value
    again = project.stoker("init", code=2)
    assert "there is a project already: pipeline.py, test_pipeline.py, stoker.toml" in again.stderr


@pytest.mark.parametrize("where", init.places())
def test_each_place_is_a_stack_that_loads(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STOKER_STACK", raising=False)
    (tmp_path / stacks.FILE).write_text(init.stack_text(where), encoding="utf-8")
    stack = stacks.load()
    assert stack.name == stack.orchestrator.flavor == where
    settings_class(where)(**stack.orchestrator.options)


def test_two_questions_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["data", "docker"])
    asked = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda words, **more: asked.append(words) or next(answers))
    assert invoke(["init", str(tmp_path / "made")]) == 0
    assert asked == ["What", "Where"]
    assert "cleaning" in (tmp_path / "made" / "pipeline.py").read_text()
    assert 'flavor = "docker"' in (tmp_path / "made" / "stoker.toml").read_text()


PIPELINE = (
    "from stoker import pipeline, step\n@step\ndef a() -> int:\n    return 1\n@pipeline\ndef {name}():\n    a()\n"
)


def test_the_pipeline_is_found(project: Any) -> None:
    files = {"one.py": PIPELINE.format(name="one"), "use.py": "from one import one\n", "broken.py": "def (\n"}
    project.write(files)
    assert "one: 1 step" in project.stoker("plan").stdout
    project.write({"two.py": PIPELINE.format(name="two")})
    several = project.stoker("run", "--quiet", code=2).stderr
    assert "several have a pipeline: one.py, two.py" in several and "stoker run one.py" in several
    project.write({"stoker.toml": '[run]\npipeline = "two.py:two"\n', "below/a.txt": ""})
    assert "two: 1 step" in project.stoker("plan").stdout
    below = project.command(["sh", "-c", f"cd below && {sys.executable} -m stoker plan"])
    assert "two: 1 step" in below.stdout
    project.write({"stoker.toml": '[run]\npipeline = "three.py"\n'})
    assert "stoker.toml:2" in project.stoker("plan", code=2).stderr
    project.write({"stoker.toml": '[run]\npipelin = "one.py"\n'})
    assert "did you mean 'pipeline'" in project.stoker("plan", code=2).stderr
