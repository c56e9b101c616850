"""Every finding's code has a section in docs/findings.md, and every section a code that something still says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CODE = re.compile(r"\bSTK\d{3}\b")
SECTION = re.compile(r"^## (STK\d{3})$", re.MULTILINE)


def said(repository: Path) -> set[str]:
    """Codes in the source, where they stand as texts of their own."""
    found: set[str] = set()
    for path in (repository / "src").rglob("*.py"):
        found.update(re.findall(r"""["'](STK\d{3})["']""", path.read_text(encoding="utf-8")))
    return found


@pytest.fixture
def page(repository: Path) -> str:
    return (repository / "docs" / "findings.md").read_text(encoding="utf-8")


def test_every_code_is_explained_once(repository: Path, page: str) -> None:
    sections = SECTION.findall(page)
    assert said(repository), "no code was found in the source"
    assert sections == sorted(set(sections)), "in order, and each once"
    assert set(sections) == said(repository)


def test_every_section_says_what_it_means_and_how_to_mend_it(page: str) -> None:
    for code, text in zip(SECTION.findall(page), SECTION.split(page)[2::2]):
        assert re.match(r"\s*\*\*(error|warning|translated|info): ", text), (
            f"{code} does not begin with its level in bold"
        )
        assert len(text.split()) >= 15, f"{code} says too little"


def test_pages_name_no_code_that_is_not_there(repository: Path) -> None:
    pages = [repository / "README.md", *(repository / "docs").rglob("*.md")]
    codes = said(repository)
    unknown = {
        f"{path.name}: {code}"
        for path in pages
        for code in CODE.findall(path.read_text(encoding="utf-8"))
        if code not in codes
    }
    assert not unknown
