"""Findings as a person reads them."""

from __future__ import annotations

import attrs

from stoker.core.findings import Finding, merged

UNREACHED = Finding(code="STK218", level="info", what="its image x:1 was not looked at", why="by its name")


def test_what_holds_for_several_steps_is_said_once() -> None:
    places = [f"train.py:{line} step 'step-{line}'" for line in range(1, 6)]
    other = attrs.evolve(UNREACHED, code="STK233", where=places[0])
    findings = [attrs.evolve(UNREACHED, where=place) for place in places]
    two = merged([findings[0], other, findings[1], findings[1]])
    assert [(one.code, one.where) for one in two] == [("STK218", f"{places[0]}, {places[1]}"), ("STK233", places[0])]
    (five,) = merged(findings)
    assert five.where == f"{places[0]}, {places[1]}, {places[2]} and 2 more"
    assert five.text().startswith("STK218 info: train.py:1 step 'step-1', ")
