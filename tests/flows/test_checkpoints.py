"""`@checkpoint`: what an attempt, another run, another node or another program finds of what was saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import NotFound, SettingsError, UsageError
from stoker.flow import Checkpoint, Flow, checkpoint, default_namespace, namespace, step
from stoker.flows.checkpoint import CheckpointLocation, CurrentCheckpoint, location_of

FLOW = """
import os
import subprocess
import sys
from stoker.flow import FlowSpec, Parameter, checkpoint, current, retry, step

class Trained(FlowSpec):
    epochs = Parameter("epochs", default=2)
    items = ["a", "b"]

    @step
    def start(self):
        self.elements = self.items[:: -1 if os.environ.get("BACKWARDS") else 1]
        self.next(self.train, foreach="elements")

    @retry(times=1)
    @checkpoint(load_policy=os.environ.get("POLICY", "eager"), temp_dir_root="scratch", show_card=False)
    @step
    def train(self):
        place = os.path.join(current.checkpoint.directory, "epoch")
        assert os.path.dirname(current.checkpoint.directory).endswith("scratch")
        loaded = current.checkpoint.is_loaded
        assert loaded == os.path.exists(place) == (current.checkpoint.info is not None)
        self.begun = int(open(place).read().split()[0]) if loaded else 0
        self.came = (current.checkpoint.info.pathspec, current.checkpoint.info.metadata) if loaded else None
        for epoch in range(self.begun + 1, self.epochs + 1):
            with open(place, "w") as file:
                file.write(f"{epoch} {self.input}")
            self.saved = current.checkpoint.save(name="epoch", metadata={"epoch": epoch})
            current.checkpoint.save(place, name="aside", latest=False)
            if os.environ.get("FAIL") and current.retry_count == 0:
                raise ValueError("as asked")
        self.names = [(found["name"], found["attempt"]) for found in current.checkpoint.list()]
        self.all = len(current.checkpoint.list(full_namespace=True))
        if not loaded:
            subprocess.run([sys.executable, "save.py"], check=True)
            assert current.checkpoint.list(name="other")[0]["metadata"] == {"by": "save.py"}
            there = current.checkpoint.load(self.saved)
            assert there == current.checkpoint.directory and os.listdir(there) == ["epoch"]
            assert current.checkpoint.load("other", path="elsewhere" + self.input) == "elsewhere" + self.input
        self.next(self.join)

    @step
    def join(self, inputs):
        self.found = {open_.input: (open_.begun, open_.came, open_.names, open_.all) for open_ in inputs}
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Trained()
"""
SAVE = """
from stoker.flow import Checkpoint

with Checkpoint() as found:
    with open(found.directory + "/other", "w") as file:
        file.write("other")
    found.save(name="other", metadata={"by": "save.py"}, latest=False)
"""


def found(project: Any) -> dict[str, Any]:
    """What the tasks of the newest run found, by element."""
    value: dict[str, Any] = project.client().runs()[0].steps["end"].outputs["found"].load()
    return value


def test_checkpoints_of_other_attempts_and_of_other_runs(project: Any) -> None:
    project.write({"flow.py": FLOW, "save.py": SAVE})
    project.run("flow.py", "run", env={"FAIL": "1"})
    first = project.client().runs()[0].id
    begun, came, names, _ = found(project)["b"]
    assert begun == 1 and came == (f"Trained/{first}/train/train[1]", {"epoch": 1})
    assert names == [("aside", 1), ("epoch", 1), ("aside", 0), ("epoch", 0)]
    # Another run: the same element has it, wherever in the list it stands.
    project.run("flow.py", "run", "--epochs", "3", env={"BACKWARDS": "1"})
    begun, came, names, everywhere = found(project)["b"]
    assert begun == 2 and came == (f"Trained/{first}/train/train[1]", {"epoch": 2})
    assert names == [("aside", 0), ("epoch", 0)] and everywhere == 6
    for policy in ("fresh", "none"):
        project.run("flow.py", "run", env={"POLICY": policy})
        assert found(project)["a"][:2] == (0, None)
    # Other people's, and those of runs with another tag, are not taken over; those with the same are.
    mine = ["--tag", "checkpoint:mine"]
    for options, begun in ((["--namespace", "user:other"], 0), (mine, 0), (mine, 2)):
        project.run("flow.py", "run", *options)
        assert found(project)["a"][0] == begun
    # From outside: by the client's task and by its path.
    namespace(None)
    try:
        task = Flow("Trained")[first]["train"]["train[1]"]
    finally:
        default_namespace()
    assert [one["metadata"] for one in Checkpoint().list(task=task, name="epoch")] == [{"epoch": 2}, {"epoch": 1}]
    last = Checkpoint().list(task=task.pathspec, attempt=1)[0]
    target = project.folder / "loaded"
    Checkpoint().load(last, path=str(target))
    assert (target / "epoch").read_text() == "2 b"
    Checkpoint().load(last["key"], path=target)
    # What was deleted is not found any more.
    project.client().delete(first)
    assert not Checkpoint().list(task=task.pathspec)
    with pytest.raises(NotFound, match="there is no checkpoint"):
        Checkpoint().load(last, path=target)


GANG = """
from stoker.flow import FlowSpec, checkpoint, current, step

class Gang(FlowSpec):
    @step
    def start(self):
        self.next(self.train, num_parallel=2)

    @checkpoint(load_policy="eager")
    @step
    def train(self):
        node = current.parallel.node_index
        for number in range(4):
            with open(f"{current.checkpoint.directory}/{number}-{node}", "w") as file:
                file.write("x")
            current.checkpoint.save(name="same")
        self.loaded = current.checkpoint.is_loaded
        self.next(self.join)

    @step
    def join(self, inputs):
        self.loaded = [found.loaded for found in inputs]
        self.next(self.end)

    @step
    def end(self):
        pass

if __name__ == "__main__":
    Gang()
"""


def test_nodes_of_a_gang_share_their_checkpoints(project: Any) -> None:
    project.write({"gang.py": GANG})
    for loaded in (False, True):
        project.run("gang.py", "run")
        run = project.client().runs()[0]
        assert run.steps["end"].outputs["loaded"].load() == [loaded, loaded]
        kept = Checkpoint().list(task=f"Gang/{run.id}/train/train[1]")
        assert len(kept) == 8 == len({one["version_id"] for one in kept})


@pytest.fixture
def place(tmp_path: Path) -> CheckpointLocation:
    return location_of(tmp_path / "run" / "key", "Flow/run/key/key", attempt=0, scope="user:ann", elements=[])


def test_what_is_kept_wrongly_is_refused(
    place: CheckpointLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = CurrentCheckpoint(place, "fresh")
    directory = str(mine.directory)
    with pytest.raises(NotFound, match="nothing at"):
        mine.save(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be a checkpoint's name"):
        mine.save(name="a/b")
    with pytest.raises(UsageError, match="storage_format='zip'"):
        mine.save(storage_format="zip")
    with pytest.raises(UsageError, match="is not JSON"):
        mine.save(metadata={"a": object()})
    with pytest.raises(NotFound, match="the task has no checkpoint"):
        mine.load()
    with pytest.raises(NotFound, match="no checkpoint 'best'"):
        mine.load("best")
    with pytest.raises(UsageError, match="3 is no checkpoint"):
        mine.load(3)
    Path(directory, "kept").write_text("x")
    key = mine.save()["key"]
    Path(directory, "more").write_text("x")
    with pytest.raises(NotFound):
        mine.load("none")
    assert Path(directory, "more").exists(), "what is not there throws nothing away"
    mine.load(key)
    assert not Path(directory, "more").exists() and mine.list(attempt=0) and not mine.list(attempt=1)
    mine.close()
    assert not Path(directory).exists()
    with pytest.raises(UsageError, match="no folder"):
        Checkpoint().load(key)
    with pytest.raises(UsageError, match="no task with @checkpoint"):
        Checkpoint().list()
    with pytest.raises(UsageError, match="is no task"):
        Checkpoint().list(task="a/b")
    for words, said in (({"load_policy": "egaer"}, 'write "fresh", "eager"'), ({"temp_dir_root": 3}, "temp_dir_root")):
        with pytest.raises(SettingsError, match=said):
            checkpoint(**words)(step(lambda self: None))
    assert json.dumps(CurrentCheckpoint(place, "eager").list()), "a checkpoint's facts are an artifact like any other"
