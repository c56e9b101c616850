"""A run that repeats another one: a new run with the other's parameters and settings, changed as asked.

The other run stays what it is. Its code is the code as it is now, or as it was (`run.reuse`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import TYPE_CHECKING, Any, Iterator, Mapping

import attrs

from stoker.core.artifact import from_wire
from stoker.core.errors import NotFound, UsageError
from stoker.core.plan import Plan, RunOrigin
from stoker.core.request import RunRequest
from stoker.core.sweep import PARAMS
from stoker.plan import plandoc
from stoker.run import reuse
from stoker.run.driver import client_of, run_bound
from stoker.run.program import Program, program_of
from stoker.run.session import Session
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.store.rows import RunRow
from stoker.store.store import Store
from stoker.worker import modules

if TYPE_CHECKING:
    from stoker.client import Run


@attrs.frozen(kw_only=True)
class EarlierRun:
    """A run that is over, and its plan."""

    row: RunRow
    plan: Plan


def earlier_run(run_id: str, store: Store) -> EarlierRun:
    """The run to repeat; `UsageError` while it runs, `NotFound` where nothing says how it was made."""
    row = store.records.run(run_id)
    status = client_of(store).run(row.id).status
    if status == "running":
        raise UsageError(
            f"run {row.id} is still running", fix=f"wait for it, or stoker cancel {row.id}: then it can be repeated"
        )
    text = store.records.plan(row.id)
    if not text:
        raise NotFound(f"run {row.id} has no plan, so it cannot be repeated", fix="start its pipeline again")
    return EarlierRun(row=row, plan=plandoc.load(text))


def program_in(earlier: EarlierRun) -> Program:
    """The pipeline or the flow of a run, with its code as the run's plan finds it now."""
    source = earlier.plan.source
    if source is None or source.kind == "pickled":
        raise UsageError(
            f"'{earlier.plan.pipeline}' of run {earlier.row.id} is in no file by a name, so it cannot be started here",
            fix="call it again where it is defined",
        )
    program = program_of(modules.object_of(source))
    if program is None:
        raise UsageError(
            f"{source.qualname} of {source.path} is no pipeline and no flow any more",
            fix="run the code as it was: --code original",
        )
    return program


def with_original_code(earlier: EarlierRun, store: Store) -> EarlierRun:
    """The run with its plan's functions in a folder that has the code as it was; this process imports it from there."""
    return attrs.evolve(earlier, plan=reuse.restore(earlier.plan, store, run=earlier.row.id))


def best_params(earlier: EarlierRun, store: Store) -> dict[str, Mapping[str, Any]]:
    """Sweep → the parameters of its best trial; `UsageError` where the run has none."""
    if earlier.plan.dynamic:
        raise UsageError(
            f"run {earlier.row.id} is of a dynamic pipeline, whose sweeps only its body knows",
            fix=f"call its step with the best parameters: stoker show {earlier.row.id}",
        )
    outputs = client_of(store).run(earlier.row.id).steps
    sweeps = [step.key for step in earlier.plan.steps if step.sweep is not None]
    found = {key: outputs[key].outputs[PARAMS].load() for key in sweeps if PARAMS in outputs[key].outputs}
    if not found:
        why = f"{', '.join(sweeps)} found no best trial" if sweeps else "its pipeline calls no sweep(…)"
        raise UsageError(f"run {earlier.row.id} has no best trial: {why}", fix="name another run: stoker runs")
    return found


def rerun(
    earlier: EarlierRun,
    program: Program,
    request: RunRequest,
    *,
    start: str = "",
    reuse: bool = False,
    trials: Mapping[str, Mapping[str, Any]] | None = None,
) -> Run:
    """Run a program as it ran before, as a run of its own.

    With `reuse`, results of the earlier run's finished steps are taken by reference; those of the step `start`, and of
    all steps after it, are computed again. With `trials`, a sweep has one trial, with these parameters.
    """
    with _request(earlier.plan, request) as merged:
        session = Session(attrs.evolve(merged, stack=merged.stack or earlier.row.stack))
        program.restore(earlier.plan, session.store.blobs)
        changes = session.parameters()
        if start and changes and program.noun == "flow":
            raise UsageError(
                f"every task of a flow is given its parameters, and what runs before '{start}' had others",
                fix="leave --from out, or the parameters",
            )
        _check_parameters(earlier, changes)
        origin = RunOrigin(run=earlier.row.id, reuse=reuse, start=start)

        blobs = session.store.blobs
        parameters = _recorded_parameters(earlier.plan, blobs)
        recorded = {
            artifacts.save(parameters[name], blobs).digest: wire for name, wire in earlier.plan.parameters.items()
        }
        values = program.rebind(parameters, changes)
        return run_bound(session, program, values, origin, recorded, trials)


@contextlib.contextmanager
def _request(plan: Plan, request: RunRequest) -> Iterator[RunRequest]:
    """What is asked now over what was asked then."""
    text = plan.request.get("run_file", "")
    if not text or request.run_file:
        yield request.merge_over(plan.request, run_file=None)
        return
    with tempfile.TemporaryDirectory(prefix="stoker-rerun-") as folder:
        path = os.path.join(folder, "run-file.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        yield request.merge_over(plan.request, run_file=path)


def _recorded_parameters(plan: Plan, blobs: Blobs) -> dict[str, Any]:
    return {name: artifacts.load(from_wire(wire), blobs) for name, wire in plan.parameters.items()}


def _check_parameters(earlier: EarlierRun, changes: Mapping[str, Any]) -> None:
    for name in earlier.row.parameters:
        if name not in earlier.plan.parameters and name not in changes:
            raise UsageError(
                f"run {earlier.row.id} was given a {name} that could not be kept",
                fix=f"give it: --set parameters.{name}=…, or call '{earlier.plan.pipeline}' again",
            )
