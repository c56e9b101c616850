"""What users import is listed, importable, and described, in its docstring and on a page."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest
from tests.gates import signatures

import stoker

MODULES = ("stoker", "stoker.config", "stoker.flow")


def public(module: str) -> list[str]:
    """`__all__` of a module; skips where the module is not there yet."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not there yet")
    return list(importlib.import_module(module).__all__)


@pytest.mark.parametrize("module", MODULES)
def test_listed_once_and_importable(module: str) -> None:
    names = public(module)
    assert names
    assert len(names) == len(set(names))
    loaded = importlib.import_module(module)
    assert set(names) <= set(dir(loaded)), "__dir__ must name them, for completion"
    for name in names:
        assert getattr(loaded, name) is not None, name


@pytest.mark.parametrize("module", MODULES)
def test_nothing_public_is_missing(module: str) -> None:
    names = public(module)
    loaded = importlib.import_module(module)
    unlisted = [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and inspect.isclass(value) and value.__module__ == module and name not in names
    ]
    assert not unlisted, f"list them in {module}.__all__ or begin their names with _"


@pytest.mark.parametrize("module", MODULES)
def test_unknown_names_are_attribute_errors(module: str) -> None:
    public(module)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(module).no_such_name


@pytest.mark.parametrize("module", MODULES)
def test_documented(module: str, repository: Path) -> None:
    names = public(module)
    loaded = importlib.import_module(module)
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    without_docstring = [
        name for name in names if callable(getattr(loaded, name)) and not getattr(loaded, name).__doc__
    ]
    without_page = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)]
    assert not without_docstring
    assert not without_page, "no page of docs/ nor the README mentions them"


def test_the_version_is_that_of_the_distribution(repository: Path) -> None:
    assert f'version = "{stoker.__version__}"' in (repository / "pyproject.toml").read_text(encoding="utf-8")


def test_signatures_are_as_listed() -> None:
    """A change of what users call is seen: CONTRIBUTING.md says what must go with it."""
    now, listed = signatures.listed().splitlines(), signatures.FILE.read_text(encoding="utf-8").splitlines()
    words = "`python -m tests.gates.signatures` lists them anew; what was taken away is deprecated first"
    assert sorted(set(listed) ^ set(now)) == [], words
