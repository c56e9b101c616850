"""An open store in a folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.store.blobs import Blobs
from stoker.store.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A fresh store."""
    opened = open_store(home=str(tmp_path / "home"))
    yield opened
    opened.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """A fresh artifact store."""
    return Blobs(str(tmp_path / "artifacts"))
