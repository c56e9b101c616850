"""`python -m benchmarks.proof [--write] [CASE …]`: put the cases to the planner and compare its answers with the truth.

Prints the confusion matrix and every wrong answer; with names of cases, also what the planner says of each. Ends with 1
if an answer is wrong, or if more cases than `table.MOST_NOT_PROVED` are left without one. `--write` puts the matrix
into docs/proof.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Callable, Final, Iterable, Iterator, Sequence

from benchmarks.proof.table import (
    HALVES,
    MOST_NOT_PROVED,
    TRUTHS,
    VERDICTS,
    Answer,
    Matrix,
    answers,
    cases,
    withdrawals,
)

PAGE: Final = Path(__file__).parents[2] / "docs" / "proof.md"
BEGIN: Final = "<!-- written by make bench-proof -->"
END: Final = "<!-- end -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the table; 1 if it fails."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proof", description="Put the cases to the planner.")
    parser.add_argument("--write", action="store_true", help="put the matrix into docs/proof.md")
    parser.add_argument("--open", action="store_true", help="list the cases that are left without an answer")
    parser.add_argument("cases", nargs="*", help="only these, each with what the planner says of it")
    options = parser.parse_args(arguments)
    table = cases()
    unknown = set(options.cases) - {case.id for case in table}
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    began = time.perf_counter()
    rows = list(answers(case for case in table if not options.cases or case.id in options.cases))
    if options.cases:
        print("\n".join(line for row in rows for line in _told(row)))
        return 0
    print("\n".join(matrix_lines(rows)))
    print()
    for row in rows:
        if row.wrong or (options.open and row.verdict == "not-proved"):
            print("\n".join(_told(row)))
    print(f"{len(rows)} cases in {time.perf_counter() - began:.1f} s")
    if options.write:
        write(rows)
    failures = list(failures_of(rows))
    print("\n".join(failures), file=sys.stderr)
    return 1 if failures else 0


def failures_of(rows: Sequence[Answer]) -> Iterator[str]:
    """Why the table fails; nothing if it passes."""
    wrong = [row for row in rows if row.wrong]
    if wrong:
        yield f"{len(wrong)} wrong: " + ", ".join(f"{row.case.id} ({row.wrong})" for row in wrong)
    share = Matrix.of(rows).not_proved
    if share > MOST_NOT_PROVED:
        yield f"{share:.1%} of the cases are not proved, and {MOST_NOT_PROVED:.0%} may be"


def matrix_lines(rows: Sequence[Answer]) -> Iterator[str]:
    """The matrices as Markdown tables: of all cases, of each half, and of each family."""
    yield "| cases | truth | proved | refused | not proved | of |"
    yield "|---|---|--:|--:|--:|--:|"
    yield from _matrix("all", rows)
    for half, title in HALVES.items():
        yield from _matrix(title, [row for row in rows if row.case.half == half])
    yield ""
    yield "| family | right | wrong | not proved | of |"
    yield "|---|--:|--:|--:|--:|"
    for family in dict.fromkeys(row.case.family for row in rows):
        group = [row for row in rows if row.case.family == family]
        right = _count(group, lambda row: not row.wrong and row.verdict != "not-proved")
        wrong = _count(group, lambda row: bool(row.wrong))
        yield f"| {family} | {right} | {wrong} | {len(group) - right - wrong} | {len(group)} |"


def _matrix(title: str, rows: Sequence[Answer]) -> Iterator[str]:
    matrix = Matrix.of(rows)
    for truth in TRUTHS:
        counts = [matrix.counts[truth, verdict] for verdict in VERDICTS]
        yield f"| {title} | {truth} | {' | '.join(map(str, counts))} | {sum(counts)} |"
        title = ""


def _count(rows: Iterable[Answer], holds: Callable[[Answer], bool]) -> int:
    return sum(1 for row in rows if holds(row))


def _told(row: Answer) -> Iterator[str]:
    case = row.case
    place = " ".join((case.image, *case.requirements))
    yield f"{row.wrong or row.verdict}: {case.id}: {place} on {case.simulation} ({case.truth}: {case.how})"
    for reason in row.reasons:
        yield f"    {reason}"


def write(rows: Sequence[Answer], page: Path = PAGE) -> None:
    """Replace the page's generated part."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{generated(rows)}{END}{after}", encoding="utf-8")


def generated(rows: Sequence[Answer]) -> str:
    """The page's generated part."""
    matrix = Matrix.of(rows)
    halves = Counter(row.case.half for row in rows)
    wrong = _count(rows, lambda row: bool(row.wrong))
    summary = f"{len(rows)} cases ({halves['blind']} blind, {halves['open']} open, {halves['held']} held out"
    summary += f"; {len(withdrawals())} withdrawn): "
    summary += f"{wrong} wrong answers, {matrix.not_proved:.1%} not proved."
    lines = ["", summary, "", *matrix_lines(rows), ""]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
