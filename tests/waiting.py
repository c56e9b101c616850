"""Waiting for what another process or thread does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(found: Callable[[], Any], what: str | Callable[[], object] = "", seconds: float = 200.0) -> Any:
    """What `found` returns as soon as that is true; `what` is waited for, in words."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what() if callable(what) else what or found}"
        time.sleep(0.02)
    return value
