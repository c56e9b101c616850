"""`stoker doctor --prove` on the tests' cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_holds_on_a_cluster(kube: Any) -> None:
    said = kube.stoker("doctor", "--prove", "cluster", "--json", timeout=800.0, code=None)
    outcomes = {trial["name"]: trial["outcome"] for trial in json.loads(said.stdout)["trials"]}
    held = {name for name, outcome in outcomes.items() if outcome["verdict"] == "held"}
    assert held >= {"hello", "gang", "resume", "cancel"}, outcomes
