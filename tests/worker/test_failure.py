"""Exceptions and exit codes in words for a person."""

from __future__ import annotations

import json
import signal

import pytest

from stoker.core.codec import from_json, to_json
from stoker.core.errors import SerializationError
from stoker.core.protocol import StepError
from stoker.worker.failure import describe_exception, of_exit


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("code", "number", "cause", "words"),
    [
        (None, signal.SIGSEGV, "crashed", "SIGSEGV"),
        (None, signal.SIGABRT, "crashed", "SIGABRT"),
        (None, signal.SIGBUS, "crashed", "SIGBUS"),
        (None, signal.SIGKILL, "killed", "out of memory"),
        (None, signal.SIGTERM, "killed", "SIGTERM"),
        (3, None, "exited", "exit code 3"),
        (0, None, "exited", "exit code 0"),
    ],
)
def test_the_end_of_a_process_has_a_cause(code: int | None, number: int | None, cause: str, words: str) -> None:
    found, message = of_exit(code=code, signal_number=number)
    assert found == cause
    assert words in message


def test_an_exception_is_described_with_type_message_and_place() -> None:
    document = describe_exception(raised(KeyError("batch")))
    assert (document.type, document.message) == ("KeyError", "KeyError: 'batch'")
    assert document.place.rpartition(":")[0].endswith("test_failure.py")
    assert "raise error" in document.traceback
    assert from_json(StepError, json.loads(json.dumps(to_json(document))), strict=False) == document


def test_the_type_of_a_packages_exception_has_its_module() -> None:
    assert describe_exception(raised(SerializationError("no"))).type == "stoker.core.errors.SerializationError"


def test_causes_and_groups_are_in_the_traceback() -> None:
    try:
        try:
            raise ValueError("the first")
        except ValueError as first:
            raise RuntimeError("the second") from first
    except RuntimeError as error:
        text = describe_exception(error).traceback
    assert "the first" in text and "the second" in text and "direct cause" in text


def test_a_message_that_cannot_be_made_is_said_so() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "ZeroDivisionError in __str__" in describe_exception(raised(Odd())).message
