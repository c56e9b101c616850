"""Projects of ZenML's: unchanged, and as `stoker migrate PROJECT/` leaves them."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest
from tests.conftest import Project
from tests.integrations.zenml_idioms import IDIOMS, files


def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("zenml")
    return Project(folder / "project", folder / "home").write(files())


def results(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.folder / "results.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Any:
    project = made(tmp_path_factory)
    project.command([sys.executable, "-m", "stoker.integrations.zenml", "run.py", *IDIOMS], timeout=900)
    yield results(project)
    shutil.rmtree(project.folder.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the migration says, and what comes of the project then."""
    project = made(tmp_path_factory)
    document = json.loads(project.stoker("migrate", ".", "--write", "--json", code=1, timeout=900).stdout)
    project.run("run.py", *IDIOMS, timeout=900)
    again = json.loads(project.stoker("migrate", ".", "--no-plan", "--json", code=1).stdout)
    yield document, results(project), again
    shutil.rmtree(project.folder.parent, ignore_errors=True)


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_runs_unchanged(name: str, unchanged: dict[str, Any]) -> None:
    assert unchanged[name] == IDIOMS[name][1]


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_migrated_plans_and_runs(name: str, migrated: Any) -> None:
    document, found, again = migrated
    assert found[name] == IDIOMS[name][1]
    plans = {one["file"]: one for one in document["plans"]}
    assert plans[f"{name}.py"]["plans"], plans[f"{name}.py"]["why"]
    (file,) = (one for one in document["files"] if one["file"] == f"{name}.py")
    left = [note["name"] for note in file["notes"] if note["level"] == "by hand"]
    assert file["written"] and left == (["MLFlowModelDeployer"] if name == "types_that_are_not_here" else [])
    assert not [one for one in again["files"] if one["changed"]]
