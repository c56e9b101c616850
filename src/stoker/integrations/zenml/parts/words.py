"""ZenML's enums: texts by the names of their members. What an enum has that no table here lists is its name in lower
case, as most of ZenML's members are."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, Iterator, Mapping

_MEMBERS: Final[Mapping[str, str | Mapping[str, str]]] = {
    "ArtifactType": {
        "DATA_ANALYSIS": "DataAnalysisArtifact",
        "DATA": "DataArtifact",
        "MODEL": "ModelArtifact",
        "SCHEMA": "SchemaArtifact",
        "SERVICE": "ServiceArtifact",
        "STATISTICS": "StatisticsArtifact",
        "BASE": "BaseArtifact",
    },
    "ModelStages": "none staging production archived latest",
    "VisualizationType": "csv html image markdown json",
    "ExecutionStatus": "initializing provisioning failed completed running cached retrying retried stopped",
    "ExecutionMode": "fail_fast stop_on_failure continue_on_failure",
    "StackComponentType": "alerter annotator artifact_store container_registry data_validator experiment_tracker "
    "feature_store image_builder model_deployer orchestrator step_operator model_registry deployer log_store",
    "PythonPackageInstaller": "pip uv",
    "PythonEnvironmentExportMethod": "pip_freeze poetry_export",
    "LoggingLevels": {"NOTSET": "0", "ERROR": "40", "WARN": "30", "INFO": "20", "DEBUG": "10", "CRITICAL": "50"},
    "MetadataResourceTypes": "artifact_version model_version pipeline_run step_run schedule",
    "SorterOps": {"ASCENDING": "asc", "DESCENDING": "desc"},
}


class _Text(str, Enum):
    def __str__(self) -> str:
        return str(self.value)

    @classmethod
    def values(cls) -> list[str]:
        """The texts of all members."""
        return [str(member.value) for member in cls]


def __getattr__(name: str) -> Any:
    if name not in _MEMBERS:
        raise AttributeError(name)
    members = _MEMBERS[name]
    if isinstance(members, str):
        members = {word.upper(): word for word in members.split()}
    # Members are pickled by the module and the name.
    made = globals()[name] = _Text(name, dict(members), module=__name__)  # type: ignore[call-overload]
    return made


class _Word(str):
    __slots__ = ()

    @property
    def value(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        return self.upper()


class Words(type):
    """An enum that no table lists: any member in capitals is there."""

    def __getattr__(cls, name: str) -> _Word:
        if not name.isupper():
            raise AttributeError(name)
        return _Word(name.lower())

    def __call__(cls, value: str) -> _Word:
        return _Word(value)

    def __iter__(cls) -> Iterator[_Word]:
        return iter(())


class HTMLString(str):
    """A step's output that is HTML."""

    __slots__ = ()


class MarkdownString(str):
    """A step's output that is Markdown."""

    __slots__ = ()


class CSVString(str):
    """A step's output that is a table as CSV."""

    __slots__ = ()


class JSONString(str):
    """A step's output that is JSON."""

    __slots__ = ()


class Uri(str):
    """Metadata: an address."""

    __slots__ = ()


class Path(str):
    """Metadata: a path."""

    __slots__ = ()


class DType(str):
    """Metadata: the name of a data type."""

    __slots__ = ()


class StorageSize(int):
    """Metadata: a number of bytes."""
