"""Exceptions and exit codes in words for a person."""

from __future__ import annotations

import builtins
import json
import signal
from typing import Any

import pytest

from stoker.core.codec import from_json, to_json
from stoker.core.errors import SerializationError
from stoker.core.protocol import StepError
from stoker.core.words import WHOLE_LIMIT
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


def test_a_message_of_megabytes_is_recorded_as_its_beginning_and_its_end() -> None:
    try:
        raise ValueError("a" * 25_000_000 + "\x1b]52;c;QQ==\x07" + "b" * 25_000_000) from KeyError("c" * 30_000_000)
    except ValueError as error:
        document = describe_exception(error)
    assert len(document.message) < 20_000
    assert document.message.startswith("aaa") and document.message.endswith("bbb")
    assert "50.0 MB left out" in document.message
    assert len(document.traceback) < 140_000
    assert "ValueError: aaa" in document.traceback or "left out" in document.traceback
    assert all(len(line) < 20_000 for line in document.because)


def test_the_whole_of_a_long_message_is_kept_where_it_can_be() -> None:
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return "d1"

    document = describe_exception(raised(ValueError("a" * 1_000_000)), keep=keep)
    assert document.whole == "d1" and "a" * 1_000_000 in texts[0]
    assert "983.6 KB left out, whole in the attempt's error.txt" in document.message
    assert (
        "left out, whole in" not in describe_exception(raised(ValueError("a" * 100_000)), keep=lambda text: "").message
    )
    assert describe_exception(raised(ValueError("short")), keep=keep).whole == ""
    describe_exception(raised(ValueError("a" * (WHOLE_LIMIT + 10_000_000))), keep=keep)
    assert len(texts[-1]) < WHOLE_LIMIT + 200, "the file has a bound of its own"


class Leaves(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Recurses(Exception):
    def __str__(self) -> str:
        return str(self)

    __repr__ = __str__


class Text(str):
    __slots__ = ()

    def __len__(self) -> int:
        raise RuntimeError("no length")


class OfATextOfItsOwn(Exception):
    def __str__(self) -> str:
        return Text("its words")


class EqualToNothing(Exception):
    exceptions = 5
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    def __reduce__(self) -> str:
        raise RuntimeError("not picklable")


class WithoutMembers(Exception):
    @property
    def exceptions(self) -> object:
        raise RuntimeError("no members")


def chain(length: int) -> BaseException:
    error: BaseException = ValueError("the first")
    for number in range(length):
        later = RuntimeError(f"number {number}")
        later.__cause__ = error if number % 2 else None
        later.__context__ = error
        error = later
    return error


GROUP: Any = getattr(builtins, "ExceptionGroup", None) or pytest.importorskip("exceptiongroup").ExceptionGroup


def group(depth: int) -> BaseException:
    error: Exception = ValueError("the innermost")
    for _ in range(depth):
        error = GROUP("a group", [error, EqualToNothing()])
    return error


def loop() -> BaseException:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Leaves(), "SystemExit in __str__"),
        (Recurses(), "RecursionError in __str__"),
        (OfATextOfItsOwn(), "its words"),
        (EqualToNothing("odd"), "odd"),
        (WithoutMembers("none"), "none"),
        (chain(20_000), "number 19999"),
        (group(5_000), "a group"),
        (GROUP("many", [ValueError("v" * 1000) for _ in range(20_000)]), "many (20000 sub-exceptions)"),
        (loop(), "first"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_an_exception_does_it_is_described(error: BaseException, words: str) -> None:
    try:
        raise error from EqualToNothing("its cause") if isinstance(error, EqualToNothing) else error.__cause__
    except BaseException as caught:
        document = describe_exception(caught)
    assert words in document.message and document.type
    assert (
        words in document.traceback
        or "cannot be shown" in document.traceback
        or "exception str() failed" in (document.traceback)
    )
    assert len(document.traceback) < 140_000 and len(document.because) <= 8
    assert from_json(StepError, json.loads(json.dumps(to_json(document))), strict=False) == document
