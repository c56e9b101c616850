"""A project whose runs all tests of a module look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Project


@pytest.fixture(scope="module")
def module_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """An empty `Project` for all tests of a module, with a store of its own."""
    folder = tmp_path_factory.mktemp("flows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_LEASES", str(folder / "leases"))
        yield Project(folder / "project", folder / "home")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> Callable[[Project], Project]:
    """Has this process, too, look into a project's store."""

    def enter(project: Project) -> Project:
        monkeypatch.setenv("STOKER_HOME", str(project.home))
        return project

    return enter
