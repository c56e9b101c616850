"""Without an optional package everything else works, and where it is needed the message names the extra."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTIONAL = (
    "IPython",
    "jinja2",
    "libcst",
    "matplotlib",
    "numpy",
    "pandas",
    "polars",
    "psycopg",
    "pyarrow",
    "scipy",
    "sklearn",
    "starlette",
    "torch",
    "uvicorn",
)
FOR_DEVELOPERS = frozenset({"bench", "demo", "docs", "test"})
"""Extras that bring what the repository's own commands need, and that no message has to name."""

ABSENT = """
import os
import sys

class Absent:
    names = frozenset(os.environ.get("ABSENT_PACKAGES", "").split())

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""A `sitecustomize`, so that worker processes miss the packages too."""

PIPELINE = """
from stoker import pipeline, step

@step
def number() -> int:
    return 20

@step
def double(value: int) -> dict:
    return {"value": value * 2, "text": "forty", "list": [1.5, None, True]}

@pipeline
def numbers():
    double(number())

if __name__ == "__main__":
    run = numbers()
    print(run.status, run.steps["double"].outputs["output"].load()["value"])
"""


def without(project: Any, packages: tuple[str, ...]) -> dict[str, str]:
    """The environment of a process that has none of some packages."""
    project.write({"absent/sitecustomize.py": ABSENT})
    folders = [str(project.folder / "absent"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "ABSENT_PACKAGES": " ".join(packages)}


NAMES = """
import os
import sys

import sitecustomize

absent = sitecustomize.sys.meta_path[0]
for package in os.environ["ABSENT_PACKAGES"].split():
    type(absent).names = {package}
    for name in [name for name in sys.modules if name.partition(".")[0] in ("stoker", package)]:
        del sys.modules[name]
    import stoker, stoker.config
    for module in (stoker, stoker.config):
        for name in module.__all__:
            getattr(module, name)
    print(package)
"""


def test_import_works_without_each(project: Any) -> None:
    done = project.write({"names.py": NAMES}).run("names.py", env=without(project, OPTIONAL))
    assert done.stdout.split() == list(OPTIONAL)


def test_a_pipeline_runs_without_any(project: Any) -> None:
    env = without(project, OPTIONAL)
    finished = project.write({"counting.py": PIPELINE.replace("numbers", "some_numbers")}).run("counting.py", env=env)
    assert "succeeded 40" in finished.stdout


def test_the_measure(project: Any) -> None:
    env = without(project, ("sqlite3",))
    finished = project.write({"look.py": "import json\nimport sqlite3\n"}).run("look.py", env=env, code=1)
    assert "No module named 'sqlite3'" in finished.stderr


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.core import plugins
    from stoker.core.errors import MissingPackage

    (tmp_path / "needs_a_package.py").write_text("import package_that_nobody_has\nthing = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackage, match=r"package_that_nobody_has'\n.*pip install 'stoker\[slurm\]'"):
        plugins.resolve("needs_a_package:thing", extra="slurm")
    with pytest.raises(ModuleNotFoundError):
        plugins.resolve("stoker.no_such_module:thing", extra="slurm")


def test_every_named_extra_exists(repository: Path) -> None:
    from stoker.backends.registry import BACKENDS
    from stoker.launchers.registry import LAUNCHERS

    extras = _extras(repository)
    tables = [LAUNCHERS.builtin, BACKENDS.builtin]
    named = {extra for table in tables for _, extra in table.values() if extra}
    requirements = [launcher.requirement for _, launcher in LAUNCHERS.parts() if launcher.requirement]
    named |= {requirement.removeprefix("stoker[").removesuffix("]") for requirement in requirements}
    assert named <= extras, f"no such extra in pyproject.toml: {named - extras}"


def test_every_extra_is_named_in_a_message(repository: Path) -> None:
    """An extra that no error message offers will never be found by the person who needs it."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "src").rglob("*.py"))
    silent = [
        extra
        for extra in sorted(_extras(repository) - FOR_DEVELOPERS)
        if f"stoker[{extra}]" not in sources and f'"{extra}")' not in sources and f'extra="{extra}"' not in sources
    ]
    assert not silent, f"no message names these extras: {silent}"


def _extras(repository: Path) -> set[str]:
    document = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    return set(document["project"]["optional-dependencies"])
