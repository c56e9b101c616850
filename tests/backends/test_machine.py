"""What this machine refuses of a request, in words that a person would use."""

from __future__ import annotations

from typing import Any

import pytest
from tests.steps import planned_step

from stoker.backends.base.machine import check
from stoker.core.plan import Capacity
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings

ROOM = Capacity(cpus=2.0, memory=4 * 10**9, slots=16)


def refused(**resources: Any) -> list[tuple[str, str]]:
    """(code, what) of every finding about a step with these resources."""
    step = planned_step(StepSettings(resources=ResourceSettings(**resources)), where="train.py:3")
    return [(finding.code, finding.what) for finding in check(step, ROOM, leases=False)]


@pytest.mark.parametrize(
    ("resources", "code", "words"),
    [
        ({"cpu_count": 3}, "STK101", "asks for 3 CPUs; this machine has 2"),
        ({"memory": "1TB"}, "STK102", "asks for 1TB of memory; this machine has 4 GB"),
        ({"gpu_count": 2}, "STK103", "asks for 2 GPUs"),
        ({"accelerators": ["H100:8", "A100-80GB:8"]}, "STK103", "asks for H100:8 or A100-80GB:8"),
        ({"gpu_memory": "40GB"}, "STK103", "asks for 1 GPU (40GB or more each)"),
        ({"gpu_vendor": "amd"}, "STK103", "asks for 1 AMD GPU"),
        ({"nodes": 2}, "STK104", "asks for 2 nodes; they are processes of this machine"),
        ({"nodes": 100}, "STK104", "asks for 100 nodes; this machine runs 16 processes at once"),
        ({"shared_memory": "1GiB"}, "STK105", "asks for 1GiB of shared memory"),
        ({"extended": {"example.com/fpga": 1}}, "STK106", "asks for extended resources example.com/fpga=1"),
        ({"spot": True}, "STK109", "asks for a spot machine; it runs on this one"),
    ],
)
def test_what_is_refused(resources: dict[str, Any], code: str, words: str) -> None:
    assert refused(**resources) == [(code, words)]


@pytest.mark.parametrize(
    "resources", [{}, {"cpu_count": 2, "memory": "4GB", "gpu_count": 0, "nodes": 1, "disk": "1MB", "spot": False}]
)
def test_what_is_not(resources: dict[str, Any]) -> None:
    assert refused(**resources) == []
