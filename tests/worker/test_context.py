"""What a step sees of itself, and how it is told to end, without a run around it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import stoker
from stoker.core.devices import Device, Lease
from stoker.core.errors import StoreError, UsageError
from stoker.core.protocol import WorkerJob
from stoker.plan.digest import read_function_code
from stoker.worker.context import Context, context, document_of, enter
from stoker.worker.notice import Notice, Terminated

PROPERTIES = sorted(name for name, value in vars(Context).items() if isinstance(value, property))
DOCUMENT = {"run": "r1", "key": "train", "attempt": 2}
GPU = Device(kind="nvidia", index=1, uuid="GPU-1", name="NVIDIA H100", model="H100-80GB", memory=80 * 10**9)


def seen() -> dict[str, Any]:
    return {name: getattr(context, name) for name in PROPERTIES if name != "checkpoint_dir"}


@pytest.mark.parametrize("name", PROPERTIES)
def test_outside_a_step_every_property_says_what_to_do(name: str) -> None:
    with pytest.raises(UsageError, match=rf"context\.{name} is asked for where no step runs\n  fix: .*`if context:`"):
        getattr(context, name)


def test_outside_a_step() -> None:
    assert not context
    assert repr(context) == "<context: no step runs here>"


def test_the_public_name_is_the_one_that_steps_see() -> None:
    assert stoker.context is context
    assert len(PROPERTIES) == 15


def test_without_a_launcher_it_is_rank_0_of_1() -> None:
    with enter(DOCUMENT) as inside:
        assert inside is context and bool(context)
        assert repr(context) == "<context: step 'train' of run r1, attempt 2, rank 0 of 1>"
        assert seen() == {
            "run_id": "r1",
            "step": "train",
            "attempt": 2,
            "element": None,
            "rank": 0,
            "local_rank": 0,
            "world_size": 1,
            "local_world_size": 1,
            "node": 0,
            "nodes": 1,
            "is_main": True,
            "devices": (),
            "should_stop": False,
            "grace_left": None,
        }
    assert not context


def test_a_rank_is_where_its_document_says() -> None:
    place = {"rank": 5, "local_rank": 1, "world_size": 8, "local_world_size": 2, "node": 2, "nodes": 4}
    with enter({**DOCUMENT, **place}):
        assert {name: getattr(context, name) for name in place} == place
        assert not context.is_main
        assert "rank 5 of 8" in repr(context)


TORCH = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "2"}


def test_a_launcher_says_where_a_rank_is() -> None:
    with enter(DOCUMENT, TORCH):
        assert (context.rank, context.world_size, context.is_main) == (5, 6, False)
        assert (context.local_rank, context.local_world_size) == (1, 2)
        assert (context.node, context.nodes) == (2, 3)


def test_the_document_counts_more_than_the_environment() -> None:
    with enter({**DOCUMENT, "node": 1, "nodes": 7}, TORCH):
        assert (context.rank, context.node, context.nodes) == (5, 1, 7)


def test_an_environment_without_a_launcher_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with enter(DOCUMENT, {"PATH": "/bin"}):
        assert (context.rank, context.world_size, context.node, context.nodes) == (0, 1, 0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with enter(DOCUMENT):
        assert (context.rank, context.world_size) == (0, 1), "the driver's own launcher is not the step's"


@pytest.mark.parametrize(
    ("key", "given", "element"),
    [("train[3]", None, 3), ("train", None, None), ("train[x]", None, None), ("a[1]b", None, None), ("train", 4, 4)],
)
def test_elements(key: str, given: int | None, element: int | None) -> None:
    with enter({**DOCUMENT, "key": key, "element": given}):
        assert (context.element, context.step) == (element, key)


@pytest.mark.parametrize(("part", "memory"), [(0, 80 * 10**9), (10**9, 10**9)])
def test_devices_are_those_of_the_lease(part: int, memory: int) -> None:
    lease = Lease(devices=(GPU, attrs.evolve(GPU, uuid="GPU-2", simulated=True)), memory=part)
    with enter(document_of(WorkerJob(job="r1/train/1", step=0, inputs={}, accelerators=lease), "")):
        first, second = context.devices
    assert (first.kind, first.model, first.uuid, first.memory) == ("nvidia", "H100-80GB", "GPU-1", memory)
    assert (first.simulated, second.simulated, second.uuid) == (False, True, "GPU-2")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"job": "r1/train[2]/3"}, ("r1", "train[2]", 3)),
        ({"job": "r1/a/b/3"}, ("r1", "a/b", 3)),
        ({"job": "other", "context": {"run": "r2", "key": "k", "attempt": 9}}, ("r2", "k", 9)),
    ],
)
def test_a_jobs_document(job: dict[str, Any], expected: tuple[str, str, int]) -> None:
    document = document_of(WorkerJob(step=0, inputs={}, **job), "/kept")
    assert (document["run"], document["key"], document["attempt"], document["checkpoints"]) == (*expected, "/kept")


def test_the_checkpoint_folder_is_made_when_it_is_asked_for(tmp_path: Path) -> None:
    document = {**DOCUMENT, "key": "a/b c[1]", "checkpoints": str(tmp_path / "checkpoints")}
    with enter(document):
        assert not (tmp_path / "checkpoints").exists()
        folder = context.checkpoint_dir
        assert folder.is_dir() and folder == context.checkpoint_dir
        assert folder.parent == tmp_path / "checkpoints" / "r1", "a key is one name, whatever it is made of"
    with enter({**document, "key": "a"}):
        assert context.checkpoint_dir != folder
    with enter({**document, "attempt": 7, "rank": 3}):
        assert context.checkpoint_dir == folder, "neither attempt nor rank has one of its own"


def test_no_checkpoints_are_kept() -> None:
    with (
        enter(DOCUMENT),
        pytest.raises(UsageError, match="step 'train': whoever runs this step keeps no checkpoints"),
    ):
        _ = context.checkpoint_dir


def test_a_checkpoint_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = r"cannot be made: Not a directory\n  fix: .*STOKER_HOME"
    with enter({**DOCUMENT, "checkpoints": str(tmp_path / "file")}), pytest.raises(StoreError, match=said):
        _ = context.checkpoint_dir


def test_properties_cannot_be_set() -> None:
    with enter(DOCUMENT):
        for name in PROPERTIES:
            with pytest.raises(AttributeError):
                setattr(context, name, 1)


def test_one_step_inside_another_and_a_failure() -> None:
    with enter(DOCUMENT):
        with pytest.raises(ZeroDivisionError), enter({**DOCUMENT, "key": "inner"}):
            assert context.step == "inner"
            _ = 1 / 0
        assert context.step == "train"
    assert not context


def uses_context() -> bool:
    return context.is_main


def test_it_is_pickled_by_name_and_no_part_of_a_digest() -> None:
    assert pickle.loads(pickle.dumps(context)) is context
    outside = read_function_code(uses_context).digest
    with enter(DOCUMENT):
        assert pickle.loads(pickle.dumps(context)) is context
        assert read_function_code(uses_context).digest == outside, "the cache's keys do not depend on what runs"


def _tell(queue: Any) -> None:
    queue.put((context.step, context.attempt, context.rank, context.should_stop))


def test_forked_processes_see_the_same(tmp_path: Path) -> None:
    forking = multiprocessing.get_context("fork")
    queue = forking.SimpleQueue()
    with enter({**DOCUMENT, "rank": 1, "world_size": 2}):
        child = forking.Process(target=_tell, args=(queue,))
        child.start()
        assert queue.get() == ("train", 2, 1, False)
        child.join()
    assert child.exitcode == 0


# How a step is told to end


@pytest.fixture
def notice() -> Iterator[Notice]:
    before = signal.getsignal(signal.SIGTERM)
    made = Notice()
    made.listen()
    yield made
    signal.signal(signal.SIGTERM, before)
    made.close()


def sigterm() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_step_that_never_looked_is_interrupted_at_once(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert context.grace_left is None, "to look at the grace is not to look whether to stop"
        with pytest.raises(Terminated) as raised:
            sigterm()
        assert raised.value.code == 143
        assert context.should_stop
        sigterm()  # a second one does not interrupt its clean-up


def test_a_step_that_looked_is_left_alone(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert not context.should_stop
        sigterm()
        sigterm()
        assert context.should_stop
        assert context.grace_left is None, "nobody said how long"
    assert notice.stop_requested


def test_the_next_step_has_not_looked_yet(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert not context.should_stop
    with enter(DOCUMENT, notice=notice), pytest.raises(Terminated):
        sigterm()


def test_who_ends_the_step_says_how_long_it_has(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert not context.should_stop
        assert notice.tell(60.0), "it is left alone"
        sigterm()
        assert context.should_stop
        left = context.grace_left
        assert left is not None and 30 < left <= 60
        assert notice.tell(600.0)
        assert context.grace_left <= left, "nobody gives more once less was promised"
        notice.insist()
        with pytest.raises(Terminated):
            sigterm()
        sigterm()


def test_who_was_told_of_a_step_that_never_looked_interrupts_all_of_it(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert not notice.tell(60.0)
        assert context.should_stop, "seen before the signal comes"
        with pytest.raises(Terminated):
            sigterm()


def test_the_last_call_comes_before_the_end(notice: Notice) -> None:
    for grace, left in ((60.0, 1.0), (2.0, 0.5)):
        found = Notice()
        found.tell(grace)
        assert time.monotonic() + grace - found.last_call() == pytest.approx(left, abs=0.25)
        found.close()


def test_a_process_that_waits_for_jobs_ends(notice: Notice) -> None:
    notice.look()
    notice.idle = True
    with pytest.raises(Terminated):
        sigterm()


def test_a_step_that_is_over_is_not_interrupted_any_more(notice: Notice) -> None:
    with enter(DOCUMENT, notice=notice):
        assert not context.should_stop
        notice.tell(60.0)
    notice.insist()
    sigterm()  # its result is on its way


def test_listening_again_after_a_step_that_took_the_signal(notice: Notice) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    notice.listen()
    with pytest.raises(Terminated):
        sigterm()


RANK = """
import os, signal, sys, time
from stoker.worker.context import context, enter
from stoker.worker.notice import Notice, Terminated

notice = Notice(grace=float(sys.argv[1]))
notice.listen()
with enter({"run": "r", "key": "k", "attempt": 1}, os.environ, notice=notice):
    assert not context.should_stop
    os.kill(os.getpid(), signal.SIGTERM)
    assert context.should_stop
    assert 0 < context.grace_left <= float(sys.argv[1])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.01)
    except Terminated:
        assert context.grace_left > 0, "there is time to clean up"
        print("cleaned up")
"""


def test_a_rank_knows_its_platforms_grace() -> None:
    """Whoever sends the signal cannot write on the page: the process calls itself when the grace is nearly over."""
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RANK), "4"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (said.stdout, said.stderr) == ("cleaned up\n", "")


def _until_terminated(pipe: int) -> None:
    _ = context.should_stop
    os.write(pipe, b".")
    time.sleep(60)


def test_a_forked_process_that_the_step_ends_says_nothing_of_the_step(notice: Notice) -> None:
    there, here = os.pipe()
    with enter(DOCUMENT, notice=notice):
        assert not context.should_stop
        child = multiprocessing.get_context("fork").Process(target=_until_terminated, args=(here,))
        child.start()
        os.read(there, 1)
        child.terminate()
        child.join(60)
        assert child.exitcode == 143, "by the exception, with its finally blocks"
        assert not context.should_stop and not notice.stop_requested
    os.close(there)
    os.close(here)


def test_a_forked_process_that_looks_does_not_speak_for_its_parent(notice: Notice) -> None:
    forking = multiprocessing.get_context("fork")
    queue = forking.SimpleQueue()
    with enter(DOCUMENT, notice=notice):
        child = forking.Process(target=_tell, args=(queue,))
        child.start()
        queue.get()
        child.join()
        assert not notice.tell(60.0), "the step itself never looked"
