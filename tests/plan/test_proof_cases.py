"""The table of cases: each is whole and sourced, and the planner's answers to all of them are right."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import attrs
import pytest
from benchmarks.proof.__main__ import BEGIN, END, PAGE, failures_of, generated, main, write
from benchmarks.proof.table import FOLDER, Answer, Matrix, answers, cases, withdrawals

pytest.importorskip("docker")
TABLE = cases()
pytestmark = pytest.mark.slow  # the answers
SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|https?://\S+|\S+ .+|[\w.-]+/[\w.-]+")


@pytest.fixture(scope="module")
def rows() -> list[Answer]:
    return list(answers(TABLE))


def test_every_case_is_whole_and_sourced() -> None:
    assert [name for name, count in Counter(case.id for case in TABLE).items() if count > 1] == []
    for case in TABLE:
        assert case.id.startswith(f"{case.half}-"), case.id
        assert case.truth in ("runs", "fails") and case.how, case.id
        assert bool(case.component) == (case.truth == "fails"), case.id
        assert case.sources and all(SOURCE.fullmatch(source) for source in case.sources), case.id
        assert case.machine in ("x86_64", "aarch64") and re.fullmatch(r"\d\.\d+", case.python), case.id
    assert len({(case.image, case.requirements, case.simulation) for case in TABLE}) == len(TABLE)


def test_half_of_the_cases_is_blind_and_half_of_them_run() -> None:
    halves = Counter(case.half for case in TABLE)
    assert halves["blind"] >= 150 and len(TABLE) >= 300
    assert 0.4 <= sum(case.truth == "runs" for case in TABLE) / len(TABLE) <= 0.6
    assert all(reason.strip() for reason in withdrawals().values())
    assert not set(withdrawals()) & {case.id for case in TABLE}
    written = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*-*.yaml"))
    assert all(f"- id: {name}\n" in written for name in withdrawals()), "a withdrawn case stays where it was written"


def test_no_answer_is_wrong_and_few_are_missing(rows: list[Answer]) -> None:
    assert list(failures_of(rows)) == []


def test_the_page_tells_of_these_cases(rows: list[Answer], tmp_path: Path) -> None:
    page = tmp_path / "proof.md"
    page.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    write(rows, page)
    written, published = page.read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    assert generated(rows) in written
    summary = re.compile(r"^\d+ cases \(.+?\): 0 wrong answers", re.MULTILINE)
    assert summary.findall(written) == summary.findall(published) != [], "run `make bench-proof`"
    assert written.partition(BEGIN)[0] == published.partition(BEGIN)[0]
    assert written.partition(END)[2] == published.partition(END)[2]


def test_a_wrong_answer_fails_the_table(rows: list[Answer]) -> None:
    refused = next(row for row in rows if row.verdict == "refused")
    false_proof = attrs.evolve(refused, verdict="proved")
    assert false_proof.wrong == "false proved" and list(failures_of([false_proof])) != []
    proved = next(row for row in rows if row.verdict == "proved")
    assert attrs.evolve(proved, verdict="refused").wrong == "false refused"
    assert list(failures_of([proved, refused])) == []
    silent = [attrs.evolve(proved, verdict="not-proved")]
    assert Matrix.of(silent).not_proved == 1.0 and list(failures_of(silent)) != []


def test_one_case_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    case = next(case for case in TABLE if case.truth == "fails" and case.component == "driver")
    assert main([case.id]) == 0
    shown = capsys.readouterr().out
    assert case.id in shown and case.how in shown
    with pytest.raises(SystemExit):
        main(["no-such-case"])
