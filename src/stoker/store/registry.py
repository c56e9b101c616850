"""The names of a store: versions of artifacts and of models, their tags, metadata, stages and promotions.

A version is a row that is never changed but for its stage; its number is the next one of its name, and is never given
twice. Every change locks the row of the name first, so that of two that come at once each sees what the other did.
What a run makes comes as *registrations* in the driver's batch, in the same transaction as the step that made it;
doing one twice changes nothing. `Names` does what people and programs ask for directly.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from typing import Any, Callable, Final, Iterable, Literal, Mapping, Sequence, TypeVar

import attrs

from stoker.core.artifact import StoredArtifact, from_wire
from stoker.core.codec import from_json, to_json
from stoker.core.errors import DatabaseUnreachable, NotFound, UsageError, nearest
from stoker.core.registry import (
    ARCHIVED,
    HIGHEST,
    LATEST,
    STAGES,
    TAG,
    Artifact,
    Kind,
    Model,
    Version,
    checked_facts,
    checked_name,
    checked_version,
)
from stoker.core.values import frozen
from stoker.core.words import shown
from stoker.store import rows
from stoker.store.database import Database
from stoker.store.namesql import BATCH, DIRECT

T = TypeVar("T")
Rules = Mapping[str, Sequence[str]]
"""What a version must fulfil before it gets a stage: stage → rules."""
Statements = list[tuple[str, list[Sequence[Any]]]]
_FIRST: Final[Mapping[str, str]] = {
    "artifact": 'a step\'s return names one: Annotated[…, Artifact("name")]',
    "model": 'a pipeline makes a version of one in each run: @pipeline(model="name")',
}
"""How the first one of a store is made."""
_LOOKED_AT: Final = 100
"""Newest versions among which a call that lost its connection looks for what it made."""
_LONGEST_NUMBER: Final = 320
"""Characters of a number as JSON: the largest that a float can be has 309."""


@frozen(kw_only=True)
class ArtifactRow:
    """A version of a named artifact."""

    name: str
    version: int
    artifact: StoredArtifact
    created: float
    author: str = ""
    """Who saved it, or ran the run that did, as "user@host"."""
    run_id: str = ""
    """The run whose step made it; empty for a value that was saved outside of runs."""
    key: str = ""
    output: str = ""


@frozen(kw_only=True)
class ModelRow:
    """A version of a model."""

    name: str
    version: int
    label: str = ""
    """Another name of the version, such as "1.0.0"."""
    stage: str = ""
    created: float
    author: str = ""
    description: str = ""
    run_id: str = ""
    """The run that made it."""


@frozen(kw_only=True)
class PromotionRow:
    """A change of a version's stage."""

    model: str
    number: int
    """In the order in which they were made, from 1."""
    version: int
    before: str
    """The stage that the version had."""
    stage: str
    displaced: int | None
    """The version that had the stage, which was archived."""
    time: float
    author: str
    reason: str
    run_id: str
    """The run whose step did it; empty outside of runs."""


@frozen(kw_only=True)
class UseRow:
    """A version that a run was given by its name."""

    run_id: str
    key: str
    parameter: str
    name: str
    version: int


@frozen(kw_only=True)
class Registration:
    """A named output of a step, for the driver's batch. It has a JSON form (`core.codec`)."""

    name: str
    artifact: Mapping[str, Any]
    """The `StoredArtifact.wire` document."""
    run_id: str
    key: str
    output: str
    created: float
    author: str
    reused: bool = False
    """Whether the step's result was taken from another run: it is a new version only if the name has none with it."""
    tags: Sequence[str] = ()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    model: Model | None = None
    model_version: int | None = None
    """The version of the model that the run uses; None for the one that the run makes."""


@frozen(kw_only=True)
class LoggedFacts:
    """Metadata that a step logged of an artifact's or a model's version, for the driver's batch."""

    kind: Kind
    name: str
    run_id: str
    facts: Mapping[str, Any]
    created: float
    author: str
    of_run: bool = False
    """Whether the model is that of the run: they are of the version that it makes or uses, and else of the latest."""
    model_version: int | None = None
    """The version of the model that the run uses; None for the one that it makes."""


_USER: Final = ("STOKER_USER", "LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables with this process's user; the last four are those of `getpass.getuser`, in its order."""


def author() -> str:
    """Who this process works for, as "user@host"."""
    try:
        user = next(filter(None, map(os.environ.get, _USER)), "")
        if not user:
            import getpass  # with it the module for terminals

            user = getpass.getuser()
    except (OSError, KeyError):  # a uid without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def statements_of(documents: Iterable[Sequence[Any]]) -> Statements:
    """What a batch executes for its registrations, in an order in which two drivers cannot wait for each other."""
    made = [from_json(_KINDS[kind], document, strict=False) for kind, document in documents]
    outputs = sorted((one for one in made if isinstance(one, Registration)), key=lambda one: one.name)
    logged = [one for one in made if isinstance(one, LoggedFacts)]
    found: dict[str, list[Sequence[Any]]] = {name: [] for name in BATCH}
    locked = [(one.name, one.created, 0, int(one.reused)) for one in outputs]
    locked += [(fact.name, fact.created, 1, 0) for fact in logged if fact.kind == "artifact"]
    found["artifact_name"] = [
        (name, created, known, name, known, same) for name, created, known, same in sorted(locked)
    ]
    for one in outputs:
        _add_output(found, one)
    models = {one.model.name: one for one in outputs if one.model is not None}
    of_models = [fact for fact in logged if fact.kind == "model"]
    for name in sorted(models.keys() | {fact.name for fact in of_models}):
        _add_model(found, name, models.get(name), [fact for fact in of_models if fact.name == name])
    for one in outputs:
        if one.model is not None:
            _add_part(found, one, one.model)
    for fact in logged:
        if fact.kind == "artifact":
            found["latest_facts"] += [(name, value, fact.created, fact.name) for name, value in _texts(fact.facts)]
    return [(BATCH[name], values) for name, values in found.items() if values]


def document_of(entry: Registration | LoggedFacts) -> list[Any]:
    """A registration as a batch carries it."""
    return [type(entry).__name__, to_json(entry)]


def _add_output(found: Mapping[str, list[Sequence[Any]]], one: Registration) -> None:
    columns = _columns_of(from_wire(one.artifact))
    place = (one.run_id, one.key, one.output, one.name, columns[0])
    made = (one.name, one.name, one.name, *columns, one.created, one.author, *place[:3])
    found["artifact"].append((*made, *place, int(one.reused), columns[0], one.name))
    found["mark"] += [(mark, *place) for mark in one.tags]
    found["fact"] += [(name, value, one.created, *place) for name, value in _texts(one.metadata)]


def _add_model(
    found: Mapping[str, list[Sequence[Any]]], name: str, maker: Registration | None, logged: Sequence[LoggedFacts]
) -> None:
    """The version of a model that a run makes; facts of a model that has none yet make one, so that none is lost."""
    first: Registration | LoggedFacts = maker if maker is not None else logged[0]
    model = None if maker is None else maker.model
    at = (name, first.model_version or 0, name, first.run_id)
    found["model_name"].append((name, first.created))
    if first.model_version is None:
        made = (name, name, name, "", first.created, first.author, "" if model is None else model.description)
        of_run = model is not None or any(entry.of_run for entry in logged)
        found["model"].append((*made, first.run_id, name, first.run_id, int(of_run), name))
    if model is not None:
        found["model_run"].append((first.run_id, *at))
        found["model_mark"] += [(mark, *at) for mark in model.tags]
        found["model_fact"] += [(fact, value, first.created, *at) for fact, value in _texts(model.metadata)]
    for entry in logged:
        facts = [(fact, value, entry.created) for fact, value in _texts(entry.facts)]
        if entry.of_run:
            found["model_fact"] += [(*fact, *at) for fact in facts]
        else:
            found["latest_model_facts"] += [(*fact, name) for fact in facts]


def _add_part(found: Mapping[str, list[Sequence[Any]]], one: Registration, model: Model) -> None:
    owner = (model.name, one.model_version or 0, model.name, one.run_id)
    digest = from_wire(one.artifact).digest
    place = (one.run_id, one.key, one.output, one.name, digest)
    found["model_part"].append((one.name, *owner, *place, int(one.reused), digest, one.name))


def _texts(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, json.dumps(value)) for name, value in facts.items()]


class Names:
    """The named artifacts and models of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = {name: database.sql(statement) for name, statement in {**BATCH, **DIRECT}.items()}

    # Artifacts

    def save(
        self,
        name: str,
        artifact: StoredArtifact,
        *,
        tags: Iterable[str] = (),
        metadata: Mapping[str, Any] | None = None,
        place: tuple[str, str, str] = ("", "", ""),
    ) -> ArtifactRow:
        """Make a value that the blobs have the next version of a name; `place` is the run, step and output that made it
        in another store."""
        given = Artifact(name, tags=tags, metadata=metadata or {})
        facts = checked_facts(given.metadata)
        token, now = os.urandom(8).hex(), time.time()

        def add(cursor: Any) -> int:
            cursor.execute(self._sql["name_artifact"], (name, now))
            version = self._first(cursor, "artifact_of_token", (name, _LOOKED_AT, token))
            if version is None:
                version = self._first(cursor, "next_artifact", (name, name))
                row = (name, version, *_columns_of(artifact), now, author(), *place, token)
                cursor.execute(self._sql["add_artifact"], row)
            self._describe(cursor, "artifact", name, version, given.tags, facts)
            return int(version)

        return self.artifact(name, self._change(add))

    def artifact(self, name: str, version: Version = LATEST) -> ArtifactRow:
        """A version of a name; `NotFound` where there is none."""
        version = checked_version(version, f"artifact '{name}'")
        if version == LATEST:
            row = self._database.row(self._sql["latest_artifact"], (name,))
        elif isinstance(version, int):
            row = self._database.row(self._sql["artifact_at"], (name, version))
        elif version.startswith(TAG):
            row = self._database.row(self._sql["tagged_artifact"], (name, version.removeprefix(TAG), name))
        else:
            row = self._database.row(self._sql["artifact_of_digest"], (name, len(version), version))
        if row is None:
            raise self._missing("artifact", name, version)
        return _artifact_row(row)

    def has_artifact(self, name: str) -> bool:
        """Whether there is a version of a name."""
        return self._database.row(self._sql["latest_artifact"], (name,)) is not None

    def artifacts(
        self, *, text: str = "", tag: str = "", limit: int = 50, offset: int = 0, before: str = ""
    ) -> list[ArtifactRow]:
        """The latest version of each name, the name that changed last first; with a tag the newest that has it, by
        name.

        `text` is part of a name, in any case; `before` a name, after which the list goes on.
        """
        if tag:
            found = self._listed("tagged", text, (tag, before), limit, offset, tag)
        else:
            found = self._listed("artifacts", text, self._changed("artifact", before), limit, offset)
        return [_artifact_row(row) for row in found]

    def versions(self, name: str, *, limit: int = HIGHEST, before: int = HIGHEST) -> list[ArtifactRow]:
        """The versions of a name, newest first; only those `before` a number."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["versions"], (name, before, limit))]

    def named(self, digest: str) -> list[ArtifactRow]:
        """The versions that have a value, by its digest."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["named"], (digest,))]

    def named_in(self, run_id: str, *, limit: int = HIGHEST) -> list[ArtifactRow]:
        """The versions that a run made."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["named_in"], (run_id, limit))]

    def named_by(self, run_id: str, key: str, *, limit: int = HIGHEST) -> list[ArtifactRow]:
        """The versions that a step of a run made."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["named_by"], (run_id, key, limit))]

    def lists(self) -> list[ArtifactRow]:
        """The versions that are lists of other values."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["named_lists"])]

    def all_artifacts(self) -> list[ArtifactRow]:
        """Every version of every name."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["all_artifacts"])]

    def delete_artifact(self, name: str, version: int) -> None:
        """Remove a version; one that is gone is fine. A `UsageError` while a version of a model has it."""

        def remove(cursor: Any) -> None:
            cursor.execute(self._sql["hold_artifact"], (name,))
            cursor.execute(self._sql["model_with"], (name, version))
            model = cursor.fetchone()
            if model is not None:
                raise UsageError(
                    f"artifact '{name}' version {version} belongs to model '{model[0]}' version {model[1]}",
                    fix=f"delete that version first: stoker models rm {model[0]}@{model[1]}",
                )
            self._remove(cursor, "artifact", name, version)

        self._change(remove)

    def add_uses(self, uses: Iterable[UseRow]) -> None:
        """Record the versions that a run was given; doing it twice changes nothing."""
        values = [attrs.astuple(use) for use in uses]
        if values:
            self._change(lambda cursor: cursor.executemany(self._sql["add_use"], values))

    def uses(self, name: str, version: int) -> list[UseRow]:
        """The steps that were given a version by its name."""
        return [_of(UseRow, row) for row in self._database.rows(self._sql["uses"], (name, version))]

    def uses_of_run(self, run_id: str, *, limit: int = HIGHEST) -> list[UseRow]:
        """The versions that a run was given by their names."""
        return [_of(UseRow, row) for row in self._database.rows(self._sql["uses_of_run"], (run_id, limit))]

    # Tags and metadata, of artifacts, models, runs and steps

    def marks(self, kind: Kind, name: str, version: int = 0) -> tuple[str, ...]:
        """The tags, sorted."""
        return tuple(str(mark) for (mark,) in self._database.rows(self._sql["marks"], (kind, name, version)))

    def set_marks(self, kind: Kind, name: str, version: int, tags: Iterable[str], *, exclusive: bool = False) -> None:
        """Add tags; with `exclusive`, no other version of the name keeps them."""
        checked = [checked_name(tag, "a tag") for tag in tags]

        def add(cursor: Any) -> None:
            self._require(cursor, kind, name, version)
            for tag in checked:
                if exclusive:
                    cursor.execute(self._sql["unmark_others"], (kind, name, tag, version))
                cursor.execute(self._sql["set_mark"], (kind, name, version, tag))

        self._change(add)

    def remove_marks(self, kind: Kind, name: str, version: int, tags: Iterable[str]) -> None:
        """Remove tags; one that is not there is fine."""
        values = [(kind, name, version, tag) for tag in tags]
        self._change(lambda cursor: cursor.executemany(self._sql["unmark"], values))

    def facts(self, kind: Kind, name: str, version: int = 0) -> dict[str, Any]:
        """The metadata by name, as it was logged last."""
        found = self._database.rows(self._sql["facts"], (kind, name, version))
        return {fact: json.loads(value) for fact, value in found}

    def numbers(self, kind: Kind, name: str, versions: Sequence[int]) -> dict[int, dict[str, float]]:
        """Metadata that are numbers of some versions of a name, which are read together: version → them by name."""
        if not versions:
            return {}
        found: dict[int, dict[str, float]] = {version: {} for version in versions}
        bounds = (kind, name, min(versions), max(versions), _LONGEST_NUMBER)
        for version, fact, text in self._database.rows(self._sql["numbers"], bounds):
            value = number_of(json.loads(text))
            if value is not None and version in found:
                found[version][fact] = value
        return found

    def set_facts(self, kind: Kind, name: str, version: int, facts: Mapping[str, Any]) -> None:
        """Add metadata; a later value replaces an earlier one of the same name."""
        checked = checked_facts(facts)

        def add(cursor: Any) -> None:
            self._require(cursor, kind, name, version)
            self._describe(cursor, kind, name, version, (), checked)

        self._change(add)

    # Models

    def create_model(self, model: Model, *, run_id: str = "") -> ModelRow:
        """Make the next version of a model; with a label in `version`, the one that has it where there is one.

        `run_id` is the run that makes it.
        """
        label = model.version if isinstance(model.version, str) else ""
        facts = checked_facts(model.metadata)
        token, now = os.urandom(8).hex(), time.time()

        def add(cursor: Any) -> int:
            cursor.execute(self._sql["model_name"], (model.name, now))
            by_token = ("model_of_token", (model.name, _LOOKED_AT, token))
            version = self._first(cursor, *(("model_labelled", (model.name, label)) if label else by_token))
            if version is None:
                version = self._first(cursor, "next_model", (model.name, model.name))
                description = rows.clean_text(model.description)
                row = (model.name, version, label, "", now, author(), description, run_id, token)
                cursor.execute(self._sql["add_model"], row)
            self._describe(cursor, "model", model.name, version, model.tags, facts)
            return int(version)

        return self.model(model.name, self._change(add))

    def model(self, name: str, version: Version = LATEST) -> ModelRow:
        """A version of a model by its number, stage, label, "latest" or "tag:NAME"; `NotFound` where there is none.

        Of several archived versions it is the newest.
        """
        version = checked_version(version, f"model '{name}'")
        if version == LATEST:
            row = self._database.row(self._sql["latest_model"], (name,))
        elif isinstance(version, int):
            row = self._database.row(self._sql["model_at"], (name, version))
        elif version.startswith(TAG):
            row = self._database.row(self._sql["tagged_model"], (name, version.removeprefix(TAG), name))
        else:
            row = self._database.row(self._sql["model_called"], (name, version, version, version))
        if row is None:
            raise self._missing("model", name, version)
        return _of(ModelRow, row)

    def models(
        self, *, text: str = "", stage: str = "", limit: int = 50, offset: int = 0, before: str = ""
    ) -> list[ModelRow]:
        """The latest version of each model, the one that changed last first; with a stage the version that has it.

        `text` and `before` are as in `artifacts`.
        """
        since = self._changed("model", before)
        values = (stage, stage, limit, offset, stage, stage)
        return [_of(ModelRow, row) for row in self._listed("models", text, since, *values)]

    def model_versions(self, name: str, *, limit: int = HIGHEST, before: int = HIGHEST) -> list[ModelRow]:
        """The versions of a model, newest first; only those `before` a number."""
        return [_of(ModelRow, row) for row in self._database.rows(self._sql["model_versions"], (name, before, limit))]

    def holders(self, name: str) -> dict[str, ModelRow]:
        """The versions of a model that hold a stage, by stage; archived ones hold none."""
        found = [_of(ModelRow, row) for row in self._database.rows(self._sql["holders"], (name,))]
        return {row.stage: row for row in found}

    def models_of_run(self, run_id: str) -> list[ModelRow]:
        """The versions that a run made or used."""
        return [_of(ModelRow, row) for row in self._database.rows(self._sql["models_of_run"], (run_id,))]

    def models_with(self, name: str, version: int) -> list[ModelRow]:
        """The versions of models that have a version of an artifact."""
        return [_of(ModelRow, row) for row in self._database.rows(self._sql["models_with"], (name, version))]

    def parts(self, model: str, version: int) -> list[ArtifactRow]:
        """The artifacts of a version, by name, and of each name the oldest first."""
        return [_artifact_row(row) for row in self._database.rows(self._sql["parts"], (model, version))]

    def runs_of_model(self, model: str, version: int) -> list[str]:
        """The ids of the runs that made or used a version."""
        return [str(run) for (run,) in self._database.rows(self._sql["runs_of_model"], (model, version))]

    def link(self, model: str, version: int, name: str, artifact_version: int) -> None:
        """Add a version of an artifact to a version of a model; one that it has is fine."""

        def add(cursor: Any) -> None:
            self._require(cursor, "artifact", name, artifact_version)
            self._require(cursor, "model", model, version)
            cursor.execute(self._sql["link"], (model, version, name, artifact_version))

        self._change(add)

    def note_run(self, model: str, version: int, run_id: str) -> None:
        """Record that a run uses a version of a model."""
        self._change(lambda cursor: cursor.execute(self._sql["note_run"], (model, version, run_id)))

    def promote(
        self,
        name: str,
        version: int,
        stage: str,
        *,
        reason: str = "",
        run_id: str = "",
        expected: int | Literal["any"] | None = "any",
    ) -> bool:
        """Give a version a stage, "" for none; the version that had the stage is archived, unless that is the stage.

        `expected` is the version that is to have the stage at this moment: False if it is another one, and nothing was
        changed. A version that has the stage already keeps it, and no promotion is recorded.
        """
        if stage:
            checked_name(stage, "a stage")
        if stage == LATEST or stage.startswith(TAG) or stage.isdecimal():
            raise UsageError(f"'{stage}' is no stage: it names a version", fix=f"use one of {', '.join(STAGES)}")

        now = time.time()

        def move(cursor: Any) -> bool:
            self._require(cursor, "model", name, version)
            if self._first(cursor, "has_promotion", (name, _LOOKED_AT, version, now)) is not None:
                return True  # before a connection was lost, and another one has displaced it since
            before = self._first(cursor, "stage_of", (name, version))
            cursor.execute(self._sql["holder"], (name, stage))
            found = cursor.fetchone()
            holder = None if found is None else _of(ModelRow, found).version
            if expected not in ("any", holder):
                return False
            if before == stage:
                return True
            if holder is not None:
                cursor.execute(self._sql["set_stage"], (ARCHIVED, name, holder))
            cursor.execute(self._sql["set_stage"], (stage, name, version))
            number = self._first(cursor, "next_promotion", (name,))
            why = rows.clean_text(reason)
            row = (name, number, version, before, stage, holder, now, author(), why, run_id)
            cursor.execute(self._sql["add_promotion"], row)
            return True

        return self._change(move)

    def promotions(self, name: str) -> list[PromotionRow]:
        """Every change of a stage of a model, newest first."""
        return [_of(PromotionRow, row) for row in self._database.rows(self._sql["promotions"], (name,))]

    def rules(self, name: str) -> dict[str, list[str]]:
        """The rules of a model."""
        row = self._database.row(self._sql["rules"], (name,))
        return dict(json.loads(row[0])) if row is not None and row[0] else {}

    def set_rules(
        self, name: str, rules: Mapping[str, Sequence[str]], *, expected: Mapping[str, Sequence[str]]
    ) -> bool:
        """Replace the rules of a model; False if they are not the expected ones any more."""
        texts = [json.dumps(one, sort_keys=True) if one else "" for one in (rules, expected)]

        def change(cursor: Any) -> bool:
            cursor.execute(self._sql["model_name"], (name, time.time()))
            cursor.execute(self._sql["set_rules"], (texts[0], name, texts[1]))
            return bool(cursor.rowcount == 1)

        return self._change(change)

    def delete_model(self, name: str, version: int) -> None:
        """Remove a version of a model, but not its artifacts; one that is gone is fine. A `UsageError` while it has a
        stage."""

        def remove(cursor: Any) -> None:
            cursor.execute(self._sql["hold_model"], (name,))
            stage = self._first(cursor, "stage_of", (name, version)) or ""
            if stage not in ("", ARCHIVED):
                raise UsageError(
                    f"model '{name}' version {version} is in stage '{stage}'",
                    fix=f"stoker models promote {name}@{version} {ARCHIVED}, or promote another one, first",
                )
            for statement in ("unlink", "forget_model_runs"):
                cursor.execute(self._sql[statement], (name, version))
            self._remove(cursor, "model", name, version)

        self._change(remove)

    def _listed(self, statement: str, text: str, place: Sequence[Any], *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a list (`namesql`) after a place; of names that have a text."""
        if text:
            statement, place = f"{statement}_found", (*place, self._database.name_part(text))
        return self._database.rows(self._sql[statement], (*place, *values))

    def _changed(self, kind: Kind, name: str) -> tuple[float, str]:
        """When a name changed, and the name; later than all others without one."""
        if not name:
            return math.inf, ""
        row = self._database.row(self._sql[f"changed_{kind}"], (name,))
        if row is None:
            raise self._missing(kind, name, LATEST)
        return row[0], name

    # Inside of a transaction

    def _change(self, work: Callable[[Any], T]) -> T:
        """Do something in a transaction; once more where it is not known whether that was committed."""
        try:
            with self._database.transaction() as cursor:
                return work(cursor)
        except DatabaseUnreachable:
            with self._database.transaction() as cursor:
                return work(cursor)

    def _first(self, cursor: Any, statement: str, values: Sequence[Any]) -> Any:
        cursor.execute(self._sql[statement], values)
        row = cursor.fetchone()
        return None if row is None else row[0]

    def _require(self, cursor: Any, kind: Kind, name: str, version: int) -> None:
        """Lock the name, and raise `NotFound` where it has no such version."""
        if kind not in ("artifact", "model"):
            return
        cursor.execute(self._sql[f"lock_{kind}"], (time.time(), name))
        if self._first(cursor, f"has_{kind}", (name, version)) is None:
            raise self._missing(kind, name, version)

    def _describe(
        self, cursor: Any, kind: Kind, name: str, version: int, tags: Iterable[str], facts: Mapping[str, str]
    ) -> None:
        for tag in tags:
            cursor.execute(self._sql["set_mark"], (kind, name, version, tag))
        for fact, value in facts.items():
            cursor.execute(self._sql["set_fact"], (kind, name, version, fact, value, time.time()))

    def _remove(self, cursor: Any, kind: Kind, name: str, version: int) -> None:
        for table in ("marks", "facts"):
            statement = f"DELETE FROM {table} WHERE kind = ? AND name = ? AND version = ?"
            cursor.execute(self._database.sql(statement), (kind, name, version))
        cursor.execute(self._sql[f"delete_{kind}"], (name, version))
        if cursor.rowcount == 1:
            cursor.execute(self._sql[f"note_gone_{kind}"], (version, name, version))
            cursor.execute(self._sql[f"hide_{kind}"], (name, name))

    def _missing(self, kind: Kind, name: str, version: Version) -> NotFound:
        number = self._database.row(self._sql[f"latest_{kind}"], (name,))
        if number is not None:
            holders = self.holders(name).values() if kind == "model" else ()
            stages = ", ".join(f"{row.version} {row.stage}" for row in holders)
            return NotFound(
                f"{kind} '{name}' has no version {shown(version)}; the latest is {number[1]}"
                + (f", and there are {stages}" if stages else ""),
                fix=f"stoker {kind}s show {name}",
            )
        names = [str(row[0]) for row in self._database.rows(self._sql[f"{kind}_names"])]
        fix = f"stoker {kind}s list" if names else _FIRST[kind]
        return NotFound(f"there is no {kind} '{name}'{nearest(name, names)}", fix=fix)


def number_of(fact: Any) -> float | None:
    """Metadata that is a number; None for anything else, and for an int that no float can be."""
    if not isinstance(fact, (int, float)) or isinstance(fact, bool):
        return None
    try:
        return float(fact)
    except OverflowError:
        return None


def _columns_of(artifact: StoredArtifact) -> tuple[Any, ...]:
    meta = rows.json_text(artifact.meta)
    return (artifact.digest, artifact.serializer, artifact.type, artifact.size, meta, artifact.inline)


def _artifact_row(values: Sequence[Any]) -> ArtifactRow:
    name, version, digest, serializer, kind, size, meta, inline, created, who, run_id, key, output = values
    artifact = StoredArtifact(
        digest=digest,
        serializer=serializer,
        type=kind,
        size=size,
        meta=json.loads(meta) if meta else {},
        inline=None if inline is None else bytes(inline),
    )
    return ArtifactRow(
        name=name,
        version=version,
        artifact=artifact,
        created=created,
        author=who,
        run_id=run_id,
        key=key,
        output=output,
    )


def _of(kind: Callable[..., T], values: Sequence[Any]) -> T:
    return kind(**dict(zip(attrs.fields_dict(kind), values)))  # type: ignore[arg-type]


_KINDS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in (Registration, LoggedFacts)}
