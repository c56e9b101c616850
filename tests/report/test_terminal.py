"""What a person sees of a run: on a pipe line by line, on a terminal redrawn in place, and the summary in both."""

from __future__ import annotations

import io
import re
from time import gmtime, strftime
from typing import Any

import pytest

from stoker.core.plan import LogLine, Plan, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.core.words import count_text, memory_text, time_text
from stoker.report import progress
from stoker.report import terminal as module
from stoker.report.terminal import Terminal

SOURCE = FunctionSource(kind="module", module="m", qualname="f")


NOON = 1_750_420_800.0 - 100
"""A noon, by the clock when it starts."""


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """Stands for the `time` module: it says what it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return NOON + self.now

    strftime = staticmethod(strftime)
    localtime = staticmethod(gmtime)


def plan(*keys: str) -> Plan:
    steps = tuple(
        StepPlan(
            key=key,
            name=key,
            source=SOURCE,
            outputs=(),
            unpack=False,
            inputs={},
            settings=StepSettings(),
            backend="orchestrator",
            code="",
            position=number,
        )
        for number, key in enumerate(keys)
    )
    return Plan(pipeline="training", steps=steps, parameters={}, failure_mode="fail_fast", stack="local")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(progress, "time", made)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return made


def bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)


def done(**facts: Any) -> dict[str, Any]:
    return {"parent": "", "index": None, "attempt": 1, "cause": "", "message": "", "traceback": "", **facts}


def test_on_a_pipe_every_change_is_a_line_and_the_summary_a_table(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("load", "train"))
    view.changed("load", "running", {"parent": ""})
    view.changed("load", "succeeded", done(seconds=1.25, cpu=1.2, peak=316_000_000))
    view.wrote("train", 1, [LogLine(time=NOON + 107, stream="stdout", text="epoch 1")])
    view.changed("train", "cached", done())
    clock.now += 2
    view.ended("succeeded")
    assert out.getvalue().split("\n") == [
        "12:00:00 ✓ load succeeded  1.2 s  cpu 1.2 s  peak 316 MB",
        "12:00:07 train │ epoch 1",
        "12:00:00 ≡ train cached",
        "",
        "  ✓ load   succeeded  1.2 s  cpu 1.2 s  peak 316 MB",
        "  ≡ train  cached",
        "",
        "✓ training succeeded in 2.0 s: 2 steps, 1 cached",
        "  look: stoker show 1abc · in Python: Client().run('1abc')",
        "",
    ]


def test_a_failure_is_shown_with_the_users_traceback_and_the_way_on(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("train"))
    view.changed("train", "retrying", {"attempt": 1, "cause": "user-error", "message": "no\nway", "wait": 2.0})
    view.changed("train", "failed", done(attempt=2, cause="user-error", traceback="Traceback …\nValueError: no\n"))
    view.ended("failed")
    text = out.getvalue()
    assert "train: attempt 1 ended: user-error: no; again in 2.0 s" in text
    assert "train failed: user-error\nTraceback …\nValueError: no\n" in text
    assert "✗ train  failed  2 attempts" in text
    assert "stoker logs 1abc STEP · go on: stoker resume 1abc" in text


def test_a_retry_says_what_it_changes(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("train"))
    facts = {"attempt": 1, "cause": "gpu-oom", "wait": 2.0, "changes": ["batch_size 64 → 32"]}
    view.changed("train", "retrying", facts)
    assert out.getvalue() == "12:00:00 train: attempt 1 ended: gpu-oom; again in 2.0 s, batch_size 64 → 32\n"


def test_a_fan_out_is_one_row(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("square"))
    view.changed("square", "expanded", {"count": 3})
    for index in range(3):
        status = "failed" if index == 2 else "succeeded"
        facts = done(parent="square", index=index, seconds=1.0, message="why", attempt=1 + index % 2)
        view.changed(f"square[{index}]", status, facts)
    view.changed("square", "failed", done(seconds=1.5))
    view.ended("failed")
    text = out.getvalue()
    assert "✗ square ×3  2 succeeded, 1 failed  1.5 s  up to 2 attempts" in text
    assert text.count("why") == 1, "the element's failure is told once, not again for the fan-out"


def test_a_failure_that_was_caught_is_told_and_counts_as_a_success(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("train", "square"))
    view.changed("train", "failed", done(cause="user-error", traceback="Traceback …\nValueError: no\n"))
    view.changed("train", "caught", {"parent": "", "message": "user-error: its failure is kept in 'problem'"})
    view.changed("square", "expanded", {"count": 2})
    for index in range(2):
        view.changed(f"square[{index}]", "failed", done(parent="square", index=index, cause="user-error"))
        view.changed(f"square[{index}]", "caught", {"parent": "square", "message": "user-error: it was caught"})
    view.changed("square", "succeeded", done(seconds=1.5))
    view.ended("succeeded")
    text = out.getvalue()
    assert "train: user-error: its failure is kept in 'problem'\n" in text
    assert "square[1]: user-error: it was caught\n" in text
    assert "train failed: user-error\nTraceback …\nValueError: no\n" in text
    table = text.splitlines()[-6:]
    assert "  ✓ train      succeeded" in table and "  ✓ square ×2  succeeded  1.5 s" in table, text


def test_a_short_run_draws_nothing_but_its_summary(clock: Clock) -> None:
    out = Tty()
    view = Terminal(out)
    view.began("1abc", plan("load"))
    view.changed("load", "running", {"parent": ""})
    view.changed("load", "succeeded", done(seconds=0.01))
    view.ended("succeeded")
    assert "steps, " not in bare(out.getvalue())


def test_a_terminal_is_redrawn_in_place(clock: Clock) -> None:
    out = Tty()
    view = Terminal(out)
    view.message("the artifact store is made")
    assert bare(out.getvalue()) == "the artifact store is made\n", "no run has begun"
    view.began("1abc", plan("load", "square", "wait"))
    clock.now += 1
    view.changed("load", "running", {"parent": ""})
    clock.now += 1
    view.changed("wait", "waiting", {"parent": "", "message": "waiting for 1 GPU: leased to run 7f2"})
    view.changed("wait", "running", {"parent": ""})
    view.changed("square", "expanded", {"count": 4})
    view.changed("square[0]", "succeeded", done(parent="square", index=0))
    clock.now += 1
    view.tick()
    drawn = out.getvalue()
    last = bare(drawn.split("F")[-1])
    assert last.split("\n")[:4] == [
        "▸ load       2.0 s",
        "▸ square ×4  ━━━━━─────────────── 1/4",
        "▸ wait       1.0 s",
        "  training 1abc: 0/3 steps, 3.0 s",
    ]
    before = len(drawn)
    view.tick()
    assert len(out.getvalue()) == before, "nothing is drawn again before it is time"
    view.wrote("load", 1, [LogLine(time=0.0, stream="stdout", text="10%\r20%")])
    assert "\x1b[4F" in out.getvalue()[before:], "four lines are written over"
    assert "load │ 20%" in bare(out.getvalue()[before:])


def test_other_ranks_are_heard_when_they_complain(clock: Clock) -> None:
    def line(text: str, rank: int | None, stream: str = "stderr") -> LogLine:
        return LogLine(time=0.0, stream=stream, text=text, rank=rank)

    out = io.StringIO()
    view = Terminal(out)
    view.began("1abc", plan("train"))
    begin = "Traceback (most recent call last):"
    view.wrote("train", 1, [line("starting 2 ranks", None), line("epoch 1", 0, "stdout"), line("epoch 1", 1, "stdout")])
    view.wrote("train", 1, [line("epoch 2", 1, "stdout"), line("a warning", 1)])
    view.wrote("train", 1, [line(begin, 1), line("epoch 2", 0, "stdout")])
    view.wrote("train", 2, [line("  of another attempt", 1)])
    view.wrote("train", 1, [line('  File "a.py"', 1), line("Stop", 1), line("bye", 1), line("bye", None)])
    assert out.getvalue().splitlines() == [
        "00:00:00 train │ starting 2 ranks",
        "00:00:00 train │ epoch 1",
        f"00:00:00 train │ [1] {begin}",
        "00:00:00 train │ epoch 2",
        '00:00:00 train │ [1]   File "a.py"',
        "00:00:00 train │ [1] Stop",
        "00:00:00 train │ bye",
    ]


def test_colour_is_left_out_when_it_is_not_wanted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = Tty()
    view = Terminal(out)
    view.began("1abc", plan("load"))
    view.changed("load", "succeeded", done())
    view.ended("succeeded")
    assert "\x1b[3" not in out.getvalue()


def test_quiet_shows_the_summary_alone(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out, verbose=False)
    view.began("1abc", plan("load"))
    view.wrote("load", 1, [LogLine(time=0.0, stream="stdout", text="noise")])
    view.changed("load", "succeeded", done())
    assert out.getvalue() == ""
    view.ended("succeeded")
    assert "noise" not in out.getvalue() and "training succeeded" in out.getvalue()


def test_many_steps_are_counted_not_listed(clock: Clock) -> None:
    out = io.StringIO()
    view = Terminal(out, verbose=False)
    keys = [f"s{number}" for number in range(1000)]
    view.began("1abc", plan(*keys))
    for key in keys:
        view.changed(key, "succeeded", done())
    view.ended("succeeded")
    assert "… and 960 more: 960 succeeded" in out.getvalue()
    assert "1,000 steps" in out.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (0.0034, "3 ms"), (0.9996, "1.0 s"), (59.9, "59.9 s"), (125, "2 m 05 s"), (11_220, "3 h 07 m")],
)
def test_times_read_well(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1_500, "2 kB"), (412_000_000, "412 MB"), (1_440_000_000, "1.44 GB"), (3e12, "3 TB")],
)
def test_sizes_read_well(size: float, text: str) -> None:
    assert memory_text(size) == text


def test_counts_read_well() -> None:
    assert (count_text(1, "step"), count_text(10_000, "step")) == ("1 step", "10,000 steps")
