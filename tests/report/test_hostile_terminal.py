"""What reaches a terminal while hostile text is shown: the sequences are Stoker's own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HOSTILE = (
    "\x1b]52;c;cm0gLXJm\x07 \x1b]0;title\x07 \x1b]8;;http://elsewhere\x1b\\ \x1b[2J\x1b[31;1H "
    "\x9b2J \x90q\x9c \u202egnp.exe\r\x08"
)
PROGRAM = """
import sys
from stoker import pipeline, step

TEXT = {text!r}

@step
def says() -> str:
    print(TEXT)
    print(TEXT, file=sys.stderr)
    return TEXT

@step
def fails(text: str) -> None:
    raise ValueError(TEXT)

@pipeline
def talk(word: str = TEXT):
    fails(says())

if __name__ == "__main__":
    talk()
"""
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|.)", re.DOTALL)
UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e]")


def on_terminal(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command writes to its terminal."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(words, cwd=folder, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    written = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:  # Linux: the last process has closed the terminal
            break
        if not piece:
            break
        written += piece
    process.wait()
    os.close(leader)
    return written.decode("utf-8")


def test_sequences_of_others_reach_no_terminal(project: Any) -> None:
    def written(text: str, home: str) -> str:
        project.write({"talk.py": PROGRAM.format(text=text)})
        environment = {**os.environ, "STOKER_HOME": str(project.folder / home), "TERM": "xterm-256color"}
        stoker = [sys.executable, "-m", "stoker"]
        commands = [
            [sys.executable, "talk.py"],
            [*stoker, "runs"],
            [*stoker, "show", "latest"],
            [*stoker, "logs", "latest", "says"],
            [*stoker, "logs", "latest", "fails"],
            [*stoker, "artifacts", "latest"],
            [*stoker, "why", "latest", "fails"],
        ]
        return "".join(on_terminal(command, project.folder, environment) for command in commands)

    plain, hostile = written("harmless", "plain"), written(HOSTILE, "hostile")
    assert "harmless" in plain
    assert r"\x1b]52;c;cm0gLXJm\x07" in hostile and r"\u202e" in hostile, "it is shown as text"
    # Colours, and how far the cursor moves, depend on how long a step takes.
    own, others = (
        {re.sub("[0-9;]+", "", sequence) for sequence in SEQUENCE.findall(text)} for text in (plain, hostile)
    )
    assert others <= own | {"\x1b[m"}
    assert set(UNSEEN.findall(hostile)) <= set(UNSEEN.findall(plain))
