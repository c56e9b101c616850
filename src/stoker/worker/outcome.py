"""How a distributed step ended: from its ranks to the result of a node, and from those to that of all nodes."""

from __future__ import annotations

import signal
import time
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.protocol import RankEvidence, StepError, StepResult
from stoker.core.settings import Launch
from stoker.core.status import EXITED, HANG, NODE_LOST, NOT_STARTED, RENDEZVOUS, WRONG_WORLD
from stoker.core.words import bounded, time_text
from stoker.launchers.base import Node
from stoker.launchers.registry import LAUNCHERS
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker import blame
from stoker.worker.failure import exceptions_in
from stoker.worker.rankstate import RankState, was_ended

_OPERATIONS: Final = 16
"""Operations of a rank's trail that the head of a gang gets."""
_REASON: Final = 300
"""Characters of a launcher's reason."""
OF_OTHERS: Final = "no rank of this node failed by itself"
"""Why a node's ranks were started again where another node is the reason."""


@attrs.frozen(kw_only=True)
class LaunchersEnd:
    """How the processes of a launcher ended on this node."""

    codes: tuple[int | None, ...]
    """Their exit codes; None for one that was not seen to end."""
    words: tuple[str, ...] = ()
    """What they wrote last into stderr."""
    at: float | None = None
    """When one gave up by itself, in seconds since the epoch; None where it was ended."""

    @property
    def reason(self) -> str:
        """Why they gave up: the exception that they died of, else what they wrote first, up to a line of dashes, which
        Open MPI draws below a message; empty where they wrote nothing."""
        raised = [*exceptions_in(self.words)]
        if raised:
            return bounded(raised[-1], _REASON)
        blocks: list[list[str]] = [[]]
        for row in self.words:
            if row.strip() and not row.strip("-=*_ \t"):
                blocks.append([])
            else:
                blocks[-1] += row.split()
        return bounded(" ".join(next(filter(None, blocks), [])), _REASON)


def of_node(
    ranks: Mapping[int, RankState],
    node: Node,
    launch: Launch,
    *,
    launchers: LaunchersEnd,
    cause: str,
    report: Mapping[str, Any],
    evidence: Sequence[RankEvidence],
    blobs: str,
) -> StepResult:
    """The node's result. `cause` is why the agent itself ended the step, `report` where hanging ranks stood, and
    `evidence` what was known of the ranks before they were ended."""
    expected: Sequence[int] = range(node.rank * node.processes, (node.rank + 1) * node.processes)
    if len(ranks) == node.processes and LAUNCHERS.load(launch.launcher).numbers_nodes(launch.arguments):
        expected = sorted(ranks)
    delivered = [ranks[rank] for rank in expected if rank in ranks and ranks[rank].succeeded]
    if len(delivered) == len(expected):
        fallback = next(
            (text for state in delivered if state.result is not None and (text := state.result.fallback)), ""
        )
        return StepResult(ok=True, outputs=_outputs(delivered, launch.outputs, blobs), fallback=fallback)
    if cause == HANG:
        found = blame.verdict(evidence, hung=True)
        message = "; ".join(filter(None, [report["sentence"], "" if found else blame.places_text(evidence)]))
        error = StepError(message=message, **report)
        return blamed(found or blame.Verdict(), evidence, node.world_size, error)
    if cause == NOT_STARTED:
        return _not_started(ranks, expected, launch, launchers.reason)
    failed = [state for state in ranks.values() if state.failed_at]
    if cause and not failed:
        return StepResult(ok=False, cause=cause, echo=True)
    verdict = blame.verdict(evidence)
    if verdict is not None:
        failure = blamed(verdict, evidence, node.world_size)
        return attrs.evolve(failure, cause=cause) if cause and failure.echo else failure
    return _failure_of_launcher(ranks, expected, launch.launcher, launchers)


def of_all(
    head: StepResult,
    others: Mapping[int, StepResult],
    lost: Sequence[int],
    node: Node,
    launch: Launch,
    *,
    blobs: str,
) -> StepResult:
    """The step's result from those of all nodes, as the head reports it, with the memory of all."""
    result = _of_all(head, others, lost, node, launch, blobs)
    nodes = [head, *others.values()]
    ranks = {rank: peak for other in nodes for rank, peak in other.rank_peaks.items()}
    earlier = [other.error.earlier for other in nodes if other.error is not None and other.error.earlier]
    if earlier and result.error is not None:
        told = min(earlier, key=lambda text: text.count(OF_OTHERS))
        result = attrs.evolve(result, error=attrs.evolve(result.error, earlier=told))
    waits = {rank: share for other in nodes for rank, share in other.rank_waits.items()}
    return attrs.evolve(
        result,
        peak=sum(other.peak for other in nodes),
        rank_peaks={rank: ranks[rank] for rank in sorted(ranks, key=int)},
        rank_waits={rank: waits[rank] for rank in sorted(waits, key=int)},
        left=sum(other.left for other in nodes),
        lost=max((other.lost for other in nodes if other.lost is not None), default=None),
        restarting=max((other.restarting for other in nodes if other.restarting is not None), default=None),
        evidence=(),
    )


def for_head(rank: RankEvidence) -> RankEvidence:
    """What the head gets to know of a rank on another node."""
    return attrs.evolve(rank, operations=rank.operations[-_OPERATIONS:], recorded=rank.recorded[-_OPERATIONS:])


def _of_all(
    head: StepResult, others: Mapping[int, StepResult], lost: Sequence[int], node: Node, launch: Launch, blobs: str
) -> StepResult:
    for number in lost:
        message = f"node {number} of {node.nodes} went away while the step ran"
        error = StepError(message=message, node=number)
        others = {**others, number: StepResult(ok=False, cause=NODE_LOST, error=error, failed_at=0.0)}
    results = [head, *(others[number] for number in sorted(others))]
    failed = [result for result in results if not result.ok]
    if failed and not lost:
        hung = any(result.cause == HANG for result in failed)
        evidence = [rank for result in results for rank in result.evidence]
        found = blame.verdict(evidence, hung=hung)
        if found is not None and found.own:
            texts = {rank: text for result in failed if result.error for rank, text in result.error.stacks.items()}
            return blamed(found, evidence, node.world_size, StepError(stacks=texts) if hung else None)
    if failed:
        # A node that was only ended because of another one does not count.
        return min([result for result in failed if not result.echo] or failed, key=_when)
    if len(results) < node.nodes:
        message = f"{node.nodes - len(results)} of {node.nodes} nodes told no result"
        return StepResult(ok=False, cause=NODE_LOST, error=StepError(message=message))
    numbers = [rank for result in results for rank in result.rank_peaks]
    if len(numbers) > len({*numbers}):
        message = f"two of {node.nodes} nodes have the same ranks: they are worlds of their own"
        return StepResult(ok=False, cause=WRONG_WORLD, error=StepError(message=message))
    # By their ranks: a launcher may have numbered the nodes.
    results.sort(key=lambda result: min(map(int, result.rank_peaks), default=0))
    return attrs.evolve(head, outputs=results[0].outputs if launch.outputs == "main" else _join_outputs(results, blobs))


def _when(result: StepResult) -> float:
    return float("inf") if result.failed_at is None else result.failed_at


def _join_outputs(results: Sequence[StepResult], blobs: str) -> dict[str, Any]:
    """Each output of all nodes' ranks as one list, in the order of the ranks."""
    store = Blobs(blobs)
    outputs = {}
    for name in results[0].outputs:
        parts = [part for result in results for part in artifacts.items(from_wire(result.outputs[name]), store)]
        outputs[name] = artifacts.gather(parts, store).wire()
    return outputs


def blamed(
    verdict: blame.Verdict, evidence: Sequence[RankEvidence], world_size: int, report: StepError | None = None
) -> StepResult:
    """The result that a verdict stands for; `report` says where ranks stood that hung."""
    state = next((one for one in evidence if one.rank == verdict.rank), RankEvidence(rank=0))
    error, exit_code = verdict.error or state.error, None
    if verdict.sentence:
        words = f"{verdict.sentence}\n  fix: {verdict.fix}"
        error = attrs.evolve(report or StepError(), message=words, sentence=verdict.sentence)
    elif error is None and report is not None:
        error = report
    elif error is None:
        error = StepError(message=f"rank {state.rank} of {world_size} {_ending_text(state.status)}")
        exit_code = state.status
    # By wall-clock time, to be compared with other nodes'.
    at = state.at or min((one.at for one in evidence if one.at), default=time.time())
    since = at if report is None or not report.at else report.at
    error = attrs.evolve(
        error, rank=verdict.rank, world_size=world_size, failed_ranks=verdict.at_fault, at=round(since, 3)
    )
    cause = verdict.cause or (HANG if report is not None else state.cause)
    return StepResult(ok=False, cause=cause, error=error, exit_code=exit_code, failed_at=at, echo=not verdict.own)


def end_of(state: RankState | None) -> dict[str, str]:
    """How a rank ended that is started again, as an event says it; nothing of one that another's failure ended."""
    if state is None or state.succeeded or was_ended(state):
        return {}
    if state.result is None:
        return {"message": _ending_text(state.status)}
    error = state.result.error or StepError()
    return {"cause": state.result.cause, "message": bounded(error.message, _REASON)}


def in_short(error: StepError) -> str:
    """An error as a part of a sentence: whose it is, what it says, and where."""
    words = error.sentence or ": ".join(filter(None, (error.type, error.message.partition("\n")[0])))
    rank = "" if error.sentence or error.rank is None or words.startswith("rank ") else f"rank {error.rank}: "
    return f"{rank}{bounded(words, _REASON)}" + (f" ({error.place})" if error.place else "")


def _ending_text(status: int | None) -> str:
    if status is None:
        return "went away without a word"
    if status >= 0:
        return f"left with exit code {status} before the step returned"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _failure_of_launcher(
    ranks: Mapping[int, RankState], expected: Sequence[int], launcher: str, launchers: LaunchersEnd
) -> StepResult:
    """The result where no rank failed and not all delivered: the launcher did not start them all, or ended them."""
    missing = [rank for rank in expected if rank not in ranks]
    codes, reason = launchers.codes, launchers.reason
    code = next((code for code in codes if code), None if None in codes else 0)
    ending = "an end that is not known" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
    if missing:
        strangers = sorted(set(ranks) - set(expected))
        message = f"{launcher} started {len(expected) - len(missing)} of {len(expected)} ranks, and left with {ending}"
        if strangers:
            message += f"; there were unexpected ranks {strangers}"
        message += f": {reason}" if reason else ""
        fix = f"all that it wrote is in the log: `stoker logs RUN STEP --rank launcher` ({launcher})"
        error = StepError(message=f"{message}\n  fix: {fix}")
        return StepResult(ok=False, cause=EXITED if code else RENDEZVOUS, error=error, failed_at=launchers.at)
    message = f"{launcher} left with {ending} before its ranks returned" + (f": {reason}" if reason else "")
    error = StepError(message=message)
    return StepResult(ok=False, exit_code=code or None, error=error, failed_at=launchers.at)


def _not_started(ranks: Mapping[int, RankState], expected: Sequence[int], launch: Launch, reason: str) -> StepResult:
    missing = [rank for rank in expected if rank not in ranks]
    number = "none" if len(missing) == len(expected) else f"{len(expected) - len(missing)}"
    numbers = ", ".join(map(str, missing[:16])) + (", …" if len(missing) > 16 else "")
    limit = f"within its start_timeout of {time_text(launch.start_timeout or 0.0)}"
    message = f"{launch.launcher} started {number} of {len(expected)} ranks {limit}; missing: {numbers}"
    message += f"; it wrote: {reason}" if reason else ""
    return StepResult(ok=False, cause=NOT_STARTED, error=StepError(message=message), failed_at=time.time())


def _outputs(delivered: Sequence[RankState], gathers: str, blobs: str) -> dict[str, Any]:
    results = [state.result for state in delivered if state.result is not None]
    if gathers == "main":
        return dict(results[0].outputs)
    store = Blobs(blobs)
    return {
        name: artifacts.gather((from_wire(result.outputs[name]) for result in results), store).wire()
        for name in results[0].outputs
    }
