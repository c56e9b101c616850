"""What steps and programs save, load and say of artifacts, models and runs, by ZenML's names."""

from __future__ import annotations

from typing import Any, Mapping

import stoker
from stoker.integrations.zenml.parts.versions import ArtifactVersion, Model, find_artifact, store_client, version_of
from stoker.worker.context import context


def ArtifactConfig(
    name: str | None = None, tags: Any = None, run_metadata: Mapping[str, Any] | None = None, **others: Any
) -> Any:
    """The name, the tags and the metadata of an output: `Annotated[int, ArtifactConfig(name="count")]`."""
    if name is None:
        return dict(run_metadata or {})  # an annotation that names nothing
    return stoker.Artifact(
        name, tags=[str(getattr(tag, "name", tag)) for tag in tags or ()], metadata=plain(run_metadata or {})
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
    saved = stoker.save_artifact(data, name, tags=names, metadata=plain(user_metadata or {}))
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
    facts = plain(metadata)
    if infer_model:
        from stoker.integrations.zenml.parts.context import get_step_context

        get_step_context().model.log_metadata(facts)
    elif model_name is not None:
        Model(name=model_name, version=model_version).log_metadata(facts)
    elif artifact_name is not None:
        of_version = {} if artifact_version is None else {"version": version_of(artifact_version)}
        stoker.log_metadata(facts, artifact=artifact_name, **of_version)
    elif run_id_name_or_prefix is not None:
        run = store_client().run(str(run_id_name_or_prefix)).id
        stoker.log_metadata(facts, run=run, **({} if step_name is None else {"step": step_name}))
    else:
        stoker.log_metadata(facts)


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


def plain(value: Any) -> Any:
    """Metadata as JSON has it: numbers of numpy become Python's, and what JSON lacks its text."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) == 1:
        return item()
    return str(value)
