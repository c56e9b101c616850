"""What an observer is told later: all of it, in its order, and not too late."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from stoker.core.observer import DeferredObserver
from stoker.core.plan import LogLine, Plan


class Seen:
    """An observer that keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def began(self, run: str, plan: Plan) -> None:
        self.calls.append(("began", run))

    def changed(self, key: str, status: str, facts: Mapping[str, Any]) -> None:
        self.calls.append(("changed", key, status, dict(facts)))

    def wrote(self, key: str, attempt: int, lines: Sequence[LogLine]) -> None:
        self.calls.append(("wrote", key, attempt, *lines))

    def logged(self, key: str, attempt: int, rows: Sequence[Sequence[Any]]) -> None:
        self.calls.append(("logged", key, attempt, *rows))

    def message(self, text: str) -> None:
        self.calls.append(("message", text))

    def tick(self) -> None:
        self.calls.append(("tick",))

    def ended(self, status: str) -> None:
        self.calls.append(("ended", status))


def test_all_is_told_in_its_order() -> None:
    seen = Seen()
    deferred = DeferredObserver(seen)
    deferred.began("r", Plan(pipeline="p", source="", steps=(), parameters={}, failure_mode="fail_fast", stack=""))
    deferred.changed("a", "running", {"attempt": 1})
    deferred.wrote("a", 1, [LogLine(time=1.0, stream="stdout", text="x")])
    deferred.logged("a", 1, [["loss", 0, 0.5]])
    deferred.message("m")
    deferred.tick()
    deferred.ended("succeeded")
    assert seen.calls == []
    deferred.deliver()
    assert [call[0] for call in seen.calls] == ["began", "changed", "wrote", "logged", "message", "tick", "ended"]
    assert seen.calls[1] == ("changed", "a", "running", {"attempt": 1})
    deferred.deliver()
    assert len(seen.calls) == 7


def test_of_many_the_first_are_told_before_the_last_is_known() -> None:
    seen = Seen()
    deferred = DeferredObserver(seen)
    for number in range(250):
        deferred.message(str(number))
    assert [call[1] for call in seen.calls] == [str(number) for number in range(200)]


def test_what_is_told_meanwhile_comes_behind() -> None:
    """An observer may call back into the run, which tells it something."""
    seen = Seen()
    deferred = DeferredObserver(seen)
    tick = seen.tick

    def ticked() -> None:
        tick()
        deferred.message("after")

    seen.tick = ticked  # type: ignore[method-assign]
    deferred.tick()
    deferred.message("between")
    deferred.deliver()
    assert [call[-1] for call in seen.calls] == ["tick", "between", "after"]
