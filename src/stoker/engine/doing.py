"""What the runner is told of a run, and what it knows of a step on its way."""

from __future__ import annotations

from typing import Any, Mapping

import attrs

from stoker.core.graph import Source
from stoker.core.plan import StepPlan


@attrs.frozen(kw_only=True)
class Policy:
    """How a run is to be run. `environment` is the digest in every cache key; `hooks` are the pipeline's own."""

    pipeline: str
    environment: str
    fail_fast: bool = True
    use_cache: bool = True
    max_parallel: int | None = None
    hooks: Mapping[str, Source] = attrs.field(factory=dict)


class Doing:
    """A step on its way: what it was bound to, its cache key, and the facts of its latest attempt.

    `ending` is the cause for which we are ending the attempt, empty while we are not.
    """

    __slots__ = ("cache_key", "ending", "facts", "inputs", "step")

    def __init__(self, step: StepPlan, inputs: Mapping[str, Any], cache_key: str) -> None:
        self.step = step
        self.inputs = inputs
        self.cache_key = cache_key
        self.ending = ""
        self.facts: dict[str, Any] = {}
