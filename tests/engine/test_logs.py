"""What steps write, from wherever they write it: kept line by line, and shown while they still run."""

from __future__ import annotations

import time
from typing import Any

import pytest

SCRIPT = """
import ctypes
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

from stoker import pipeline, step

log = logging.getLogger("mine")

@step
def talks() -> None:
    print("printed")
    sys.stderr.write("an error\\n")
    log.info("a record")
    log.debug("not shown")
    subprocess.run(["sh", "-c", "echo from a child; echo and its error >&2"], check=True)
    libc = ctypes.CDLL(None)
    libc.puts(b"from C")
    libc.fflush(None)
    os.write(1, "bytes: ä ".encode() + b"\\xff\\n")
    print("long " + "y" * 200_000)
    print("")
    sys.stdout.write("no newline at the end")

@step
def draws() -> None:
    for percent in range(0, 101, 10):
        sys.stderr.write(f"\\rprogress {percent:3d}%")
        sys.stderr.flush()
    sys.stderr.write("\\n")
    print("windows line\\r")

@step
def element(x: int) -> int:
    print("element", x)
    return x

@step
def fails_twice() -> None:
    with open("tries", "a") as file:
        file.write("x")
    print("try", len(open("tries").read()))
    if len(open("tries").read()) < 3:
        raise ValueError("again")

@step
def waits() -> None:
    print("before", flush=True)
    deadline = time.monotonic() + 60
    while not Path("seen").exists():
        assert time.monotonic() < deadline, "nobody saw the line"
        time.sleep(0.01)
    print("after")

@pipeline
def talking():
    talks()
    draws()
    element.map(list(range(200)))
    fails_twice.with_options(retry=2)()

@pipeline
def live():
    waits()

if __name__ == "__main__":
    globals()[os.environ.get("PIPELINE", "talking")]()
"""


@pytest.fixture(scope="module")
def talked(module_lab: Any) -> Any:
    module_lab.before = time.time()
    module_lab.write("script.py", SCRIPT)
    module_lab.said = module_lab.run("script.py")
    return module_lab


def test_lines_from_everywhere_are_kept_with_time_and_stream(talked: Any) -> None:
    lines = list(talked["talking"].steps["talks"].logs())
    out = [line.text for line in lines if line.stream == "stdout"]
    assert out[:4] == ["printed", "from a child", "from C", "bytes: ä \N{REPLACEMENT CHARACTER}"]
    assert out[-2:] == ["", "no newline at the end"]
    whole = "".join(text.removesuffix("…") for text in out[4:-2])
    assert whole == "long " + "y" * 200_000, "a long line is cut, but nothing of it is lost"
    errors = [line.text for line in lines if line.stream == "stderr"]
    assert errors == ["an error", "INFO mine: a record", "and its error"]
    assert all(talked.before <= line.time <= time.time() for line in lines)
    assert [line.time for line in lines] == sorted(line.time for line in lines)
    step = talked["talking"].steps["talks"]
    assert [line.text for line in step.logs(stream="stderr")] == errors
    assert [line.text for line in step.logs(tail=1, stream="stdout")] == ["no newline at the end"]


def test_of_a_progress_bar_the_last_drawing_is_kept(talked: Any) -> None:
    lines = list(talked["talking"].steps["draws"].logs())
    assert [(line.stream, line.text) for line in lines if line.stream == "stderr"] == [("stderr", "progress 100%")]
    assert [line.text for line in lines if line.stream == "stdout"] == ["windows line"]


def test_lines_of_elements_are_their_own(talked: Any) -> None:
    fanout = talked["talking"].steps["element"]
    for index in range(200):
        assert [line.text for line in fanout[index].logs()] == [f"element {index}"]
    assert len(list(fanout.logs())) == 200


def test_each_attempt_has_its_lines(talked: Any) -> None:
    step = talked["talking"].steps["fails_twice"]
    assert [[line.text for line in step.logs(number)] for number in (1, 2, 3)] == [["try 1"], ["try 2"], ["try 3"]]
    assert [line.text for line in step.logs()] == ["try 3"]


def test_the_terminal_shows_them_with_the_steps_name(talked: Any) -> None:
    said = [line.partition(" ")[2] for line in talked.said.splitlines()]  # without times
    for line in ("talks │ printed", "talks │ from C", "draws │ progress 100%", "element[7] │ element 7"):
        assert line in said, line
    order = [said.index(f"talks │ {text}") for text in ("printed", "from a child", "from C")]
    assert order == sorted(order)


def test_lines_are_shown_and_followed_while_the_step_runs(talked: Any) -> None:
    driver = talked.start("script.py", env={"PIPELINE": "live"})
    driver.until_written("waits │ before")
    run = talked["live"]
    followed = run.steps["waits"].logs(follow=True)
    assert next(followed).text == "before"
    assert run.refresh().steps["waits"].status == "running"
    (talked.folder / "seen").touch()
    assert [line.text for line in followed] == ["after"]
    driver.wait(0)
    assert any(line.endswith(" waits │ after") for line in driver.lines)


HOOKED = """
import os
import signal

from stoker import pipeline, step

def goodbye(told):
    print("goodbye from", told.pipeline)

@step
def work() -> int:
    print("working")
    if os.environ.get("INTERRUPTED"):
        os.kill(os.getpid(), signal.SIGINT)
    return 1

@pipeline(on_success=goodbye)
def hooked():
    work()

if __name__ == "__main__":
    hooked()
"""


def test_lines_of_the_pipelines_own_hooks_are_kept(lab: Any) -> None:
    lab.write("hooked.py", HOOKED).run("hooked.py")
    told = [(key, line.text) for key, line in lab["hooked"].logs()]
    assert told == [("work", "working"), ("hooked", "goodbye from hooked")]
    assert [key for key, _ in lab["hooked"].logs("work")] == ["work"]


def test_an_interrupt_under_debug_cancels_the_run(lab: Any) -> None:
    lab.write("hooked.py", HOOKED)
    lab.run("stoker", "run", "hooked.py", "--debug", code=130, env={"INTERRUPTED": "1"})
    assert lab["hooked"].status == "cancelled"
