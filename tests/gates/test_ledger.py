"""What a step costs is in `benchmarks/ledger.json`: a number that rises is written there, with the reason beside it."""

from __future__ import annotations

import sys

import pytest
from benchmarks import ledger


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != ledger.PYTHON, reason="the ledger counts the calls of another Python")
def test_no_step_costs_more_than_the_ledger_says() -> None:
    found = ledger.measure_all()
    for _ in range(3):
        lines = ledger.risen(found, ledger.written())
        if not lines:
            return
        found = ledger.measure_again(found, lines)
    lines = ledger.risen(found, ledger.written())
    assert not lines, "\n".join([*lines, "", 'python -m benchmarks.ledger --write --why "…"'])


def test_a_rise_is_seen() -> None:
    row = {"one more step in a chain": {"driver C calls": {"number": 100.0}}}
    assert not ledger.risen({"one more step in a chain": {"driver C calls": 103.0}}, row)
    assert ledger.risen({"one more step in a chain": {"driver C calls": 104.0}}, row)
    assert ledger.risen({"one more step in a chain": {"driver messages": 1.0}}, row)
