"""The key of a step's result: the same for the same, another for another."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.cachekey import FORMAT, FixedEnvironment, InstalledEnvironment, KeyParts

BASE: dict[str, Any] = {
    "code": "c0de",
    "inputs": {"a": "json:1", "b": "json:2"},
    "input_code": {"helpers:Model": "c1a55"},
    "outputs": ["x", "y"],
    "environment": {"python": "cpython-3.11", "numpy": "2.1"},
    "extra": None,
}


def test_the_key_is_of_this_format() -> None:
    """Stored results are found by it: a change of this value makes everybody's steps run again, and raises `FORMAT`."""
    assert FORMAT == 2
    assert KeyParts(**BASE).key == "74a0c731cff30e9e147fc90aba0c34c4f80a9f21f7ae798d61a915138a03f8ab"


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
        {"input_code": {"helpers:Model": "0ther"}},
        {"input_code": {}},
        {"environment": {"python": "cpython-3.12", "numpy": "2.1"}},
        {"environment": {"python": "cpython-3.11", "numpy": "2.2"}},
        {"environment": {"image": "sha256:1"}},
        {"extra": "v2"},
        {"extra": ["v2"]},
        {"extra": {"a": 1}},
    ],
    ids=str,
)
def test_everything_counts(change: dict[str, Any]) -> None:
    assert KeyParts(**{**BASE, **change}).key != KeyParts(**BASE).key


def test_the_order_of_inputs_does_not_count() -> None:
    turned = {"b": "json:2", "a": "json:1"}
    assert KeyParts(**{**BASE, "inputs": turned}).key == KeyParts(**BASE).key


@given(st.dictionaries(st.text(), st.text()), st.lists(st.text()), st.text())
def test_any_text_has_a_key(inputs: dict[str, str], outputs: list[str], extra: str) -> None:
    key = KeyParts(
        code="c", inputs=inputs, input_code={}, outputs=outputs, environment={"python": "p"}, extra=extra
    ).key
    assert len(key) == 64
    assert int(key, 16) >= 0


def test_the_environment_is_pythons_minor_version() -> None:
    version = f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}"
    assert InstalledEnvironment().identities([]) == {"python": version}
    assert InstalledEnvironment().identities(["attr"])["attr"] == metadata.version("attrs")


def test_an_image_stands_for_python_and_all_packages() -> None:
    assert FixedEnvironment("image", "sha256:1").identities(["numpy"]) == {"image": "sha256:1"}


def test_keys_are_the_same_in_every_process() -> None:
    program = f"from stoker.plan.cachekey import KeyParts; print(KeyParts(**{BASE!r}).key)"
    keys = {
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()
        for environment in _environments()
    }
    assert keys == {KeyParts(**BASE).key}


def _environments() -> list[dict[str, str]]:
    return [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("0", "1")]
