"""Copies of a step's checkpoints in the artifact store, by the program of a job elsewhere: real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.config import Torchrun
from stoker.core import settings
from stoker.launchers.options import parse_launch, resolve_launch
from stoker.store.blobs import Blobs
from stoker.store.checkpoints import Checkpoints, step_place
from stoker.worker.checkpointer import SavedFile, Snapshot, Snapshots

CODE = """
import os, pathlib, signal, sys, time
from stoker import context

def replace(path, text):
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)

def copied(store, number=1):
    while len([name for name in os.listdir(store) if name.endswith(".json")]) < number:
        time.sleep(0.02)

def train(store):
    folder = context.checkpoint_dir
    state = folder / "state"
    print("begins with", sorted(entry.name for entry in folder.iterdir()), flush=True)
    replace(state, (state.read_text() if state.exists() else "") + str(context.attempt))
    copied(store)
    os.kill(os.getpid(), signal.SIGKILL)

def leaves():
    folder = context.checkpoint_dir
    (folder / "plain").write_text("written in place")
    sys.exit()

def fails():
    folder = context.checkpoint_dir
    replace(folder / "renamed", "whole")
    (folder / "plain").write_text("written in place")
    (folder / "half").mkdir()
    (folder / "half" / "one").write_text("of two")
    raise ConnectionError("the data went away")

def marks():
    folder = context.checkpoint_dir
    (folder / "model").mkdir()
    (folder / "model" / "weights").write_text("1")
    context.checkpoint_saved()
    (folder / "model" / "weights").unlink()
    (folder / "model").rmdir()
    os.kill(os.getpid(), signal.SIGKILL)

def shows():
    folder = context.checkpoint_dir
    for parent, _, files in sorted(os.walk(folder)):
        for name in sorted(files):
            path = pathlib.Path(parent, name)
            print(path.relative_to(folder), path.read_text(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

def many():
    folder = context.checkpoint_dir
    for number in range(5):
        (folder / f"weights-{number}").write_text(str(number) * 1000)
        for older in range(number - 1):
            (folder / f"weights-{older}").unlink(missing_ok=True)
        context.checkpoint_saved()

def stays():
    folder = context.checkpoint_dir
    while not context.should_stop:
        if not (folder / "plain").exists():
            (folder / "plain").write_text("1")
            print("ready", flush=True)
        time.sleep(0.01)
    (folder / "last").write_text("2")
    sys.exit()

def ranks():
    folder = context.checkpoint_dir
    if context.rank == 1:
        replace(folder / "whole", "1")
        (folder / "half").write_text("of it")
        os.kill(os.getpid(), signal.SIGKILL)
    while not (folder / "half").exists():
        time.sleep(0.01)
    sys.exit()

def unused():
    print("no checkpoints", flush=True)
"""


class Node:
    """A node's folders, and the store that all nodes reach."""

    def __init__(self, folder: Path, store: str = "") -> None:
        self.folder = folder
        self.code = folder / "steps.py"
        self.code.write_text(CODE)
        self.store = store or Blobs(str(folder / "artifacts")).uri
        self.place = step_place(self.store, "r", "step")
        self.saved = f"{self.place}/node-0/saved"
        self.saved = self.saved.removeprefix("local://")
        Path(self.saved).mkdir(parents=True)
        self.checkpoints = folder / "node" / "checkpoints"

    def start(self, function: str, attempt: int = 1, **more: Any) -> subprocess.Popen[str]:
        place = self.folder / f"job-{attempt}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        source = {"kind": "script", "module": "steps", "qualname": function, "digest": ""}
        source |= {"path": str(self.code), "root": str(self.folder)}
        step = {"name": function, "source": source, "outputs": [], "unpack": False, "split": [], "environment": {}}
        inputs = {}
        if function == "train":
            from stoker.store import artifacts

            inputs = {"store": {"value": artifacts.save(self.saved, Blobs(self.store)).wire()}}
        job = {"job": f"r/step/{attempt}", "step": 0, "inputs": inputs, "timed": True}
        if function == "ranks":
            job["launch"] = settings.plain(resolve_launch(parse_launch(Torchrun(processes_per_node=2))))
        document = {"version": 1, "job": job, "step": step, "blobs": self.store, "package": "", "root": ""}
        document |= {"folder": str(self.folder), "path": [], "checkpoints": str(self.checkpoints), "keep": 2}
        (place / "job.json").write_text(json.dumps({**document, "grace": 5.0, **more}))
        return subprocess.Popen(
            [sys.executable, "-m", "stoker.worker.boot", str(place / "job.json")],
            env={**os.environ, "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, function: str, attempt: int = 1, **more: Any) -> tuple[list[str], str, dict[str, Any]]:
        """Run to the end: what the step wrote, stderr, the result."""
        out, err = self.start(function, attempt, **more).communicate(timeout=120)
        result = json.loads((self.folder / f"job-{attempt}" / "result.json").read_text())
        return [line for line in out.split("\n") if line and not line.startswith("\x1e")], err, result

    def lose(self) -> None:
        """The node is gone with its folders; the next attempt gets another one."""
        shutil.rmtree(self.folder / "node", ignore_errors=True)


@pytest.fixture(params=["folder", "fsspec"])
def node(request: Any, tmp_path: Path, monkeypatch: Any) -> Node:
    """A node with a store in a folder that it sees, or in one that it reaches by fsspec alone."""
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return Node(tmp_path, f"local://{tmp_path}/artifacts" if request.param == "fsspec" else "")


@pytest.fixture
def plain(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_killed_attempt_goes_on_elsewhere_from_its_last_checkpoint(node: Node) -> None:
    node.run("train")
    node.lose()
    out, err, result = node.run("train", 2)
    assert out == ["begins with ['state']"], (out, err)
    assert "stoker: checkpoints restored: 1 files" in err and "by attempt 1" in err
    assert result["exited"]["signal"] == signal.SIGKILL
    node.lose()
    assert node.run("shows", 3)[0] == ["state 12"]


def test_a_step_that_leaves_by_itself_is_believed(plain: Node) -> None:
    plain.run("leaves")
    assert not plain.checkpoints.exists() or not list(plain.checkpoints.rglob("plain"))  # what is copied is cleared
    plain.lose()
    assert plain.run("shows", 2)[0] == ["plain written in place"]


def test_of_a_failed_step_only_what_came_by_renaming_is_certain(plain: Node) -> None:
    _, err, result = plain.run("fails")
    assert result["error"]["type"] == "ConnectionError"
    assert "the step failed within seconds of writing it, or what it may refer to: half, plain" in err
    plain.lose()
    assert plain.run("shows", 2)[0] == ["renamed whole"]


def test_what_the_step_says_is_complete_outlives_its_removal(plain: Node) -> None:
    plain.run("marks")
    plain.lose()
    assert plain.run("shows", 2)[0] == [os.path.join("model", "weights") + " 1"]


def test_the_last_two_copies_stay_with_their_files_and_no_others(node: Node) -> None:
    node.run("many")
    snapshots = Snapshots(node.place, 0)
    names = snapshots.names()
    assert len(names) <= 2
    last = snapshots.read(names[-1])
    assert {file.path for file in last.files} == {"weights-3", "weights-4"}
    needed = {file.digest for name in names for file in snapshots.read(name).files}
    stored = {path.parent.name + path.name for path in Path(node.saved).parent.glob("objects/*/*")}
    assert stored == needed


def test_a_damaged_copy_is_passed_over(node: Node) -> None:
    node.run("train")
    node.lose()
    node.run("train", 2)
    newest = Snapshots(node.place, 0)
    (file,) = newest.read(newest.names()[-1]).files
    blob = next(Path(node.saved).parent.glob(f"objects/{file.digest[:2]}/{file.digest[2:]}"))
    blob.chmod(0o600)
    blob.write_bytes(b"?" * file.size)
    node.lose()
    out, err, _ = node.run("shows", 3)
    assert out == ["state 1"], err
    assert "a copy of the checkpoints is damaged, and the one before it is taken" in err


def test_a_snapshot_that_was_cut_off_is_passed_over(plain: Node) -> None:
    plain.run("train")
    plain.lose()
    plain.run("train", 2)
    newest = Path(plain.saved, max(os.listdir(plain.saved)))
    newest.write_bytes(newest.read_bytes()[:-20])
    plain.lose()
    assert plain.run("shows", 3)[0] == ["state 1"]


def test_a_rank_that_leaves_in_order_does_not_vouch_for_one_that_was_killed(plain: Node) -> None:
    plain.run("ranks")
    plain.lose()
    assert plain.run("shows", 2)[0] == ["whole 1"]


def test_a_store_that_is_away_is_told_once_and_does_not_stop_the_step(plain: Node) -> None:
    place = Path(plain.saved)
    place.rmdir()
    place.write_text("in the way")
    started = plain.start("leaves", grace=5.0)
    assert started.stderr is not None
    line = started.stderr.readline()
    assert line.startswith("stoker: checkpoints do not leave this node: "), line
    place.unlink()  # the store is back
    _, err = started.communicate(timeout=120)
    assert "stoker: checkpoints are copied again" in err
    assert json.loads((plain.folder / "job-1" / "result.json").read_text())["error"]["type"] == "SystemExit"
    plain.lose()
    assert plain.run("shows", 2)[0] == ["plain written in place"]


def test_what_cannot_leave_the_node_within_the_grace_is_said(plain: Node) -> None:
    place = Path(plain.saved)
    place.rmdir()
    place.write_text("in the way")
    started = plain.start("leaves", grace=1.0)
    assert started.stderr is not None
    started.stderr.readline()
    started.send_signal(signal.SIGTERM)  # the machine is taken away
    _, err = started.communicate(timeout=120)
    assert "stoker: the last checkpoint did not leave this node: " in err
    assert list(plain.checkpoints.rglob("plain"))  # and stays there


def test_an_earlier_attempt_that_still_runs_copies_nothing_more(plain: Node) -> None:
    snapshots = Snapshots(plain.place, 0)
    started = plain.start("stays")
    assert started.stdout is not None
    while "ready" not in started.stdout.readline():
        pass
    snapshots.begin(2)
    before = snapshots.names()
    started.send_signal(signal.SIGTERM)
    _, err = started.communicate(timeout=120)
    assert "checkpoints are copied no more: attempt 2 of the step has begun" in err
    assert snapshots.names() == before


def test_the_program_is_started_again_when_it_dies_and_the_folder_stays_as_it_is(plain: Node) -> None:
    plain.run("train")
    started = plain.start("stays", 2)
    assert started.stdout is not None and started.stderr is not None
    while "ready" not in started.stdout.readline():
        pass
    program = f"/proc/{started.pid}/task/{started.pid}/children"
    (victim,) = [
        pid for pid in Path(program).read_text().split() if b"checkpointer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(int(victim), signal.SIGKILL)
    while "ended with signal 9, and is started again" not in started.stderr.readline():
        assert started.poll() is None
    started.send_signal(signal.SIGTERM)
    assert "checkpoints restored" not in started.communicate(timeout=120)[1]
    plain.lose()
    assert plain.run("shows", 3)[0] == ["last 2", "plain 1", "state 1"]


def test_a_step_without_checkpoints_starts_nothing(plain: Node) -> None:
    started = time.monotonic()
    assert plain.run("unused")[0] == ["no checkpoints"]
    assert not plain.checkpoints.exists() and time.monotonic() - started < 60
    assert not Path(plain.saved).parent.joinpath("attempts").exists()


def test_nodes_get_what_all_of_them_saved(plain: Node, tmp_path: Path) -> None:
    for number, names in enumerate((["both", "first"], ["both", "second"])):
        snapshots = Snapshots(plain.place, number)
        files = []
        for name in names:
            path = tmp_path / f"{name}-{number}"
            path.write_text(f"of node {number}")
            digest = snapshots.put(str(path))
            size = path.stat().st_size
            files.append(SavedFile(path=f"shards/{name}", digest=digest, size=size, mode=0o600, modified=10**18))
        snapshots.write(Snapshot(attempt=1, time=1e9, files=tuple(files), folders=("shards",)), 1)
    assert plain.run("shows", 2)[0] == ["shards/both of node 0", "shards/first of node 0", "shards/second of node 1"]
    names = Snapshots(plain.place, 0).names()
    assert len(names) == 1  # what was restored is not stored again


def test_copies_of_an_element_are_removed_in_an_object_store(tmp_path: Path) -> None:
    """A key such as "train[3]" is a pattern to fsspec's functions for many files."""
    store = "memory://copies"
    file = tmp_path / "f"
    snapshots = Snapshots(step_place(store, "r1", "train[3]"), 0)
    assert snapshots.begin(1) == 1
    for number in (1, 2, 3, 4):
        file.write_text(str(number))
        saved = SavedFile(path="f", digest=snapshots.put(str(file)), size=1, mode=0o600, modified=1)
        snapshots.write(Snapshot(attempt=1, time=float(number), files=(saved,)), number)
        snapshots.prune(2)
    names = snapshots.names()
    assert [name[:15] for name in names] == ["000001-00000003", "000001-00000004"]
    assert snapshots.begin(1) == 5
    checkpoints = Checkpoints(str(tmp_path / "none"), store)
    checkpoints.copy("r1", "r2", "train[3]")
    copied = Snapshots(step_place(store, "r2", "train[3]"), 0)
    assert copied.names() == names
    copied.fetch(copied.read(names[-1]).files[0], str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_text() == "4"
    assert checkpoints.size("r1") == checkpoints.size("r2") > 0
    checkpoints.delete("r1")
    assert (checkpoints.size("r1"), snapshots.names(), copied.names()) == (0, [], names)
