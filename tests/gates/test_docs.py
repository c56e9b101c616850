"""Every example and every code block of the documentation works.

A page's ```python blocks are scripts in one folder, run in order in processes of their own. A block whose first line is
a comment with a file name (`# train.py`) is kept under that name, so that later blocks can import it. A block after
`<!-- no-run: why -->` is only compiled. ```toml, ```yaml and ```json blocks must parse.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
CLUSTERS = ("ray_tune.py",)
"""Examples that need a Ray cluster: tests/ray/test_digits.py runs them."""
EXAMPLES = [path for path in sorted((REPOSITORY / "examples").glob("*.py")) if path.name not in CLUSTERS]
COMMANDS = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
"""PATH with `stoker` on it, as in an environment that is activated."""
DEVICES = {"four_gpus.py": ("--simulate", "4xH100-80GB")}
"""Examples that are for machines with accelerators, and what their docstring says for all others."""
CONTAINERS = {"container_digits.py": ("--simulate", "1xH100", "--set", "docker=null")}
"""Examples that are for containers, and what their docstring says for machines without an engine."""
FLOWS = {"digits_flow.py": ("run",)}
"""Examples that are flows, and what has them run."""
PARSERS = {"toml": tomllib.loads, "yaml": yaml.safe_load, "json": json.loads}

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL)
NO_RUN = re.compile(r"<!-- *no-run(?P<reason>[^>]*)-->\s*\Z")
NEEDS = re.compile(r"^# needs: (.+)$", re.MULTILINE)
FILE_NAME = re.compile(r"\A# (?P<name>[\w/]+\.py)\s*$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its language, text, the page's line on which its text begins, and why it is not run."""

    language: str
    text: str
    line: int
    no_run: str | None


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page's text, in order."""
    found = []
    for match in FENCE.finditer(page):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["text"].splitlines(keepends=True)]
        no_run = NO_RUN.search(page, 0, match.start())
        reason = no_run["reason"].lstrip(": ").strip() if no_run else None
        found.append(Block(match["language"], "".join(lines), page.count("\n", 0, match.start()) + 2, reason))
    return found


def page_name(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_blocks(page: Path, project: Any) -> None:
    number = 0
    for block in blocks(page.read_text(encoding="utf-8")):
        place = f"{page_name(page)}:{block.line}"
        if block.language in PARSERS:
            try:
                PARSERS[block.language](block.text)
            except ValueError as error:
                pytest.fail(f"{place}: {error}")
        if block.language != "python":
            continue
        if block.no_run is not None:
            assert block.no_run, f"{place}: say why it is not run: <!-- no-run: why -->"
            compile(block.text, place, "exec")
            continue
        number += 1
        named = FILE_NAME.match(block.text)
        script = named["name"] if named else f"block_{number}.py"
        project.write({script: block.text})
        finished = project.run(script, code=None, env={"PATH": COMMANDS})
        assert finished.returncode == 0, f"{place}:\n{finished.stdout}\n{finished.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=page_name)
def test_examples(example: Path, project: Any) -> None:
    """A line `# needs: demo` near an example's top names extras or modules without which it cannot run."""
    text = example.read_text(encoding="utf-8")
    document = ast.parse(text)
    assert ast.get_docstring(document), "an example says in its docstring what it shows"
    missing = [name for line in NEEDS.findall(text) for name in missing_of(line.replace(",", " ").split())]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    project.run(str(example), *{**DEVICES, **CONTAINERS, **FLOWS}.get(example.name, ()), timeout=240.0)


@pytest.mark.parametrize("name", DEVICES)
def test_examples_for_accelerators_are_refused_without(name: str, project: Any) -> None:
    example = REPOSITORY / "examples" / name
    assert " ".join(DEVICES[name]) in (ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or "")
    # Hidden, so that a machine that has some is like one that has none.
    hidden = {"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    refused = project.run(str(example), code=3, env=hidden).stderr
    for words in ("STK103", "--stack NAME", "--simulate 2x", ".accelerator_policy=prefer"):
        assert words in refused, refused
    assert not project.client().runs()


@pytest.mark.parametrize("name", CONTAINERS)
def test_examples_for_containers_say_how_to_run_without(name: str, project: Any) -> None:
    example = REPOSITORY / "examples" / name
    assert " ".join(CONTAINERS[name]) in (ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))) or "")
    refused = project.run(str(example), "--simulate", "1xH100", code=3).stderr
    for words in ("STK110", "docker=null", "--stack"):
        assert words in refused, refused
    assert not project.client().runs()


def missing_of(names: list[str]) -> list[str]:
    """The modules, and the distributions of extras, that are not installed."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    missing = []
    for name in names:
        for requirement in project["optional-dependencies"].get(name, ()):
            distribution = re.split(r"[^\w.-]", requirement)[0]
            try:
                metadata.version(distribution)
            except metadata.PackageNotFoundError:
                missing.append(distribution)
        if name not in project["optional-dependencies"] and importlib.util.find_spec(name) is None:
            missing.append(name)
    return missing


def test_examples_are_found() -> None:
    assert EXAMPLES


def test_links_lead_somewhere() -> None:
    """Relative links between pages name files that exist."""
    dead = [
        f"{page_name(page)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", page.read_text(encoding="utf-8")))
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists()
    ]
    assert not dead, "\n".join(dead)


def test_the_measure() -> None:
    page = (
        "a\n```python\nx = 1\n```\n\n"
        "<!-- no-run: needs a cluster -->\n```python\ny\n```\n"
        "- z\n  ```toml\n  a = 1\n  ```\n"
    )
    assert blocks(page) == [
        Block("python", "x = 1\n", 3, None),
        Block("python", "y\n", 8, "needs a cluster"),
        Block("toml", "a = 1\n", 12, None),
    ]
