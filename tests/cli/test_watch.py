"""`stoker watch`: a run of another terminal, on a screen of its own, in a pipe, to its end or to Ctrl-C."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.report.screen import Terminal
from tests.report.test_live import PROGRAM

STOKER = str(Path(sys.executable).with_name("stoker"))


@pytest.fixture
def environment(project: Any) -> dict[str, str]:
    project.write({"train.py": PROGRAM})
    return {**os.environ, "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "2xH100"}


@pytest.fixture
def detached(project: Any, environment: dict[str, str]) -> Iterator[str]:
    """A run without a terminal, whose steps wait for files."""
    run = project.run("train.py", "--detach", env=environment).stdout.strip()
    yield run
    project.stoker("cancel", run, "--now", code=None)


def test_a_detached_run_is_seen_to_its_end(project: Any, environment: dict[str, str], detached: str) -> None:
    with Terminal([STOKER, "watch", detached], folder=project.folder, env=environment) as terminal:
        text = terminal.wait_for(
            lambda text: all(word in text for word in ("21/30", "0.125", "train runs", " running"))
        )
        assert re.search(r"^▸ train +[\d.ms ]+  on H100 0, 1  loss █▇▆▅▄▃▂▁ 0.125$", text, re.MULTILINE), text
        assert re.search(r"^· other +waits for 2 accelerators: train runs$", text, re.MULTILINE), text
        assert re.search(r"^✓ load +succeeded", text, re.MULTILINE), text
        assert re.search(r"^▸ score ×30 +━{14}─{6} 21/30  [1-9]\d* running$", text, re.MULTILINE), text
        for name in ("train", "score", "other"):
            (project.folder / name).touch()
        assert terminal.end() == 0
        assert "✓ training succeeded" in terminal.screen.text
        assert re.search(r"^  ✓ score ×30 +succeeded", terminal.screen.text, re.MULTILINE)
    after = project.stoker("watch", detached, env=environment)
    assert "training  succeeded" in after.stdout, "of a run that is over it is what `stoker show` says"


def test_ctrl_c_leaves_the_run_alone(project: Any, environment: dict[str, str], detached: str) -> None:
    with Terminal([STOKER, "watch", detached], folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: "21/30" in text)
        terminal.send("\x03")
        assert terminal.end() == 130
        assert f"run {detached} goes on" in terminal.screen.text
    assert project.client().run(detached).status == "running"


def test_in_a_pipe_changes_are_lines_and_the_code_is_that_of_the_run(
    project: Any, environment: dict[str, str], detached: str
) -> None:
    words = [STOKER, "watch", detached]
    with subprocess.Popen(words, cwd=project.folder, env=environment, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert re.match(rf"\d\d:\d\d:\d\d training {detached}: \d/\d steps, ", watching.stdout.readline())
            (project.folder / "train").touch()
            lines = [next(line for line in watching.stdout if "train succeeded" in line)]
            project.stoker("cancel", detached, "--now", env=environment)
            lines += list(watching.stdout)
        except BaseException:
            watching.kill()  # it would be waited for
            raise
    assert re.match(r"\d\d:\d\d:\d\d ✓ train succeeded  [\d.]+ m?s", lines[0]), lines
    assert any(line.startswith("■ training cancelled in ") for line in lines), lines
    assert watching.returncode == 130


def test_a_failure_is_shown_with_its_traceback(project: Any) -> None:
    project.write(
        {
            "odd.py": """
        import time
        from pathlib import Path
        from stoker import pipeline, step

        @step(cache=False)
        def fails(value: int) -> int:
            while not Path("go").exists():
                time.sleep(0.05)
            raise ValueError(f"element {value} is odd")

        @pipeline
        def odd():
            fails.map([1])

        if __name__ == "__main__":
            odd()
        """
        }
    )
    environment = {**os.environ, "STOKER_HOME": str(project.home)}
    run = project.run("odd.py", "--detach", env=environment).stdout.strip()
    with Terminal([STOKER, "watch", run], folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: "0/1" in text)
        (project.folder / "go").touch()
        assert terminal.end() == 1
        text = "\n".join([*terminal.screen.scrolled, *terminal.screen.lines])
        assert "ValueError: element 1 is odd" in text and "✗ odd failed" in text


def test_a_run_that_is_not_there_is_named(project: Any) -> None:
    assert "no run" in project.stoker("watch", "1zzzzzzz", code=2).stderr
