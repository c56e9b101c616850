"""The documentation can be built as a site: every page is found from its list, and every link leads somewhere."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest


@pytest.fixture(scope="module")
def site(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    program = [sys.executable, str(repository / "docs" / "site" / "build.py"), "--output", str(folder)]
    built = subprocess.run(program, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_link_leads_somewhere(site: Path) -> None:
    places: dict[Path, set[str]] = {}
    dead = []
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # whose links begin at the server's root
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in re.findall(r'(?:href|src)="([^"]+)"', text):
            link = urlsplit(html.unescape(found))
            if link.scheme or link.netloc:
                continue
            target = (page.parent / unquote(link.path)).resolve() if link.path else page
            if not target.exists():
                dead.append(f"{page.relative_to(site)}: {found}")
            elif link.fragment and target.suffix == ".html":
                if target not in places:
                    places[target] = set(re.findall(r'\bid="?([^"\s>]+)', target.read_text(encoding="utf-8")))
                if unquote(link.fragment) not in places[target]:
                    dead.append(f"{page.relative_to(site)}: {found}")
    assert not dead, "\n".join(dead)
    assert len(pages) > 100


def test_it_says_what_the_code_says(site: Path) -> None:
    """The pages that are made of the code have a command's option, a docstring and a cause's advice."""
    reference = {page.stem: page.read_text(encoding="utf-8") for page in (site / "reference").iterdir()}
    assert "--explain" in reference["commands"]
    assert "Costs a few" in reference["api"]  # of log_metrics
    assert 'id="gpu-oom"' in reference["causes"]


def test_every_page_is_in_the_list(repository: Path) -> None:
    """A page of docs/ stands in docs/README.md, or in the list of its own folder."""
    docs = repository / "docs"
    listed = {
        (folder.parent / target).resolve()
        for folder in (docs / "README.md", docs / "dev" / "decisions" / "README.md", docs / "dev" / "adding.md")
        for target in re.findall(r"\]\(([^)#\s]+)", folder.read_text(encoding="utf-8"))
    }
    missing = [str(page.relative_to(docs)) for page in docs.rglob("*.md") if page.resolve() not in listed]
    assert missing == ["README.md"]
