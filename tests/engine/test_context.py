"""`context` in real runs: where a step is, what it keeps between attempts and sessions, how it is told to end, and what
failures cost.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

FACTS = """
import multiprocessing
import os

from stoker import context, pipeline, step
from stoker.core.errors import UsageError

NAMES = ("run_id step attempt element rank local_rank world_size local_world_size node nodes is_main should_stop "
         "grace_left devices").split()
AT_IMPORT = bool(context)

def seen():
    return {**{name: getattr(context, name) for name in NAMES}, "dir": str(context.checkpoint_dir)}

def in_a_fork(queue):
    queue.put({**seen(), "devices": len(context.devices)})

@step(cache=False)
def plain() -> dict:
    forking = multiprocessing.get_context("fork")
    queue = forking.SimpleQueue()
    child = forking.Process(target=in_a_fork, args=(queue,))
    child.start()
    child_saw = queue.get()
    child.join()
    return {**seen(), "child": child_saw, "imported": AT_IMPORT, "repr": repr(context), "pid": os.getpid()}

@step(cache=False, isolation="fresh")
def fresh() -> dict:
    return {**seen(), "imported": AT_IMPORT}

@step(cache=False)
def element(x: int) -> dict:
    return {**seen(), "x": x}

@step(cache=False, resources={"gpu_count": 2})
def holds() -> dict:
    return {**seen(), "imported": AT_IMPORT}

def hook():
    try:
        context.run_id
    except UsageError:
        with open("hook.txt", "a") as file:
            file.write("outside\\n")

@pipeline(on_success=hook)
def facts():
    plain()
    fresh()
    element.map([10, 20, 30])

@pipeline
def devices():
    holds()

if __name__ == "__main__":
    assert not context
    print("driver", os.getpid())
    globals()[os.environ["WHICH"]]()
    assert not context
"""


def checked(lab: Any, run: Any, found: dict[str, Any], key: str, element: int | None = None) -> None:
    assert found["run_id"] == run.id
    assert (found["step"], found["attempt"], found["element"]) == (key, 1, element)
    assert [found[name] for name in ("rank", "local_rank", "node")] == [0, 0, 0]
    assert [found[name] for name in ("world_size", "local_world_size", "nodes")] == [1, 1, 1]
    assert (found["is_main"], found["should_stop"], found["grace_left"]) == (True, False, None)
    assert Path(found["dir"]) == lab.home / "checkpoints" / run.id / key
    assert Path(found["dir"]).is_dir()


@pytest.fixture(scope="module")
def facts(module_lab: Any) -> Any:
    module_lab.write("facts.py", FACTS).run("facts.py", env={"WHICH": "facts"})
    return module_lab


def test_a_plain_step_and_its_fork(facts: Any) -> None:
    run = facts["facts"]
    found = run.steps["plain"].load()
    checked(facts, run, found, "plain")
    assert found["devices"] == () and not found["imported"]
    child = found["child"]
    checked(facts, run, child, "plain")
    assert f"step 'plain' of run {run.id}" in found["repr"]


def test_a_fresh_process(facts: Any) -> None:
    run = facts["facts"]
    checked(facts, run, run.steps["fresh"].load(), "fresh")


def test_elements(facts: Any) -> None:
    run = facts["facts"]
    found = run.steps["element"].load()
    assert [one["x"] for one in found] == [10, 20, 30]
    for index, one in enumerate(found):
        checked(facts, run, one, f"element[{index}]", index)


def test_a_hook_is_no_step(facts: Any) -> None:
    assert facts.read("hook.txt") == ["outside"]


def test_under_a_debugger(lab: Any) -> None:
    said = lab.write("facts.py", FACTS).run("facts.py", "--debug", env={"WHICH": "facts"})
    run = lab["facts"]
    found = run.steps["plain"].load()
    assert f"driver {found['pid']}\n" in said, "it runs in the program itself"
    checked(lab, run, found, "plain")
    checked(lab, run, found["child"], "plain")
    checked(lab, run, run.steps["element"].load()[2], "element[2]", 2)


def test_held_devices(lab: Any) -> None:
    lab.write("facts.py", FACTS).run("facts.py", "--simulate", "2xH100-80GB", env={"WHICH": "devices"})
    run = lab["devices"]
    found = run.steps["holds"].load()
    checked(lab, run, found, "holds")
    assert not found["imported"], "a step with devices imports its module before it begins, as others do"
    assert [(one.kind, one.model, one.simulated) for one in found["devices"]] == [("nvidia", "H100", True)] * 2
    assert len({one.uuid for one in found["devices"]}) == 2
    assert all(one.memory > 70e9 for one in found["devices"])


KEPT = """
import os
import signal
from pathlib import Path

from stoker import context, pipeline, step

def more(file):
    file = context.checkpoint_dir / file
    done = int(file.read_text()) if file.exists() else 0
    file.write_text(str(done + 1))
    return done

@step(retry=2)
def killed() -> list[int]:
    done = more("epoch")
    if context.attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return [done, context.attempt]

@step
def every(x: int) -> int:
    done = more("epoch")
    if x == 1 and not Path("mended").exists():
        raise ValueError("broken")
    return done * 10 + x

@pipeline(failure_mode="continue")
def kept():
    killed()
    every.map([0, 1])

if __name__ == "__main__":
    kept()
"""


def test_checkpoints_are_there_again(lab: Any) -> None:
    """After a retry, after `resume`, and not in another run; they go when the run goes."""
    lab.write("kept.py", KEPT).run("kept.py", code=1)
    run = lab["kept"]
    assert run.steps["killed"].load() == [2, 3], "attempt 3 found what attempts 1 and 2 had written"
    assert run.steps["every"][1].status == "failed"
    (lab.folder / "mended").touch()
    lab.run("stoker", "resume", run.id)
    run = run.refresh()
    assert run.steps["every"].load() == [0, 11], "element 1 went on, element 0 was kept"
    folder = lab.home / "checkpoints" / run.id
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("epoch")) == [
        "every[0]/epoch",
        "every[1]/epoch",
        "killed/epoch",
    ]
    lab.write("kept.py", KEPT.replace("def kept", "def fresh").replace("    kept()", "    fresh()"))
    lab.run("kept.py", "--no-cache")
    other = lab["fresh"]
    assert other.steps["killed"].load() == [2, 3], "another run begins anew"
    (folder / "killed" / "model.bin").write_bytes(b"x" * 5_000)
    would = json.loads(lab.run("stoker", "gc", "--keep", "0", "--dry-run", "--json"))
    assert sorted(would["runs"]) == sorted([run.id, other.id])
    assert would["checkpoint_bytes"] == 5_000 + 6, "one figure in each file"
    assert folder.exists()
    assert "would delete 5 kB of their checkpoints" in lab.run("stoker", "gc", "--keep", "0", "--dry-run")
    lab.client.delete(run)
    assert not folder.exists()
    gone = json.loads(lab.run("stoker", "gc", "--keep", "0", "--json"))
    assert gone["runs"] == [other.id] and gone["checkpoint_bytes"] == 3 and gone["bytes"] >= 3
    assert list((lab.home / "checkpoints").iterdir()) == []


ENDING = """
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stoker import context, pipeline, step
from stoker.config import LocalSettings

def until(what):
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)

def leave_a_note(text, name="notes.txt"):
    with open(name, "a") as file:
        file.write(text + chr(10))

def begin():
    leave_a_note("one more", "runs.txt")

@step(cache=False)
def returns() -> str:
    assert not context.should_stop
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    begin()
    until(lambda: context.should_stop)
    left = context.grace_left
    assert 0 < left <= 10, left
    assert child.poll() is None, "what the checkpoint needs lives on"
    child.kill()
    child.wait()
    (context.checkpoint_dir / "saved").write_text("half")
    return "as far as it came"

@step(cache=False)
def leaves() -> str:
    saved = context.checkpoint_dir / "saved"
    if saved.exists():
        return "went on from " + saved.read_text()
    assert not context.should_stop
    begin()
    until(lambda: context.should_stop)
    saved.write_text("half")
    sys.exit()

@step(cache=False)
def never_looks() -> str:
    if Path("resumed").exists():
        return ""
    begin()
    try:
        time.sleep(300)
    finally:
        leave_a_note(f"should stop: {context.should_stop}, {context.grace_left > 5}")
    return ""

@step(cache=False)
def dawdles() -> str:
    if Path("resumed").exists():
        return ""
    assert not context.should_stop
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    begin()
    until(lambda: context.should_stop)
    began = time.monotonic()
    try:
        # In C, where no exception reaches it before the child ends.
        os.waitpid(child.pid, 0)
        time.sleep(300)
    finally:
        leave_a_note(f"dawdled {time.monotonic() - began > 5} {0 <= context.grace_left < 2}")
    return ""

@step(cache=False, timeout="500ms")
def too_long() -> str:
    until(lambda: context.should_stop)
    return "in time"

@step(cache=False, timeout="500ms", retry=1)
def too_long_once() -> int:
    saved = context.checkpoint_dir / "saved"
    if saved.exists():
        return context.attempt
    until(lambda: context.should_stop)
    saved.touch()
    sys.exit(1)

@step(cache=False, retry=1)
def preempted() -> list:
    saved = context.checkpoint_dir / "saved"
    if saved.exists():
        return [context.attempt, context.should_stop, saved.read_text()]
    assert not context.should_stop
    os.kill(os.getpid(), signal.SIGTERM)
    until(lambda: context.should_stop)
    assert context.grace_left is None
    saved.write_text("half")
    sys.exit()

@step(cache=False)
def goes_on() -> str:
    assert not context.should_stop
    os.kill(os.getpid(), signal.SIGTERM)
    assert context.should_stop
    return "all the same"

@step(cache=False)
def afterwards(x: str) -> list:
    return [context.should_stop, os.getpid()]

@pipeline(settings={"orchestrator.local": LocalSettings(cpus=8)})
def cancelled():
    returns()
    leaves()
    never_looks()
    dawdles()

@pipeline
def outside():
    preempted()
    afterwards(goes_on())

@pipeline
def timeouts():
    too_long()
    too_long_once()

if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
"""


@pytest.fixture(scope="module")
def ended(module_lab: Any) -> Any:
    """A run that was cancelled when all its steps ran, and two whose steps end in other ways."""
    module_lab.write("ending.py", ENDING).run("ending.py", "outside", "timeouts")
    driver = module_lab.start("ending.py", "cancelled")
    driver.until(lambda: len(module_lab.read("runs.txt")) == 4)
    driver.signal(signal.SIGINT)
    driver.wait(130)
    assert module_lab["cancelled"].status == "cancelled"
    return module_lab


def test_a_step_that_stops_by_itself_and_returns_has_succeeded(ended: Any) -> None:
    step = ended["cancelled"].steps["returns"]
    assert (step.status, step.load()) == ("succeeded", "as far as it came")


def test_a_step_that_never_looks_is_interrupted_at_once(ended: Any) -> None:
    assert ended["cancelled"].steps["never_looks"].status == "cancelled"
    assert "should stop: True, True" in ended.read("notes.txt")


def test_a_step_that_takes_too_long_to_stop_is_interrupted_before_it_is_killed(ended: Any) -> None:
    assert ended["cancelled"].steps["dawdles"].status == "cancelled"
    assert "dawdled True True" in ended.read("notes.txt"), "its finally block ran, late, and before the kill"


def test_a_timeout_asks_first(ended: Any) -> None:
    run = ended["timeouts"]
    assert run.steps["too_long"].load() == "in time"
    twice = run.steps["too_long_once"]
    assert twice.load() == 2
    assert [attempt.failure and attempt.failure.cause for attempt in twice.attempts] == ["timed-out", None]


def test_a_signal_from_outside(ended: Any) -> None:
    run = ended["outside"]
    step = run.steps["preempted"]
    assert step.load() == [2, False, "half"]
    assert step.attempts[0].failure.cause == "killed"
    assert "SIGTERM from outside" in step.attempts[0].failure.message
    assert run.steps["goes_on"].load() == "all the same"
    assert run.steps["goes_on"].attempt_count == 1
    assert run.steps["afterwards"].load()[0] is False, "another process: the one that was asked to end did"


def test_a_step_that_stops_by_itself_and_leaves_goes_on_when_it_is_resumed(ended: Any) -> None:
    run = ended["cancelled"]
    step = run.steps["leaves"]
    assert (step.status, step.cause) == ("cancelled", "cancelled")
    (ended.folder / "resumed").touch()
    ended.run("stoker", "resume", run.id)
    assert run.refresh().steps["leaves"].load() == "went on from half"


COSTS = """
import os, time
from stoker import context, pipeline, step
from stoker.config import ResourceSettings, Retry

def work(saves):
    time.sleep(0.3)
    if saves:
        (context.checkpoint_dir / "epoch").mkdir(exist_ok=True)
        (context.checkpoint_dir / "epoch" / "state").write_text("half")
    time.sleep(0.4)
    if context.attempt == 1:
        os.kill(os.getpid(), 9)

@step(cache=False, retry=Retry(1, delay=0.2), resources=ResourceSettings(gpu_count=1))
def saves() -> None:
    work(True)

@step(cache=False, retry=1)
def saves_nothing() -> None:
    work(False)

@step(cache=False)
def goes_well() -> None:
    time.sleep(0.1)

@pipeline
def costs():
    saves()
    saves_nothing()
    goes_well()

costs()
"""


def test_a_failure_costs_the_work_after_the_last_checkpoint(lab: Any) -> None:
    lab.write("script.py", COSTS)
    lab.run("script.py", "--simulate", "1xH100-80GB")
    steps = lab["costs"].steps
    first, second = steps["saves"].attempts
    assert 0.4 <= first.usage.lost <= first.seconds - 0.3, "what was before the checkpoint is not lost"
    assert second.usage.lost is None
    gap = (second.started - first.ended).total_seconds()
    assert (steps["saves"].lost.work, steps["saves"].lost.restarting) == (first.usage.lost, pytest.approx(gap))
    assert gap >= 0.2 and str(steps["saves"].lost) in lab.run("stoker", "show", "latest")
    assert first.receipt.lost_seconds == first.usage.lost and second.receipt.lost_seconds is None
    assert "of work after the last checkpoint" in lab.run("stoker", "gpu", "latest", "saves", "--attempt", "1")
    whole = steps["saves_nothing"].attempts[0]
    assert whole.usage.lost == pytest.approx(whole.seconds, abs=0.01)
    assert (steps["goes_well"].lost.work, str(steps["goes_well"].lost)) == (None, "")


CADENCE = """
import os, signal, time
from stoker import context, pipeline, step
from stoker.core.errors import UsageError

def refused():
    try:
        return context.checkpoint_due()
    except UsageError as error:
        return str(error)

@step(checkpoint_every="auto", cache=False, retry=1)
def train() -> str:
    if context.attempt == 1 and not os.path.exists("lost"):
        open("lost", "w").close()
        time.sleep(0.1)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    for _ in range(2):
        while not context.checkpoint_due():
            time.sleep(0.01)
        again = refused()
        context.checkpoint_saved()
    return again

@step(cache=False)
def never() -> str:
    return refused()

@pipeline
def cadence():
    train()
    never()

if __name__ == "__main__":
    cadence()
"""


def test_a_checkpoint_is_due_by_what_one_costs_and_by_what_was_lost(lab: Any) -> None:
    lab.write("script.py", CADENCE)
    lab.run("script.py", "--set", "steps.train.checkpoint_every=50ms")
    assert lab["cadence"].steps["train"].attempts[0].failure.cause == "worker-lost"
    assert "as often as is best for one loss in " in lab.run("stoker", "plan", "script.py")
    lab.run("script.py")
    steps = lab["cadence"].steps
    log = lab.run("stoker", "logs", "latest", "train")
    assert "checkpoints: the first one took " in log and "(1 loss in " in log
    assert "call context.checkpoint_saved() after each one" in steps["train"].load()
    assert 'give the step checkpoint_every="auto"' in steps["never"].load()
