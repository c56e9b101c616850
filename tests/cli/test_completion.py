"""Completion in a shell: the scripts, and what is offered."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.main import invoke

STACKS = "[stacks.lab]\n[stacks.laptop]\n"
PIPELINE = """
from stoker import pipeline, step

@step
def one() -> int:
    return 1

@pipeline
def ones():
    one()
"""


def offered(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a shell offers for the last word of a line."""
    monkeypatch.setenv("_STOKER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    with pytest.raises(SystemExit):
        invoke([])
    return [one.partition(",")[2] for one in capsys.readouterr().out.split()]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("stoker ru", ["run", "runs"]),
        ("stoker run --stack la", ["lab", "laptop"]),
        ("stoker show --stack la", ["lab", "laptop"]),
        ("stoker plan --off", ["--offline"]),
        ("stoker run --off", []),
        ("stoker build --pu", ["--push"]),
        ("stoker run --with slu", ["slurm"]),
        ("stoker run tra", ["tra"]),
        ("stoker runs --lim", ["--limit"]),
        ("stoker secret s", ["set"]),
        ("stoker show nothing", []),
        ("stoker show lat", ["latest"]),
        ("stoker --ver", ["--version"]),
    ],
)
def test_what_is_offered(
    line: str,
    expected: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stoker_home: Path,
) -> None:
    (tmp_path / "stoker.toml").write_text(STACKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert offered(line, capsys, monkeypatch) == expected


def test_a_broken_file_of_stacks_offers_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "stoker.toml").write_text("[stacks", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert offered("stoker run --stack l", capsys, monkeypatch) == []


ASKED = {
    "bash": 'eval "$(stoker completion bash)"; COMP_WORDS=({words}); COMP_CWORD=2; _stoker_completion stoker; '
    'echo "${{COMPREPLY[@]}}"',
    # In a terminal, by the tabulator key: what is read ends with what was completed.
    "zsh": """
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell 'autoload -U compinit; compinit -u -D; eval "$(stoker completion zsh)"; echo rea''dy'
        zpty -r shell said '*ready*'
        zpty -w -n shell $'{words}\\t'
        zpty -r shell said '*{run}*'
        print -r -- $said
    """,
    "fish": "stoker completion fish | source; complete -C '{words}'",
}


@pytest.mark.parametrize("shell", ASKED)
def test_the_script_works_in_its_shell(shell: str, project: Any) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"has no {shell}")
    project.write({"train.py": PIPELINE})
    project.stoker("run", "train.py", "--quiet")
    run = project.client().run("latest").id
    path = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    said = project.command([shell, "-c", ASKED[shell].format(words=f"stoker show {run[:4]}", run=run)], env=path).stdout
    assert run in said
