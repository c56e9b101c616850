"""Which words and which line an exception is told by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import SerializationError
from stoker.core.protocol import StepError
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker.failure import describe_exception


def caught(action: Any) -> StepError:
    """What is said of the exception that a call raises."""
    with pytest.raises(BaseException) as found:
        action()
    return describe_exception(found.value)


def lookup() -> None:
    {"rate": 1}["rat"]


def claim() -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lookup, "KeyError: 'rat'"),
        (claim, "AssertionError"),
        (lambda: int("x"), "invalid literal for int() with base 10: 'x'"),
    ],
)
def test_a_message_says_something(action: Any, message: str) -> None:
    assert caught(action).message == message


def test_the_place_is_a_line_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{")

    def read() -> None:
        json.loads((tmp_path / "odd.json").read_text())

    line = read.__code__.co_firstlineno + 1
    assert caught(read).place == f"{__file__}:{line}"


def test_an_error_of_ours_alone_needs_no_traceback(tmp_path: Path) -> None:
    error = SerializationError("step 'train' returned nothing that can be kept", fix="return a list")
    assert describe_exception(error).traceback == ""
    assert describe_exception(error).message == str(error)


def test_an_error_of_ours_through_a_line_of_the_user_has_one(tmp_path: Path) -> None:
    found = caught(lambda: artifacts.save(tmp_path / "nothing", Blobs(f"file://{tmp_path}/blobs")))
    assert "artifacts.save(" in found.traceback
