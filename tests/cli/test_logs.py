"""`stoker logs --rank`: what the processes of a distributed step wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.plan import LogLine
from stoker.store.store import open_store


@pytest.fixture
def ranked(stoker: Any, stoker_home: Path) -> Any:
    """A run whose step train has, beside its own line, some of ranks 0, 1 and 3."""
    stoker("run", "train.py")
    store = open_store(home=str(stoker_home))
    lines = [
        LogLine(time=4e9 + number, stream=stream, text=f"{stream} of {rank}", rank=rank)
        for number, (stream, rank) in enumerate([("stdout", 0), ("stdout", 1), ("stderr", 3), ("stdout", 3)])
    ]
    store.logs.append(stoker.json("runs")[0]["id"], "train", 1, lines)
    store.close()
    return stoker


def test_one_rank(ranked: Any) -> None:
    assert ranked("logs", "latest", "train", "--rank", "3").stdout == "stderr of 3\nstdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "3", "--stream", "stderr").stdout == "stderr of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "3", "-f", "--tail", "1").stdout == "stdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "launcher").stdout == "training with 0.5\n"


def test_lines_of_several_ranks_say_whose_they_are(ranked: Any) -> None:
    every = "training with 0.5\n[0] stdout of 0\n[1] stdout of 1\n[3] stderr of 3\n[3] stdout of 3\n"
    assert ranked("logs", "latest", "train").stdout == every
    some = "[0] stdout of 0\n[3] stderr of 3\n[3] stdout of 3\n"
    assert ranked("logs", "latest", "train", "--rank", "0,3").stdout == some
    assert ranked("logs", "latest", "train", "--rank", "3", "--rank", "0").stdout == some
    mixed = "training with 0.5\n[1] stdout of 1\n"
    assert ranked("logs", "latest", "train", "--rank", "launcher, 1").stdout == mixed


def test_ranks_as_json(ranked: Any) -> None:
    lines = ranked("logs", "latest", "train", "--json", "--rank", "1,launcher").stdout.splitlines()
    assert [(line["rank"], line["text"]) for line in map(json.loads, lines)] == [
        (None, "training with 0.5"),
        (1, "stdout of 1"),
    ]


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_ranks_of_all_steps(ranked: Any, follow: tuple[str, ...]) -> None:
    assert ranked("logs", "latest", "--rank", "1", *follow).stdout == "train │ stdout of 1\n"
    assert ranked("logs", "latest", "--rank", "0,1", "--tail", "1", *follow).stdout == "train │ [1] stdout of 1\n"
    assert (
        ranked("logs", "latest", "--rank", "launcher", *follow).stdout
        == "load │ loading 3\ntrain │ training with 0.5\n"
    )
    assert "no line of rank 2: ranks 0-1, 3 wrote" in ranked("logs", "latest", "--rank", "2", *follow, code=2).stderr


def test_mistaken_ranks(ranked: Any) -> None:
    def told(*words: str) -> str:
        finished = ranked("logs", "latest", *words, code=2)
        assert finished.stdout == ""
        return str(finished.stderr)

    assert "attempt 1 of step 'train' has no line of rank 2: ranks 0-1, 3 wrote" in told("train", "--rank", "2")
    assert "no line of rank 0, nor of any other" in told("load", "--rank", "0")
    assert "'x' is no rank" in told("train", "--rank", "0,x")
    assert "'-1' is no rank" in told("train", "--rank=-1")


def test_raw_lines_are_no_json(ranked: Any) -> None:
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
