"""What steps and programs save, load and say of artifacts, models and runs, and what they know of their own."""

from __future__ import annotations

import json
import os
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Mapping

from stoker import naming
from stoker.core.errors import UsageError
from stoker.core.registry import Artifact
from stoker.core.usercode import caller
from stoker.integrations.zenml.parts import note, steps
from stoker.integrations.zenml.parts.client import PipelineRun
from stoker.integrations.zenml.parts.settings import IN_HOOK, PIPELINE
from stoker.integrations.zenml.parts.versions import (
    ArtifactVersion,
    Model,
    find_artifact,
    metadata_of,
    store_client,
    version_of,
)
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


def ArtifactConfig(
    name: str | None = None, tags: Any = None, run_metadata: Mapping[str, Any] | None = None, **others: Any
) -> Any:
    """The name, the tags and the metadata of an output: `Annotated[int, ArtifactConfig(name="count")]`."""
    if name is None:
        return dict(run_metadata or {})  # an annotation that names nothing
    return Artifact(
        name, tags=[str(getattr(tag, "name", tag)) for tag in tags or ()], metadata=metadata_of(run_metadata or {})
    )


def save_artifact(
    data: Any,
    name: str,
    version: Any = None,
    tags: Any = None,
    user_metadata: Mapping[str, Any] | None = None,
    **others: Any,
) -> Any:
    """Save a value under a name; a version's own name is kept as a tag."""
    names = [str(getattr(tag, "name", tag)) for tag in tags or ()]
    if version is not None:
        names.append(str(version))
    saved = naming.save_artifact(data, name, tags=names, metadata=metadata_of(user_metadata or {}))
    return saved if context else ArtifactVersion(saved)


def load_artifact(name_or_id: Any, version: Any = None) -> Any:
    """The value of an artifact."""
    return find_artifact(name_or_id, version).load()


def log_metadata(
    metadata: Mapping[str, Any],
    *,
    run_id_name_or_prefix: Any = None,
    step_name: str | None = None,
    artifact_name: str | None = None,
    artifact_version: Any = None,
    model_name: str | None = None,
    model_version: Any = None,
    infer_artifact: bool = False,
    infer_model: bool = False,
    **others: Any,
) -> None:
    """Log facts of the step, or of the run, the artifact or the model that is named."""
    facts = metadata_of(metadata)
    if infer_model:
        get_step_context().model.log_metadata(facts)
    elif model_name is not None:
        Model(name=model_name, version=model_version).log_metadata(facts)
    elif artifact_name is not None:
        of_version = {} if artifact_version is None else {"version": version_of(artifact_version)}
        naming.log_metadata(facts, artifact=artifact_name, **of_version)
    elif run_id_name_or_prefix is not None:
        run = store_client().run(str(run_id_name_or_prefix)).id
        naming.log_metadata(facts, run=run, **({} if step_name is None else {"step": step_name}))
    elif context and context.attempt == IN_HOOK:
        naming.log_metadata(facts, run=context.run_id, step=context.step or None)
    else:
        naming.log_metadata(facts)


def log_artifact_metadata(
    metadata: Mapping[str, Any], artifact_name: str | None = None, artifact_version: Any = None, **others: Any
) -> None:
    """Log facts of an artifact; without a name, of the step that makes it."""
    log_metadata(metadata, artifact_name=artifact_name, artifact_version=artifact_version)


def log_step_metadata(
    metadata: Mapping[str, Any], step_name: str | None = None, run_id: Any = None, **others: Any
) -> None:
    """Log facts of a step."""
    log_metadata(metadata, step_name=step_name, run_id_name_or_prefix=run_id)


def log_model_metadata(
    metadata: Mapping[str, Any], model_name: str | None = None, model_version: Any = None, **others: Any
) -> None:
    """Log facts of a model's version; without a name, of the step's own."""
    log_metadata(metadata, model_name=model_name, model_version=model_version, infer_model=model_name is None)


log_model_version_metadata = log_model_metadata


def add_tags(tags: Any, artifact: str | None = None, artifact_name: str | None = None, **others: Any) -> None:
    """Add tags to an artifact's latest version."""
    name = artifact or artifact_name
    if name is not None:
        find_artifact(name).of.add_tags(*(str(getattr(tag, "name", tag)) for tag in tags))
