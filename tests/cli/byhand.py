"""What `stoker plan --render` shows, taken out and pasted into a shell, as a person would."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CODE = """
from stoker import pipeline, step
{imports}

@step({options})
def load(count: int) -> list[int]:
    print("loading", count)
    return list(range(count))

@step({options})
def total(numbers: list[int]) -> int:
    return sum(numbers)

@pipeline
def training(count: int = 3):
    total(load(count))

if __name__ == "__main__":
    training()
"""


def code(options: str = "", imports: str = "") -> str:
    return CODE.format(options=options, imports=imports)


def scripts(project: Any, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
    """What stands from "(" to ")" in the text, for each step; a refused plan has them too."""
    shown = project.stoker("plan", "train.py", "--render", *words, env=env or {}, code=None).stdout
    return re.findall(r"^\(\n.*?^\)\n?", shown, re.DOTALL | re.MULTILINE)


def paste(script: str, folder: Path, shell: str = "bash", **env: str) -> subprocess.CompletedProcess[str]:
    """The script as the input of a shell, which lives on afterwards whatever becomes of it."""
    done = subprocess.run(
        [shell, "-s"],
        input=f"{script}\necho alive $?\n",
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert "alive" in done.stdout, done.stderr
    return done


def result(done: subprocess.CompletedProcess[str]) -> Any:
    """The result that the script names."""
    said = re.search(r"result(?: is in|:) (\S+)", done.stdout)
    assert said is not None, done.stdout + done.stderr
    return json.loads(Path(said[1]).read_text())
