"""The live view: what is drawn of a run's state, and what a person sees of it on a real pseudo-terminal."""

from __future__ import annotations

import os
import re
import signal
import sys
from typing import Any

import pytest
from tests.report.screen import Terminal
from tests.report.test_terminal import done, plan

from stoker.core.plan import LogLine
from stoker.report import live, progress
from stoker.report.progress import Curve, Progress

PROGRAM = """
import sys
import time
from pathlib import Path

from stoker import log_metrics, pipeline, step
from stoker.config import ResourceSettings

def wait_for(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.05)

@step(cache=False)
def load() -> list[int]:
    return list(range(30))

@step(cache=False, resources=ResourceSettings(gpu_count=2))
def train(data: list[int]) -> float:
    for number in range(8):
        log_metrics({"accuracy": 0.5, "loss": 1.0 - number / 8}, step=number)
    print("RuntimeError: a batch was odd", file=sys.stderr)
    print("epoch 1 of 2")
    wait_for("train")
    return 0.125

@step(cache=False)
def score(value: int) -> int:
    if value > 20:
        wait_for("score")
    return value

@step(cache=False, resources=ResourceSettings(gpu_count=2))
def other(data: list[int]) -> int:
    wait_for("other")
    return 1

@step(cache=False)
def evaluate(loss: float, scores: list[int]) -> float:
    return loss

@pipeline
def training():
    data = load()
    loss = train(data)
    other(data)
    evaluate(loss, score.map(data))

if __name__ == "__main__":
    training()
"""


def drawn(state: Progress, *, width: int = 80, height: int = 40, now: float = 100.0) -> list[str]:
    return live.draw(state, now=now, width=width, height=height, paint=lambda text, colour: text)


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> Progress:
    class Clock:
        monotonic = staticmethod(lambda: 90.0)
        time = staticmethod(lambda: 5000.0)

    monkeypatch.setattr(progress, "time", Clock)
    return Progress(live=True)


def test_a_map_of_ten_thousand_is_one_line(state: Progress) -> None:
    state.begin("1abc", plan("score"))
    state.change("score", "expanded", {"count": 10_000})
    for index in range(10_000):
        state.change(f"score[{index}]", "running", {"parent": "score"})
    for index in range(4_000):
        status = "failed" if index < 3 else "succeeded"
        state.change(f"score[{index}]", status, done(parent="score", index=index, cause="user-error"))
    for index in range(9_000, 10_000):
        state.change(f"score[{index}]", "waiting", {"parent": "score", "message": "all 4 GPUs are leased"})
    bar = "━━━━━━━━────────────"
    assert drawn(state, width=130) == [
        f"▸ score ×10,000  {bar} 4,000/10,000  5,000 running, 3 failed  1,000 waiting: all 4 GPUs are leased",
        "  ! user-error",
        "  training 1abc: 0/1 step, 10.0 s",
    ]
    for index in range(4_000, 10_000):
        state.change(f"score[{index}]", "succeeded", done(parent="score", index=index))
    row = state.rows["score"]
    assert (row.running, row.waits, row.reasons) == ({}, {}, {}), "nothing is left of what has ended"


def test_what_waits_says_for_what_and_why(state: Progress) -> None:
    made = plan("load", "train", "push")
    steps = list(made.steps)
    object.__setattr__(steps[1], "inputs", {"data": {"list": [{"step": "load", "output": "output"}]}})
    object.__setattr__(steps[2], "after", ("load", "train"))
    object.__setattr__(made, "steps", tuple(steps))
    state.begin("1abc", made)
    assert [line.split(None, 2)[1:] for line in drawn(state)[1:3]] == [
        ["train", "waits for load"],
        ["push", "waits for load, train"],
    ]
    state.change("load", "cached", done())
    state.change("train", "sent", {"parent": ""})
    state.change("train", "waiting", {"parent": "", "message": "Priority; starts about 12:30"})
    assert drawn(state)[:3] == [
        "≡ load   cached",
        "◦ train  Priority; starts about 12:30",
        "· push   waits for train",
    ]
    state.change("train", "retrying", {"attempt": 1, "cause": "gpu-oom", "wait": 42.0})
    assert drawn(state)[1] == "◦ train  again in 32.0 s: gpu-oom"


def test_a_low_terminal_shows_what_moves_and_counts_the_rest(state: Progress) -> None:
    keys = [f"s{number:02}" for number in range(60)]
    state.begin("1abc", plan(*keys))
    for key in keys[:40]:
        state.change(key, "succeeded", done())
    state.change("s55", "running", {"parent": ""})
    lines = drawn(state, height=12)
    assert len(lines) == 8 and len(lines) < 12
    assert "▸ s55  10.0 s" in lines
    assert lines[-2] == "  … and 40 succeeded, 14 pending"
    assert lines[-1] == "  training 1abc: 40/60 steps, 10.0 s"
    assert len(drawn(state, height=3)) <= 3, "a terminal of three lines"


def test_no_line_is_wider_than_the_terminal(state: Progress) -> None:
    key = "訓練" * 30
    state.begin("1abc", plan(key, "x" * 200))
    state.change(key, "running", {"parent": ""})
    state.note_lines(key, [LogLine(time=0, stream="stderr", text="ValueError: \x1b[2J" + "長い" * 100)])
    for width in (20, 40, 79):
        lines = drawn(state, width=width)
        assert all(live.columns_of(line) <= width for line in lines), lines
        assert "\x1b" not in "".join(lines)
    assert "…" in drawn(state)[0]


def test_the_curve_is_that_of_the_loss(state: Progress) -> None:
    state.begin("1abc", plan("train"))
    state.change("train", "running", {"parent": ""})
    state.log("train", [[0, 0, 1, {"accuracy": 0.1}]])
    assert "accuracy ▁ 0.1" in drawn(state)[0]
    state.log("train", [[0, 0, step, {"val_loss": 9.0 - step}] for step in range(8)])
    state.log("train", [[0, 1, 1, {"val_loss": 100.0}], [0, 0, None, {"note": "a fact"}]])
    assert "val_loss █▇▆▅▄▃▂▁ 2" in drawn(state)[0]
    state.log("train", [[0, 0, 9, {"val_loss": float("nan")}]])
    assert "× nan" in drawn(state)[0]
    state.log("elsewhere", [[0, 0, 1, {"loss": 1.0}]])


def test_a_curve_stays_short_and_keeps_its_course() -> None:
    curve = Curve("loss")
    for number in range(100_000):
        curve.add(100_000.0 - number)
    assert len(curve.values) <= 64
    assert curve.last == 1.0
    assert live.sparkline(curve.values, 8) == "█▇▆▅▄▃▂▁"
    assert live.sparkline([], 8) == ""
    assert live.sparkline([2.0, 2.0], 8) == "▁▁"


def test_of_a_traceback_the_exception_is_kept(state: Progress) -> None:
    state.begin("1abc", plan("train"))
    state.change("train", "running", {"parent": ""})
    texts = ["Traceback (most recent call last):", '  File "a.py", line 1', "Odd: a message", "all is well"]
    state.note_lines("train", [LogLine(time=0, stream="stderr", text=text, rank=3) for text in texts])
    assert drawn(state)[1] == "  ! [3] Odd: a message"
    state.change("train", "succeeded", done())
    assert len(drawn(state)) == 2, "a step that succeeded complains no more"


# On a real pseudo-terminal


@pytest.fixture
def environment(project: Any) -> dict[str, str]:
    project.write({"train.py": PROGRAM})
    return {**os.environ, "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "2xH100"}


def test_a_person_sees_what_runs_what_waits_and_why(project: Any, environment: dict[str, str]) -> None:
    with Terminal([sys.executable, "train.py"], folder=project.folder, env=environment) as terminal:
        text = terminal.wait_for(lambda text: all(word in text for word in ("! RuntimeError", "21/30", "0.125")))
        assert re.search(r"^✓ load +succeeded", text, re.MULTILINE), text
        assert re.search(r"^▸ train +[\d.ms ]+  on H100 0, 1  loss █▇▆▅▄▃▂▁ 0.125$", text, re.MULTILINE), text
        assert re.search(r"^· other +waits for 2 accelerators: train runs$", text, re.MULTILINE), text
        assert re.search(r"^▸ score ×30 +━{14}─{6} 21/30  \d+ running", text, re.MULTILINE), text
        assert re.search(r"^· evaluate +waits for train, score$", text, re.MULTILINE), text
        assert re.search(r"^  training \w+: 1/5 steps, .*, holds H100 0, 1$", text, re.MULTILINE), text
        shown = project.stoker("show", "last").stdout
        assert re.search(r"^  other +pending +waits for 2 accelerators: train runs$", shown, re.MULTILINE), shown
        assert re.search(r"^  evaluate +pending +waits for train, score$", shown, re.MULTILINE), shown
        (project.folder / "train").touch()
        terminal.wait_for(lambda text: re.search(r"^▸ other", text, re.MULTILINE))
        for name in ("score", "other"):
            (project.folder / name).touch()
        assert terminal.end() == 0
        everything = "\n".join([*terminal.screen.scrolled, *terminal.screen.lines])
        assert everything.count("train │ epoch 1 of 2") == 1, "what steps write stays above"
        assert "▸" not in everything and "waits for" not in everything, "nothing of the drawing is left"
        assert "✓ training succeeded" in everything


def test_ctrl_c_ends_the_run_and_the_drawing(project: Any, environment: dict[str, str]) -> None:
    with Terminal([sys.executable, "train.py"], folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: "21/30" in text)
        terminal.send("\x03")
        assert terminal.end() == 130
        assert "■ training cancelled" in terminal.screen.text
        assert "▸" not in terminal.screen.text


@pytest.mark.parametrize("where", ["pipe", "CI"])
def test_elsewhere_each_change_is_a_line_with_its_time(where: str, project: Any, environment: dict[str, str]) -> None:
    for name in ("train", "score", "other"):
        (project.folder / name).touch()
    if where == "pipe":
        text = project.run("train.py", env=environment).stderr
    else:
        words = ["env", "CI=true", sys.executable, "train.py"]
        with Terminal(words, folder=project.folder, env=environment, rows=60) as terminal:
            assert terminal.end() == 0
            text = terminal.screen.text
    assert re.search(r"^\d\d:\d\d:\d\d ✓ load succeeded", text, re.MULTILINE), text
    assert re.search(r"^\d\d:\d\d:\d\d train │ epoch 1 of 2$", text, re.MULTILINE), text
    assert "▸" not in text and "\x1b" not in text


def test_quiet_draws_nothing(project: Any, environment: dict[str, str]) -> None:
    words = [sys.executable, "train.py", "--quiet"]
    with Terminal(words, folder=project.folder, env=environment) as terminal:
        for name in ("train", "score", "other"):
            (project.folder / name).touch()
        assert terminal.end() == 0
        assert terminal.screen.lines[0] == "" and terminal.screen.lines[1].startswith("  ✓ load")


def test_a_narrower_terminal_is_drawn_anew(project: Any, environment: dict[str, str]) -> None:
    with Terminal([sys.executable, "train.py"], folder=project.folder, env=environment, columns=100) as terminal:
        terminal.wait_for(lambda text: "21/30" in text)
        terminal.resize(columns=40)
        text = terminal.wait_for(lambda text: re.search(r"^▸ train .*…$", text, re.MULTILINE))
        assert len(re.findall(r"^. evaluate", text, re.MULTILINE)) == 1, text
        os.killpg(terminal.process.pid, signal.SIGINT)
        assert terminal.end() == 130
