"""Why a job waits, in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.servers.slurm import Cluster
from tests.waiting import until

from stoker.backends.slurm.states import REASONS, explain

CODES = [line for line in Path(__file__).with_name("reasons.txt").read_text().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("code", CODES)
def test_every_code_of_slurms_table_has_words(code: str) -> None:
    said = explain(code, partition="gpu", job="17")
    assert said.endswith(f"({code})"), said
    meaning = said.removesuffix(f" ({code})")
    assert len(meaning.split()) >= 5
    assert not re.search(r"[{}]|  |\bof of\b", meaning), meaning


def test_every_word_is_of_a_code_that_slurm_has() -> None:
    assert set(REASONS) <= set(CODES)


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("AssocGrpCpuLimit", ["of your account", "CPUs", "when some of them end"]),
        ("AssocGrpGRESRunMinutes", ["minutes of GPUs", "time_limit"]),
        ("AssocGrpCPUMinutesLimit", ["used up", "another account"]),
        ("AssocMaxWallDurationPerJobLimit", ["time_limit", "of your account"]),
        ("QOSMaxGRESPerUser", ["your jobs of this QOS", "GPUs"]),
        ("QOSMaxMemoryPerNode", ["more memory on one node", "another qos"]),
        ("QOSMinGRES", ["fewer GPUs", "Ask for more"]),
        ("QOSMaxSubmitJobPerUserLimit", ["waiting ones included"]),
        ("MaxJobsPerAccount", ["your account", "jobs"]),
        ("JobHeldUser", ["scontrol release 17"]),
        ("PartitionDown", ["partition gpu is down"]),
    ],
)
def test_limits_say_whose_and_of_what(code: str, parts: list[str]) -> None:
    said = explain(code, partition="gpu", job="17")
    for part in parts:
        assert part in said


def test_the_start_is_told_where_slurm_estimates_it() -> None:
    start = "2031-01-31T14:05:09"
    assert explain("Resources", start=start, today="2031-01-31").endswith("; starts about 14:05 by Slurm's estimate")
    assert explain("Priority", start=start).endswith("; starts about 2031-01-31 14:05 by Slurm's estimate")
    for unknown in ("", "N/A", "Unknown", "n/a", "soon"):
        assert "estimate" not in explain("Resources", start=unknown)
    assert "estimate" not in explain("JobHeldUser", start=start), "that one is from before it was held"


def test_what_slurm_adds_is_told_too() -> None:
    said = explain("ReqNodeNotAvail, UnavailableNodes:n[1-2]")
    assert "maintenance" in said and said.endswith("(ReqNodeNotAvail: UnavailableNodes:n[1-2])")
    assert explain("(Resources)") == explain("Resources"), "as squeue's %R has it"


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("SomethingNew", "Slurm says: SomethingNew"),
        ("launch_failed_requeued_held", "Slurm says: launch failed requeued held"),
        ("(null)", "it waits in Slurm's queue"),
        ("", "it waits in Slurm's queue"),
    ],
)
def test_an_unknown_reason_is_told_as_it_is(reason: str, said: str) -> None:
    assert explain(reason) == said


def test_reasons_of_a_real_queue(cluster: Cluster) -> None:
    submit = ("sbatch", "--parsable", "--output=/dev/null")
    cluster.run(*submit, "--exclusive", "--nodes=4", "--wrap=sleep 300")
    waiting = cluster.run(*submit, "--exclusive", "--nodes=4", "--wrap=true").stdout.strip()
    held = cluster.run(*submit, "--hold", "--wrap=true").stdout.strip()

    def said(job: str) -> str:
        reason, start = cluster.run("squeue", "--noheader", f"--jobs={job}", "--format=%r|%S").stdout.strip().split("|")
        return explain(reason, start=start, partition="main", job=job)

    until(lambda: "in use by other jobs" in said(waiting))
    assert said(held) == f"it is held. Let it go with `scontrol release {held}` (JobHeldUser)"
    until(lambda: re.search(r"starts about \d{4}-\d\d-\d\d \d\d:\d\d by Slurm's estimate$", said(waiting)))
