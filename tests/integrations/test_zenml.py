"""Projects of ZenML's: unchanged, and as `stoker migrate PROJECT/` leaves them.

`zenml_project.txt` is a project of the ways in which people write pipelines: small modules, each with what its
`result()` returns when it has run, and the files that they need.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Project

from stoker.migrate.project import migrate_project

_TEXT = Path(__file__).with_name("zenml_project.txt").read_text(encoding="utf-8")
_PARTS = re.findall(r"^==== (\w+) (\S*) ?(.*)\n((?:(?!====).*\n)*)", _TEXT, re.MULTILINE)
IDIOMS = {name: json.loads(result) for kind, name, result, _ in _PARTS if kind == "idiom"}
"""Name → what its `result()` returns."""


def files() -> dict[str, str]:
    """The whole project, file by file."""
    head = next(text for kind, *_, text in _PARTS if kind == "head")
    modules = {f"{name}.py": head + text for kind, name, _, text in _PARTS if kind == "idiom"}
    return {**modules, **{name: text for kind, name, _, text in _PARTS if kind == "file"}}


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
def migrated(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Any:
    """What the migration says, and what comes of the project then.

    What runs has been planned: a process for the plan of each is for the long form.
    """
    project = made(tmp_path_factory)
    plan = () if long_form else ("--no-plan",)
    document = json.loads(project.stoker("migrate", ".", "--write", "--json", *plan, code=1, timeout=900).stdout)
    project.run("run.py", *IDIOMS, timeout=900)
    again = migrate_project({path: (project.folder / path).read_bytes() for path in files()})
    yield document, results(project), again
    shutil.rmtree(project.folder.parent, ignore_errors=True)


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_runs_unchanged(name: str, unchanged: dict[str, Any]) -> None:
    assert unchanged[name] == IDIOMS[name]


@pytest.mark.parametrize("name", IDIOMS)
def test_an_idiom_is_migrated_plans_and_runs(name: str, migrated: Any, long_form: bool) -> None:
    document, found, again = migrated
    assert found[name] == IDIOMS[name]
    if long_form:
        plans = {one["file"]: one for one in document["plans"]}
        assert plans[f"{name}.py"]["plans"], plans[f"{name}.py"]["why"]
    (file,) = (one for one in document["files"] if one["file"] == f"{name}.py")
    left = [note["name"] for note in file["notes"] if note["level"] == "by hand"]
    assert file["written"] and left == (["MLFlowModelDeployer"] if name == "types_that_are_not_here" else [])
    assert not [one.path for one in again if one.changed]


def test_a_client_in_a_step_reads_the_store_of_its_run(tmp_path: Any) -> None:
    project = Project(tmp_path / "project", tmp_path / "home")
    project.write(
        {
            "stoker.toml": """
                [stacks.other]
                database = "sqlite:///other/stoker.db"
                artifact_store = "other/artifacts"
            """,
            "reads.py": """
                from typing import Annotated
                from zenml import pipeline, step
                from zenml.client import Client

                @step
                def make() -> Annotated[int, "kept"]:
                    return 5

                @step(enable_cache=False)
                def read(after: int) -> str:
                    client = Client()
                    version = client.get_artifact_version("kept")
                    text = f"{client.active_stack.name} {version.load()} of {version.version}"
                    print(text)
                    return text

                @pipeline
                def p():
                    read(make())
            """,
        }
    )
    for stack, number in (("local", 1), ("local", 2), ("other", 1)):
        said = project.stoker("run", "reads.py:p", "--stack", stack, "--no-cache")
        assert f"{stack} 5 of {number}" in said.stdout + said.stderr
