"""What a plan asks: once for all who ask, within a budget, kept with its time, and not at all offline."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core import questions
from stoker.core.questions import NoAnswer, Questions

WHOLE = ("asked", "valid", "answer", "silent", "waited")


class Somebody:
    """Counts how often it is asked; `hang` keeps it from answering until the test ends."""

    def __init__(self) -> None:
        self.asked, self.hang, self.freed = 0, False, threading.Event()

    def __call__(self) -> dict[str, int]:
        self.asked += 1
        if self.hang:
            self.freed.wait(60)
        return {"asked": self.asked}


@pytest.fixture
def somebody() -> Iterator[Somebody]:
    somebody = Somebody()
    yield somebody
    somebody.freed.set()


def ask(asking: Questions, whom: Any, key: str = "one", **more: Any) -> Any:
    words = {"place": ["there"], "valid": lambda answer: 60.0, **more}
    return asking.ask("somebody", whom, key=[key], **words)


def test_an_answer_is_kept_for_its_time_and_asked_for_anew(
    tmp_path: Path, somebody: Somebody, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(Questions(tmp_path), somebody) == ask(Questions(tmp_path), somebody) == {"asked": 1}
    assert ask(Questions(tmp_path), somebody, key="another") == {"asked": 2}
    assert ask(Questions(tmp_path, anew=True), somebody) == {"asked": 3}
    assert ask(Questions(tmp_path, offline="nobody may"), somebody) == {"asked": 3}, "what is known is known offline"
    now = questions.time.time()
    monkeypatch.setattr(questions.time, "time", lambda: now + 61)
    assert ask(Questions(tmp_path), somebody) == {"asked": 4}
    monkeypatch.setattr(questions.time, "time", lambda: now - 3600)
    assert ask(Questions(tmp_path), somebody) == {"asked": 5}, "of a clock that was put back nothing is known"


@pytest.mark.parametrize(
    "change",
    [
        lambda kept: "[1",
        lambda kept: "[" * 100_000,
        *(lambda kept, key=key: json.dumps({**kept, key: "1"}) for key in ("asked", "valid", "waited")),
        *(lambda kept, key=key: json.dumps({name: kept[name] for name in kept if name != key}) for key in WHOLE),
        lambda kept: json.dumps({**kept, "asked": 10**400}),
    ],
)
def test_a_damaged_file_is_no_answer(change: Any, tmp_path: Path, somebody: Somebody) -> None:
    ask(Questions(tmp_path), somebody)

    def nobody() -> Any:
        raise questions.NoAnswer("nobody is there")

    with pytest.raises(questions.NoAnswer):
        ask(Questions(tmp_path), nobody, key="silent")
    for file in (tmp_path / "answers").iterdir():
        file.write_text(change(json.loads(file.read_text())))
    for key in ("silent", "one"):
        with contextlib.suppress(questions.NoAnswer):
            assert ask(Questions(tmp_path), somebody, key=key)["asked"] in (1, 2, 3)


def test_who_hangs_costs_one_budget_and_is_left_alone_for_a_while(
    tmp_path: Path, somebody: Somebody, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(questions.SECONDS, "0.2")
    monkeypatch.setattr(questions, "LEAST", 0.1)
    monkeypatch.setattr(questions, "_SHOWN_AFTER", 0.05)
    somebody.hang = True
    shown: list[str] = []
    asking = Questions(tmp_path, show=shown.append)
    with pytest.raises(NoAnswer, match=r"somebody had no answer after 0\.2 s"):
        ask(asking, somebody)
    assert shown == ["waiting for somebody", ""]
    with pytest.raises(NoAnswer, match=r"had no answer after 0\.2 s"):
        ask(Questions(tmp_path), somebody, key="another")
    assert somebody.asked == 1, "the place is not asked again, whatever the question"
    somebody.hang = False
    assert ask(Questions(tmp_path), somebody, key="another", place=["elsewhere"]) == {"asked": 2}
    monkeypatch.setenv("HTTPS_PROXY", "http://another.way:3128")
    assert ask(Questions(tmp_path), somebody, key="more") == {"asked": 3}, "by another way it is asked at once"
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv(questions.SECONDS, "5")
    assert ask(Questions(tmp_path), somebody, key="longer") == {"asked": 4}, "who would wait longer asks"


def test_a_build_asks_whom_the_plan_did_not_wait_for(tmp_path: Path, somebody: Somebody) -> None:
    def silent() -> None:
        raise NoAnswer("refused")

    asking = Questions(tmp_path)
    for _ in range(2):
        with pytest.raises(NoAnswer, match="refused"):
            ask(asking, silent)
    asking.be_patient()
    assert ask(asking, somebody) == {"asked": 1}


def test_offline_nobody_is_asked_but_who_is_here(tmp_path: Path, somebody: Somebody) -> None:
    asking = Questions(tmp_path, offline="--offline")
    with pytest.raises(NoAnswer, match="somebody is not asked: --offline"):
        ask(asking, somebody)
    assert somebody.asked == 0
    assert ask(asking, somebody, nearby=True) == {"asked": 1}


def test_those_who_ask_the_same_at_once_ask_once(somebody: Somebody) -> None:
    asking, answers = Questions(), list[Any]()
    somebody.hang = True
    threads = [threading.Thread(target=lambda: answers.append(ask(asking, somebody))) for _ in range(8)]
    for thread in threads:
        thread.start()
    somebody.freed.set()
    for thread in threads:
        thread.join()
    assert answers == [{"asked": 1}] * 8
    with pytest.raises(ZeroDivisionError):  # an error is whoever's it is
        ask(asking, lambda: 1 // 0, key="broken")
