"""What an engine says of containers and of its machine: what it does not say is neither an end nor a limit.

The states are those of https://docs.docker.com/reference/api/engine/version/v1.51/#tag/Container/operation/ContainerInspect
and of https://github.com/containers/podman/blob/v5.6.0/libpod/define/containerstate.go.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.docker.engines import End, Engine, room_of

GOING = ("created", "running", "paused", "restarting", "removing", "configured", "initialized", "stopping")
OVER = ("exited", "dead", "stopped")
WRONG: tuple[Any, ...] = (None, "", "0", 0.0, True, False, [], {})


class Told(Engine):
    """An engine that says of each container what it was told."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__("unix:///nowhere")
        self._state = state

    def look(self, id: str) -> dict[str, Any]:
        return {"State": self._state}


def end_of(**state: Any) -> End:
    """A container in this state."""
    end = Told(state).end("c")
    assert end is not None
    return end


@given(st.sampled_from((*GOING, *OVER)), st.integers(-1, 255), st.booleans())
def test_every_state_of_a_container(status: str, code: int, oom: bool) -> None:
    end = end_of(Status=status, ExitCode=code, OOMKilled=oom, Error="", Running=status == "running")
    assert end == End(running=status in GOING, code=code, oom=oom)
    assert end.text == f"exit code {code}"


@given(st.text(max_size=9).filter(lambda text: text not in OVER), st.sampled_from(WRONG))
def test_a_state_that_is_new_is_no_end_and_a_code_that_is_none_no_success(status: str, code: Any) -> None:
    assert end_of(Status=status, ExitCode=code).running
    end = end_of(Status="exited", ExitCode=code)
    assert end.code is None and end.text == "an exit code that the engine does not say"


@pytest.mark.parametrize(("running", "there"), [(True, True), (False, False), (None, True)])
def test_an_engine_that_names_no_state(running: bool | None, there: bool) -> None:
    assert end_of(**({} if running is None else {"Running": running})).running == there


@given(st.integers(1, 2**60))
def test_every_room(count: int) -> None:
    assert room_of({"NCPU": count}, "NCPU") == count


@pytest.mark.parametrize("value", [*WRONG, 0, -1, "8", 8.5])
def test_a_room_that_is_not_said_is_unknown(value: Any) -> None:
    assert room_of({"NCPU": value}, "NCPU") is room_of({}, "NCPU") is None
