"""Artifacts and models by name, for users: `from stoker import save_artifact, load_artifact, log_metadata`.

In a running step the driver registers what is said here, since only the driver has the database everywhere; elsewhere
it is done at once, in the store of the active stack.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Iterable, Mapping

import attrs

from stoker.core.errors import UsageError
from stoker.core.registry import LATEST, Artifact, LoggedName, Model, SavedArtifact, Version, checked_facts
from stoker.worker import metrics
from stoker.worker.context import context

if TYPE_CHECKING:
    from stoker.client import Client
    from stoker.client.names import ArtifactVersion


def save_artifact(
    value: Any, name: str, *, tags: Iterable[str] = (), metadata: Mapping[str, Any] | None = None
) -> ArtifactVersion | SavedArtifact:
    """Save a value as the next version of a name.

    In a running step the value is stored at once, and the driver gives it its version; of a step's ranks the main one
    saves. Elsewhere the version is returned. Raises `UsageError` for a name, a tag or metadata that cannot be one.
    """
    from stoker.store import artifacts
    from stoker.store.blobs import Blobs

    given = Artifact(name, tags=tags, metadata=metadata or {})
    if not context:
        return _client().save_artifact(value, name, tags=given.tags, metadata=given.metadata)
    document = context.document_for("save_artifact")
    if not context.is_main:
        return SavedArtifact(name, "")
    blobs = Blobs(document["artifacts"])
    artifact = artifacts.save(value, blobs)
    if artifact.inline is not None:  # what is logged is searched for secrets, and a value is not to change by that
        blobs.put(artifact.inline)
        artifact = attrs.evolve(artifact, inline=None)
    output = f"{name}#{context.attempt}.{os.urandom(8).hex()}"
    metrics.register(
        LoggedName(
            kind="saved", name=name, output=output, wire=artifact.wire(), tags=given.tags, facts=dict(given.metadata)
        ),
        "save_artifact",
    )
    return SavedArtifact(name, artifact.digest)


def load_artifact(name: str, version: Version = LATEST) -> Any:
    """The value of a version of a name: "latest", a number, "tag:NAME" or a digest.

    A step reads it where it sees the store of its run; give a step `artifact(name, version)` as an argument instead,
    and its plan records what it was given, and its cached result depends on it.
    """
    return _client().artifact(name, version=version).load()


def log_metadata(  # what it is of
    metadata: Mapping[str, Any],
    *,
    artifact: str | None = None,
    model: str | None = None,
    version: Version | None = None,
    run: str | None = None,
    step: str | None = None,
) -> None:
    """Log facts by name, such as the dataset's size or a score; a later one replaces an earlier.

    Without a target they are of the attempt that runs, and `UsageError` is raised outside a step. With `artifact` or
    `model` they are of that version: in a step that makes it, of the one that it makes; else of the latest or `version`
    (a model's stage, too). With `run`, and `step` for one of its steps, they are of that run. A fact is anything that
    JSON has, at most 10,000 characters of it.
    """
    targets = [name for name, target in (("artifact", artifact), ("model", model), ("run", run)) if target is not None]
    if len(targets) > 1 or (step is not None and run is None) or (version is not None and targets not in _VERSIONED):
        raise UsageError(
            "log_metadata takes one of artifact=, model= and run=; version= goes with the first two, step= with run=",
            fix='log_metadata({"auc": 0.9}, model="churn")',
        )
    if not targets:
        metrics.log_metadata(metadata)
    elif context and run is None and version is None:
        checked_facts(metadata)
        if not context.is_main:
            return
        name = Artifact(artifact).name if artifact is not None else Model(str(model)).name
        kind: Any = targets[0]
        metrics.register(LoggedName(kind=kind, name=name, facts=dict(metadata)), "log_metadata")
    elif artifact is not None:
        _client().artifact(artifact, version=LATEST if version is None else version).log_metadata(metadata)
    elif model is not None:
        _client().model(model, LATEST if version is None else version).log_metadata(metadata)
    else:
        _client().log_metadata(metadata, run=str(run), step=step)


_VERSIONED: Final = (["artifact"], ["model"])


def _client() -> Client:
    from stoker.client import Client

    return Client()
