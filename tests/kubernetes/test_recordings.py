"""The recorded scenarios are whole: each object can be put together again, and each description has its words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kubernetes.recordings import changed, names, recording, with_changes

VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["", "a", "!"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "-", "!", "#", "="]), inner),
    max_leaves=12,
)


@given(VALUES, VALUES)
def test_a_change_leads_from_any_value_to_any_other(old: Any, new: Any) -> None:
    assert with_changes(old, changed(old, new)) == new


@pytest.mark.parametrize("name", names())
def test_a_recording_is_whole(name: str) -> None:
    scenario = recording(name)
    assert scenario.outcome and scenario.words
    assert [entry["t"] for entry in scenario.requests] == sorted(entry["t"] for entry in scenario.requests)
    versions = [int(event.object["metadata"]["resourceVersion"]) for event in scenario.events]
    assert versions == sorted(versions)
    kinds = {"pods": "Pod", "jobs": "Job", "events": "Event", "nodes": "Node"}
    assert all(event.object["kind"] == kinds[event.resource] for event in scenario.events)
    # What is there at the end was seen by a watch, and was not deleted afterwards.
    last = {event.object["metadata"]["uid"]: event for event in scenario.events}
    for object in [*scenario.jobs, *scenario.pods]:
        assert last[object["metadata"]["uid"]].type != "DELETED"
