"""Every row of the table of distributed failures, as a user's code makes it happen: its cause, rank and words.

Sixty steps of several ranks take six minutes: `make test` has some of each kind, and forks the ranks of most of them;
`make test-all` has all, and starts them with torchrun.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import scripted
from tests.distributed.failures import FAILURES, MARK, Failure, script, table, told_in, without_lines
from tests.engine.conftest import Lab

GROUPS = {group: list(rows) for group, rows in itertools.groupby(FAILURES, lambda row: row.group)}
ALWAYS = frozenset(
    {
        *("sizes", "slow_data", "functional"),
        *("never_joins", "same_rank", "launcher_refuses"),
        *("raises_slowly", "killed", "worker_killed", "file_lock", "not_kept"),
    }
)
"""Rows of `make test`: one of each kind of evidence."""
BY_TORCHRUN = frozenset({"killed"})
"""Those of them whose ranks torchrun starts there, too; test_launchers.py has one that raises."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, long_form: bool) -> Iterator[Any]:
    """A group's run, and what the terminal showed, made when a test first asks for it."""
    made: dict[str, tuple[Lab, str]] = {}

    def run(group: str) -> tuple[Any, str]:
        if group not in made:
            rows = [row for row in GROUPS[group] if long_form or row.name in ALWAYS]
            lab = scripted(
                Lab(tmp_path_factory.mktemp(group)),
                script(rows, () if long_form else ALWAYS - BY_TORCHRUN),
                name=f"{group}.py",
            )
            made[group] = lab, lab.start(f"{group}.py").wait(1, 1200)
        lab, shown = made[group]
        return lab[group], shown

    yield run
    for lab, _ in made.values():
        lab.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.name, marks=() if row.name in ALWAYS else pytest.mark.long) for row in FAILURES],
)
def test_the_culprit_is_named(ran: Any, row: Failure) -> None:
    run, shown = ran(row.group)
    failure = run.steps[row.name].failure
    message = without_lines(f"{failure.message}\n{failure.traceback}\n{failure.evidence}")
    assert (failure.cause, failure.rank) == (row.cause, row.rank), message
    assert row.says in message
    lines = shown.splitlines()
    (begin,) = [number for number, line in enumerate(lines) if line.startswith(f"{row.name} failed")]
    assert lines.index("", begin) - begin <= 10, "it fits on the screen"
    assert not any("distributed/elastic" in line for line in lines if line.startswith(f"{row.name} "))
    if row.name == "functional":
        assert set(failure.stacks) == {0, 1}
        assert "in wait_tensor" in failure.stacks[0] and "in wait_tensor" not in failure.stacks[1]


@pytest.mark.slow
def test_the_slowest_rank_is_in_the_usage(ran: Any) -> None:
    usage = ran("collectives")[0].steps["slow_data"].usage
    assert usage.imbalance[0] == 1
    assert "rank 1 slowest, others waited up to" in str(usage)


def test_the_docs_have_the_table(repository: Path) -> None:
    text = (repository / "docs" / "guide" / "distributed-failures.md").read_text(encoding="utf-8")
    assert text.partition(MARK)[2].splitlines() == list(table(told_in(text)))
