"""Two versions of a model side by side: their metrics, metadata, artifacts, and the runs that made them."""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Callable, Final, Iterator, Mapping, Sequence, TypeVar

from stoker.client.names import ArtifactVersion, ModelVersion
from stoker.client.runs import Run
from stoker.client.why import StepReason
from stoker.core.errors import NotFound, UsageError
from stoker.core.values import frozen
from stoker.store.store import Store

T = TypeVar("T")

MOST_STEPS: Final = 200
"""Steps of a run whose keys are compared."""


@frozen(kw_only=True)
class ModelDiff:
    """What differs between two versions; of each pair, None where a version lacks it."""

    left: ModelVersion
    right: ModelVersion
    metrics: Mapping[str, tuple[float | None, float | None]]
    metadata: Mapping[str, tuple[Any, Any]]
    """What is no number; numbers are metrics."""
    artifacts: Mapping[str, tuple[ArtifactVersion | None, ArtifactVersion | None]]
    """Those whose values differ, by name."""
    runs: tuple[Run | None, Run | None]
    """The runs that made them; None for one that was made outside of runs, or whose run was deleted."""
    parameters: Mapping[str, tuple[Any, Any]]
    """Parameters of the runs."""
    steps: Sequence[StepReason]
    """The steps of the right run whose cache key differs from that of the left run's, with the parts that do: code,
    inputs, arguments, environment."""

    def as_dict(self) -> dict[str, Any]:
        """The differences as JSON."""
        return {
            "model": [self.left.name, self.right.name],
            "versions": [self.left.version, self.right.version],
            "metrics": {name: list(pair) for name, pair in self.metrics.items()},
            "metadata": {name: list(pair) for name, pair in self.metadata.items()},
            "artifacts": {
                name: [None if one is None else {"version": one.version, "digest": one.digest} for one in pair]
                for name, pair in self.artifacts.items()
            },
            "runs": [None if run is None else run.id for run in self.runs],
            "parameters": {name: list(pair) for name, pair in self.parameters.items()},
            "steps": [step.as_dict() for step in self.steps],
        }


def model_diff(store: Store, left: ModelVersion, right: ModelVersion) -> ModelDiff:
    """What differs between two versions of a model, or of two models."""
    runs = _run(store, left), _run(store, right)
    metrics = left.metrics, right.metrics
    parameters = [run.parameters if run is not None else {} for run in runs]
    return ModelDiff(
        left=left,
        right=right,
        metrics=_pairs(*metrics),
        metadata=_pairs(*(_without(one.metadata, numbers) for one, numbers in zip((left, right), metrics))),
        artifacts=_pairs(left.artifacts, right.artifacts, of=operator.attrgetter("digest")),
        runs=runs,
        parameters=_pairs(*parameters) if None not in runs else {},
        steps=tuple(_changed_steps(*runs)),
    )


def _pairs(
    left: Mapping[str, T], right: Mapping[str, T], *, of: Callable[[T], Any] = lambda value: value
) -> dict[str, tuple[T | None, T | None]]:
    """What differs by name, in the order of the names; `of` is what is compared."""
    found = {}
    for name in sorted({*left, *right}):
        both = name in left and name in right
        if not both or of(left[name]) != of(right[name]):
            found[name] = (left.get(name), right.get(name))
    return found


def _without(metadata: Mapping[str, Any], metrics: Mapping[str, float]) -> dict[str, Any]:
    return {name: value for name, value in metadata.items() if name not in metrics}


def _run(store: Store, version: ModelVersion) -> Run | None:
    with contextlib.suppress(NotFound):
        if version.run_id:
            return Run(store, store.records.run(version.run_id))
    return None


def _changed_steps(left: Run | None, right: Run | None) -> Iterator[StepReason]:
    if left is None or right is None or left.id == right.id:
        return
    for step in list(right.steps.values())[:MOST_STEPS]:
        with contextlib.suppress(NotFound, UsageError):  # the other run has no such step, or one of them did not say
            reason = step.why(against=left.id)
            if reason.changes:
                yield reason
