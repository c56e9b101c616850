"""Versions and resources as Ray's dashboard tells them, over the whole of their grammar; and that a real one tells
them as what stands in for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.servers.raycluster import TOKEN, RayCluster

from stoker.backends.ray.jobs import Jobs, resources_of, version_numbers
from stoker.backends.ray.settings import RaySettings

# https://packaging.python.org/en/latest/specifications/version-specifiers: Ray's releases, candidates and nightlies.
NUMBER = st.integers(0, 9999)
REST = st.sampled_from(["", ".0", ".1", "rc1", ".0rc0", ".0.dev0", ".0.post1", ".0+cu12", "-py311", "a1"])
# https://docs.ray.io/en/latest/ray-core/scheduling/resources.html: floats, memory in bytes, and names of any kind.
NAMES = st.sampled_from(
    ["CPU", "GPU", "memory", "object_store_memory", "node:10.0.0.1", "accelerator_type:H100", "x/y"]
)
AMOUNTS = st.floats(0, 1e15) | st.integers(0, 10**15)


@given(NUMBER, NUMBER, REST)
@example(2, 60, ".0")
@example(3, 0, ".0.dev0")
def test_every_version_has_its_numbers(major: int, minor: int, rest: str) -> None:
    assert version_numbers(f"{major}.{minor}{rest}") == (major, minor)


@pytest.mark.parametrize("text", [None, "", "nightly", "2", "2.", "2.x", ".60", "v2.60", "٢.٦", "2.99999"])
def test_what_is_no_version_is_unknown(text: Any) -> None:
    assert version_numbers(text) == ()


@given(st.dictionaries(NAMES, AMOUNTS))
def test_resources_are_numbers(total: dict[str, float]) -> None:
    assert resources_of({"resources_total": total}) == total


@given(st.dictionaries(NAMES, AMOUNTS), st.sampled_from([None, "4", "3.2 GiB", True, [], {}]))
def test_resources_that_are_no_numbers_are_unknown(total: dict[str, float], amount: Any) -> None:
    assert resources_of({"resources_total": {**total, "CPU": amount}}) is None
    assert resources_of({"resources_total": amount}) == ({} if amount == {} else None)
    assert resources_of({}) is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_dashboard_answers_as_its_stand_ins_do(ray_cluster: RayCluster) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    jobs = Jobs(RaySettings(address=ray_cluster.dashboard, headers=headers), {})
    try:
        assert version_numbers(jobs.version()["ray_version"])
        assert version_numbers(jobs.python())
        for node in jobs.nodes():
            # What the stand-ins of test_requests.py and test_nodes.py give of a node, a real one has.
            assert {"node_id", "node_name", "node_ip", "state", "resources_total", "labels"} <= node.keys()
            resources = resources_of(node)
            assert resources is not None and "CPU" in resources and "memory" in resources
    finally:
        jobs.close()
