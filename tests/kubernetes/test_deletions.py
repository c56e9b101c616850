"""Finished Jobs are deleted beside the watch: whoever has one deleted does not wait for the server."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stoker.backends.base.platforms import Away
from stoker.backends.kubernetes.api.client import ApiError
from stoker.backends.kubernetes.running.ending import Deletions
from stoker.backends.kubernetes.running.handles import JobObject


class Client:
    """Stands for the thread's own client."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def abandon(self) -> None:
        self.closed = True


def place(name: str) -> JobObject:
    return JobObject(name=name, namespace="default", run="run1")


def test_a_slow_server_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The first deletion hangs while the others are added; then one gets no answer, and one is refused."""
    began, released, asked = threading.Event(), threading.Event(), []
    answers: dict[str, list[Exception]] = {
        "silent": [Away("no answer", fix="")],
        "refused": [ApiError(403, "Forbidden", "jobs is forbidden", {})],
    }

    def delete(client: Any, place: JobObject) -> None:
        asked.append(place.name)
        began.set()
        assert released.wait(30.0)
        if answers.get(place.name):
            raise answers[place.name].pop()

    client: Any = Client()
    deletions = Deletions(client, delete)
    deletions.add(place("slow"))
    assert began.wait(30.0)
    for name in ("silent", "refused", "last"):
        deletions.add(place(name))
    assert asked == ["slow"]
    released.set()
    assert deletions.finish() and client.closed
    assert asked == ["slow", "silent", "silent", "refused", "last"]
    assert "the Job default/refused is over and stays" in caplog.text and "jobs is forbidden" in caplog.text


@pytest.mark.parametrize("leaves", ["finish", "abandon"])
def test_a_driver_that_leaves_does_not_wait_for_ever(leaves: str) -> None:
    tried = threading.Semaphore(0)

    def delete(client: Any, place: JobObject) -> None:
        tried.release()
        raise Away("no answer", fix="")

    client: Any = Client()
    deletions = Deletions(client, delete)
    deletions.add(place("one"))
    assert tried.acquire(timeout=30.0)
    if leaves == "abandon":
        deletions.abandon()
    assert not deletions.finish() and client.closed
