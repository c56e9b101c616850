"""What stands in for Slurm's commands is not kinder than they are; what a large cluster tells, at the front door."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.servers.slurm import Cluster
from tests.servers.slurmdouble import CONFIG, PARTITIONS, RECORDED, SINFO, write
from tests.slurm import test_slurm_states

from stoker.backends.slurm.states import QUEUE, REASONS, fields_of, scontrol_rows, squeue_rows
from stoker.backends.slurm.values import amount, gres_of, mebibytes, seconds, tres_of

TRAIN = """
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(resources=ResourceSettings(RESOURCES))
def train() -> int:
    return 1

@step(resources=ResourceSettings(RESOURCES))
def test(result: int) -> int:
    return result

@pipeline
def once():
    test(train())

if __name__ == "__main__":
    once()
"""
STACK = 'stack = "big"\n[stacks.big]\norchestrator = {flavor = "slurm", partition = "mid"}\n'


def fields(text: str) -> list[dict[str, str]]:
    return [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in text.splitlines()]


def test_the_double_answers_as_slurm_does(cluster: Cluster) -> None:
    real = {question: cluster.run(*question.split(" ")).stdout for question in RECORDED}
    columns = {line.count("|") for line in real[SINFO].splitlines()}
    assert columns == {line.count("|") for line in RECORDED[SINFO].splitlines()} == {8}
    # Which of these are printed depends on the partition.
    optional = {"AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "MaxMemPerCPU", "MaxMemPerNode"}
    optional |= {"DefMemPerCPU", "DefMemPerNode"}
    for recorded in fields(RECORDED[PARTITIONS]):
        for told in fields(real[PARTITIONS]):
            assert recorded.keys() ^ told.keys() <= optional
    config = {line.partition("=")[0].strip() for line in real[CONFIG].splitlines()}
    assert {line.partition("=")[0].strip() for line in RECORDED[CONFIG].splitlines()} <= config


def test_the_rows_of_other_tests_are_like_those_of_slurm(cluster: Cluster) -> None:
    id = cluster.run("sbatch", "--parsable", "--begin=now+1hour", "--comment=5ca1ab1e", "--wrap=true").stdout.strip()
    try:
        told = cluster.run(
            "squeue", "--noheader", "--states=all", "--array", f"--format={QUEUE}", f"--jobs={id}"
        ).stdout
        shown = cluster.run("scontrol", "--oneliner", "show", "job", id).stdout
    finally:
        cluster.run("scancel", id)
    rows = test_slurm_states.QUEUE.splitlines()[:4]
    assert {line.count("|") for line in rows} == {line.count("|") for line in told.splitlines()} == {6}
    # Of a task of an array, of one that ended, and by newer versions' names.
    assert fields_of(test_slurm_states.JOB).keys() - fields_of(shown).keys() <= {"ArrayJobId", "ArrayTaskId"}
    (row,), (detail,) = squeue_rows(told), scontrol_rows(shown)
    assert (row.id, row.stage, row.comment) == (id, "waiting", "5ca1ab1e") and row.reason in REASONS
    assert (detail.id, detail.stage, detail.code, detail.signal) == (id, "waiting", 0, 0)
    assert seconds(detail.limit) == 3600 and {"cpu", "mem", "node"} <= tres_of(fields_of(shown)["TRES"]).keys()
    assert None not in tres_of(fields_of(shown)["TRES"]).values()


def test_what_slurm_itself_prints_is_understood(cluster: Cluster) -> None:
    for line in cluster.run(*SINFO.split(" ")).stdout.splitlines():
        _, nodes, cpus, memory, disk, _, gres, _, _ = line.split("|")
        assert None not in (amount(nodes), amount(cpus), mebibytes(memory), mebibytes(disk)), line
        assert all(one.count is not None for one in gres_of(gres)), line
    for told in fields(cluster.run(*PARTITIONS.split(" ")).stdout):
        for name in ("TotalNodes", "MinNodes", "MaxNodes", "MaxCPUsPerNode"):
            assert amount(told[name]) is not None, told
        assert seconds(told["MaxTime"]) is not None and seconds(told["DefaultTime"]) is not None


def planned(
    project: Any, folder: Path, resources: str, code: int | None, *changes: tuple[str, str]
) -> list[dict[str, Any]]:
    """The findings of a plan for the cluster, of whose answers some words are others."""
    answers = dict(RECORDED)
    for old, new in changes:
        assert any(old in text for text in answers.values()), old
        answers = {question: text.replace(old, new) for question, text in answers.items()}
    project.write({"stoker.toml": STACK, "train.py": TRAIN.replace("RESOURCES", resources)})
    said = project.stoker("plan", "train.py", "--json", env=write(folder, answers), code=code)
    findings: list[dict[str, Any]] = json.loads(said.stdout)["findings"]
    return findings


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ("cpu_count=2000, memory='400GiB', extended={'nvme': 2**50}", ""),
        ("cpu_count=2049", "asks for 2049 CPUs on a node; those of the partition 'mid' have 2048 at most"),
        ("memory='600GB'", "asks for 600 GB of memory on a node; those of the partition 'mid' have 540 GB at most"),
        ("nodes=1537", "1,536 nodes of the partition 'mid' are all there are"),
    ],
)
def test_a_plan_for_what_was_recorded(project: Any, tmp_path: Path, resources: str, said: str) -> None:
    found = planned(project, tmp_path / "bin", resources, None if said else 0)
    errors = [finding["what"] for finding in found if finding["level"] == "error"]
    assert len(errors) == (2 if said else 0) and all(said in what for what in errors), found
    assert not [finding for finding in found if finding["code"] == "STK271"]


@pytest.mark.parametrize(
    ("changes", "resources"),
    [
        ([("2K", "2X")], "cpu_count=4096"),
        ([("515000", "515000+")], "memory='600GB'"),
        ([("nvme:3P", "nvme:3Z")], "extended={'nvme': 2**60}"),
        ([("MaxNodes=UNLIMITED", "MaxNodes=few")], "nodes=1536"),
        ([("TotalNodes=1536", "TotalNodes=INVALID")], "nodes=1537, cpu_count=2049"),
        ([("MaxTime=UNLIMITED", "MaxTime=INVALID")], "cpu_count=1"),
    ],
)
def test_what_is_not_understood_refuses_nothing_and_is_said_once(
    project: Any, tmp_path: Path, changes: list[tuple[str, str]], resources: str
) -> None:
    found = planned(project, tmp_path / "bin", resources, 0, *changes)
    (said,) = (finding for finding in found if finding["code"] == "STK271")
    assert said["level"] == "info" and changes[0][1].rpartition("=")[2] in said["what"]


def test_nodes_that_slurm_marks_are_not_free(project: Any, tmp_path: Path) -> None:
    project.write({"stoker.toml": STACK})
    for state, free in (("idle", True), ("idle*", False)):
        answers = {question: text.replace("|down|", f"|{state}|") for question, text in RECORDED.items()}
        environment = write(tmp_path / "bin", {**answers, SINFO: answers[SINFO].replace("nvme:3P", "gpu:h100:8")})
        shown = project.stoker("top", "--once", env=environment).stdout
        assert f" {state} " in shown and "8 h100" in shown and ("8 free" in shown) == free, shown
