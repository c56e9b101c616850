"""A backend of another distribution, added as docs/dev/adding/backend.md says and used in every way there is."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.backends import test_every_field as every_field
from tests.backends.fields import RANKS, ROWS, Always, Row
from tests.backends.test_every_field import inventory, tell  # noqa: F401 fixtures

from stoker.backends.base.backend import Backend
from stoker.backends.registry import BACKENDS
from stoker.core.plugins import entry_points

BLOCK = re.compile(r"^```(?:python|toml)\n# ([\w/]+\.(?:py|toml))\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = os.nice(0)
"""What processes of this machine begin with: `nice` adds to it."""
TYPO = "NicelySettings has no field 'nicenes', did you mean 'niceness'"


@pytest.fixture
def site(tmp_path: Path, repository: Path) -> Path:
    """A folder with the page's distribution in it, as an installer leaves it."""
    page = (repository / "docs" / "dev" / "adding" / "backend.md").read_text(encoding="utf-8")
    entry = re.search(r'^\[project\.entry-points\."(.+)"\]\n(\w+) = "(.+)"$', page, re.MULTILINE)
    assert entry is not None
    folder = tmp_path / "site"
    about = folder / "nicely-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nicely\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{entry[1]}]\n{entry[2]} = {entry[3]}\n")
    (folder / "nicely").mkdir()
    for name, text in BLOCK.findall(page):
        (folder if name.startswith("nicely/") else tmp_path).joinpath(name).write_text(text)
    return folder


@pytest.fixture
def installed(project: Any, tmp_path: Path, site: Path) -> Any:
    """A project with the page's scripts and stack, and the distribution on its path."""
    files = {name: (tmp_path / name).read_text() for name in ("train.py", "flow.py", "stoker.toml")}
    project.write(files)
    project.env = {"PYTHONPATH": str(site)}
    return project


@pytest.fixture
def nicely(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """The backend, with its distribution known to this process."""
    monkeypatch.syspath_prepend(site)
    entry_points.cache_clear()
    yield BACKENDS.load("nicely")
    entry_points.cache_clear()
    for name in ("nicely", "nicely.backend"):
        sys.modules.pop(name, None)


def output(project: Any, step: str) -> Any:
    return project.client().runs()[0].steps[step].output.load()


def nice(number: int) -> int:
    return min(OWN + number, 19)


def test_steps_run_there_and_the_command_line_changes_one(installed: Any) -> None:
    setting = "steps.prepare.orchestrator.nicely.niceness=7"
    ran = installed.stoker("run", "train.py", "--set", setting, env=installed.env)
    assert "trains" in ran.stderr
    assert output(installed, "prepare") == nice(7)
    assert output(installed, "train") == f"{nice(7)} {nice(12)}"
    installed.stoker("gc", env=installed.env)  # it has nothing to do for it


def test_what_is_sent_is_shown(installed: Any) -> None:
    shown = installed.stoker("plan", "train.py", "--render", env=installed.env).stdout
    assert '"stoker.worker.boot"' in shown and '"12"' in shown


def test_a_request_that_it_cannot_honour_is_refused(installed: Any) -> None:
    refused = installed.stoker("plan", "train.py", "--set", "resources.gpu_count=1", env=installed.env, code=3)
    assert "NICE01" in refused.stdout + refused.stderr


def test_flows_have_its_decorator(installed: Any) -> None:
    installed.run("flow.py", "run", "--with", "nicely:niceness=3", env=installed.env)
    lines = [line.text for line in installed.client().runs()[0].steps["end"].logs()]
    assert lines == [f"flow {nice(9)} {nice(3)}"]


@pytest.mark.parametrize("way", ["decorator", "stoker.toml", "--set", "flow", "--with"])
def test_a_mistyped_setting_is_refused_with_a_suggestion(installed: Any, way: str) -> None:
    argv, expected = ["train.py"], TYPO
    if way == "decorator":
        installed.write({"train.py": (installed.folder / "train.py").read_text().replace('"niceness"', '"nicenes"')})
    elif way == "stoker.toml":
        text = (installed.folder / "stoker.toml").read_text()
        installed.write({"stoker.toml": text.replace("niceness", "nicenes")})
    elif way == "--set":
        argv += ["--set", "orchestrator.nicely.nicenes=3"]
    elif way == "flow":
        installed.write({"flow.py": (installed.folder / "flow.py").read_text().replace("niceness=9", "nicenes=9")})
        argv, expected = ["flow.py", "check"], "@nicely takes no 'nicenes', did you mean 'niceness'"
    else:
        argv = ["flow.py", "check", "--with", "nicely:nicenes=3"]
        expected = "@nicely takes no 'nicenes', did you mean 'niceness'"
    finished = installed.run(*argv, env=installed.env, code=None)
    assert finished.returncode and expected in finished.stderr


def test_doctor_asks_it(installed: Any) -> None:
    document = json.loads(installed.stoker("doctor", "--json", env=installed.env, code=None).stdout)
    checks = {one["name"]: one for one in document["checks"]}
    assert checks["nicely"]["found"].endswith("nice")


def test_the_table_of_backends_can_have_it(
    nicely: Backend,
    tell: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = Row(
        title=nicely.title,
        resources={},
        step={
            "timeout": "the engine ends the step",
            "environment": "set for the step",
            "launch": RANKS,
            "isolation": Always("each step is a process of `stoker.worker.boot`"),
        },
        own={"niceness": ("how far others go first", 3)},
    )
    monkeypatch.setitem(ROWS, nicely.name, row)  # type: ignore[arg-type]
    assert every_field.cell(tell, nicely.name, "settings", "niceness") == "honoured: how far others go first"
    assert every_field.cell(tell, nicely.name, "resources", "gpu_count").startswith("refused [NICE01]")
