"""Which rank is to blame, from evidence alone: what the table of failures cannot bring about on one machine."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import attrs
import pytest

from stoker.core.protocol import Operation, RankEvidence, StepError
from stoker.launchers.base import Place
from stoker.launchers.registry import LAUNCHERS
from stoker.worker import evidence
from stoker.worker.blame import Verdict, ordinal, verdict
from stoker.worker.notice import Terminated
from stoker.worker.rank import WrongWorld, watch

CLOSED = StepError(type="RuntimeError", message="[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:7")
WATCHDOG = StepError(
    type="torch.distributed.DistBackendError",
    message="[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE) ran for 600 s",
)
OWN = StepError(type="KeyError", message="KeyError: 'label'", traceback="…")


def calls(*names: str, group: str = "0", last: float = 1.0, begin: int = 1, subject: str = "") -> dict[str, Any]:
    """The operations of a rank, the last of which ended at `last`."""
    operations = [
        Operation(number=number, name=name, group=group, subject=subject, place=f"train.py:{number}", ended=1.0)
        for number, name in enumerate(names, begin)
    ]
    operations[-1] = attrs.evolve(operations[-1], ended=last)
    return {"operations": tuple(operations), "counts": {group: operations[-1].number}}


def rank(number: int, **facts: Any) -> RankEvidence:
    return RankEvidence(rank=number, **facts)


def complains(number: int, error: StepError = CLOSED, **facts: Any) -> RankEvidence:
    return rank(number, end="raised", cause="user-error", error=error, **{"at": 1.0, **facts})


REDUCE = "all_reduce"
CASES: dict[str, tuple[list[RankEvidence], bool, tuple[str, int | None, tuple[int, ...]]]] = {
    "nobody failed": ([rank(0, end="returned"), rank(1, end="returned")], False, ("none", None, ())),
    "the complaint came first": (
        [complains(0, at=1.0), rank(1, end="died", status=-9, at=1.4), rank(2, end="asked", at=1.5)],
        False,
        ("", 1, (1,)),
    ),
    "two failed by themselves": (
        [rank(0, end="raised", error=OWN, at=2.0), rank(1, end="died", status=-11, at=1.0)],
        False,
        ("", 1, (0, 1)),
    ),
    "an error outside of an operation outweighs an earlier one inside": (
        [
            rank(0, end="raised", error=StepError(type="E", message="broken"), at=1.0, **calls(REDUCE, last=-1.0)),
            rank(1, end="raised", error=OWN, at=2.0, **calls("barrier")),
        ],
        False,
        ("", 1, (1,)),
    ),
    "NCCL's watchdog, and a rank that reads data": (
        [
            complains(0, WATCHDOG, **calls(*[REDUCE] * 9, last=-1.0)),
            rank(1, end="asked", stands="data.py:3", text="read()", **calls(*[REDUCE] * 8)),
        ],
        False,
        ("nccl-timeout", 1, (1,)),
    ),
    "every process of JAX calls itself process 0": (
        [
            rank(number, end="died", status=-6, **calls(evidence.JAX_INIT, last=0.0, subject="rank 0 of 2"))
            for number in range(2)
        ],
        False,
        ("wrong-world", None, (0, 1)),
    ),
    "operations that only torch's flight recorder has": (
        [
            rank(0, stands="train.py:8", recorded=calls(REDUCE, REDUCE, last=0.0)["operations"]),
            rank(1, stands="train.py:9", recorded=calls(REDUCE)["operations"]),
        ],
        True,
        ("hang", 1, (1,)),
    ),
    "other operations in torch's flight recorder": (
        [
            rank(0, stands="train.py:8", recorded=calls(REDUCE, last=0.0, subject="[4] float")["operations"]),
            rank(1, stands="train.py:8", recorded=calls(REDUCE, last=0.0, subject="[4] float")["operations"]),
            rank(2, stands="train.py:8", recorded=calls(REDUCE, last=0.0, subject="[5] float")["operations"]),
        ],
        True,
        ("mismatch", 2, (2,)),
    ),
    "the flight recorder of a rank that is gone is not known": (
        [
            rank(0, stands="train.py:8", recorded=calls(REDUCE, last=0.0)["operations"]),
            rank(1, end="returned"),
        ],
        True,
        ("none", None, ()),
    ),
    "NCCL's watchdog aborts the ranks that wait": (
        [
            rank(0, end="died", status=-6, at=1.0, said=WATCHDOG.message, **calls(*[REDUCE] * 9)),
            rank(1, end="asked", stands="data.py:3", text="read()", **calls(*[REDUCE] * 8)),
            rank(2, end="died", status=-6, at=1.1, said=WATCHDOG.message, **calls(*[REDUCE] * 9)),
        ],
        False,
        ("nccl-timeout", 1, (1,)),
    ),
    "an abort of its own": (
        [complains(0), rank(1, end="died", status=-6, at=1.5, said="free(): invalid pointer")],
        False,
        ("", 1, (1,)),
    ),
    "all stand in one operation: the network": (
        [rank(0, **calls(REDUCE, last=0.0)), rank(1, **calls(REDUCE, last=0.0))],
        True,
        ("none", None, ()),
    ),
    "the one that is behind waits for a third": (
        [
            rank(0, **calls(REDUCE, last=0.0, group="pair")),
            rank(1, stands="a.py:1", **calls("barrier")),
            rank(2, **calls("barrier", REDUCE, last=0.0)),
        ],
        True,
        ("hang", 1, (1,)),
    ),
    "a group whose operations are older than the trail": (
        [
            rank(0, **calls(REDUCE, last=0.0, group="pair")),
            rank(1, stands="a.py:1", **calls(*["barrier"] * evidence.SLOTS, begin=100)),
        ],
        True,
        ("none", None, ()),
    ),
    "an exception that its own code handles is none": (
        [complains(0), rank(1, end="asked", error=CLOSED, raising=True)],
        False,
        ("", 0, (0,)),
    ),
    "no rank is known to be the reason": ([complains(0), complains(1, at=0.5)], False, ("", 1, (0, 1))),
    "all fail alike: the first by number": (
        [rank(0, end="raised", error=OWN, at=2.0), rank(1, end="raised", error=OWN, at=1.0)],
        False,
        ("", 0, (0, 1)),
    ),
    "shapes of operations that may differ": (
        [
            complains(0, **calls("all_to_all_single", subject="[2]", last=-1.0)),
            rank(1, **calls("all_to_all_single", subject="[3]", last=0.0)),
        ],
        False,
        ("", 0, (0,)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_rank_whose_evidence_explains_the_others(name: str) -> None:
    ranks, hung, (cause, culprit, at_fault) = CASES[name]
    found = verdict(ranks, hung=hung)
    if cause == "none":
        assert found is None
    else:
        assert isinstance(found, Verdict)
        assert (found.cause, found.rank, found.at_fault) == (cause, culprit, at_fault)


def test_a_trail_is_whole_after_it_has_gone_round(tmp_path: Any) -> None:
    path = evidence.trail_file(str(tmp_path), 3)
    trail = evidence.Trail(path)
    reduce = trail.recorded(lambda tensor, fails=False: 1 / (not fails), "all_reduce")
    for _ in range(evidence.SLOTS + 5):
        reduce(None)
    with pytest.raises(ZeroDivisionError):
        reduce(None, fails=True)
    operations, seconds = evidence.read_trail(path)
    assert [one.number for one in operations] == list(range(7, evidence.SLOTS + 7))
    assert [one.ended > 0 for one in operations] == [True] * (evidence.SLOTS - 1) + [False]
    assert (
        operations[-1].place.startswith("tests/distributed/test_blame.py:") or "test_blame.py:" in operations[-1].place
    )
    assert 0 < seconds < 10
    assert evidence.read_trail(str(tmp_path / "none")) == ((), 0.0)


def test_a_full_disk_costs_the_trail_and_not_the_rank(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(evidence.os, "posix_fallocate", full)
    path = evidence.trail_file(str(tmp_path), 0)
    assert evidence.Trail(path).recorded(lambda: 7, "barrier")() == 7
    assert evidence.read_trail(path) == ((), 0.0)


def test_what_a_library_makes_of_a_text_is_no_line_of_the_users(tmp_path: Any) -> None:
    made: dict[str, Any] = {}
    exec("def generated(call): return call()", made)
    place, text = made["generated"](lambda: evidence.standing(sys._getframe().f_back))
    assert "test_blame.py:" in place and text.startswith("place, text =")


def test_an_operation_inside_another_is_none_of_the_steps(tmp_path: Any) -> None:
    trail = evidence.Trail(evidence.trail_file(str(tmp_path), 0))
    inner = trail.recorded(lambda: None, "all_gather")
    trail.recorded(inner, "all_gather_object")()
    operations, _ = evidence.read_trail(evidence.trail_file(str(tmp_path), 0))
    assert [one.name for one in operations] == ["all_gather_object"]


def _handles() -> BaseException:
    try:
        raise ImportError("no such module")
    except ImportError as error:
        assert evidence.is_handled(error, sys._getframe())
        return error


def _raises_again() -> None:
    try:
        raise KeyError("label")
    except KeyError as error:
        assert not evidence.is_handled(error, sys._getframe())
        raise


def _cleans_up() -> None:
    try:
        raise KeyError("label")
    finally:
        error = sys.exc_info()[1]
        assert error is not None and not evidence.is_handled(error, sys._getframe())


def test_what_was_on_its_way_when_the_rank_was_asked_to_end_counts() -> None:
    witness = evidence.RankWitness(lambda error: f"{type(error).__name__}: {error}")
    try:
        raise FileNotFoundError("shard-1")
    except FileNotFoundError:
        try:
            raise Terminated
        except Terminated:
            account = witness.account()
            if account["raising"] is None:
                raise
    assert account["raising"] == "FileNotFoundError: shard-1"
    assert "test_blame.py:" in account["stands"] and account["text"] == "account = witness.account()"


def test_an_exception_that_is_handled_is_told_from_one_on_its_way() -> None:
    _handles()
    for raises in (_raises_again, _cleans_up):
        with pytest.raises(KeyError, match="label"):
            raises()


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (112, "112th"), (21, "21st")]
)
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == text


def test_a_world_of_jax_with_ranks_that_nobody_started(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "jax" / "_src"
    package.mkdir(parents=True)
    (package / "distributed.py").write_text(
        "global_state = None\n"
        "def initialize(coordinator_address=None, num_processes=None, process_id=None):\n"
        "    return num_processes\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    watch(LAUNCHERS.load("command"), Place(world_size=2, local_world_size=2))
    jax = importlib.import_module("jax._src.distributed")
    try:
        with pytest.raises(WrongWorld, match=r"initialize is called for a world that has 3 ranks here, and 2 were"):
            jax.initialize("127.0.0.1:1", 3, 0)
        assert jax.initialize("127.0.0.1:1", num_processes=2, process_id=1) == 2
        assert jax.initialize() is None
    finally:
        for name in ("jax", "jax._src", "jax._src.distributed"):
            sys.modules.pop(name, None)
