"""What makes an environment on this machine."""

from __future__ import annotations

from importlib import metadata

import pytest

from stoker.images import environments


@pytest.mark.parametrize(
    ("version", "expected"),
    [("22.3", True), ("22.2.2", False), ("26.0b1", True), ("22.3.dev0", False), ("of-my-own", False)],
)
def test_a_pip_that_installs_into_another_python(version: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    assert environments._has_pip() is expected
