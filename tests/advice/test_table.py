"""Every text of advice in the source is a row of the table, and what the table says of it holds."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tests.advice.cases import cases
from tests.advice.inventory import advice, pattern, sites
from tests.advice.table import FOLLOWED, HOW, PAGE, Row, line, page, rows


@functools.cache
def functions(path: Path) -> frozenset[str]:
    """The names of a file's functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_fix_is_a_row_and_every_row_a_fix() -> None:
    given, table = set(advice(sites())), [row.advice for row in rows()]
    assert len(table) == len(set(table)), "each text stands once"
    missing = [f"{one.module}: {line(Row(one, 'open', ''))}" for one in sorted(given - set(table))]
    assert not missing, "tests/advice/table.txt lacks:\n" + "\n".join(missing)
    assert not sorted(set(table) - given), "no fix= says this any more"
    assert table == sorted(table), "in the order of modules and texts"


def test_what_was_followed_names_its_case() -> None:
    known = {case.name for case in cases()}
    for row in rows():
        assert row.how in HOW, line(row)
        assert (row.by in known) == (row.how == FOLLOWED), line(row)


def test_what_produces_a_text_is_there(repository: Path) -> None:
    for row in rows():
        if row.by and row.how != FOLLOWED:
            file, _, function = row.by.partition("::")
            assert function in functions(repository / "tests" / file), line(row)


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.advice.table"


def test_patterns() -> None:
    assert pattern("write {…} = 3").search('write "a" =\n  3')
    assert not pattern("write {…} = 3").search("write = 4")
