"""Gives a parser its inputs, one by one, and counts what became of them."""

from __future__ import annotations

import contextlib
import signal
import time
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

import attrs
from hypothesis import HealthCheck, Phase, given, seed, settings
from tests.fuzz.parsers import Parser

HANG: Final = 20.0
"""Seconds of CPU time after which an input counts as one that never ends; the slowest takes one, for its imports."""
LONGEST: Final = 20_000
"""Characters of an error's text; more is no message for a person."""


class Hang(BaseException):
    """An input took longer than `HANG`; no `Exception`, so that no parser swallows it."""


@attrs.define
class Outcome:
    """What became of one parser's inputs."""

    accepted: int = 0
    refused: int = 0
    slowest: float = 0.0
    """Seconds of the input that took longest."""
    defects: dict[str, list[Any]] = attrs.field(factory=dict)
    """Each kind of defect, by its error and the line of Stoker's that raised it, with the inputs that show it."""

    @property
    def inputs(self) -> int:
        """How many inputs there were."""
        return self.accepted + self.refused + self.failures

    @property
    def failures(self) -> int:
        """How many inputs showed a defect."""
        return sum(map(len, self.defects.values()))


def feed(parser: Parser, *, count: int, seed_number: int | None = None, collect: bool = False) -> Outcome:
    """Give a parser `count` inputs, the same ones each time unless there is a seed. The first defect is raised, shrunk
    to its smallest input; with `collect` they are counted instead."""
    outcome = Outcome()

    def check(value: Any) -> None:
        try:
            give(parser, value, outcome)
        except (Exception, Hang) as error:
            if not collect:
                raise
            outcome.defects.setdefault(_kind(error), []).append(value)

    profile = settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=seed_number is None,
        phases=(Phase.generate,) if collect else (Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    test = profile(given(parser.inputs)(check))
    (test if seed_number is None else seed(seed_number)(test))()
    return outcome


def give(parser: Parser, value: Any, outcome: Outcome) -> None:
    """Give a parser one input, and raise what it must not raise."""
    start = time.monotonic()
    try:
        with _alarm():
            parser.parse(value)
    except parser.refusals as error:
        assert len(str(error)) <= LONGEST, f"a message of {len(str(error)):,} characters"
        outcome.refused += 1
    else:
        outcome.accepted += 1
    finally:
        outcome.slowest = max(outcome.slowest, time.monotonic() - start)


def _kind(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/src/stoker/" in frame.filename]
    place = f"{frames[-1].filename.rpartition('/stoker/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}" if frames else f"{type(error).__name__}: {str(error).strip()[-200:]!r}"


@contextlib.contextmanager
def _alarm() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang(f"after {HANG:.0f} s of CPU time")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, HANG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
