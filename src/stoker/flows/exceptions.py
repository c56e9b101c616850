"""Errors of the class form by Metaflow's names, as `stoker.flow.exception` has them; each is a `StokerError`, too.

`headline` is the kind of the error in a few words, as Metaflow's command line writes it above the message.
"""

from __future__ import annotations

import traceback
from typing import Any, Final, Iterable, Mapping

from stoker.core.errors import EXIT_FAILED, NotFound, ParameterError, StokerError, UsageError
from stoker.core.graph import CaughtFailure
from stoker.core.status import TIMED_OUT

MetaflowExceptionWrapper: Final = CaughtFailure
"""What a task's `exception` is: the exception's `type`, what it said as `exception`, and its `stacktrace`."""


class MetaflowException(StokerError):
    """The base of Metaflow's errors, and of those that flows define themselves."""

    exit_code = EXIT_FAILED
    headline = "Flow failed"

    def __init__(
        self, msg: str = "", lineno: int | None = None, source_file: str | None = None, *, fix: str = ""
    ) -> None:
        line = "" if not lineno else str(lineno) if source_file else f"line {lineno}"
        super().__init__(str(msg), where=":".join(part for part in (source_file or "", line) if part), fix=fix)
        self.line_no = lineno
        self.source_file = source_file


class ParameterFieldFailed(ParameterError, MetaflowException):
    """A function that is a parameter's default or another field of it raised an exception; it is raised from that."""

    headline = "Parameter field failed"

    def __init__(self, name: str, field: str) -> None:
        MetaflowException.__init__(
            self, f"parameter '{name}': computing its {field} failed:\n\n{traceback.format_exc()}"
        )


class ParameterFieldTypeMismatch(ParameterError, MetaflowException):
    """A field of a parameter is of another type than it has to be."""

    headline = "Parameter field with a mismatching type"


class ExternalCommandFailed(MetaflowException):
    """A program that was called failed."""

    headline = "External command failed"


class MetaflowNotFound(NotFound, MetaflowException):
    """There is no flow, run, step, task or artifact of this name."""

    headline = "Object not found"


class MetaflowNamespaceMismatch(NotFound, MetaflowException):
    """What was asked for is there, in another namespace."""

    headline = "Object not in the current namespace"

    def __init__(self, namespace: str | None, what: str = "it") -> None:
        MetaflowException.__init__(
            self,
            f"{what} is not in namespace '{namespace}'",
            fix="namespace(None) looks everywhere, or name another",
        )


class MetaflowInvalidPathspec(UsageError, MetaflowException):
    """A path has too few or too many names."""

    headline = "Invalid pathspec"


class MetaflowInternalError(MetaflowException):
    """What cannot happen did."""

    headline = "Internal error"


class MetaflowTaggingError(UsageError, MetaflowException):
    """Tags that a run cannot have, or that it keeps."""

    headline = "Tagging error"


class MetaflowUnknownUser(MetaflowException):
    """The system has no name for the user."""

    headline = "Unknown user"

    def __init__(self) -> None:
        super().__init__("the name of the user is not known, and neither METAFLOW_USER nor STOKER_USER says it")


class InvalidDecoratorAttribute(UsageError, MetaflowException):
    """A decorator has no such option."""

    headline = "Unknown decorator attribute"

    def __init__(self, deconame: str, attr: str, defaults: Iterable[str]) -> None:
        MetaflowException.__init__(self, f"@{deconame} has no option '{attr}' (known: {', '.join(defaults)})")


class CommandException(UsageError, MetaflowException):
    """A command of a flow's command line cannot be carried out as it is written."""

    headline = "Invalid command"


class MetaflowDataMissing(MetaflowException):
    """Data that a task needs is not there."""

    headline = "Data missing"


class _InMerge(ParameterError, MetaflowException):
    """What `merge_artifacts` cannot merge; `artifact_names` has which."""

    def __init__(self, msg: str, unhandled: Iterable[str], *, where: str = "", fix: str = "") -> None:
        MetaflowException.__init__(self, msg, fix=fix)
        self.where = where
        self.artifact_names = list(unhandled)


class UnhandledInMergeArtifactsException(_InMerge):
    """Inputs differ in artifacts that the join neither set nor excluded; `artifact_names` has which."""

    headline = "Unhandled artifacts in merge"


class MissingInMergeArtifactsException(_InMerge):
    """Artifacts that were to be merged are in no input; `artifact_names` has which."""

    headline = "Missing artifacts in merge"


class CardNotPresentException(NotFound, MetaflowException):
    """A task has no such card."""

    headline = "Card not found in datastore"

    def __init__(
        self,
        pathspec: str,
        card_type: str | None = None,
        card_hash: str | None = None,
        card_id: str | None = None,
    ) -> None:
        wanted = {"id": card_id, "type": card_type, "hash": card_hash}
        words = [f"{name} '{value}'" for name, value in wanted.items() if value is not None]
        asked = f" with {' and '.join(words)}" if words else ""
        MetaflowException.__init__(self, f"{self.headline}: {pathspec} has no card{asked}")


class TimeoutException(MetaflowException):
    """A step ran longer than its `@timeout`."""

    headline = "@timeout"


class FailureHandledByCatch(MetaflowException):
    """A step's process was killed, so that `@catch` has no exception of the step's to keep."""

    headline = "Task execution failed but @catch handled it"


_TIMEOUT: Final = "metaflow.plugins.timeout_decorator.TimeoutException"
"""Metaflow's type of what a `@timeout` raises."""
_HANDLED: Final = "metaflow.plugins.catch_decorator.FailureHandledByCatch"
"""Metaflow's type of what is caught where nothing was raised: the process was killed."""


def failure_of(facts: Mapping[str, Any], step: str, *, caught: bool = False) -> CaughtFailure:
    """The failure of an attempt, from what is kept of it; its type is called as Metaflow calls it."""
    error = facts.get("error") or {}
    cause = str(facts.get("cause", ""))
    name = _TIMEOUT if cause == TIMED_OUT else str(error.get("type", ""))
    message = str(facts.get("message", "") if cause == TIMED_OUT or not name else error.get("message"))
    short = name.rpartition(".")[2]  # stands before what a KeyError says, and where an exception says nothing
    message = "" if message == short else message.removeprefix(f"{short}: ")
    if name.startswith(f"{__name__}."):
        name = f"metaflow.exception{name[len(__name__) :]}"
    elif name and "." not in name:
        name = f"builtins.{name}"
    return CaughtFailure(
        step=step,
        cause=cause,
        type=name or (_HANDLED if caught else ""),
        message=message,
        traceback=str(error.get("traceback", "")),
    )


class MetaflowS3Exception(MetaflowException):
    """An object store could not be reached, or did not do what it was asked for."""

    headline = "S3 access failed"


class MetaflowS3NotFound(MetaflowS3Exception):
    """There is no such object."""

    headline = "S3 object not found"


class MetaflowS3AccessDenied(MetaflowS3Exception):
    """The credentials do not allow it."""

    headline = "S3 access denied"


class MetaflowS3URLException(MetaflowS3Exception):
    """An address or a key that names no place."""

    headline = "Invalid address"


class MetaflowS3InvalidObject(MetaflowS3Exception):
    """A value that is neither text nor bytes nor an open file."""

    headline = "Not a string-like object"


class MetaflowS3InvalidRange(MetaflowS3Exception):
    """A part that the object does not have."""

    headline = "S3 invalid range"


class MetaflowS3InsufficientDiskSpace(MetaflowS3Exception):
    """A disk is full."""

    headline = "Insufficient disk space"
