"""Ranks that no longer get on: noticed, asked where they stand, ended; and ranks that only look as if."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Lab

from stoker.core.devices import Lease
from stoker.worker import hang, processes
from stoker.worker.processes import Activity

STILL = """
@step(cache=False, launch=plain(3, hang_after="2s"))
def all_sleep() -> None:
    print("before", context.rank, flush=True)
    time.sleep(600)

@step(cache=False, launch=plain(2, hang_after="2s"))
def one_waits_for_data() -> int:
    '''Rank 0 stands still for longer than that, and nobody waits for it in a collective.'''
    if context.rank == 0:
        time.sleep(5)
        Path("enough").touch()
    while not Path("enough").exists():
        pass
    return context.rank

@step(cache=False, launch=plain(2, hang_after="2s"), timeout="6s")
def both_spin() -> None:
    '''Ranks that compute do not hang, whatever they compute; the step's timeout ends them.'''
    while True:
        pass

@step(cache=False, launch=plain(2, hang_after=None), timeout="4s")
def patient() -> None:
    time.sleep(600)

@step(cache=False, launch=plain(2, hang_after="2s"))
def deaf_in_c() -> None:
    '''A rank that is stopped cannot say where it stands.'''
    if context.rank == 1:
        import signal
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)

@pipeline(failure_mode="continue")
def still():
    all_sleep()
    one_waits_for_data()
    both_spin()
    patient()
    deaf_in_c()

still()
"""


@pytest.fixture(scope="module")
def ran(module_script: Callable[[str], Lab]) -> Any:
    lab = module_script(STILL)
    lab.start("script.py").wait(1, 200.0)
    return lab["still"]


def test_ranks_that_do_nothing_hang(ran: Any, error_of: Any) -> None:
    step = ran.steps["all_sleep"]
    assert step.failure.cause == "hang"
    error = error_of(step)
    assert set(error["stacks"]) == {"0", "1", "2"}
    for text in error["stacks"].values():
        assert "all_sleep" in text and "script.py" in text
    assert error["sentence"] in step.failure.message
    assert "none waits in a known collective" in error["sentence"]
    assert "; ranks 0, 1, 2 stand at script.py:" in step.failure.message
    assert step.failure.message.endswith(": time.sleep(600)")
    assert {line.text for line in step.logs()} >= {"before 0", "before 1", "before 2"}


def test_a_rank_that_stands_still_while_others_work_does_not_hang(ran: Any) -> None:
    assert ran.steps["one_waits_for_data"].load() == 0


def test_ranks_that_compute_do_not_hang(ran: Any) -> None:
    assert ran.steps["both_spin"].failure.cause == "timed-out"


def test_no_limit_is_no_limit(ran: Any) -> None:
    assert ran.steps["patient"].failure.cause == "timed-out"


def test_a_rank_that_does_not_answer(ran: Any, error_of: Any) -> None:
    error = error_of(ran.steps["deaf_in_c"])
    assert ran.steps["deaf_in_c"].failure.cause == "hang"
    assert "deaf_in_c" in error["stacks"]["0"]
    assert "did not answer" in error["stacks"]["1"]


def test_ranks_that_came_to_a_stand_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {1: 0.0, 2: 0.0}
    monkeypatch.setattr(hang.processes, "use_of", lambda pid: Activity(cpu=used[pid]))
    asked = []
    monkeypatch.setattr(hang, "_stacks", lambda ranks, folder: asked.append(now) or dict.fromkeys(ranks, "waits"))
    watch = hang.HangDetector(4.0)
    for now in range(100, 130):
        used[2] += 1.0 if now < 105 else 0.0
        if watch.hangs({0: 1, 1: 2}, float(now), ""):
            break
    assert now == 108, "rank 0 stands from 100 on, rank 1 since 104"
    assert asked == [104, 108], "one that merely waits is asked every so often, not at each look"


def test_the_kernels_whole_ticks_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank in a collective keeps its connections alive: a tick of the clock now and then, never none for long."""
    used = {1: 0.0, 2: 0.0}
    monkeypatch.setattr(hang.processes, "use_of", lambda pid: Activity(cpu=used[pid]))
    monkeypatch.setattr(hang, "_stacks", lambda ranks, folder: dict.fromkeys(ranks, "waits"))
    watch = hang.HangDetector(6.0)
    looks = [100 + look / 2 for look in range(24)]
    for now in looks:
        used[1] += 0.01
        used[2] += 0.02 if int(now) == now else 0.0
        if watch.hangs({0: 1, 1: 2}, now, ""):
            break
    assert now == 106.0
    assert watch.report["sentence"].startswith("no rank computed, read or wrote for 6 s")


@pytest.mark.parametrize(
    ("each", "after"),
    [
        (Activity(cpu=0.2, starved=0.3), 15.0),  # it gets 40 % of a CPU: the others wait so much longer for it
        (Activity(cpu=0.5, starved=0.0), 6.0),
        (Activity(cpu=0.0, starved=0.45), 30.0),  # five times at most
        (Activity(moved=100_000), 6.0),
    ],
)
def test_a_rank_that_is_starved_is_waited_for_longer(
    monkeypatch: pytest.MonkeyPatch, each: Activity, after: float
) -> None:
    """Rank 0 waits in a collective for rank 1, which works, as far as it gets a CPU."""
    used = {1: Activity(), 2: Activity()}
    monkeypatch.setattr(hang.processes, "use_of", used.__getitem__)
    monkeypatch.setattr(hang, "_stacks", lambda ranks, folder: {0: FAULTHANDLER, 1: "works"})
    watch, now = hang.HangDetector(6.0), 100.0
    while not watch.hangs({0: 1, 1: 2}, now, ""):
        used[2] = Activity(*map(sum, zip(used[2], each)))
        now += 0.5
    assert now - 100.0 == pytest.approx(after, abs=1.0)


@pytest.mark.parametrize("each", [Activity(cpu=0.001, starved=0.3), Activity(moved=100_000)])
def test_ranks_that_want_a_cpu_or_read_and_write_do_not_hang(monkeypatch: pytest.MonkeyPatch, each: Activity) -> None:
    used = {1: Activity(), 2: Activity()}
    monkeypatch.setattr(hang.processes, "use_of", used.__getitem__)
    monkeypatch.setattr(hang, "_stacks", lambda ranks, folder: dict.fromkeys(ranks, "waits"))
    watch = hang.HangDetector(6.0)
    for look in range(100):
        assert not watch.hangs({0: 1, 1: 2}, 100.0 + look / 2, ""), "all ranks are at work"
        used = {pid: Activity(*map(sum, zip(use, each))) for pid, use in used.items()}
        monkeypatch.setattr(hang.processes, "use_of", used.__getitem__)


def test_what_a_process_uses_is_read_from_the_kernel(tmp_path: Path) -> None:
    code = "import sys; data = b'x' * 10_000_000; open(sys.argv[1], 'wb').write(data); print(flush=True); input()"
    child = [sys.executable, "-c", code, str(tmp_path / "file")]
    parent = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *child]
    with subprocess.Popen(parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        use = processes.use_of(process.pid)
        process.communicate(b"\n")
    assert use.cpu > 0 and use.moved >= 10_000_000, "of what it started, too"


@pytest.mark.parametrize(
    ("seconds", "found"),
    [
        ([{0: 1, 1: 1}, {0: 9, 1: 1}, {0: 17, 1: 2}, {0: 25, 1: 3}], (1, 7 / 15)),  # rank 0 waits for rank 1
        ([{0: 1, 1: 1}, {0: 9, 1: 1}, {0: 9, 1: 9}, {0: 17, 1: 9}], None),  # by turns
        ([{0: 1, 1: 1}, {0: 13, 1: 12}, {0: 25, 1: 24}], None),  # both wait for the network
        ([{0: 1}, {0: 9}, {0: 17}], None),
    ],
)
def test_a_rank_that_others_wait_for_is_named_while_it_runs(seconds: Any, found: Any) -> None:
    detector = hang.StragglerDetector()
    looks = [detector.look(lambda waited=waited: waited, 100.0 + 15 * number) for number, waited in enumerate(seconds)]
    assert [one for one in looks if one] == ([pytest.approx(found)] if found else []), "and named once"


FAULTHANDLER = """Thread 0x00007f1 (most recent call first):
  File "/x/torch/distributed/elastic/timer.py", line 10 in wait

Thread 0x00007f0 (most recent call first):
  File "/x/torch/distributed/distributed_c10d.py", line 3204 in all_reduce
  File "/x/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/y/train.py", line 9 in train
"""
PY_SPY = """Process 7: python -m stoker.worker.rank
Python v3.11.7

Thread 7 (idle): "MainThread"
    all_gather_into_tensor (torch/distributed/distributed_c10d.py:4000)
    wrapper (torch/distributed/c10d_logger.py:81)
    train (train.py:9)
Thread 9 (idle): "Thread-1"
    wait (threading.py:331)
"""


@pytest.mark.parametrize(
    ("stacks", "name"),
    [
        (FAULTHANDLER, "all_reduce"),
        (PY_SPY, "all_gather_into_tensor"),
        (FAULTHANDLER.replace("all_reduce", "helper"), ""),
        ('  File "/y/distributed.py", line 3 in train', ""),
        ('  File "/x/accelerate/state.py", line 3 in wait_for_everyone', "wait_for_everyone"),
        ('  File "/x/jax/experimental/multihost_utils.py", line 3 in sync_global_devices', "sync_global_devices"),
        ("", ""),
    ],
)
def test_the_collective_in_stacks(stacks: str, name: str) -> None:
    assert hang.collective(stacks) == name


@pytest.mark.parametrize(("percent", "hangs"), [(80.0, False), (0.0, True)])
def test_a_device_that_works_is_no_hang(tmp_path: Path, percent: float, hangs: bool) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text(f'{{"header":1}}\n{{"t":1.0,"devices":{{"GPU-1":{{"u":{percent}}}}}}}\n{{"t":2.')
    watch = hang.HangDetector(6.0, Lease(samples=str(samples), idle_below=5.0))
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        # The clock is the caller's: a second between two looks, and a rank that uses none of them.
        assert any(watch.hangs({0: sleeper.pid}, 1000.0 + second, str(tmp_path)) for second in range(3, 20)) == hangs
    finally:
        sleeper.kill()
        sleeper.wait()
