"""Versions of artifacts and models as ZenML's code asks for them, and what stands for one that is not there yet.

In a pipeline's body a version that exists becomes a reference, which the plan resolves. One that does not exist yet
becomes a step that loads it when the run reaches it, as ZenML does: an earlier step, or another run, may make it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Mapping
from uuid import UUID

from stoker.core import registry
from stoker.core.errors import NotFound, StokerError, UsageError
from stoker.core.metrics import LONGEST_FACT
from stoker.core.registry import STAGES
from stoker.core.usercode import caller
from stoker.integrations.zenml.parts import note
from stoker.pipelines import functional
from stoker.pipelines.tracing import ACTIVE

if TYPE_CHECKING:
    from stoker.client import Client


class NoSuchVersion(NotFound, KeyError):
    """The artifact, the model or the version does not exist; also a `KeyError`, which ZenML raises."""

    __str__ = StokerError.__str__


def store_client() -> Client:
    """Stoker's client of the active stack."""
    from stoker.client import Client

    return Client()


def version_of(version: Any) -> Any:
    """A version of an artifact as the registry takes it: a number, "latest", or the tag that ZenML's name is here."""
    text = "latest" if version is None else str(getattr(version, "value", version))
    if text.isdecimal():
        return int(text)
    return text if text == "latest" or text.startswith("tag:") else f"tag:{text}"


def _model_version(version: Any) -> Any:
    """A version of a model as the registry takes it: a number, "latest", a stage or a label."""
    text = "latest" if version is None else str(getattr(version, "value", version))
    return int(text) if text.isdecimal() else text


def is_id(text: Any) -> bool:
    """Whether it is the id of a version, as `ArtifactVersion.id` gives it."""
    if isinstance(text, UUID):
        return True
    try:
        return str(UUID(str(text))) == str(text).lower()
    except ValueError:
        return False


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


def metadata_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as Stoker keeps it: what is too long is cut, where ZenML keeps more, rather than refused."""
    facts: dict[str, Any] = plain(values)
    for name, value in facts.items():
        text = json.dumps(value)
        if len(text) > LONGEST_FACT:
            note(f"metadata '{name}' has {len(text):,} characters: its beginning is kept; save it as an artifact")
            facts[name] = f"{text[: LONGEST_FACT // 2 - 10]}…"  # each character may be escaped
    return facts


class ArtifactVersion:
    """A version of an artifact, or an output of a step."""

    def __init__(self, version: Any) -> None:
        self.of: Any = version
        """Stoker's own."""

    @property
    def id(self) -> UUID:
        """An id that finds these bytes again."""
        return UUID(hex=self.of.digest[:32])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.of.name)

    @property
    def version(self) -> str:
        """Its number, as a text."""
        return str(getattr(self.of, "version", 1))

    @property
    def tags(self) -> list[str]:
        """Its tags."""
        return list(getattr(self.of, "tags", ()))

    @property
    def run_metadata(self) -> dict[str, Any]:
        """Its metadata."""
        return dict(getattr(self.of, "metadata", {}))

    @property
    def artifact(self) -> ArtifactVersion:
        """What has the name: the version itself."""
        return self

    @property
    def uri(self) -> str:
        """Where its bytes are."""
        return f"artifact:{self.of.digest}"

    @property
    def type(self) -> str:
        """The name of the value's type."""
        return str(self.of.type)

    data_type = type

    @property
    def body(self) -> ArtifactVersion:
        """ZenML's name of what this object has itself."""
        return self

    metadata = body

    def load(self) -> Any:
        """The value."""
        return self.of.load()

    read = load

    def visualize(self) -> Any:
        """What the value looks like, shown by a notebook."""
        return self.of.preview()

    def __repr__(self) -> str:
        return repr(self.of)


class MissingVersion:
    """A version that does not exist while the pipeline is planned; as an argument of a step it is loaded in the run."""

    def __init__(self, name: str, version: Any = None, model: str = "", model_version: Any = None) -> None:
        self.name = name
        self._arguments = {
            "name": str(name),
            "version": None if version is None else str(getattr(version, "value", version)),
            "model": model,
            "model_version": None if model_version is None else str(getattr(model_version, "value", model_version)),
        }
        self._handle: Any = None
        what = f"'{name}' of model '{model}'" if model else f"'{name}'"
        note(f"there is no artifact {what} yet: the run loads it when it gets there, and fails if there is none then")

    def load(self) -> MissingVersion:
        """The version itself: its value is not known yet."""
        return self

    read = load

    def handle(self) -> Any:
        """The output of the step that loads it, after all steps called so far: any of them may make the version."""
        if self._handle is None:
            trace = ACTIVE.get()
            earlier = [node.key for node in trace.nodes] if trace is not None else []
            self._handle = _LOADING.with_options(after=earlier)(**self._arguments)
        return self._handle

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NoSuchVersion(
            f"artifact '{self.name}' does not exist yet, and its {name} is not known while the pipeline is planned",
            where=caller(),
            fix="run the pipeline that makes it first, or read it in a step",
        )


def load_version(name: str, version: Any = None, model: str = "", model_version: Any = None) -> Any:
    """The value of an artifact that did not exist when the run was planned."""
    if model:
        found = Model(name=model, version=model_version).get_artifact(name)
        if found is None:
            raise NoSuchVersion(f"model '{model}' has no artifact '{name}'", fix="run the pipeline that makes it first")
        return found.load()
    return find_artifact(name, version).load()


_LOADING: Final = functional.step_of(load_version, {"name": "load_artifact", "cache": False})


def find_artifact(name: Any, version: Any = None) -> ArtifactVersion:
    """A version of an artifact by its name, or anything by its id."""
    client = store_client()
    try:
        if is_id(name):
            return ArtifactVersion(client.artifact(UUID(str(name)).hex))
        return ArtifactVersion(client.artifact(str(name), version=version_of(version)))
    except NotFound as error:
        raise NoSuchVersion(error.message, fix=error.fix) from None


def find_in_pipeline(name: Any, version: Any = None) -> Any:
    """A version of an artifact; in a pipeline's body, what stands for it if there is none yet."""
    try:
        return find_artifact(name, version)
    except NoSuchVersion:
        if not in_static_body():
            raise
        return MissingVersion(str(name), version)


def in_static_body() -> bool:
    """Whether the body of a pipeline runs to be planned."""
    trace = ACTIVE.get()
    return trace is not None and trace.session is None


class ExternalArtifact:
    """A value, or a version by its id or name, as an argument of a step."""

    def __init__(
        self, value: Any = None, id: Any = None, name: str | None = None, version: Any = None, **others: Any
    ) -> None:
        self.value = value
        self.id = id
        self.name = name
        self.version = version

    @property
    def of(self) -> Any:
        """What it means: the value, or the version."""
        key = self.id or self.name
        return self.value if key is None else find_in_pipeline(key, self.version)

    def load(self) -> Any:
        """The value."""
        of = self.of
        return of.load() if isinstance(of, ArtifactVersion) else of


def in_step(argument: Any) -> Any:
    """An argument of a step in a pipeline's body as Stoker binds it."""
    if isinstance(argument, ExternalArtifact):
        argument = argument.of
    if isinstance(argument, MissingVersion):
        return argument.handle()
    if isinstance(argument, ArtifactVersion):
        if not in_static_body() or not hasattr(argument.of, "version"):
            return argument.load()  # an output without a name beyond its run goes by its content
        return registry.artifact(argument.of.name, argument.of.version)
    if type(argument) in (list, tuple):
        return type(argument)(map(in_step, argument))
    if type(argument) is dict:
        return {name: in_step(value) for name, value in argument.items()}
    return argument


class Model:
    """A model, as `@pipeline(model=…)` takes it, and one version of it, as a step's context and `Client` give it."""

    def __init__(
        self, name: str = "", version: Any = None, tags: Any = None, description: str | None = None, **others: Any
    ) -> None:
        self.name = name
        self.asked = version
        self._tags = [str(getattr(tag, "name", tag)) for tag in tags or ()]
        self.description = description or ""
        self.run_id = ""
        """The run whose version is meant, if the model is that of a run."""
        self._of: Any = None

    @classmethod
    def of_version(cls, version: Any) -> Model:
        """The model of a version of Stoker's."""
        model = cls(name=version.name, version=version.version)
        model._of = version
        return model

    @property
    def of(self) -> Any:
        """Stoker's model version; `NoSuchVersion` if there is none."""
        if self._of is None:
            self._of = self._find()
        return self._of

    def _find(self) -> Any:
        client: Any = store_client()
        try:
            found = client.model(self.name, version=_model_version(self.asked))
        except NotFound as error:
            raise NoSuchVersion(error.message, fix=error.fix) from None
        if self.asked is None and self.run_id:
            return next((one for one in found.versions if self.run_id in one.run_ids), found)
        return found

    def for_pipeline(self) -> Any:
        """What a pipeline's `model=` is in Stoker; None where a stage is asked for that no version has."""
        version = None if self.asked is None else _model_version(self.asked)
        if version in ("latest", *STAGES):
            try:
                version = self.of.version
            except NoSuchVersion:
                note(f"model '{self.name}' has no version '{version}' yet: what the run makes belongs to none")
                return None
        return registry.Model(self.name, version=version, description=self.description, tags=self._tags)

    @property
    def id(self) -> str:
        """An id: the name and the number."""
        return f"{self.name}@{self.of.version}"

    @property
    def version(self) -> str:
        """The number as a text; what was asked for where there is none yet."""
        try:
            return str(self.of.version)
        except NoSuchVersion:
            return str(getattr(self.asked, "value", self.asked or ""))

    @property
    def number(self) -> int:
        """The number."""
        return int(self.of.version)

    @property
    def stage(self) -> str | None:
        """Its stage."""
        return self.of.stage or None

    @property
    def tags(self) -> list[str]:
        """Its tags."""
        return list(self._tags if self._of is None else self._of.tags)

    @property
    def run_metadata(self) -> dict[str, Any]:
        """Its metadata."""
        return dict(self.of.metadata)

    @property
    def model(self) -> Model:
        """What has the name: the version itself."""
        return self

    @property
    def data_artifacts(self) -> dict[str, dict[str, ArtifactVersion]]:
        """Its artifacts by name and version."""
        versions = map(ArtifactVersion, self.of.artifacts.values())
        return {name: {one.version: one} for name, one in zip(self.of.artifacts, versions)}

    model_artifacts = data_artifacts

    def get_artifact(self, name: str, version: Any = None) -> Any:
        """Its artifact of a name; in a pipeline's body, what stands for it if there is none yet; else None."""
        try:
            found = self.of.artifacts.get(name) if self.name else find_artifact(name, version).of
        except NoSuchVersion:
            found = None
        if found is not None:
            return ArtifactVersion(found)
        if in_static_body():
            return MissingVersion(name, version, model=self.name, model_version=self.asked)
        return None

    get_model_artifact = get_data_artifact = get_deployment_artifact = get_artifact

    def load_artifact(self, name: str, version: Any = None) -> Any:
        """The value of its artifact of a name."""
        found = self.get_artifact(name, version)
        if found is None:
            raise NoSuchVersion(f"model '{self.name}' has no artifact '{name}'", where=caller())
        return found.load()

    def set_stage(self, stage: Any, force: bool = False) -> None:
        """Give it a stage."""
        self.of.promote(str(getattr(stage, "value", stage)), force=force)
        self._of = None

    def log_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add metadata."""
        self.of.log_metadata(metadata_of(metadata))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UsageError(f"Model.{name} is not here: docs/guide/from-zenml.md has what there is", where=caller())

    def __repr__(self) -> str:
        return f"Model(name={self.name!r}, version={self.asked!r})"
