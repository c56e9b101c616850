"""Which rank of a distributed step is to blame, from what is known of all of them: a pure function.

A rank that complains of others is seldom the culprit: a collective operation fails on every rank when one of them
leaves, comes late, or calls another one. The culprit is the rank whose evidence explains the others'. No text of an
exception decides that but those of the table of causes (`worker.signatures`), which says which ones are complaints.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from typing import Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.protocol import Operation, RankEvidence, StepError
from stoker.core.status import (
    HANG,
    MISMATCH,
    NCCL_ERROR,
    NCCL_REMOTE_PEER,
    NCCL_TIMEOUT,
    RANK_LEFT,
    RENDEZVOUS,
    USER_ERROR,
    WRONG_WORLD,
)
from stoker.worker import signatures
from stoker.worker.evidence import COLLECTIVES, FORWARD, INIT, INITS, JAX_INIT, LEAVE, PEERS, SLOTS
from stoker.worker.failure import exceptions_in

CONSEQUENCES: Final = frozenset({NCCL_REMOTE_PEER, NCCL_ERROR, NCCL_TIMEOUT, RENDEZVOUS})
"""Causes that a rank reports when another one has gone: mostly a consequence, seldom the reason."""
SAME_EVERYWHERE: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "scatter", "gather", "all_gather", "all_gather_into_tensor",
     "reduce_scatter", "reduce_scatter_tensor", "broadcast_object_list"}
)  # fmt: skip
"""Operations whose tensor has one shape and type on all ranks; of others it may differ."""
_OWN_PLACE: Final = {
    INIT: "call init_process_group without rank and world_size: it reads RANK and WORLD_SIZE",
    JAX_INIT: "launch the step with Jax(…), which calls jax.distributed.initialize itself",
}
_ABORTED: Final = frozenset({-signal.SIGABRT, 128 + signal.SIGABRT})
_SHOWN: Final = 16
"""Ranks that a sentence lists."""


@attrs.frozen(kw_only=True)
class Verdict:
    """Why a distributed step failed."""

    cause: str = ""
    """Empty where the rank's own failure says it."""
    rank: int | None = None
    """Whose fault it is; None where it is no single rank's."""
    at_fault: tuple[int, ...] = ()
    """All ranks with a failure of their own."""
    sentence: str = ""
    """What happened, and to whom; empty where the rank's own failure says it."""
    fix: str = ""
    error: StepError | None = None
    """The exception behind it, where that is not the rank's result."""
    own: bool = True
    """Whether it explains the failure; False where all ranks complain of others, and none of them is known to be
    the reason."""


def verdict(ranks: Sequence[RankEvidence], *, hung: bool = False) -> Verdict | None:
    """The first explanation that the evidence bears out; None where no rank failed, or none can be blamed."""
    for explain in _EXPLANATIONS:
        found = explain(ranks, hung)
        if found is not None:
            return found
    return None


def places_text(ranks: Sequence[RankEvidence]) -> str:
    """Where ranks stand: "ranks 0, 1 stand at train.py:9: queue.get()"."""
    members: dict[str, list[RankEvidence]] = defaultdict(list)
    for rank in ranks:
        if rank.stands:
            members[_whereabouts(rank).removeprefix("stands ")].append(rank)
    return "; ".join(
        f"{_ranks(some)} {'stands' if len(some) == 1 else 'stand'} {place}" for place, some in members.items()
    )


def is_complaint(rank: RankEvidence) -> bool:
    """Whether a rank failed only by what another one did: it was ended, or an operation with others failed."""
    if rank.end == "asked":
        return True
    if rank.end == "died" and rank.status in _ABORTED:
        # NCCL's watchdog and JAX's client abort a process that waits for another one, and say so.
        row = signatures.find_signature((), rank.said)
        return row is not None and row[0].cause in CONSEQUENCES
    if rank.end != "raised" or rank.error is None or rank.cause == WRONG_WORLD:
        return False
    return _complains(rank.error, whole=_raised_in_operation(rank))


def _complains(error: StepError, *, whole: bool = False) -> bool:
    """Whether an exception reports the failure of others; `whole` looks at those, too, that it came up in."""
    raised = [f"{error.type}: {error.message}", *error.because]
    raised += exceptions_in(error.traceback.splitlines()) if whole else ()
    row = signatures.find_signature(raised, "")
    return row is not None and row[0].cause in CONSEQUENCES


def _own_failures(ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Ranks with a failure of their own, the first one first."""
    own = [rank for rank in ranks if rank.end in ("raised", "died") and not is_complaint(rank)]
    # An exception out of a collective operation, whatever it says, explains less than one from elsewhere.
    alone = [rank for rank in own if not _raised_in_operation(rank)] or own
    return _in_order(alone)


def _in_order(failed: Sequence[RankEvidence]) -> list[RankEvidence]:
    """Ranks that failed, the first one first; by their numbers where all fail alike, as code does that is wrong on each
    of them."""
    alike = len({(rank.error.type, rank.error.place) if rank.error is not None else rank.rank for rank in failed}) == 1
    return sorted(failed, key=lambda rank: (0.0 if alike else rank.at, rank.rank))


def _raised_in_operation(rank: RankEvidence) -> bool:
    last = next((one for one in reversed(rank.operations) if one.name != LEAVE), None)
    return rank.end == "raised" and last is not None and last.ended < 0 and last.name != FORWARD


# Explanations, from the one that needs the least of others


def _wrong_world(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    wrong = _in_order([rank for rank in ranks if rank.cause == WRONG_WORLD])
    if wrong:
        return Verdict(rank=wrong[0].rank, at_fault=_numbers(wrong))
    claimed: dict[str, list[RankEvidence]] = defaultdict(list)
    for rank in ranks:
        first = next((one for one in rank.operations if one.name in INITS and one.ended <= 0), None)
        if first is not None and not first.subject.startswith("rank -1 "):
            claimed[first.subject.partition(" of ")[0]].append(rank)
    for claim, members in claimed.items():
        if len(members) > 1:
            called = next(one for one in members[0].operations if one.name in INITS)
            return Verdict(
                cause=WRONG_WORLD,
                at_fault=_numbers(members),
                sentence=f"{_ranks(members)} all call {called.name} as {claim} (at {called.place})",
                fix=_OWN_PLACE[called.name],
            )
    return None


def _mismatch(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """Ranks whose operations of one number differ, where each failure of its own is in one."""
    if any(rank.status not in _ABORTED and not _raised_in_operation(rank) for rank in _own_failures(ranks)):
        return None
    for group in sorted({one.group for rank in ranks for one in rank.operations if one.name in COLLECTIVES}):
        by_number: dict[int, dict[int, Operation]] = defaultdict(dict)
        for rank in ranks:
            for one in rank.operations:
                if one.group == group and one.name in COLLECTIVES:
                    by_number[one.number][rank.rank] = one
        for number in sorted(by_number):
            variants: dict[str, list[int]] = defaultdict(list)
            for member, one in by_number[number].items():
                variants[_described(one)].append(member)
            if len(variants) > 1:
                return _mismatch_verdict(number, variants, by_number[number])
    return None


def _described(one: Operation) -> str:
    """An operation with what must be the same on all ranks."""
    return f"{one.name} of {one.subject}" if one.subject and one.name in SAME_EVERYWHERE else one.name


def _mismatch_verdict(number: int, variants: Mapping[str, list[int]], operations: Mapping[int, Operation]) -> Verdict:
    ordered = sorted(variants.items(), key=lambda item: item[1][0])
    parts = [f"{_list(members)}: {words} ({operations[members[0]].place})" for words, members in ordered]
    fewest = min(len(members) for members in variants.values())
    minority = [members for members in variants.values() if len(members) == fewest]
    blamed = minority[0] if len(minority) == 1 else []
    return Verdict(
        cause=MISMATCH,
        rank=blamed[0] if len(blamed) == 1 else None,
        at_fault=tuple(sorted(blamed or operations)),
        sentence=f"ranks differ in their {ordinal(number)} collective operation: {'; '.join(parts)}",
        fix=(
            "call the same operations in the same order on all ranks, with tensors of one shape and type: look for a "
            "condition on the rank around these lines, or for data that end earlier than others'"
        ),
    )


def _own_failure(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    own = _own_failures(ranks)
    if not own:
        return None
    return Verdict(rank=own[0].rank, at_fault=_numbers(own))


def _raising(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """A rank whose exception is on its way through `finally` blocks while others already complain."""
    raising = [rank for rank in ranks if rank.raising and rank.error is not None and not _complains(rank.error)]
    raising.sort(key=lambda rank: (_running(rank) is not None, rank.rank))
    if not raising:
        return None
    first = raising[0]
    assert first.error is not None
    return Verdict(cause=USER_ERROR, rank=first.rank, at_fault=_numbers(raising), error=first.error)


def _dead_thread(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """A rank that waits for a thread of its own that has died."""
    for rank in ranks:
        for name, error in rank.threads.items():
            if rank.end in ("", "asked") and _running(rank) is None:
                text = f"thread '{name}' of rank {rank.rank} died, and the rank waits {_stands(rank)}"
                because = f"{error.type}: {error.message}"
                return Verdict(
                    cause=USER_ERROR,
                    rank=rank.rank,
                    at_fault=(rank.rank,),
                    error=attrs.evolve(error, message=f"{text}: {because}"),
                )
    return None


def _not_joined(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """Ranks that never called `init_process_group`, for which others waited there."""
    waiting = [rank for rank in ranks if (one := _unfinished(rank)) is not None and one.name in INITS]
    absent = [rank for rank in ranks if not any(one.name in INITS for one in rank.operations)]
    if not waiting or not absent:
        return None
    first = _unfinished(waiting[0])
    assert first is not None
    missing = "; ".join(f"rank {rank.rank} {_whereabouts(rank)}" for rank in absent[:4])
    return Verdict(
        cause=HANG if hung else RENDEZVOUS,
        rank=absent[0].rank,
        at_fault=_numbers(absent),
        sentence=(
            f"{_ranks(absent)} did not call {first.name}, where {_ranks(waiting)} waited ({first.place}): {missing}"
        ),
        fix="look what keeps it from joining: an earlier end, a condition on the rank, or slow work before that line",
    )


def _left(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """Ranks that returned, or left their group, while others were in an operation that they did not come to."""
    for waits in _waiting(ranks):
        one = _unfinished(waits)
        assert one is not None
        gone = [
            rank
            for rank in ranks
            if rank is not waits and _reached(rank, one) < one.number and (rank.end == "returned" or _has_left(rank))
        ]
        if not gone:
            continue
        first = gone[0]
        verb = "returned" if first.end == "returned" else f"left the group ({_has_left(first)})"
        return Verdict(
            cause=RANK_LEFT,
            rank=first.rank,
            at_fault=_numbers(gone),
            sentence=(
                f"{_ranks(gone)} {verb} after {_progress(first, one)}, while {_ranks(_same(ranks, one))} waited in "
                f"{_of_number(one, waits)} ({one.place}); no rank crashed"
            ),
            fix=(
                "give all ranks the same number of batches (drop_last=True, a DistributedSampler), or let them end "
                "apart: torch.distributed.algorithms.join.Join"
            ),
        )
    return None


def _peer(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """A rank that another one wanted to send to or receive from, and that did not answer."""
    fix = "let each send have its receive on the other rank, in the same order"
    by_number = {rank.rank: rank for rank in ranks}
    waiting: dict[int, tuple[Operation, int]] = {}
    for rank in ranks:
        running = _unfinished(rank)
        if running is not None and running.name in PEERS and (text := running.subject.rpartition("=")[2]).isdecimal():
            waiting[rank.rank] = running, int(text)
    for number, (one, peer) in waiting.items():
        if peer not in by_number:
            continue
        if peer not in waiting:
            other = by_number[peer]
            return Verdict(
                cause=RANK_LEFT if other.end == "returned" else HANG if hung else NCCL_TIMEOUT,
                rank=peer,
                at_fault=(peer,),
                sentence=f"rank {number} waited in {_with_peer(one, peer)}, which {_whereabouts(other)}",
                fix=fix,
            )
        back, origin = waiting[peer]
        if origin == number and PEERS[back.name] == PEERS[one.name]:
            return Verdict(
                cause=HANG if hung else NCCL_TIMEOUT,
                at_fault=tuple(sorted((number, peer))),
                sentence=(
                    f"rank {number} waits in {_with_peer(one, peer)}, and rank {peer} in {_with_peer(back, number)}: "
                    "neither answers the other"
                ),
                fix=fix,
            )
    return None


def _with_peer(one: Operation, peer: int) -> str:
    return f"{one.name} {'to' if PEERS[one.name] == 'dst' else 'from'} rank {peer} ({one.place})"


def _behind(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """Ranks that have not come to an operation in which others wait."""
    waiting = list(_waiting(ranks))
    late: dict[int, RankEvidence] = {}
    for waits in waiting:
        one = _unfinished(waits)
        assert one is not None
        late |= {rank.rank: rank for rank in ranks if rank is not waits and _reached(rank, one) < one.number}
    # Of those, one that waits itself is late because of another.
    late = {number: rank for number, rank in late.items() if _running(rank) is None} or late
    waited: dict[str, list[RankEvidence]] = defaultdict(list)
    for waits in waiting:
        one = _unfinished(waits)
        if one is not None and waits.rank not in late:
            waited[f"in {_of_number(one, waits)} ({one.place})"].append(waits)
    if not late or not waited:
        return None
    first = _unfinished(next(iter(waited.values()))[0])
    assert first is not None
    found = [late[number] for number in sorted(late)]
    places = ", ".join(f"{_ranks(members)} waited {place}" for place, members in waited.items())
    missing = "; ".join(f"rank {rank.rank} {_whereabouts(rank)}, after {_progress(rank, first)}" for rank in found[:4])
    return Verdict(
        cause=HANG if hung else NCCL_TIMEOUT,
        rank=found[0].rank,
        at_fault=_numbers(found),
        sentence=f"{places} for {_ranks(found)}: {missing}",
        fix=(
            "look what keeps it there: slow data, a checkpoint, a condition on the rank; where it is slow for good "
            "reason, raise the timeout of init_process_group" + (" and hang_after" if hung else "")
        ),
    )


def _recorded(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """What torch's flight recorder says of ranks, where their own trails have none of the operations that they are in:
    those of C++ and of functional collectives, as DTensor has them."""
    if len(ranks) < 2 or not all(rank.recorded for rank in ranks):
        return None
    known = [
        attrs.evolve(
            rank,
            operations=tuple(attrs.evolve(one, place=rank.stands or "in C++") for one in rank.recorded),
            counts={one.group: one.number for one in rank.recorded},
        )
        for rank in ranks
    ]
    return _mismatch(known, hung) or _behind(known, hung)


def _locked(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    waiting = [rank for rank in ranks if rank.lock]
    if not hung or not waiting:
        return None
    first = waiting[0]
    return Verdict(
        cause=HANG,
        rank=None if len(waiting) > 1 else first.rank,
        at_fault=_numbers(waiting),
        sentence=f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} at {first.stands} for {first.lock}",
        fix="release it before that line, take both in one order everywhere, or use an RLock in place of it",
    )


def _complaint(ranks: Sequence[RankEvidence], hung: bool) -> Verdict | None:
    """The first complaint, where nothing explains it."""
    complaints = [rank for rank in ranks if rank.end in ("raised", "died")] or [
        rank for rank in ranks if rank.end == "asked"
    ]
    if hung or not complaints:
        return None
    first = min(complaints, key=lambda rank: (rank.at, rank.rank))
    return Verdict(rank=first.rank, at_fault=_numbers(complaints), own=False)


_EXPLANATIONS: Final[tuple[Callable[[Sequence[RankEvidence], bool], Verdict | None], ...]] = (
    _wrong_world,
    _mismatch,
    _own_failure,
    _raising,
    _dead_thread,
    _not_joined,
    _left,
    _peer,
    _behind,
    _recorded,
    _locked,
    _complaint,
)

# What the trails say


def _unfinished(rank: RankEvidence) -> Operation | None:
    """The operation in which a rank is, or was when it failed: the backward pass of DistributedDataParallel, whose
    operations are in C++, by the forward pass before it."""
    last = rank.operations[-1] if rank.operations else None
    if last is None or rank.end == "returned":
        return None
    if last.name == FORWARD:
        return last if rank.end != "asked" else None
    # What an operation without waiting begins raises when it is waited for.
    return last if last.ended <= 0 or (is_complaint(rank) and rank.end != "asked") else None


def _running(rank: RankEvidence) -> Operation | None:
    one = _unfinished(rank)
    return one if one is not None and one.ended == 0 else None


def _waiting(ranks: Sequence[RankEvidence]) -> Iterator[RankEvidence]:
    """Ranks that wait, or waited, in a collective operation: the one that came furthest first."""
    waiting = [(rank, one) for rank in ranks if (one := _unfinished(rank)) is not None]
    waiting = [(rank, one) for rank, one in waiting if one.name in COLLECTIVES or one.name == FORWARD]
    yield from (rank for rank, one in sorted(waiting, key=lambda item: (-item[1].number, item[0].rank)))


def _reached(rank: RankEvidence, one: Operation) -> int:
    """The number of a rank's last operation in the group of another's; that one's where it may not be of the group."""
    if one.group in rank.counts:
        return rank.counts[one.group]
    may_be_of_it = one.group in ("0", FORWARD) and sum(rank.counts.values()) < SLOTS
    return 0 if may_be_of_it else one.number


def _same(ranks: Sequence[RankEvidence], one: Operation) -> list[RankEvidence]:
    return [
        rank
        for rank in ranks
        if (other := _unfinished(rank)) is not None and (other.group, other.number) == (one.group, one.number)
    ]


def _has_left(rank: RankEvidence) -> str:
    """The line at which a rank left its group; empty where it is in it."""
    last = rank.operations[-1] if rank.operations else None
    return last.place if last is not None and last.name == LEAVE else ""


def _progress(rank: RankEvidence, one: Operation) -> str:
    """How far a rank came in the group of an operation, in the operations that it called."""
    count = _reached(rank, one)
    if one.name == FORWARD:
        return f"{count} batches of DistributedDataParallel"
    names = {other.name for other in rank.operations if other.group == one.group}
    if not count:
        return "no collective operation"
    return f"{count} {names.pop()}" if len(names) == 1 else f"{count} collective operations"


def _of_number(one: Operation, rank: RankEvidence) -> str:
    if one.name == FORWARD:
        return f"the backward pass of their {ordinal(one.number)} batch"
    others = {other.name for other in rank.operations if other.group == one.group} - {one.name}
    return f"{one.name}, the {ordinal(one.number)} operation" if others else f"the {ordinal(one.number)} {one.name}"


def _whereabouts(rank: RankEvidence) -> str:
    if rank.end == "returned":
        return "has returned"
    if not rank.stands:
        return "gave no account: it is stopped, or in native code that holds Python's lock"
    text = f": {rank.text}" if rank.text else ""
    return f"stands at {rank.stands}{text}" + (f", waiting for {rank.lock}" if rank.lock else "")


def _stands(rank: RankEvidence) -> str:
    return f"at {rank.stands}" if rank.stands else "somewhere"


def ordinal(number: int) -> str:
    """A number's place in a row: 1st, 2nd, 3rd, 4th, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _numbers(ranks: Sequence[RankEvidence]) -> tuple[int, ...]:
    return tuple(sorted(rank.rank for rank in ranks))


def _ranks(ranks: Sequence[RankEvidence]) -> str:
    return _list(_numbers(ranks))


def _list(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, sorted(numbers)[:_SHOWN])) + (", …" if len(numbers) > _SHOWN else "")
    return f"rank {text}" if len(numbers) == 1 else f"ranks {text}"
