"""The key of a step's result: the same for the same, another for another."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.cachekey import FORMAT, cache_key, environment_digest

BASE: dict[str, Any] = {
    "code": "c0de",
    "inputs": {"a": "json:1", "b": "json:2"},
    "outputs": ["x", "y"],
    "environment": "cpython-3.11",
    "extra": None,
}


def test_the_key_is_of_this_format() -> None:
    """Stored results are found by it: a change of this value makes everybody's steps run again, and raises `FORMAT`."""
    assert FORMAT == 1
    assert cache_key(**BASE) == "39ad79dc2f3d7626c96c68dc29323b78b44effe67d2d2b2a375819878d679721"


@pytest.mark.parametrize(
    "change",
    [
        {"code": "other"},
        {"inputs": {"a": "json:1", "b": "json:3"}},
        {"inputs": {"a": "json:1"}},
        {"inputs": {"a": "json:2", "b": "json:1"}},
        {"inputs": {"a": "json:1", "c": "json:2"}},
        {"outputs": ["y", "x"]},
        {"outputs": ["x"]},
        {"environment": "cpython-3.12"},
        {"extra": "v2"},
        {"extra": ["v2"]},
        {"extra": {"a": 1}},
    ],
    ids=str,
)
def test_everything_counts(change: dict[str, Any]) -> None:
    assert cache_key(**{**BASE, **change}) != cache_key(**BASE)


def test_the_order_of_inputs_does_not_count() -> None:
    turned = {"b": "json:2", "a": "json:1"}
    assert cache_key(**{**BASE, "inputs": turned}) == cache_key(**BASE)


@given(st.dictionaries(st.text(), st.text()), st.lists(st.text()), st.text())
def test_any_text_has_a_key(inputs: dict[str, str], outputs: list[str], extra: str) -> None:
    key = cache_key(code="c", inputs=inputs, outputs=outputs, environment="e", extra=extra)
    assert len(key) == 64
    assert int(key, 16) >= 0


def test_the_environment_is_pythons_minor_version() -> None:
    assert environment_digest() == f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"


def test_keys_are_the_same_in_every_process() -> None:
    program = f"from stoker.plan.cachekey import cache_key; print(cache_key(**{BASE!r}))"
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for environment in _environments()
    }
    assert told == {cache_key(**BASE)}


def _environments() -> list[dict[str, str]]:
    return [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("0", "1")]
