"""Every command where the machine gives it less than usual: a message and an exit code, never a traceback."""

from __future__ import annotations

import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stoker.cli.main import COMMANDS

WORDS = {
    "init": "init made",
    "run": "run train.py",
    "plan": "plan train.py",
    "build": "build train.py",
    "image": "image inspect :",
    "show": "show latest",
    "why": "why latest train",
    "gpu": "gpu latest",
    "card": "card latest train",
    "logs": "logs latest",
    "artifacts": "artifacts latest",
    "cancel": "cancel latest",
    "resume": "resume latest",
    "rerun": "rerun latest",
    "explain": "explain STK203",
    "completion": "completion bash",
    "config": "config schema",
    "migrate": "migrate train.py",
    "store": "store check",
    "ui": "ui --host nowhere.invalid",  # a server would stay
}
EXTREMES = {
    "no working directory": "mkdir gone && cd gone && rmdir ../gone && {command}",
    "stdout closed": "{command} >&-",
    "all closed": "{command} <&- >&- 2>&-",
    "stdout full": "{command} > /dev/full",
    "20 files": "ulimit -n 20; {command}",
    "no home": "unset HOME STOKER_HOME; {command}",
    "ASCII": "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0; {command}",
}
NEEDED = ("run", "show", "resume", "doctor", "logs")
"""Commands that are tried with every extreme; the others with one each, in turn."""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_a_command_that_gets_too_little_says_so(stoker: Any) -> None:
    stoker("run", "train.py", "--quiet")
    # What the script prints itself is its own: on a full disk that raises in its line.
    text = (stoker.project.folder / "train.py").read_text().replace('print("status", run.status)', "run.status")
    program = f"{shlex.quote(sys.executable)} -c 'from stoker.cli.main import main; main()'"
    lines = {("script", title): f"{shlex.quote(sys.executable)} train.py" for title in EXTREMES}
    for number, name in enumerate(COMMANDS):
        for title in EXTREMES if name in NEEDED else [list(EXTREMES)[number % len(EXTREMES)]]:
            lines[name, title] = f"{program} {WORDS.get(name, name)}"

    def attempt(case: tuple[str, str]) -> tuple[int, str]:
        folder = stoker.project.folder / "-".join(case).replace(" ", "-")
        folder.mkdir()
        (folder / "train.py").write_text(text)
        line = EXTREMES[case[1]].format(command=lines[case])
        env = {"HOME": str(folder)} if case[1] != "no home" else {}
        ended = stoker.project.command(["sh", "-c", f"cd {shlex.quote(str(folder))}; {line}"], code=None, env=env)
        return ended.returncode, ended.stdout + ended.stderr

    with ThreadPoolExecutor(2) as pool:
        for case, (code, words) in zip(lines, pool.map(attempt, lines), strict=True):
            assert code in (0, 1, 2, 3, 4), (case, code, words)
            assert "Traceback" not in words and "inside Stoker" not in words, (case, words)
            assert code == 0 or words or case[1] == "all closed", (case, code)
            if case[1] == "stdout full" and case[0] in ("show", "doctor"):
                assert code == 4 and "stdout cannot be written" in words, (case, code, words)
