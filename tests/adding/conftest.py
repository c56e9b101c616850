"""A page of docs/dev/adding as a distribution and a project: its modules installed, its scripts in a folder."""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.engine.conftest import Lab

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def install(page: str, site: Path) -> dict[str, str]:
    """Lay the page's distribution out as an installer does; the scripts that the distribution does not have."""
    [text] = TOML.findall(page)
    project = tomllib.loads(text)["project"]
    about = site / f"{project['name']}-{project['version']}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8"
    )
    entries = configparser.ConfigParser(delimiters=("=",))
    entries.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
    entries.read_dict(project["entry-points"])
    with (about / "entry_points.txt").open("w", encoding="utf-8") as file:
        entries.write(file)
    scripts = {}
    for name, code in BLOCK.findall(page):
        if name == f"{project['name']}.py":
            (site / name).write_text(code, encoding="utf-8")
        else:
            scripts[name] = code
    return scripts


@pytest.fixture
def follow(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Lab]]:
    """Does what a page says: `follow("rule")` is a project with the page's scripts, its distribution installed."""
    labs: list[Lab] = []

    def lab(name: str) -> Lab:
        page = (repository / "docs" / "dev" / "adding" / f"{name}.md").read_text(encoding="utf-8")
        scripts = install(page, tmp_path / "site")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
        labs.append(Lab(tmp_path))
        for script, code in scripts.items():
            labs[-1].write(script, code)
        return labs[-1]

    yield lab
    for one in labs:
        one.close()
