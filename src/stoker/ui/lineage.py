"""Which steps made some bytes, and which steps used them."""

from __future__ import annotations

from typing import Final

import attrs

from stoker.client import Output, Run
from stoker.core.artifact import StoredArtifact
from stoker.core.errors import NotFound
from stoker.store.store import Store

MOST_RUNS: Final = 50
"""Runs whose steps are searched for uses: those that have the bytes as a result, newest first."""


@attrs.frozen(kw_only=True)
class Lineage:
    """Where an artifact comes from and goes to."""

    output: Output
    makers: tuple[Output, ...]
    """Outputs with these bytes, oldest run first."""
    users: tuple[tuple[str, str, str], ...]
    """(run, step, input) of the steps that took them."""
    searched: int
    """Runs whose steps were searched."""
    left_out: int
    """Runs that have them, and were not."""


def lineage_of(store: Store, output: Output, run: Run) -> Lineage:
    """The lineage of an output of a run: within the run, and in other runs that made or reused the same bytes."""
    makers = tuple(output.producers) or (output,)
    runs = list(dict.fromkeys([run.id, *reversed([maker.run_id for maker in makers])]))
    users = []
    for id in runs[:MOST_RUNS]:
        for row in store.records.all_steps(id):
            users += [(id, row.key, name) for name, text in row.inputs.items() if output.digest in str(text)]
    return Lineage(
        output=output,
        makers=makers[-MOST_RUNS:],
        users=tuple(users),
        searched=len(runs[:MOST_RUNS]),
        left_out=max(0, len(runs) - MOST_RUNS),
    )


def output_of(run: Run, key: str, name: str) -> Output:
    """An output of a step of a run."""
    outputs = run.steps[key].outputs
    if name not in outputs:
        raise NotFound(f"step '{key}' of run {run.id} has no output '{name}'", fix="its page lists those that it has")
    return outputs[name]


def artifact_of(store: Store, output: Output) -> StoredArtifact:
    """The artifact of an output; of a fan-out that of its first element, whose list may be long."""
    for key in (output.step, f"{output.step}[0]"):
        for row in store.records.outputs(output.run_id, key):
            if row.name == output.name:
                return row.artifact
    raise NotFound(f"output '{output.name}' of '{output.step}' is not recorded", fix="look at the run's elements")
