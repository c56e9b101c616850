"""Logs: every line with its time and stream, however it was printed; read lazily, from the end, and while it grows."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import StoreError
from stoker.core.plan import LogLine
from stoker.store.logs import MAX_LINE_BYTES, Logs, file_name


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(str(tmp_path / "logs"))


def line(text: str, time: float = 1.5, stream: str = "stdout", rank: int | None = None) -> LogLine:
    return LogLine(time=time, stream=stream, text=text, rank=rank)


def texts(logs: Logs, **which: Any) -> list[str]:
    return [found.text for found in logs.lines("r", "k", 1, **which)]


# Appending


def test_lines_come_back_as_they_were(logs: Logs) -> None:
    written = [line("a"), line("", 2.25, "stderr"), line("  ünïcode \t ✓ ", 1718000000.123456), line("x", 3.0)]
    logs.append("r", "k", 1, written[:2])
    logs.append("r", "k", 1, written[2:])
    assert list(logs.lines("r", "k", 1)) == written
    content = Path(logs.path("r", "k", 1)).read_text()
    assert content.splitlines()[:2] == ["1.500000 o a", "2.250000 e "]


def test_other_line_ends_are_text(logs: Logs) -> None:
    strange = "a\x0bb\x0cc\x1cd\x85e\u2028f"
    logs.append("r", "k", 1, [line(strange)])
    assert texts(logs) == [strange]


def test_attempts_have_files_of_their_own(logs: Logs) -> None:
    for attempt in (1, 2, 10):
        logs.append("r", "train[3]", attempt, [line(str(attempt))])
    assert logs.attempts("r", "train[3]") == [1, 2, 10]
    assert [found.text for found in logs.lines("r", "train[3]", 10)] == ["10"]


def test_a_full_disk_says_so(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StoreError, match="the disk is full"):
            logs.append("r", "k", 1, [line("x")])


# What a line keeps of what was printed


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("windows\r\nlines\r\n", ["windows", "lines", ""]),
        ("\n\n", ["", "", ""]),
        ("\r10%\r50%\r100%\ndone", ["100%", "done"]),
        ("10%\r20%\r", ["20%"]),
        ("a\n1\r2\r3\nb", ["a", "3", "b"]),
        ("half \udcff\na pair", ["half ?", "a pair"]),
    ],
)
def test_the_last_drawing_of_each_line_is_kept(logs: Logs, text: str, found: list[str]) -> None:
    logs.append("r", "k", 1, [line(text)])
    assert texts(logs) == found


def test_long_lines_are_split_and_marked(logs: Logs) -> None:
    long = "ä" * MAX_LINE_BYTES + "end"
    logs.append("r", "k", 1, [line("before"), line(long), line("after")])
    found = texts(logs)
    assert (found[0], found[-1]) == ("before", "after")
    parts = found[1:-1]
    assert len(parts) > 2
    assert all(part.endswith("…") for part in parts[:-1])
    assert "".join(part.removesuffix("…") for part in parts) == long
    assert all(len(part.encode()) <= MAX_LINE_BYTES for part in parts)


def test_a_long_progress_bar_is_one_line(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("".join(f"\r{number:5d} of 100000" for number in range(20_000)))])
    assert texts(logs) == ["19999 of 100000"]


# Reading


def test_lines_are_read_from_an_offset_on(logs: Logs) -> None:
    assert logs.read("r", "k", 1, 0) == ([], 0)
    logs.append("r", "k", 1, [line("one"), line("two", rank=3)])
    lines, offset = logs.read("r", "k", 1, 0)
    assert [one.text for one in lines] == ["one", "two"]
    assert logs.read("r", "k", 1, offset) == ([], offset)
    with open(logs.path("r", "k", 1), "ab") as file:
        file.write(b"2.000000 o thr")
    assert logs.read("r", "k", 1, offset) == ([], offset)  # it is still being written
    lines, end = logs.read("r", "k", 1, offset, whole=False)
    assert [one.text for one in lines] == ["thr"]
    assert end == os.path.getsize(logs.path("r", "k", 1))
    lines, end = logs.read("r", "k", 1, 0, rank=3, limit=7)  # shorter than a line
    while not lines:
        lines, end = logs.read("r", "k", 1, end, rank=3, limit=7)
    assert [one.text for one in lines] == ["two"]


def test_the_tail_is_read_from_the_end(logs: Logs) -> None:
    logs.append(
        "r",
        "k",
        1,
        [line(f"line {number}", stream=("stdout", "stderr")[number % 10 == 0]) for number in range(100_000)],
    )
    assert texts(logs, tail=3) == ["line 99997", "line 99998", "line 99999"]
    assert texts(logs, tail=2, stream="stderr") == ["line 99980", "line 99990"]
    assert len(texts(logs, tail=50_000)) == 50_000
    assert texts(logs, tail=10**9) == texts(logs)
    assert texts(logs, tail=0) == []
    assert len(texts(logs, tail=10**9, stream="stderr")) == 10_000


def test_a_long_log_is_read_lazily(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("x" * 1000)] * 100_000)
    code = (
        "import sys; from pathlib import Path; from stoker.store.logs import Logs\n"
        "peak = lambda: int(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]) / 1024\n"
        "before = peak(); print(sum(1 for _ in Logs(sys.argv[1]).lines('r', 'k', 1)), peak() - before)"
    )
    made = subprocess.run([sys.executable, "-c", code, logs.folder], capture_output=True, text=True, check=True)
    count, grown = made.stdout.split()
    assert int(count) == 100_000
    assert float(grown) < 10


# Ranks


def test_lines_know_their_rank(logs: Logs) -> None:
    written = [
        line("0 of no rank"),
        line("a", rank=0),
        line("b", rank=3),
        line("", rank=3),
        line("3 c", stream="stderr", rank=3),
        line("d", stream="stderr", rank=4095),
        line("e", stream="stderr"),
    ]
    logs.append("r", "k", 1, written)
    assert list(logs.lines("r", "k", 1)) == written
    assert Path(logs.path("r", "k", 1)).read_text().splitlines() == [
        "1.500000 o 0 of no rank",
        "1.500000 o0 a",
        "1.500000 o3 b",
        "1.500000 o3 ",
        "1.500000 e3 3 c",
        "1.500000 e4095 d",
        "1.500000 e e",
    ]
    assert list(logs.lines("r", "k", 1, tail=5)) == written[2:]


def test_a_file_of_before_ranks_were_written_is_read(logs: Logs) -> None:
    path = Path(logs.path("r", "k", 1))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"1.500000 o 3 epochs\n1.500000 e e3 x\n1.500000 o \n1.500000 o o3\n")
    assert list(logs.lines("r", "k", 1)) == [line("3 epochs"), line("e3 x", stream="stderr"), line(""), line("o3")]
    assert logs.ranks("r", "k", 1) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"rank": 3}, ["b", "c"]),
        ({"rank": 0}, ["a"]),
        ({"rank": 30}, ["d"]),
        ({"rank": 1}, []),
        ({"rank": []}, []),
        ({"rank": (0, 30)}, ["a", "d"]),
        ({"rank": "launcher"}, ["l", "not ours", "x o3 text", "1.0 o3x text"]),
        ({"rank": {0, "launcher"}}, ["l", "a", "not ours", "x o3 text", "1.0 o3x text"]),
        ({"rank": 3, "stream": "stderr"}, ["c"]),
        ({"rank": "launcher", "stream": "stderr"}, []),
        ({"stream": "stderr"}, ["c"]),
        ({"stream": "stdout"}, ["l", "a", "b", "d", "not ours", "x o3 text", "1.0 o3x text"]),
    ],
)
def test_lines_of_some_ranks(logs: Logs, asked: dict[str, Any], found: list[str]) -> None:
    wrote = [line("l"), line("a", rank=0), line("b", rank=3), line("c", stream="stderr", rank=3), line("d", rank=30)]
    logs.append("r", "k", 1, wrote)
    with open(logs.path("r", "k", 1), "ab") as file:
        file.write(b"not ours\nx o3 text\n1.0 o3x text\n")
    assert texts(logs, **asked) == found
    assert texts(logs, tail=2, **asked) == found[-2:]
    assert texts(logs, tail=100, **asked) == found
    assert [one.text for one in logs.follow("r", "k", 1, done=lambda: True, **asked)] == found


def test_the_tail_of_a_rank_that_wrote_long_ago(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("first", rank=7), *(line(f"line {number}", rank=0) for number in range(100_000))])
    assert texts(logs, tail=3, rank=7) == ["first"]
    assert texts(logs, tail=2, rank=[0, 7]) == ["line 99998", "line 99999"]


def test_a_torn_line_of_a_rank(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("whole", rank=1)])
    with open(logs.path("r", "k", 1), "ab") as file:
        file.write(b"2.0 e12 half")
    assert list(logs.lines("r", "k", 1))[-1] == line("half", 2.0, "stderr", 12)
    for rank, found in ((1, ["whole"]), (12, ["half"])):
        assert texts(logs, rank=rank) == found
        assert [one.text for one in logs.follow("r", "k", 1, done=lambda: True, rank=rank)] == found


def test_a_ranks_lines_of_a_line_are_the_ranks(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("a\nb", rank=5), line("ä" * MAX_LINE_BYTES, rank=6)])
    assert texts(logs, rank=5) == ["a", "b"]
    assert "".join(text.removesuffix("…") for text in texts(logs, rank=6)) == "ä" * MAX_LINE_BYTES


def test_which_ranks_wrote(logs: Logs) -> None:
    assert logs.ranks("r", "k", 1) == []
    logs.append("r", "k", 1, [line("l"), line("a", rank=10), line("b", rank=2), line("c", stream="stderr", rank=2)])
    assert logs.ranks("r", "k", 1) == [2, 10]
    assert logs.ranks("r", "k", 1, enough=[10]) == [10], "it is read no further than it has to be"
    assert logs.ranks("r", "k", 1, enough=[10, 3]) == [2, 10]


# Following


def test_following_sees_what_is_added_until_the_end(logs: Logs) -> None:
    def add(data: bytes) -> None:
        with open(logs.path("r", "k", 1), "ab") as file:
            file.write(data)

    script: list[Callable[[], None]] = [
        lambda: None,
        lambda: logs.append("r", "k", 1, [line("1"), line("e", stream="stderr")]),
        lambda: None,
        lambda: add(b"3.0 o ha"),
        lambda: add(b"lf\n4.0 o last without end"),
    ]

    def sleep(seconds: float) -> None:
        assert seconds == 0.2
        script.pop(0)()

    found = list(logs.follow("r", "k", 1, done=lambda: not script, sleep=sleep))
    assert [one.text for one in found] == ["1", "e", "half", "last without end"]


def test_nothing_is_missed_between_the_last_look_and_the_end(logs: Logs) -> None:
    """What was written before `done` said so is there, although it was not when we looked before."""

    def done() -> bool:
        logs.append("r", "k", 1, [line("at the last moment")])
        return True

    assert [one.text for one in logs.follow("r", "k", 1, done=done)] == ["at the last moment"]


# Names


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("train", "train"),
        ("train[3]", "train[3]"),
        ("a/b", "a%2Fb"),
        ("..", "%2E."),
        (".hidden", "%2Ehidden"),
        ("100%", "100%25"),
        ("ü x", "%C3%BC%20x"),
        ("a\0b", "a%00b"),
    ],
)
def test_names_are_safe(key: str, name: str) -> None:
    assert file_name(key) == name


any_key = st.text(st.characters(exclude_categories=()), min_size=1, max_size=40)


@given(key=any_key, other=any_key)
def test_any_names_are_safe_and_stay_apart(key: str, other: str) -> None:
    name = file_name(key)
    assert "/" not in name
    assert name not in (".", "..")
    assert (name == file_name(other)) == (key == other)


def test_long_names_stay_apart(logs: Logs) -> None:
    one, other = "x" * 5000 + "1", "x" * 5000 + "2"
    logs.append("r", one, 1, [line("one")])
    logs.append("r", other, 1, [line("other")])
    assert [found.text for found in logs.lines("r", one, 1)] == ["one"]


def test_a_deleted_run_has_no_logs(logs: Logs) -> None:
    logs.append("r", "k", 1, [line("x")])
    logs.append("other", "k", 1, [line("x")])
    logs.delete("r")
    logs.delete("r")
    assert os.listdir(logs.folder) == ["other"]
