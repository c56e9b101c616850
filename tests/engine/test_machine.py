"""The machine under scripted events, and under any order of events that hypothesis thinks of."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.plan import Capacity
from stoker.core.status import CAUSES, NEVER_RETRIED, RETRIED_IF_NAMED, STEP_DONE, STEP_GOOD
from stoker.engine import events as ev
from stoker.engine import machine
from stoker.engine.machine import LOST_LIMIT, RESTORE_LIMIT, Machine
from stoker.engine.pool import PATIENCE

ROOM = Capacity(cpus=2, memory=1000, slots=8)


def task(key: str, *requires: str, **fields: Any) -> ev.TaskSpec:
    return ev.TaskSpec(key=key, requires=requires, pool="p", **{"cpus": 1.0, **fields})


class Player:
    """Plays a world for a machine: answers its actions, and checks what must hold at every moment."""

    def __init__(self, *, fail_fast: bool = True, room: Capacity | None = ROOM) -> None:
        self.machine = Machine({"p": room}, fail_fast=fail_fast)
        self.room = room
        self.tasks: dict[str, ev.TaskSpec] = {}
        self.running: dict[str, int] = {}
        self.behind: set[str] = set()
        self.preparing: list[str] = []
        self.expanding: list[str] = []
        self.hooks: list[str] = []
        self.settled: dict[str, str] = {}
        self.reopened: set[str] = set()
        self.attempts: dict[str, int] = {}
        self.cancels: list[ev.Cancel] = []
        self.retrying: list[ev.RecordRetry] = []
        self.finished: str | None = None
        self.order: list[str] = []
        self.now = 0.0

    def tell(self, event: Any, at: float | None = None) -> list[Any]:
        if at is not None:
            self.now = at
        taken = isinstance(event, ev.Expanded) and self.machine.status(event.key) == "preparing"
        if isinstance(event, ev.Added) or taken:
            for added in event.tasks:
                self.tasks[added.key] = added
        actions = self.machine.handle(event, self.now)
        for action in actions:
            self.take(action)
        return actions

    def take(self, action: Any) -> None:
        assert self.finished is None, "an action after the end"
        if isinstance(action, ev.Prepare):
            self.preparing.append(action.key)
        elif isinstance(action, ev.Expand):
            self.expanding.append(action.key)
        elif isinstance(action, ev.Submit):
            assert action.key not in self.running and action.key not in self.settled
            for requirement in self.tasks[action.key].requires:
                # A task that was ready goes on while a step before it runs again for another one. If an artifact that
                # it takes is the lost one, its own attempt finds that.
                if not requirement.endswith("[]") and requirement not in self.reopened:
                    assert self.settled[requirement] in STEP_GOOD
            self.running[action.key] = action.attempt
            self.attempts[action.key] = action.attempt
            self.order.append(action.key)
            if action.behind:
                self.behind.add(action.key)
        elif isinstance(action, ev.RecordEnd):
            assert action.key not in self.settled, "settled twice"
            assert action.key not in self.running, "done and running"
            assert action.status in STEP_DONE
            self.settled[action.key] = action.status
        elif isinstance(action, ev.Cancel):
            assert self.running.get(action.key) == action.attempt
            self.cancels.append(action)
        elif isinstance(action, ev.CallHook):
            self.hooks.append(action.key)
        elif isinstance(action, ev.RecordRetry):
            self.retrying.append(action)
        elif isinstance(action, ev.FinishRun):
            assert set(self.settled) == set(self.tasks)
            assert not self.running and not self.hooks
            self.finished = action.status

    def prepare_all(self) -> None:
        while self.preparing:
            self.tell(ev.Prepared(key=self.preparing.pop(0)))

    def end(self, key: str, cause: str = "", escalated: ev.TaskSpec | None = None) -> None:
        self.tell(ev.Ended(key=key, attempt=self.running.pop(key), cause=cause, escalated=escalated))
        self.prepare_all()

    def lose(self, key: str, *producers: str) -> None:
        """An input of a task that is prepared or that ran turns out to be lost."""
        may = self.machine.may_restore(key)
        again = [name for name in producers if may and self.settled.get(name) in STEP_GOOD]
        for name in again:
            del self.settled[name]
        self.reopened.update(again)
        attempt = self.running.pop(key, 0)
        if not attempt:
            (self.expanding if self.tasks[key].fanout else self.preparing).remove(key)
        self.tell(ev.InputLost(key=key, attempt=attempt, producers=producers))

    def start(self, *tasks: ev.TaskSpec, close: bool = True) -> None:
        self.tell(ev.Added(tasks=tasks))
        if close:
            self.tell(ev.Closed())
        self.prepare_all()


def test_a_gang_takes_all_its_nodes_or_waits() -> None:
    player = Player(room=Capacity(cpus=4, memory=1000, slots=8))
    player.start(task("one"), task("gang", gang=4))
    assert set(player.running) == {"one"}
    player.end("one")
    assert set(player.running) == {"gang"}


def test_a_big_request_is_passed_only_so_often() -> None:
    player = Player()
    small = [task(f"s{number}") for number in range(PATIENCE + 40)]
    player.start(small[0], task("big", cpus=2.0), *small[1:])
    passed = 0
    while "big" not in player.running:
        player.end(next(iter(player.running)))
        passed += 1
        assert passed < PATIENCE + 10
    assert set(player.running) == {"big"}


def test_a_step_bigger_than_the_room_runs_alone() -> None:
    player = Player()
    player.start(task("huge", cpus=64.0), task("small"))
    assert set(player.running) == {"huge"}
    player.end("huge")
    assert set(player.running) == {"small"}


def test_what_failed_by_itself_before_it_was_asked_to_end_has_failed() -> None:
    player = Player()
    player.start(task("bad"), task("worse", retries=1))
    player.end("bad", "setup-failed")
    assert [cancel.key for cancel in player.cancels] == ["worse"]
    player.end("worse", "setup-failed")
    assert player.settled == {"bad": "failed", "worse": "failed"} and not player.retrying
    assert player.finished == "failed"


def test_jitter_stays_in_its_bounds_and_differs_between_steps() -> None:
    waits = set()
    for number in range(50):
        player = Player()
        player.start(task(f"k{number}", retries=1, delay=10.0, jitter=0.2))
        player.end(f"k{number}", "user-error")
        waits.add(player.retrying[0].at)
    assert all(8.0 <= wait <= 12.0 for wait in waits)
    assert len(waits) > 40


@pytest.mark.parametrize("cause", sorted(RETRIED_IF_NAMED))
def test_what_another_attempt_cannot_cure_is_retried_only_if_it_is_named(cause: str) -> None:
    player = Player()
    player.start(task("a", retries=3))
    player.end("a", cause)
    assert player.settled == {"a": "failed"} and not player.retrying
    named = Player()
    named.start(task("a", retries=1, retry_on=frozenset({cause})))
    named.end("a", cause)
    assert named.retrying[0].cause == cause and not named.settled


@pytest.mark.parametrize("cause", sorted(NEVER_RETRIED - {"cancelled", "stopped"}))
def test_what_is_never_retried_is_not_even_if_it_is_named(cause: str) -> None:
    player = Player()
    player.start(task("a", retries=3, retry_on=frozenset({cause})))
    player.end("a", cause)
    assert player.settled == {"a": "failed"} and not player.retrying


@pytest.mark.parametrize("cause", sorted(CAUSES - RETRIED_IF_NAMED - NEVER_RETRIED))
def test_every_other_cause_is_retried(cause: str) -> None:
    player = Player()
    player.start(task("a", retries=1))
    player.end("a", cause)
    assert player.retrying[0].cause == cause


def test_a_changed_request_is_tried_whatever_the_retry_names() -> None:
    player = Player()
    player.start(task("a", retries=2, retry_on=frozenset({"killed"}), climbs=frozenset({"gpu-oom"})))
    player.end("a", "gpu-oom", escalated=task("a", retries=2, climbs=frozenset({"gpu-oom"})))
    assert [retry.cause for retry in player.retrying] == ["gpu-oom"]
    player.tell(ev.Ticked(), player.retrying[0].at)
    assert player.attempts["a"] == 2


def test_a_changed_request_is_admitted_by_what_it_asks_for_now() -> None:
    player = Player()
    player.start(task("a", cpus=0.1, memory=400, retries=1), task("b", cpus=0.1, memory=400))
    assert set(player.running) == {"a", "b"}
    player.end("a", "host-oom", escalated=task("a", cpus=0.1, memory=800, retries=1))
    player.tell(ev.Ticked(), player.retrying[0].at)
    assert set(player.running) == {"b"}, "1200 bytes do not fit into 1000"
    player.end("b")
    assert set(player.running) == {"a"}


def test_a_request_that_is_changed_from_the_start_is_admitted_so() -> None:
    player = Player()
    player.tell(ev.Added(tasks=(task("a", cpus=0.1, memory=400), task("b", cpus=0.1, memory=400))))
    player.tell(ev.Closed())
    player.tell(ev.Prepared(key="a", escalated=task("a", cpus=0.1, memory=800)))
    player.tell(ev.Prepared(key="b"))
    assert set(player.running) == {"a"}


def test_a_timeout_is_no_want_of_memory() -> None:
    player = Player()
    player.start(task("a", timeout=5.0, retries=1, retry_on=frozenset({"killed"})))
    player.tell(ev.Began(key="a", attempt=1), 1.0)
    player.tell(ev.Ticked(), 6.0)
    player.end("a", "gpu-oom", escalated=task("a", retries=1))
    assert player.settled == {"a": "failed"} and not player.retrying


def test_a_timeout_cancels_the_attempt_and_names_the_cause() -> None:
    player = Player()
    player.start(task("a", timeout=2.0, retries=1))
    player.tell(ev.Extended(key="a", attempt=1, seconds=1.0), 1.0)
    player.tell(ev.Began(key="a", attempt=1), 1.0)
    player.tell(ev.Extended(key="a", attempt=1, seconds=2.0), 2.0)
    player.tell(ev.Extended(key="a", attempt=2, seconds=9.0), 2.0)
    assert player.machine.next_wake() == 6.0
    player.tell(ev.Ticked(), 5.9)
    assert not player.cancels
    player.tell(ev.Ticked(), 6.0)
    assert [(cancel.key, cancel.cause) for cancel in player.cancels] == [("a", "timed-out")]
    player.end("a", "killed")
    assert player.retrying[0].cause == "timed-out"
    player.tell(ev.Ticked(), player.retrying[0].at)
    assert player.attempts["a"] == 2
    assert player.machine.next_wake() is None


def test_a_lost_attempt_costs_nothing_but_not_for_ever() -> None:
    player = Player()
    player.start(task("a"))
    for _ in range(LOST_LIMIT):
        player.tell(ev.Lost(key="a", attempt=player.running.pop("a")))
        assert player.attempts["a"] == 1
    player.tell(ev.Lost(key="a", attempt=player.running.pop("a")))
    assert player.settled == {"a": "failed"}


def test_a_fan_out_fails_for_the_cause_of_its_first_failed_element() -> None:
    """Not of the one that failed first: `stoker show` gives the cause with that element's message."""
    player = Player(fail_fast=False)
    player.start(task("f", fanout=True))
    player.tell(ev.Expanded(key="f", tasks=tuple(task(f"f[{n}]", parent="f") for n in range(3))))
    player.prepare_all()
    actions = []
    for key, cause in (("f[1]", "killed"), ("f[2]", "exited"), ("f[0]", "user-error")):
        actions += player.tell(ev.Ended(key=key, attempt=player.running.pop(key), cause=cause))
    ends = [one for one in actions if isinstance(one, ev.RecordEnd) and one.key == "f"]
    assert [(one.status, one.cause) for one in ends] == [("failed", "user-error")]


def test_elements_are_prepared_as_those_before_them_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "WINDOW", 3)
    for room, most in ((ROOM, 3), (None, 8)):  # a platform with a queue of its own runs as many as it likes
        player = Player(room=room)
        player.start(task("f", fanout=True), task("sum", "f"))
        player.tell(ev.Expanded(key="f", tasks=tuple(task(f"f[{n}]", parent="f") for n in range(8))))
        seen = []
        while "f" not in player.settled:
            while player.preparing:
                seen.append(player.preparing.pop(0))
                assert len(seen) - len(player.settled) <= most
                if seen[-1] == "f[1]":
                    player.tell(ev.ResultFound(key="f[1]", earlier="cached"))
                else:
                    player.tell(ev.Prepared(key=seen[-1]))
            key = next(iter(player.running))
            player.tell(ev.Ended(key=key, attempt=player.running.pop(key), cause=""))
        assert seen == [f"f[{n}]" for n in range(8)]


def test_elements_wait_for_elements_that_are_over_before_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "WINDOW", 2)
    player = Player(room=attrs.evolve(ROOM, slots=9, cpus=9.0, memory=9 * ROOM.memory))
    player.start(task("f", fanout=True), task("g", "f[]", fanout=True))
    player.tell(ev.Expanded(key="f", tasks=tuple(task(f"f[{n}]", parent="f") for n in range(6))))
    player.tell(ev.Expanded(key="g", tasks=tuple(task(f"g[{n}]", f"f[{n}]", parent="g") for n in range(6))))
    player.prepare_all()
    while "f" not in player.settled:
        player.end(next(key for key in player.running if key.startswith("f")))
    assert [player.machine.status(f"g[{n}]") for n in range(6)] == [*["running"] * 2, *["pending"] * 4]
    for key in ("g[0]", "g[1]"):
        player.end(key)
    player.lose("g[2]", "f[2]", "f[5]")  # one that g[5] takes, which is not known yet
    player.prepare_all()
    assert player.running == {"g[3]": 1, "f[2]": 2, "f[5]": 2}
    player.end("g[3]")
    player.end("f[2]")
    assert set(player.running) == {"g[4]", "f[5]"}
    player.end("g[4]")
    assert set(player.running) == {"f[5]"}, "g[5] waits for what f[5] makes anew"
    player.end("f[5]")
    while player.running:
        player.end(next(iter(player.running)))
    assert player.finished == "succeeded" and player.attempts["f[5]"] == 2


def test_one_failed_element_fails_the_fan_out_after_the_others_ended() -> None:
    player = Player(fail_fast=False)
    player.start(task("f", fanout=True), task("sum", "f"))
    player.tell(ev.Expanded(key="f", tasks=tuple(task(f"f[{n}]", parent="f") for n in range(3))))
    player.prepare_all()
    player.end("f[0]", "user-error")
    assert "f" not in player.settled
    player.end("f[1]")
    player.end("f[2]")
    assert player.settled["f"] == "failed"
    assert player.settled["sum"] == "skipped"


def test_short_elements_stand_in_line_behind_running_ones() -> None:
    player = Player()
    player.start(task("f", fanout=True))
    player.tell(ev.Expanded(key="f", tasks=tuple(task(f"f[{n}]", parent="f", ahead=True) for n in range(20))))
    player.prepare_all()
    assert len(player.running) == 2
    player.tell(ev.PaceChanged(pool="p", ahead=6))
    assert len(player.running) == 8 and len(player.behind) == 6
    for _ in range(20):
        player.end(next(iter(player.running)))
    assert player.settled["f"] == "succeeded"


def test_a_finished_step_may_bring_its_successors() -> None:
    """Transitions, switches and recursion of flows: nobody can think the run done in between."""
    player = Player()
    player.start(task("loop"))
    for number in range(50):
        key = f"loop_{number}"
        previous = next(iter(player.running))
        player.tasks[key] = task(key, previous)
        player.tell(ev.Ended(key=previous, attempt=player.running.pop(previous), grown=(player.tasks[key],)))
        player.prepare_all()
        assert player.finished is None
    player.end("loop_49")
    assert player.finished == "succeeded"


def test_a_lost_input_costs_no_retry_and_gives_its_room_back() -> None:
    player = Player(room=Capacity(cpus=1, memory=1000, slots=8))
    player.start(task("a"), task("b", "a", retries=1))
    player.end("a")
    player.lose("b", "a")
    player.prepare_all()
    player.end("a")
    player.end("b", "user-error")
    player.tell(ev.Ticked(), player.now + 10)
    player.end("b")
    assert player.finished == "succeeded" and player.attempts["b"] == 3


def test_a_list_that_is_gathered_again_runs_no_producer() -> None:
    player = Player()
    player.start(task("a"), task("b", "a"))
    player.end("a")
    player.lose("b")
    player.prepare_all()
    assert list(player.running) == ["b"]
    player.end("b")
    assert player.finished == "succeeded" and player.attempts == {"a": 1, "b": 2}


def test_a_lost_list_is_computed_again_before_a_fan_out_is_counted() -> None:
    player = Player()
    player.start(task("xs"), task("f", "xs", fanout=True))
    player.end("xs")
    player.lose("f", "xs")
    player.prepare_all()
    assert not player.expanding and list(player.running) == ["xs"]
    player.end("xs")
    assert player.expanding == ["f"]
    player.tell(ev.Expanded(key="f", tasks=(task("f[0]", parent="f"),)))
    player.prepare_all()
    player.end("f[0]")
    assert player.finished == "succeeded"


def test_elements_lose_their_inputs_and_are_lost_inputs() -> None:
    """One element's producer is an element; that one's fan-out has settled, and does so once."""
    player = Player()
    player.start(task("f", fanout=True), task("g", "f[]", fanout=True), task("sum", "g"))
    player.tell(ev.Expanded(key="f", tasks=(task("f[0]", parent="f"), task("f[1]", parent="f"))))
    player.tell(ev.Expanded(key="g", tasks=(task("g[0]", "f[0]", parent="g"), task("g[1]", "f[1]", parent="g"))))
    player.prepare_all()
    player.end("f[0]")
    player.end("f[1]")
    assert player.settled["f"] == "succeeded" and set(player.running) == {"g[0]", "g[1]"}
    player.lose("g[0]", "f[0]")
    player.prepare_all()
    player.end("g[1]")
    assert "g" not in player.settled and list(player.running) == ["f[0]"]
    player.end("f[0]")
    player.end("g[0]")
    assert player.settled["g"] == "succeeded" and list(player.running) == ["sum"]
    player.end("sum")
    assert player.finished == "succeeded"


def test_other_consumers_of_a_lost_input() -> None:
    """One ran, and does not again; one runs, and loses it too; one waits for another step, and then for this one."""
    player = Player(room=Capacity(cpus=4, memory=1000, slots=8))
    player.start(
        task("a"), task("slow"), task("ran", "a"), task("runs", "a"), task("b", "a"), task("late", "a", "slow")
    )
    player.end("a")
    player.end("ran")
    player.lose("b", "a")
    player.prepare_all()
    player.end("slow")
    assert set(player.running) == {"a", "runs"}
    player.lose("runs", "a")
    player.prepare_all()
    assert set(player.running) == {"a"}
    player.end("a")
    assert set(player.running) == {"b", "runs", "late"} and player.attempts["ran"] == 1
    for key in list(player.running):
        player.end(key)
    assert player.finished == "succeeded" and (player.attempts["a"], player.attempts["runs"]) == (2, 2)


def test_an_input_may_be_lost_only_so_often() -> None:
    player = Player()
    player.start(task("a"), task("b", "a"), task("c", "b"))
    player.end("a")
    for _ in range(RESTORE_LIMIT):
        player.lose("b", "a")
        player.prepare_all()
        player.end("a")
    player.tell(ev.InputLost(key="b", attempt=player.running.pop("b"), producers=("a",)))
    assert player.settled == {"a": "succeeded", "b": "failed", "c": "skipped"}
    assert player.finished == "failed" and player.attempts == {"a": RESTORE_LIMIT + 1, "b": RESTORE_LIMIT + 1}


@pytest.mark.parametrize("fail_fast", [True, False])
def test_a_producer_may_fail_the_second_time(fail_fast: bool) -> None:
    player = Player(fail_fast=fail_fast, room=Capacity(cpus=4, memory=1000, slots=8))
    player.start(task("a"), task("b", "a"), task("c", "b"), task("late", "a", "slow"), task("slow"))
    player.end("a")
    player.lose("b", "a")
    player.prepare_all()
    player.end("a", "user-error")
    assert player.settled["a"] == "failed" and player.settled["b"] == player.settled["c"] == "skipped"
    assert player.settled["late"] == "skipped"
    player.end("slow", "killed" if fail_fast else "")
    assert player.finished == "failed"


def test_a_run_may_be_stopped_while_an_input_is_computed_again() -> None:
    player = Player(room=Capacity(cpus=4, memory=1000, slots=8))
    player.start(task("a"), task("b", "a"), task("other", "a"))
    player.end("a")
    player.lose("b", "a")
    player.prepare_all()
    player.tell(ev.Stopped())
    assert {cancel.key for cancel in player.cancels} == {"a", "other"} and player.settled == {"b": "skipped"}
    attempt = player.running.pop("other")
    player.tell(ev.InputLost(key="other", attempt=attempt, producers=("a",)))
    player.end("a", "killed")
    assert player.settled == {"a": "cancelled", "b": "skipped", "other": "cancelled"}
    assert player.finished == "cancelled"


def test_a_lost_input_of_an_attempt_that_timed_out_is_a_timeout() -> None:
    player = Player()
    player.start(task("a"), task("b", "a", timeout=5.0))
    player.end("a")
    player.tell(ev.Began(key="b", attempt=1), 0.0)
    player.tell(ev.Ticked(), 6.0)
    player.tell(ev.InputLost(key="b", attempt=player.running.pop("b"), producers=("a",)))
    assert player.settled == {"a": "succeeded", "b": "failed"}
    assert player.finished == "failed"


def test_events_about_what_is_over_change_nothing() -> None:
    player = Player()
    player.start(task("a"))
    player.end("a")
    assert player.tell(ev.Ended(key="a", attempt=1, cause="killed")) == []
    assert player.tell(ev.Ended(key="nobody", attempt=1)) == []
    assert player.settled == {"a": "succeeded"}


def test_a_chain_of_ten_thousand_is_no_deep_recursion() -> None:
    player = Player(fail_fast=False)
    chain = [task("s0"), *(task(f"s{number}", f"s{number - 1}") for number in range(1, 10_000))]
    player.start(*chain)
    player.end("s0", "user-error")
    assert player.finished == "failed"
    assert sum(status == "skipped" for status in player.settled.values()) == 9_999


def graph(draw: Any) -> list[ev.TaskSpec]:
    count = draw(st.integers(1, 8))
    tasks: list[ev.TaskSpec] = []
    for number in range(count):
        earlier = [made.key for made in tasks]
        requires = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
        fanout = draw(st.booleans())
        if fanout:
            requires = [
                f"{made.key}[]" if made.key in requires and made.fanout else made.key
                for made in tasks
                if made.key in requires
            ]
        tasks.append(
            task(
                f"t{number}",
                *requires,
                fanout=fanout,
                cpus=draw(st.sampled_from([0.5, 1.0, 2.0, 3.0])),
                memory=draw(st.sampled_from([0, 400, 2000])),
                gang=draw(st.sampled_from([1, 1, 2])),
                retries=0 if fanout else draw(st.integers(0, 2)),
                climbs=frozenset({"gpu-oom"}) if draw(st.booleans()) else frozenset(),
                timeout=draw(st.sampled_from([None, 5.0])),
                on_failure=draw(st.booleans()) and not fanout,
            )
        )
    return tasks


@st.composite
def worlds(draw: Any) -> tuple[list[ev.TaskSpec], bool, int, int]:
    return graph(draw), draw(st.booleans()), draw(st.integers(0, 2**32)), draw(st.sampled_from([1, 2, 4096]))


def lose_some(player: Player, key: str, attempt: int, chance: random.Random) -> list[str]:
    """An attempt is lost, or some of its inputs are; the tasks that made them."""
    if chance.random() < 0.3:
        player.tell(ev.Lost(key=key, attempt=attempt))
        return []
    player.running[key] = attempt
    producers = [name for name in player.tasks[key].requires if not player.tasks[name.removesuffix("[]")].fanout]
    lost = chance.sample(producers, chance.randint(0, len(producers)))
    player.lose(key, *lost)
    return lost


@given(worlds())
def test_any_order_of_events_keeps_the_promises(world: tuple[list[ev.TaskSpec], bool, int, int]) -> None:
    """No step is done and running, none ends twice, no output of a good step is lost, retries stay in their limit."""
    tasks, fail_fast, seed, window = world
    with patch.object(machine, "WINDOW", window):
        keep_the_promises(tasks, fail_fast, seed)


def keep_the_promises(tasks: list[ev.TaskSpec], fail_fast: bool, seed: int) -> None:
    chance = random.Random(seed)
    player = Player(fail_fast=fail_fast)
    player.tell(ev.Added(tasks=tuple(tasks)))
    player.tell(ev.Closed())
    succeeded: set[str] = set()
    failures: dict[str, int] = {}
    widths: dict[str, int] = {}
    for _ in range(2_000):
        if player.finished:
            break
        moves = [*(["prepare"] * bool(player.preparing)), *(["expand"] * bool(player.expanding))]
        moves += [*(["end"] * bool(player.running)), *(["hook"] * bool(player.hooks)), "tick", "noise"]
        moves += ["stop"] * (chance.random() < 0.01)
        move = chance.choice(moves)
        if move == "prepare":
            key = player.preparing.pop(chance.randrange(len(player.preparing)))
            answer = chance.choice(
                [ev.Prepared(key=key)] * 6 + [ev.ResultFound(key=key), ev.NotPrepared(key=key, cause="input-error")]
            )
            player.tell(answer)
        elif move == "expand":
            key = player.expanding.pop()
            sources = [name for name in player.tasks[key].requires if name.endswith("[]")]
            width = widths[key] = min([chance.randrange(4), *(widths[name[:-2]] for name in sources)])
            wide = [
                task(f"{key}[{n}]", *(f"{name[:-2]}[{n}]" for name in sources), parent=key, ahead=True, retries=1)
                for n in range(width)
            ]
            player.tell(ev.Expanded(key=key, tasks=tuple(wide)))
        elif move == "end":
            key = chance.choice(list(player.running))
            cause = chance.choice(["", "", "", "user-error", "killed", "gpu-oom"])
            attempt = player.running.pop(key)
            bigger = None
            if cause == "gpu-oom" and chance.random() < 0.7:
                memory = chance.choice([0, 400, 900, 2000])
                bigger = attrs.evolve(player.tasks[key], memory=memory, cpus=chance.choice([0.5, 2.0]), ahead=False)
            if chance.random() < 0.15:
                lost = set(lose_some(player, key, attempt, chance))
                succeeded -= lost
                failures = {one: count for one, count in failures.items() if one not in lost}  # they have all retries
                continue
            if cause:
                failures[key] = failures.get(key, 0) + 1
            else:
                succeeded.add(key)
            player.tell(ev.Ended(key=key, attempt=attempt, cause=cause, escalated=bigger))
            if cause == "gpu-oom" and bigger is None and "gpu-oom" in player.tasks[key].climbs:
                assert key in player.settled, "the same request would only run out of memory again"
        elif move == "hook":
            player.tell(ev.HookEnded(key=player.hooks.pop()))
        elif move == "tick":
            player.tell(ev.Ticked(), player.now + chance.choice([0.0, 1.0, 10.0]))
        elif move == "stop":
            player.tell(ev.Stopped(hard=chance.random() < 0.5))
        else:
            key = chance.choice([made.key for made in tasks])
            player.tell(ev.Ended(key=key, attempt=99, cause="killed"))
    assert player.finished, "the run never ended"
    for key in succeeded:
        assert player.settled[key] == "succeeded", "a finished step's output was lost"
    for key, count in failures.items():
        assert count <= player.tasks[key].retries + 1
    pool = player.machine._pools["p"]
    assert (pool.running, pool.cpus, pool.memory) == (0, 0.0, 0), "something is held by nobody"
    assert all(not state.task.parent for state in player.machine._tasks.values()), "a settled element is kept"
