"""`get_step_context()` and `get_pipeline_context()`."""

from __future__ import annotations

import json
import os
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Mapping

from stoker.core.errors import UsageError
from stoker.core.usercode import caller
from stoker.integrations.zenml.parts import steps
from stoker.integrations.zenml.parts.client import PipelineRun
from stoker.integrations.zenml.parts.notes import note
from stoker.integrations.zenml.parts.settings import PIPELINE
from stoker.integrations.zenml.parts.versions import Model, store_client
from stoker.worker.context import context


class StepContext:
    """What a step knows of itself and of its run."""

    @property
    def _facts(self) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = json.loads(os.environ.get(PIPELINE, "{}"))
        return facts

    @property
    def step_name(self) -> str:
        """Its key in the run."""
        return context.step

    @property
    def step_run(self) -> Any:
        """The step's name and id, and its attempt."""
        config = SimpleNamespace(name=context.step, extra=self.extra, parameters={})
        return SimpleNamespace(
            name=context.step, id=f"{context.run_id}/{context.step}", version=context.attempt, config=config
        )

    @cached_property
    def pipeline_run(self) -> PipelineRun:
        """The run."""
        return PipelineRun.by_id(context.run_id, self.extra)

    @property
    def pipeline(self) -> Any:
        """The pipeline's name."""
        name = self._facts.get("name") or self.pipeline_run.of.pipeline
        return SimpleNamespace(name=name, id=name)

    @property
    def extra(self) -> Mapping[str, Any]:
        """The pipeline's `extra`."""
        return self._facts.get("extra") or {}

    @property
    def model(self) -> Model:
        """The version of the pipeline's model that this run makes or uses."""
        facts = self._facts.get("model")
        if not facts:
            raise UsageError(
                "the pipeline of this step has no model",
                where=caller(),
                fix='write @pipeline(model=Model(name="…")), or model: in the file of config_path=',
            )
        model = Model(**facts)
        model.run_id = context.run_id
        return model

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The digests of what it was given."""
        return store_client().run(context.run_id).steps[context.step].inputs

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(
            f"get_step_context().{name} is not here: docs/guide/context.md has what there is", where=caller()
        )


def get_step_context() -> StepContext:
    """The step that runs."""
    if not context:
        raise UsageError("get_step_context() is called where no step runs", where=caller())
    return StepContext()


class _Extra(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        if steps.is_planning():
            note(f"the pipeline needs its extra '{key}': a run gives it by .with_options(extra=…), or by --config FILE")
            return None
        raise UsageError(
            f"the pipeline has no extra '{key}'",
            where=caller(),
            fix=f"give it: .with_options(extra={{'{key}': …}}), or `stoker run FILE --config FILE.yaml`",
        )


class PipelineContext:
    """The pipeline whose body runs."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    @property
    def name(self) -> str:
        """Its name."""
        return str(self._pipeline.name)

    @property
    def extra(self) -> Mapping[str, Any]:
        """Its `extra`."""
        return _Extra(self._pipeline.extra)

    @property
    def model(self) -> Model:
        """Its model; a nameless one finds artifacts by their names alone."""
        return self._pipeline.model_asked or Model()


def get_pipeline_context() -> PipelineContext:
    """The pipeline whose body runs."""
    pipeline = steps.CURRENT.get()
    if pipeline is None:
        raise UsageError("get_pipeline_context() is called where no pipeline's body runs", where=caller())
    return PipelineContext(pipeline)
