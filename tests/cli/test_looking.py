"""Commands that look at what ran: runs, show, logs, artifacts; and cancel, resume, gc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import TRAIN, CommandLine
from tests.conftest import Project

from stoker.core.plan import LogLine
from stoker.images.layers import LayerCache, LayerContents
from stoker.store.check import sweep
from stoker.store.store import open_store


def run_twice(stoker: CommandLine) -> CommandLine:
    """Have one run that succeeded and a newer one that failed."""
    stoker("run", "train.py", "--tag", "good")
    stoker("run", "train.py", "--broken", "--tag", "bad", "--tag", "new", "--no-cache", code=1)
    return stoker


def shared(folder: Path) -> CommandLine:
    """A project for several tests, which only look."""
    return CommandLine(Project(folder / "project", folder / "home").write({"train.py": TRAIN}))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    return run_twice(shared(tmp_path_factory.mktemp("ran")))


def test_runs(ran: CommandLine) -> None:
    lines = ran("runs").stdout.splitlines()
    assert lines[0].split() == ["run", "pipeline", "status", "created", "took", "stack", "tags"]
    assert ["failed" in line for line in lines[1:]] == [True, False]
    assert "bad, new" in lines[1]
    found = ran.json("runs", "--status", "succeeded", "--tag", "good", "--pipeline", "training", "--since", "1h")
    assert [run["status"] for run in found] == ["succeeded"]
    assert len(ran.json("runs", "--limit", "1")) == 1
    assert len(ran.json("runs", "--limit", "0")) == 2
    finished = ran("runs", "--tag", "nothing")
    assert finished.stdout == ""
    assert "no runs like that" in finished.stderr


def test_show(ran: CommandLine) -> None:
    text = ran("show", "latest").stdout
    for words in ("training  failed", "count = 3", "square ×3", "user-error", "the model is no good", "stoker resume"):
        assert words in text
    assert 'raise ValueError("the model is no good")' in text
    assert "train.model" in text
    assert "square[1]" not in text
    good = ran.json("runs")[1]["id"]
    assert "square[1]" in ran("show", good[:-2], "--elements").stdout


def test_show_keeps_to_the_width_that_it_is_given(ran: CommandLine) -> None:
    """In a pipe lines are whole; where there is a width, words go on below, and none is cut."""
    whole = ran("show", "latest").stdout
    for columns in (80, 44):
        shown = ran("show", "latest", env={"COLUMNS": str(columns)}).stdout
        assert shown.split() == whole.split()
    (line,) = (one for one in whole.splitlines() if one.endswith("  user-error: the model is no good"))
    assert line.split()[:2] == ["check", "failed"]
    assert "\n      user-error: the model is no good\n" in shown


def test_show_as_json(ran: CommandLine) -> None:
    document = ran.json("show", "latest")
    steps = {step["key"]: step for step in document["steps"]}
    assert steps["check"]["attempts"][0]["failure"]["cause"] == "user-error"
    assert steps["train"]["outputs"]["model"]["type"].endswith("float")
    assert steps["square"]["count"] == 3
    assert "elements" not in steps["square"]
    steps = {step["key"]: step for step in ran.json("show", "latest", "--elements")["steps"]}
    assert len(steps["square"]["elements"]) == 3


def test_the_beginning_of_an_id_must_be_of_one_run(ran: CommandLine) -> None:
    first, second = (run["id"] for run in ran.json("runs"))
    assert first[:2] == second[:2], "ids begin with the time"
    assert "begins the ids of several runs" in ran("show", first[:2], code=2).stderr


def test_logs(ran: CommandLine) -> None:
    assert ran("logs", "latest", "train").stdout == "training with 0.5\n"
    assert ran("logs", "latest").stdout == "load │ loading 3\ntrain │ training with 0.5\n"
    assert ran("logs", "latest", "--tail", "1").stdout == "train │ training with 0.5\n"
    assert ran("logs", "latest", "train", "--stream", "stderr").stdout == ""
    assert ran("logs", "latest", "train", "--follow").stdout == "training with 0.5\n"
    assert ran("logs", "latest", "-f").stdout == "load │ loading 3\ntrain │ training with 0.5\n"
    assert ran("logs", "latest", "train", "-t").stdout.startswith("20")
    assert ran("logs", "latest", "square").stdout == ""
    line = json.loads(ran("logs", "latest", "load", "--json").stdout)
    assert (line["step"], line["stream"], line["text"]) == ("load", "stdout", "loading 3")


def test_mistaken_logs(ran: CommandLine) -> None:
    assert "did you mean 'train'" in ran("logs", "latest", "trian", code=2).stderr
    assert "has no attempt 9" in ran("logs", "latest", "train", "--attempt", "9", code=2).stderr
    assert "one of a step" in ran("logs", "latest", "--attempt", "1", code=2).stderr
    assert "fan-out" in ran("logs", "latest", "square", "--attempt", "1", code=2).stderr


def test_artifacts(ran: CommandLine) -> None:
    found = ran.json("artifacts", "latest")
    assert [(output["step"], output["name"]) for output in found] == [
        ("load", "output"),
        ("train", "model"),
        ("square", "output"),
    ]
    assert found[1]["digest"] in ran("artifacts", "latest", "train").stdout
    makers = ran.json("artifacts", found[1]["digest"])
    assert [output["step"] for output in makers] == ["train", "train"]
    assert makers[0]["run"] in ran("artifacts", found[1]["digest"]).stdout
    assert ran("artifacts", "0" * 64, code=2).stderr.startswith("error: ")


def test_resume(stoker: CommandLine) -> None:
    ran = run_twice(stoker)
    path = ran.project.folder / "train.py"
    path.write_text(path.read_text().replace("if broken:", "if broken and not broken:"))
    id = ran.json("runs")[0]["id"]
    finished = ran("resume", "latest")
    assert "succeeded" in finished.stderr
    assert finished.stdout == ""
    document = ran.json("show", id)
    assert document["status"] == "succeeded"
    assert document["sessions"] == 2


def test_cancel(stoker: Any) -> None:
    stoker.project.write(
        {
            "slow.py": """
                import time

                from stoker import pipeline, step


                @step
                def slow():
                    print("begun", flush=True)
                    time.sleep(300)


                @pipeline
                def slowly():
                    slow()
            """
        }
    )
    program = "from stoker.cli.main import main; main()"
    started = subprocess.Popen(
        [sys.executable, "-c", program, "run", "slow.py"],
        cwd=stoker.project.folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stderr is not None
        line = next(line for line in started.stderr if "begun" in line)
        assert line.partition(" ")[2] == "slow │ begun\n", "after the time"
        assert stoker("logs", "latest", "slow").stdout == "begun\n"
        assert "is asked to stop now" in stoker("cancel", "latest", "--now").stderr
        _, _ = started.communicate(timeout=60)
        assert started.returncode == 130
    finally:
        started.kill()
        started.wait()
    assert stoker.json("runs")[0]["status"] == "cancelled"
    assert "does not run any more: cancelled" in stoker("cancel", "latest").stderr


def test_gc(stoker: CommandLine) -> None:
    ran = run_twice(stoker)
    newest = ran.json("runs")[0]["id"]
    would = ran.json("gc", "--keep", "1", "--dry-run")
    assert would["dry_run"]
    assert len(would["runs"]) == 1
    assert len(ran.json("runs")) == 2
    assert ran.json("gc", "--older-than", "1d")["runs"] == []
    assert ran.json("gc")["runs"] == []
    assert ran.json("gc", "--keep", "1")["runs"] == would["runs"]
    assert [run["id"] for run in ran.json("runs")] == [newest]
    images = ran.project.home / "images"
    LayerCache(ran.project.home).put("sha256:old", LayerContents())
    LayerCache(ran.project.home).put("sha256:new", LayerContents())
    for file in images.iterdir():
        os.utime(file, (0, 0))
    assert LayerCache(ran.project.home).get("sha256:new") is not None, "a plan uses it"
    assert ran.json("gc", "--older-than", "1d", "--dry-run")["image_layers"] == 1
    assert "deleted 1 list of what images have" in ran("gc", "--older-than", "1d").stdout
    assert [file.name for file in images.iterdir()] == ["sha256-new.json"]
    assert "deleted 1 run" in ran("gc", "--older-than", "0s").stdout
    assert ran.json("runs") == [] == list(images.iterdir())


def test_time_passes() -> None:
    """`gc` decides by ends, and never deletes what runs."""
    from stoker.cli.store import old_runs
    from stoker.stacks import Retention
    from stoker.store.rows import RunRow

    now = time.time()
    rows = [
        RunRow(id="d", pipeline="a", status="running", created=now - 9000),
        RunRow(id="c", pipeline="b", status="succeeded", created=now - 9000, ended=now - 10),
        RunRow(id="b", pipeline="a", status="failed", created=now - 9000, ended=now - 8000, tags=["release"]),
        RunRow(id="a", pipeline="a", status="succeeded", created=now - 9500, ended=now - 9100),
    ]

    def ids(**rules: Any) -> list[str]:
        return [row.id for row in old_runs(rows, Retention(**rules), now=now, status=lambda row: row.status)]

    assert ids() == []
    assert ids(older_than=3600) == ["b", "a"]
    assert ids(older_than=9000) == ["a"]
    assert ids(keep=1) == ["b", "a"]
    assert ids(keep=2) == ["a"]
    assert ids(keep=0) == ["c", "b", "a"]
    assert ids(older_than=3600, keep=2) == ["a"]
    assert ids(keep=0, tags=("release",)) == ["c", "a"]
    assert ids(keep=0, pipelines={"a": Retention(keep=2)}) == ["c", "a"]
    assert ids(keep=0, tags=("release",), pipelines={"a": Retention(older_than=1)}) == ["c", "a"]
    assert ids(pipelines={"b": Retention(keep=0)}) == ["c"]


def test_a_stack_says_what_goes(project: Any) -> None:
    """Its rules count where no option says anything; a rule that is misunderstood deletes nothing."""
    project.write({"p.py": "from stoker import pipeline, step\n@step\ndef a(): pass\n@pipeline\ndef p(): a()\n"})
    for tag in ("release", "nightly", "nightly"):
        project.stoker("run", "p.py", "--tag", tag)
    toml = 'stack = "team"\n[stacks.team]\nretention = {keep = 0, %s}\n'
    for wrong in (
        'tag = ["release"]',
        "older_than = 90",
        "tags = true",
        "pipelines.p.pipelines = {}",
        'older_than = "9q"',
    ):
        project.write({"stoker.toml": toml % wrong})
        assert "stoker.toml:3" in project.stoker("gc", code=2).stderr
    project.write({"stoker.toml": toml % 'tags = ["release"], pipelines.p = {keep = 1}'})
    assert json.loads(project.stoker("gc", "--keep", "9", "--json").stdout)["runs"] == []
    assert len(json.loads(project.stoker("gc", "--json").stdout)["runs"]) == 1
    assert [sorted(run.tags) for run in project.client().runs()] == [["nightly"], ["release"]]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """A run whose step train has, beside its own line, some of ranks 0, 1 and 3."""
    ran = shared(tmp_path_factory.mktemp("ranked"))
    ran("run", "train.py")
    store = open_store(home=str(ran.project.home))
    lines = [
        LogLine(time=4e9 + number, stream=stream, text=f"{stream} of {rank}", rank=rank)
        for number, (stream, rank) in enumerate([("stdout", 0), ("stdout", 1), ("stderr", 3), ("stdout", 3)])
    ]
    store.logs.append(ran.json("runs")[0]["id"], "train", 1, lines)
    store.close()
    return ran


def test_one_rank(ranked: CommandLine) -> None:
    assert ranked("logs", "latest", "train", "--rank", "3").stdout == "stderr of 3\nstdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "3", "--stream", "stderr").stdout == "stderr of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "3", "-f", "--tail", "1").stdout == "stdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "launcher").stdout == "training with 0.5\n"


def test_lines_of_several_ranks_say_whose_they_are(ranked: CommandLine) -> None:
    every = "training with 0.5\n[0] stdout of 0\n[1] stdout of 1\n[3] stderr of 3\n[3] stdout of 3\n"
    assert ranked("logs", "latest", "train").stdout == every
    some = "[0] stdout of 0\n[3] stderr of 3\n[3] stdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "0,3").stdout == some
    assert ranked("logs", "latest", "train", "--rank", "3", "--rank", "0").stdout == some
    mixed = "training with 0.5\n[1] stdout of 1\n"
    assert ranked("logs", "latest", "train", "--rank", "launcher, 1").stdout == mixed


def test_ranks_as_json(ranked: CommandLine) -> None:
    lines = ranked("logs", "latest", "train", "--json", "--rank", "1,launcher").stdout.splitlines()
    assert [(line["rank"], line["text"]) for line in map(json.loads, lines)] == [
        (None, "training with 0.5"),
        (1, "stdout of 1"),
    ]


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_ranks_of_all_steps(ranked: CommandLine, follow: tuple[str, ...]) -> None:
    assert ranked("logs", "latest", "--rank", "1", *follow).stdout == "train │ stdout of 1\n"
    assert ranked("logs", "latest", "--rank", "0,1", "--tail", "1", *follow).stdout == "train │ [1] stdout of 1\n"
    assert (
        ranked("logs", "latest", "--rank", "launcher", *follow).stdout
        == "load │ loading 3\ntrain │ training with 0.5\n"
    )
    assert "no line of rank 2: ranks 0-1, 3 wrote" in ranked("logs", "latest", "--rank", "2", *follow, code=2).stderr


def test_mistaken_ranks(ranked: CommandLine) -> None:
    def told(*words: str) -> str:
        finished = ranked("logs", "latest", *words, code=2)
        assert finished.stdout == ""
        return str(finished.stderr)

    assert "attempt 1 of step 'train' has no line of rank 2: ranks 0-1, 3 wrote" in told("train", "--rank", "2")
    assert "no line of rank 0, nor of any other" in told("load", "--rank", "0")
    assert "'x' is no rank" in told("train", "--rank", "0,x")
    assert "'-1' is no rank" in told("train", "--rank=-1")


def test_raw_lines_are_no_json(ranked: CommandLine) -> None:
    finished = ranked("logs", "latest", "--raw", "--json", code=2)
    assert finished.stdout == "" and "--raw and --json" in finished.stderr


def test_a_cached_step_names_the_run_that_computed_it(stoker: Any) -> None:
    stoker("run", "train.py")
    stoker("run", "train.py")
    cached, computed = (run["id"] for run in stoker.json("runs"))
    printed = stoker("logs", cached, "load")
    assert printed.stdout == ""
    assert f"step 'load' is cached; run {computed} computed it: stoker logs {computed} load" in printed.stderr
    for words in ((), ("--follow",)):
        whole = stoker("logs", cached, *words)
        assert whole.stdout == ""
        assert f"every step of run {cached} is cached; `stoker show {cached}` says which runs computed" in whole.stderr
    assert "cached" not in stoker("logs", computed).stderr
    resumed = stoker("resume", cached)
    assert f"run {cached} has succeeded: nothing is left to do" in resumed.stderr
    assert stoker("logs", computed, "load").stderr == ""


def test_who_ran_what(stoker: Any) -> None:
    folder = stoker.project.folder

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@x", *words], cwd=folder, check=True)

    def run(user: str, **more: str) -> dict[str, Any]:
        stoker("run", "training.py:training", "--count", "1", env={"STOKER_USER": user, **more})
        found: dict[str, Any] = stoker.json("runs", "--user", user)[0]
        assert found["author"].partition("@")[0] == user
        return found

    def diff_of(found: dict[str, Any]) -> str:
        return str(stoker("show", found["id"], "--diff").stdout)

    stoker.project.write({"training.py": TRAIN})
    assert run("anna")["worktree"] == ""  # no repository
    git("init", "-q")
    git("add", "training.py")
    git("commit", "-qm", "first")
    clean = run("anna")
    assert (clean["worktree"], diff_of(clean)) == ("clean", "")
    with (folder / "training.py").open("a") as file:
        file.write("# bcd-password-in-the-code\n")
    (folder / ".env").write_text("TOKEN=wxyz\n")
    git("add", ".env")
    changed = run("bea", DATABASE_PASSWORD="bcd-password-in-the-code")
    assert changed["worktree"] == "changed" and changed["revision"] == clean["revision"]
    patch = diff_of(changed)
    assert "+# ***env:DATABASE_PASSWORD***" in patch and "wxyz" not in patch
    shown = stoker("show", changed["id"]).stdout
    assert f"{clean['revision'][:12]} " in shown and "with changes" in shown and changed["author"] in shown
    without = run("cid", STOKER_KEEP_DIFF="0")
    assert (without["worktree"], diff_of(without)) == ("changed", "")
    assert len(stoker.json("runs", "--user", "anna")) == 2
    assert [one["id"] for one in stoker.json("runs", "--user", changed["author"])] == [changed["id"]]
    assert stoker.json("runs", "--user", "ann") == []
    store = open_store(home=str(stoker.project.home))
    sweep(store, older_than=-1.0)  # what nobody needs goes, however new it is
    assert diff_of(changed) == patch
    kept = store.records.run(changed["id"]).worktree
    store.records.delete_run(changed["id"])
    sweep(store, older_than=-1.0)
    assert store.records.sources([kept]) == {}
    store.close()
