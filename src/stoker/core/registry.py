"""Names of artifacts and models beyond a run, as values: what a step's output is called, what an input is to be.

`store.registry` keeps what they name.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Iterable, Literal, Mapping, NoReturn

import attrs

from stoker.core.errors import UsageError
from stoker.core.values import frozen
from stoker.core.words import shown

Version = int | str
"""A version: its number, "latest", "tag:NAME", the digest of its value or its beginning, or of a model its stage."""
Kind = Literal["artifact", "model", "run", "step"]
"""What metadata is of."""

LATEST: Final = "latest"
TAG: Final = "tag:"
"""How the version that has a tag is written: "tag:prod"."""
ARCHIVED: Final = "archived"
STAGES: Final = ("staging", "production", ARCHIVED)
"""Stages that models have without being asked; a stage is any word. Only "archived" holds more than one version."""
ARTIFACT: Final = "artifact:"
MODEL: Final = "model:"
"""How references are written on a command line: "artifact:clean@3", "model:churn@production"."""
LOGGED: Final = "_registry"
"""The fact by which a running step tells its driver what to register."""
LINKS: Final = ("mlflow", "wandb")
"""Facts of a step that say where other libraries have its run; the version of a model that it makes has them, too."""
LONGEST_NAME: Final = 200
"""Characters of a name, a tag and a stage: PostgreSQL's indexes take 2,700 bytes of a row."""
HIGHEST: Final = 2**31 - 1
"""The highest number of a version: databases count in four bytes."""


def checked_name(name: Any, what: str) -> str:
    """The name of an artifact, a model, a tag or a stage; a `UsageError` for what cannot be one."""
    text = name if isinstance(name, str) else ""
    if not text.strip() or text != text.strip() or len(text) > LONGEST_NAME or "@" in text or not text.isprintable():
        raise UsageError(
            f"{shown(name)} is no name for {what}",
            fix=f"use a text of 1 to {LONGEST_NAME} printable characters without '@' and without blanks around it",
        )
    return text


def checked_version(version: Any, what: str) -> Version:
    """A version as it may be asked for; a text of digits is a number."""
    if isinstance(version, str) and version.isascii() and version.isdecimal() and len(version) < 10:
        version = int(version)
    if (isinstance(version, str) and version.strip()) or (type(version) is int and 0 < version <= HIGHEST):
        return version
    raise UsageError(
        f"{shown(version)} is no version of {what}",
        fix='write a number from 1, "latest", "tag:NAME", a digest, or of a model its stage',
    )


def names_label(version: Version | None) -> bool:
    """Whether a model's version that does not exist is the label of one that can be made, such as "1.0.0"."""
    reserved = (LATEST, *STAGES)
    return (
        isinstance(version, str) and version not in reserved and not version.startswith(TAG) and not version.isdigit()
    )


def checked_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Metadata as JSON texts, by name in order; a `UsageError` for a name that is no text, and for what JSON lacks or
    is too long."""
    from stoker.core.metrics import checked_fact  # only where there is metadata

    return {checked_name(name, "metadata"): checked_fact(name, fact) for name, fact in sorted(facts.items())}


def _facts(values: Mapping[str, Any]) -> Mapping[str, Any]:
    if values:
        checked_facts(values)
    return values


def _tags(values: Iterable[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise UsageError(f"tags={values!r} is a text", fix=f"write tags=[{values!r}]")
    return tuple(dict.fromkeys(checked_name(value, "a tag") for value in values))


@frozen
class Artifact:
    """Gives a step's output a name beyond its run: `Annotated[Net, Artifact("classifier")]`.

    Each success of the step makes a new version of it, with these tags and this metadata.
    """

    name: str
    tags: tuple[str, ...] = attrs.field(default=(), converter=_tags, kw_only=True)
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_facts, kw_only=True)

    def __attrs_post_init__(self) -> None:
        checked_name(self.name, "an artifact")


@frozen
class ArtifactRef:
    """A version of a named artifact, as an argument of a pipeline or a step: `train(data=artifact("clean"))`.

    It is resolved when the run is planned; the plan records which version that was.
    """

    name: str
    version: Version = LATEST

    def __attrs_post_init__(self) -> None:
        checked_name(self.name, "an artifact")
        checked_version(self.version, f"artifact '{self.name}'")

    def __str__(self) -> str:
        return f"{ARTIFACT}{self.name}@{self.version}"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            f"{self} is inside of a value, where no version takes its place",
            fix="give it to a step or a pipeline itself, or in a list, a tuple or the values of a dict",
        )


def artifact(name: str, version: Version = LATEST) -> ArtifactRef:
    """A version of a named artifact as an argument: "latest", a number, "tag:NAME" (the newest with the tag) or a
    digest."""
    return ArtifactRef(name, checked_version(version, f"artifact '{name}'"))


def is_artifact_text(value: Any) -> bool:
    """Whether a value is the text of a reference to an artifact, such as "artifact:clean@3"."""
    return isinstance(value, str) and value.startswith(ARTIFACT)


def parse_reference(text: str, prefix: str = ARTIFACT) -> tuple[str, Version]:
    """Name and version of a text such as "artifact:clean@3", "clean@3" or "clean"."""
    name, mark, version = text.removeprefix(prefix).rpartition("@")
    if not mark:
        name, version = version, LATEST
    return name, checked_version(version, shown(name))


@frozen
class Model:
    """The model that a pipeline's runs make versions of, or with `version` use: `@pipeline(model=Model("churn"))`.

    The named outputs of such a run belong to the version. Without `version` each run makes one, when its first named
    output is there. `version` is a number, a stage, "latest", or the label of one, which is made where there is none.
    """

    name: str
    version: Version | None = None
    description: str = attrs.field(default="", kw_only=True)
    tags: tuple[str, ...] = attrs.field(default=(), converter=_tags, kw_only=True)
    metadata: Mapping[str, Any] = attrs.field(factory=dict, converter=_facts, kw_only=True)

    def __attrs_post_init__(self) -> None:
        checked_name(self.name, "a model")
        if self.version is not None:
            checked_version(self.version, f"model '{self.name}'")
            if names_label(self.version):
                checked_name(self.version, "a version")


@frozen(kw_only=True)
class LoggedName:
    """What a running step tells its driver to register: a value that it saved, or metadata."""

    COMPACT: ClassVar = True
    kind: Literal["saved", "artifact", "model"]
    name: str
    output: str = ""
    """What tells the values apart that an attempt saves."""
    wire: Mapping[str, Any] = attrs.field(factory=dict)
    """The `StoredArtifact.wire` document of a saved value."""
    tags: tuple[str, ...] = attrs.field(default=(), converter=_tags)
    facts: Mapping[str, Any] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for name in self.facts:
            checked_name(name, "metadata")


def registers(row: Any) -> bool:
    """Whether a row of what a step logged (`core.metrics`) has a `LoggedName`."""
    return isinstance(row, list) and len(row) > 3 and row[2] is None and isinstance(row[3], dict) and LOGGED in row[3]


@frozen
class SavedArtifact:
    """What `save_artifact` in a running step gives back: the version has its number when the driver hears of it."""

    name: str
    digest: str
