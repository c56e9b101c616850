"""Places that data comes from, and the variables by which programs reach them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.servers.hub import Hub, Repository, serving
from tests.servers.s3 import s3_server  # noqa: F401  # a fixture

WEIGHTS = bytes(range(256)) * 20_000
"""Five megabytes."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model whose weights are kept apart, and this machine's cache in a folder of the test."""
    with serving() as hub:
        files = {f"part-{number}.json": b"%d" % number for number in range(4)}
        hub.repositories["models/org/net"] = Repository(
            {"config.json": b"{}", "model.safetensors": WEIGHTS, "onnx/model.onnx": b"o", **files},
            frozenset({"model.safetensors"}),
        )
        for name, text in {
            **hub.environment,
            "STOKER_CACHE": str(tmp_path / "cache"),
            "STOKER_PLAN_SECONDS": "120",
            "HOME": str(tmp_path / "home"),
        }.items():
            monkeypatch.setenv(name, text)
        for name in ("STOKER_OFFLINE", "HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "TORCH_HOME", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        yield hub
