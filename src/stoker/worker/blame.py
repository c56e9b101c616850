"""Makes one result of all ranks': the main rank's where all succeeded, else the error of the rank that failed first."""

from __future__ import annotations

import signal
import time
from typing import Any, Final, Mapping, Sequence

import attrs

from stoker.core.artifact import from_wire
from stoker.core.launch import Launch
from stoker.core.protocol import StepError, StepResult
from stoker.core.status import (
    CANCELLED,
    EXITED,
    HANG,
    NCCL_ERROR,
    NCCL_REMOTE_PEER,
    NCCL_TIMEOUT,
    NODE_LOST,
    NOT_STARTED,
    RENDEZVOUS,
)
from stoker.core.words import time_text
from stoker.launchers.base import Node
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker import signatures
from stoker.worker.rankstate import RankState

CONSEQUENCES: Final = frozenset({NCCL_REMOTE_PEER, NCCL_ERROR, NCCL_TIMEOUT, RENDEZVOUS})
"""Causes that a rank reports when another one has gone: mostly a consequence, seldom the reason."""


def result(
    ranks: Mapping[int, RankState],
    node: Node,
    launch: Launch,
    *,
    codes: Sequence[int | None],
    cause: str,
    report: Mapping[str, Any],
    blobs: str,
) -> StepResult:
    """The node's result. `codes` are the exit codes of the launcher's processes, `cause` why the agent itself ended the
    step, and `report` where hanging ranks stood."""
    expected = range(node.rank * node.processes, (node.rank + 1) * node.processes)
    delivered = [ranks[rank] for rank in expected if rank in ranks and ranks[rank].succeeded]
    if len(delivered) == len(expected):
        fallback = next(
            (text for state in delivered if state.result is not None and (text := state.result.fallback)), ""
        )
        return StepResult(ok=True, outputs=_outputs(delivered, launch.outputs, blobs), fallback=fallback)
    if cause == HANG:
        error = StepError(message=report["sentence"], **report)
        return StepResult(ok=False, cause=HANG, error=error, failed_at=time.time())
    if cause == NOT_STARTED:
        return _not_started(ranks, expected, launch)
    failed = [state for state in ranks.values() if state.failed_at]
    if cause and not failed:
        return StepResult(ok=False, cause=cause, echo=True)
    if failed:
        failure = _failure_of(culprit(failed), node.world_size, failed)
        return attrs.evolve(failure, cause=cause) if cause and failure.echo else failure
    return _failure_of_launcher(ranks, expected, launch.launcher, codes)


def result_of_all(
    head: StepResult,
    others: Mapping[int, StepResult],
    lost: Sequence[int],
    node: Node,
    launch: Launch,
    *,
    blobs: str,
) -> StepResult:
    """The step's result from those of all nodes, as the head reports it, with the memory of all."""
    result = _result_of_all(head, others, lost, node, launch, blobs)
    nodes = [head, *others.values()]
    ranks = {rank: peak for other in nodes for rank, peak in other.rank_peaks.items()}
    return attrs.evolve(
        result,
        peak=sum(other.peak for other in nodes),
        rank_peaks={rank: ranks[rank] for rank in sorted(ranks, key=int)},
        left=sum(other.left for other in nodes),
    )


def _result_of_all(
    head: StepResult, others: Mapping[int, StepResult], lost: Sequence[int], node: Node, launch: Launch, blobs: str
) -> StepResult:
    for number in lost:
        message = f"node {number} of {node.nodes} went away while the step ran"
        error = StepError(message=message, node=number)
        others = {**others, number: StepResult(ok=False, cause=NODE_LOST, error=error, failed_at=0.0)}
    results = [head, *(others[number] for number in sorted(others))]
    failed = [result for result in results if not result.ok]
    if failed:
        # A node that was only ended because of another one does not count.
        return min([result for result in failed if not result.echo] or failed, key=_when)
    if len(results) < node.nodes:
        message = f"{node.nodes - len(results)} of {node.nodes} nodes told no result"
        return StepResult(ok=False, cause=NODE_LOST, error=StepError(message=message))
    return head if launch.outputs == "main" else attrs.evolve(head, outputs=_join_outputs(results, blobs))


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


def culprit(failed: Sequence[RankState]) -> RankState:
    """The rank that failed first; those that only echo another's end count if all do."""
    culprits = [state for state in failed if not _is_echo(state)]
    return min(culprits or failed, key=lambda state: (state.failed_at, state.rank))


def _is_echo(state: RankState) -> bool:
    if state.result is None or was_ended(state):
        return was_ended(state)
    error = state.result.error or StepError()
    raised = [f"{error.type}: {error.message}", *error.because]
    match = signatures.find_signature(raised, "")
    return match is not None and match[0].cause in CONSEQUENCES


def was_ended(state: RankState) -> bool:
    """Whether it was ended without a fault of its own: after a failure, launchers and the agent send SIGTERM."""
    if state.result is None:
        return state.status == -signal.SIGTERM
    return state.result.cause == CANCELLED


def _failure_of(state: RankState, world_size: int, failed: Sequence[RankState]) -> StepResult:
    # By wall-clock time, to be compared with other nodes'.
    failed_at, echo = time.time() - (time.monotonic() - state.failed_at), _is_echo(state)
    failed_ranks = {other.rank for other in failed if not was_ended(other)} | {state.rank}
    if state.result is not None:
        result, error = state.result, state.result.error or StepError()
    else:
        result = StepResult(ok=False, exit_code=state.status)
        error = StepError(message=f"rank {state.rank} of {world_size} {_ending_text(state.status)}")
    error = attrs.evolve(error, rank=state.rank, world_size=world_size, failed_ranks=tuple(sorted(failed_ranks)))
    return attrs.evolve(result, error=error, failed_at=failed_at, echo=echo)


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
    ranks: Mapping[int, RankState], expected: Sequence[int], launcher: str, codes: Sequence[int | None]
) -> StepResult:
    """The result where no rank failed and not all delivered: the launcher did not start them all, or ended them."""
    missing = [rank for rank in expected if rank not in ranks]
    code = next((code for code in codes if code), None if None in codes else 0)
    ending = "an end that is not known" if code is None else f"exit code {code}" if code >= 0 else f"signal {-code}"
    if missing:
        strangers = sorted(set(ranks) - set(expected))
        message = f"{launcher} started {len(expected) - len(missing)} of {len(expected)} ranks, and left with {ending}"
        if strangers:
            message += f"; there were unexpected ranks {strangers}"
        fix = f"its own words are in the log: `stoker logs RUN STEP --rank launcher` ({launcher})"
        error = StepError(message=f"{message}\n  fix: {fix}")
        return StepResult(ok=False, cause=EXITED if code else RENDEZVOUS, error=error)
    error = StepError(message=f"{launcher} left with {ending} before its ranks returned")
    return StepResult(ok=False, exit_code=code or None, error=error)


def _not_started(ranks: Mapping[int, RankState], expected: Sequence[int], launch: Launch) -> StepResult:
    missing = [rank for rank in expected if rank not in ranks]
    number = "none" if len(missing) == len(expected) else f"{len(expected) - len(missing)}"
    numbers = ", ".join(map(str, missing[:16])) + (", …" if len(missing) > 16 else "")
    limit = f"within its start_timeout of {time_text(launch.start_timeout or 0.0)}"
    message = f"{launch.launcher} started {number} of {len(expected)} ranks {limit}; missing: {numbers}"
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
