"""The JSON schema of `stoker.toml`: current, complete, and no stricter than what reads the file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any, Iterator

import jsonschema
import pytest

from stoker.cli import config, init
from stoker.cli.main import invoke
from stoker.core.settings import COMPONENTS
from stoker.settings.options import OPTIONS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DOCS = Path(__file__).parents[2] / "docs"
GOLDEN = DOCS / "stoker.schema.json"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return config.schema()


def test_the_committed_one_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["config", "schema"]) == 0
    text = capsys.readouterr().out
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "UPDATE_GOLDEN=1 writes it"


def test_the_options_are_those_of_the_page(schema: dict[str, Any]) -> None:
    page = (DOCS / "guide" / "settings.md").read_text(encoding="utf-8")
    section = page.partition("## Every option")[2].partition("These can only be written in Python")[0]
    named = set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    assert named | {"step_operator"} == set(schema["definitions"]["settings"]["properties"])
    assert named | {"step_operator"} == {*OPTIONS, *COMPONENTS}


def test_every_key_says_what_it_means(schema: dict[str, Any]) -> None:
    bare = [
        f"{name}.{key}"
        for name, one in schema["definitions"].items()
        for key, value in one.get("properties", {}).items()
        if not value.get("description")
    ]
    assert bare == []


def stack_files() -> Iterator[tuple[str, str]]:
    """Whole files of stacks on the pages, and those that a new project gets."""
    for page in sorted(DOCS.rglob("*.md")):
        for number, text in enumerate(re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)):
            if "flavor" in text and "[stacks." in text and "[[" not in text:
                yield f"{page.stem}-{number}", text
    for where in init.places():
        yield f"init-{where}", init.stack_text(where)


def test_what_the_pages_show_is_valid_and_a_mistake_is_not(schema: dict[str, Any]) -> None:
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    for name, text in stack_files():
        assert not [f"{name}: {error.message}" for error in validator.iter_errors(tomllib.loads(text))]
    for text in (
        "stak = 'a'",
        "[stacks.a]\norchestrater = 'local'",
        "[stacks.a.orchestrator]\nflavor = 'slurm'\npartitoin = 'gpu'",
        "[stacks.a.orchestrator]\nflavor = 'slurm'\nexclusive = [1]",
        "[stacks.a.settings]\nisolation = 'cold'",
        "[stacks.a.settings.resources]\ngpus = 1",
        "[run]\npipelin = 'a.py'",
    ):
        assert not validator.is_valid(tomllib.loads(text)), text
