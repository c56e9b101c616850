"""Every error that Stoker raises; the type says what to do next, the message what happened and how to fix it.

    StokerError
    ├─ UsageError                 fix the call, the file or the setting        exit code 2
    │  ├─ SettingsError           a field, a key or a value of a setting
    │  ├─ GraphError              steps put together in a way that cannot run
    │  ├─ ParameterError          a pipeline's or step's argument
    │  ├─ SourceError             a function that a worker could not import
    │  ├─ UntrustedArtifact       another user's value that could run code when it is loaded
    │  └─ NotFound                no such run, step, artifact, stack
    ├─ PreflightError             the plan's findings refuse the run           exit code 3
    ├─ RunFailed                  a step failed                                exit code 1
    ├─ RunCancelled               the run was stopped                       exit code 130
    └─ InfrastructureError        what Stoker depends on failed                 exit code 4
       ├─ StoreError              database or artifacts; also a store of a newer version
       │  ├─ DamagedArtifact      an artifact's bytes are lost, cut short or changed
       │  └─ DatabaseUnreachable  the database's server does not answer now; it may later
       ├─ SerializationError      a value that cannot be kept
       ├─ BackendError            a platform refused or vanished
       │  ├─ Away                 it does not answer now; the call may be repeated
       │  └─ DiskFull             the disk where its files lie is full
       └─ MissingPackage          an optional package is needed

Knows nothing of how an error is shown: the command line and the notebook do that.
"""

from __future__ import annotations

import sys
from typing import Any, Iterable

from stoker.core.words import bounded

EXIT_SUCCEEDED = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_PREFLIGHT = 3
EXIT_INFRASTRUCTURE = 4
EXIT_INTERRUPTED = 130


_NAME_LIMIT = 100
"""Characters of a name that is compared with others, which takes the product of their lengths."""
_PLACE_LIMIT = 1000
"""Characters of a place or a fix; more is an input that was repeated whole."""


class StokerError(Exception):
    """What happened, where, why, and what to do about it; `str()` is the whole text for a person.

    Each of the three is bounded: an input of megabytes makes no message of megabytes.
    """

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        self.message = bounded(message)
        self.where = bounded(where, _PLACE_LIMIT)
        self.fix = bounded(fix, _PLACE_LIMIT)
        super().__init__(self.message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  fix: {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword arguments would be lost by the default, which repeats `args` only.
        return (_rebuilt, (type(self), self.args, self.__dict__.copy()))


def _rebuilt(kind: type[StokerError], args: tuple[Any, ...], state: dict[str, Any]) -> StokerError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error


class UsageError(StokerError):
    """The person's code, file or command line must change."""

    exit_code = EXIT_USAGE


class SettingsError(UsageError):
    """A setting's name or value is not one that Stoker can honour."""


class GraphError(UsageError):
    """The steps as called do not make a graph that can run."""


class ParameterError(UsageError):
    """An argument is missing, unknown or of the wrong type."""


class SourceError(UsageError):
    """A step's function cannot be found again by a worker process."""


class RefusedName(UsageError, ImportError):
    """A name of another system that is imported from Stoker, which does not have it; the message says what it has."""


def absent(message: str, *, above: int = 1) -> Exception:
    """What a module's `__getattr__` raises for a name that it does not have.

    `from module import name` makes other words of an `AttributeError`, and whoever looks through all modules, as pickle
    does, catches nothing else. `above` is how many calls stand between this one and the module's caller.
    """
    importing = sys._getframe(above + 1).f_code.co_name == "_handle_fromlist"
    return RefusedName(message) if importing else AttributeError(message)


class NotFound(UsageError):
    """The named run, step, output or stack does not exist; the message names the nearest."""


class PromotionRefused(UsageError):
    """A version of a model does not fulfil the rules of the stage that it was to get."""


class PreflightError(StokerError):
    """The plan was refused before anything ran; `findings` holds every reason."""

    exit_code = EXIT_PREFLIGHT

    def __init__(self, message: str, *, findings: Iterable[Any] = (), where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.findings = tuple(findings)


class RunFailed(StokerError):
    """At least one step of the run failed; `run` is its client object, with attempts and logs."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, run: Any = None, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.run = run

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (type(self), self.args, {**self.__dict__, "run": None}))


class RunCancelled(RunFailed):
    """The run was stopped by a person or a signal before its end."""

    exit_code = EXIT_INTERRUPTED


class InfrastructureError(StokerError):
    """Not the user's code: the store, a platform or a package."""


class UntrustedArtifact(UsageError):
    """A value of another user's store that could run any code when it is loaded."""


class StoreError(InfrastructureError):
    """The database or the artifact store cannot be read or written."""


class DamagedArtifact(StoreError):
    """An artifact's bytes are lost, cut short, or not the ones that its digest names; `digest` says which it is."""

    cause = "damaged-input"

    def __init__(self, message: str, *, digest: str, where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.digest = digest


class DatabaseUnreachable(StoreError):
    """The server of the database does not answer, or closed the connection; nothing is known of the last statement."""


class SerializationError(InfrastructureError):
    """A value cannot be saved, or a saved one cannot be loaded here."""

    exit_code = EXIT_FAILED


class BackendError(InfrastructureError):
    """A platform refused a request or no longer answers."""


class Away(BackendError):
    """A platform or another machine does not answer now; the call may be repeated."""

    def __init__(self, message: str, *, where: str = "", fix: str = "", lasting: bool = False) -> None:
        super().__init__(message, where=where, fix=fix)
        self.lasting = lasting
        """Whether it will not answer either until a person changes something, such as a key that is refused."""


class DiskFull(BackendError):
    """The disk where a platform's files lie is full, or a quota on it is used up."""


class MissingPackage(InfrastructureError):
    """An optional package is needed; the fix names the extra that brings it."""


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """`", did you mean 'x'?"` for the nearest known name; empty where none is near. For words that list them anyway."""
    import difflib

    name = name[:_NAME_LIMIT] if isinstance(name, str) else ""
    lowered = {candidate.lower(): candidate for candidate in sorted(set(known))}
    close = difflib.get_close_matches(name.lower(), lowered, n=2, cutoff=0.6)
    return ", did you mean " + " or ".join(f"'{lowered[match]}'" for match in close) + "?" if close else ""


def nearest(name: object, known: Iterable[str]) -> str:
    """`", did you mean 'x'?"` for the nearest known name, or the list of known names.

    What is no text is near to none.
    """
    names = sorted(set(known))
    hint = did_you_mean(name, names)
    if hint or not names:
        return hint
    listed = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    return f" (known: {listed})"
