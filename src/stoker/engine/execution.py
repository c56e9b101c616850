"""The policy of a run, and a step's execution on its way from preparation to its end."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import attrs

from stoker.core.plan import StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.values import frozen
from stoker.plan.cachekey import Environment, KeyParts
from stoker.worker.secrets import SecretReader


@frozen(kw_only=True)
class Policy:
    """How a run is executed."""

    pipeline: str
    """The pipeline's name."""
    environment: Environment
    """The environment of every step without an image or environment of its own, for cache keys."""
    fail_fast: bool = True
    """Whether the first failed step ends the run."""
    use_cache: bool = True
    """Whether results of the cache are taken; they are written in any case."""
    anew: Callable[[StepPlan], bool] | None = None
    """Whether a step runs although the cache has its result; None: no step does."""
    max_parallel: int | None = None
    """How many steps run at once on each backend; None is as many as fit."""
    hooks: Mapping[str, FunctionSource] = attrs.field(factory=dict)
    """The pipeline's own hooks, by "on_success" and "on_failure"."""
    secrets: SecretReader = attrs.field(factory=SecretReader)
    """Reads the values of secrets, and masks them."""


class StepExecution:
    """A step on its way: what it was bound to, its cache key, and the facts of its latest attempt."""

    __slots__ = ("cache_key", "digests", "ending", "facts", "inputs", "recipe", "step")

    def __init__(self, step: StepPlan, inputs: Mapping[str, Any], parts: KeyParts | None = None) -> None:
        self.step = step
        # Trees by parameter; emptied when the step is settled.
        self.inputs = inputs
        # Parameter → the digests of its values, emptied likewise, and the key; empty where there is nothing to look up:
        # a fan-out, or a result of an earlier session.
        self.digests = parts.inputs if parts is not None else {}
        self.cache_key = parts.key if parts is not None else ""
        # The name of what the cache key is made of beside the inputs; empty with the key.
        self.recipe = ""
        # The cause for which we are ending the attempt; empty while we are not.
        self.ending = ""
        self.facts: dict[str, Any] = {}
