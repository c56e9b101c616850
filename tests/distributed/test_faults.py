"""Each way in which a rank can fail, on the first or the last one: who is to blame, and what is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.distributed.conftest import SPAWN, scripted
from tests.engine.conftest import Lab

SCRIPT = """
import ctypes
import signal
import subprocess

def lasting():
    '''Until the end, however it comes; a rank that only waits for others.'''
    time.sleep(600)

def note(what):
    with open(f"{context.step}.txt", "a") as file:
        file.write(f"{what} {context.rank} {time.time()}\\n")

def raises():
    note("failed")
    raise ValueError(f"rank {context.rank} has had enough")

def killed():
    note("failed")
    os.kill(os.getpid(), signal.SIGKILL)

def exits():
    note("failed")
    os._exit(7)

def leaves():
    note("failed")
    sys.exit(7)

def segfaults():
    note("failed")
    ctypes.string_at(0)

def prints():
    for number in range(500):
        sys.stdout.write("x" * 9_999 + "\\n")
    note("failed")
    raise ValueError(f"rank {context.rank} printed 5 MB")

def loses_a_thread():
    '''The error of a rank that goes on to hang when Python waits for its threads.'''
    import threading

    threading.Thread(target=lasting).start()
    note("failed")
    raise ValueError(f"rank {context.rank} has a thread that never ends")
"""

KINDS = {"raises": 0, "killed": 0, "exits": 2, "leaves": 0, "segfaults": 2, "prints": 2}
"""Which of three ranks fails so: the first, which answers for all, or the last."""
STEPS = "\n".join(
    f"""
@step(cache=False, launch=plain(3, hang_after=None))
def {kind}_at(rank: int) -> None:
    note(f"began {{os.getpid()}}")
    print(f"before, rank {{context.rank}}", flush=True)
    meet("began")
    if context.rank == rank:
        {kind}()
    lasting()
"""
    for kind in (*KINDS, "loses_a_thread")
)
PIPELINE = f"""
@pipeline(failure_mode="continue", max_parallel=2)
def faults():
    for kind, rank in ({", ".join(f"({kind}_at, {rank})" for kind, rank in KINDS.items())}):
        kind(rank)
    loses_a_thread_at(1)

faults()
"""
EXPECTED: dict[str, tuple[str, int | None, str]] = {
    "raises": ("user-error", None, "rank {rank} has had enough"),
    "killed": ("killed", -9, "rank {rank} of 3 was ended by SIGKILL"),
    "exits": ("exited", 7, "rank {rank} of 3 left with exit code 7 before the step returned"),
    "leaves": ("exited", None, "the step called sys.exit(7)"),
    "segfaults": ("crashed", -11, "rank {rank} of 3 was ended by SIGSEGV"),
    "prints": ("user-error", None, "rank {rank} printed 5 MB"),
}


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    scripted(lab, SCRIPT + STEPS + PIPELINE)
    lab.start("script.py").wait(1, 240.0)
    yield lab, lab["faults"]
    lab.close()


@pytest.mark.parametrize(("kind", "rank"), KINDS.items())
def test_the_culprit_is_named(failed: Any, error_of: Any, alive: Any, kind: str, rank: int) -> None:
    lab, run = failed
    step = run.steps[f"{kind}_at"]
    cause, code, message = EXPECTED[kind]
    assert (step.failure.cause, step.failure.exit_code) == (cause, code)
    error = error_of(step)
    assert (error["rank"], error["world_size"]) == (rank, 3)
    assert rank in error["failed_ranks"]
    assert message.format(rank=rank) in error["message"]
    if cause == "user-error":
        assert f"in {kind}\n" in step.failure.traceback and "script.py" in step.failure.place
    lines = list(step.logs(rank=[0, 1, 2]))
    assert {line.rank for line in lines if line.text.startswith("before")} == {0, 1, 2}, "nothing written is lost"
    if kind in ("killed", "exits"):
        assert {line.text for line in lines} == {f"before, rank {one}" for one in range(3)}, "and nothing is added"
    if kind == "prints":
        assert sum(line.text == "x" * 9_999 and line.rank == rank for line in lines) == 500
    notes = [line.split() for line in lab.read(f"{kind}_at.txt")]
    began = [int(words[1]) for words in notes if words[0] == "began"]
    assert len(began) == 3 and not any(map(alive, began)), "nothing survives"
    (at,) = [float(words[-1]) for words in notes if words[0] == "failed"]
    assert step.attempts[-1].ended.timestamp() - at < 10.0, "3 s on a machine with nothing else to do"


def test_a_rank_that_failed_and_cannot_leave(failed: Any, error_of: Any) -> None:
    _, run = failed
    step = run.steps["loses_a_thread_at"]
    assert (step.failure.cause, error_of(step)["rank"]) == ("user-error", 1)


FAMILY = """
import multiprocessing
import subprocess

def family():
    '''Children that stay, one that leaves the session, one that does not hear SIGTERM, and a grandchild.'''
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    deaf = [sys.executable, "-c",
            "import signal; signal.signal(15, signal.SIG_IGN); print(1, flush=True); signal.pause()"]
    nested = [sys.executable, "-c", "import subprocess, sys; child = subprocess.Popen(sys.argv[1:], "
              "start_new_session=True); print(child.pid, flush=True); child.wait()", *sleep]
    first = subprocess.Popen(sleep)
    second = subprocess.Popen(sleep, start_new_session=True)
    third = subprocess.Popen(deaf, stdout=subprocess.PIPE, start_new_session=True)
    fourth = subprocess.Popen(nested, stdout=subprocess.PIPE)
    third.stdout.readline()
    grandchild = int(fourth.stdout.readline())
    with open("family.txt", "a") as file:
        print(os.getpid(), first.pid, second.pid, third.pid, fourth.pid, grandchild, file=file)

@step(cache=False, launch=plain(2))
def fails() -> None:
    family()
    meet("there")
    if context.rank == 1:
        raise ValueError("out")
    time.sleep(600)

@step(cache=False, launch=plain(2))
def returns() -> int:
    family()
    return 1

@step(cache=False, launch=plain(2), timeout="20s")
def deaf() -> None:
    import signal
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    family()
    meet("there")
    if context.rank == 1:
        raise ValueError("the other one does not hear")
    while True:
        time.sleep(1)

@pipeline(failure_mode="continue")
def families():
    fails()
    returns()
    deaf()

families()
"""


def test_no_child_of_a_rank_survives(script: Callable[[str], Lab], gone: Any) -> None:
    lab = script(FAMILY)
    lab.start("script.py").wait(1, 120.0)
    run = lab["families"]
    assert run.steps["fails"].failure.message == "out"
    assert run.steps["returns"].load() == 1
    assert run.steps["returns"].seconds < 30, "what a step leaves behind is ended, not waited for"
    assert run.steps["deaf"].failure.message == "the other one does not hear"
    members = [int(word) for line in lab.read("family.txt") for word in line.split()]
    assert len(members) == 36
    assert all(gone(pid) for pid in members)


ENDED = """
@step(cache=False, launch=plain(3), retry=1)
def polite() -> int:
    meet("there")
    if context.attempt > 1:
        return sum(int((context.checkpoint_dir / f"rank-{rank}").read_text()) for rank in range(3))
    context.should_stop  # whoever asks is left to end by itself
    Path(f"ready-{context.rank}").touch()
    while not context.should_stop:
        time.sleep(0.01)
    grace = context.grace_left
    (context.checkpoint_dir / f"rank-{context.rank}").write_text(str(int(0 < grace <= 10)))
    sys.exit()

@step(cache=False, launch=plain(3))
def rude() -> None:
    meet("there")
    try:
        Path(f"ready-{context.rank}").touch()
        time.sleep(600)
    finally:
        Path(f"finally-{context.rank}").write_text("was here")

@pipeline
def ended():
    globals()[os.environ["WHICH"]]()

ended()
"""


@pytest.mark.parametrize("which", ["polite", "rude"])
def test_ctrl_c_reaches_every_rank(script: Callable[[str], Lab], which: str) -> None:
    lab = script(ENDED)
    words = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit('a launcher says of its end'))\n"
    lab.write("spawn.py", words + SPAWN)
    driver = lab.start("script.py", env={"WHICH": which})
    driver.until(lambda: len(list(lab.folder.glob("ready-*"))) == 3)
    began = time.monotonic()
    driver.signal(signal.SIGINT)
    said = driver.wait(130)
    assert time.monotonic() - began < 9, "nobody waited for the kill"
    run = lab["ended"]
    assert (run.status, run.steps[which].status) == ("cancelled", "cancelled")
    assert "of its end" not in said and any("of its end" in line.text for line in run.steps[which].logs())
    if which == "rude":
        assert [lab.read(f"finally-{rank}") for rank in range(3)] == [["was here"]] * 3
    else:
        lab.start("stoker", "resume", run.id, env={"WHICH": which}).wait()
        assert lab["ended"].steps["polite"].load() == 3, "all ranks knew how long they had, and kept their checkpoint"
