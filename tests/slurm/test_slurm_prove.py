"""`stoker doctor --prove` on a real Slurm cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
def test_what_holds_on_a_cluster(clustered: Any) -> None:
    said = clustered.stoker("doctor", "--prove", "cluster", "--json", timeout=800.0, code=4)
    verdicts = {trial["name"]: trial["outcome"]["verdict"] for trial in json.loads(said.stdout)["trials"]}
    # Slurm gives out a GPU there that is no device, and that is said.
    assert verdicts == {**dict.fromkeys(("hello", "gang", "resume", "memory", "cancel"), "held"), "receipt": "failed"}
    assert "0 of 1 devices" in (clustered.folder / "proof-cluster.md").read_text()
