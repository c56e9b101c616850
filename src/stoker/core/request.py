"""What is asked of one run beside the pipeline itself, and the marks that tell a called pipeline where it is.

`stoker run` sets `REQUEST`, a worker sets `WORKER`; a pipeline looks at both when it is called.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core.values import frozen


@frozen(kw_only=True)
class RunRequest:
    """What the command line, or another caller, asks of one run; None and empty values leave it to weaker layers."""

    stack: str | None = None
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    """Arguments that replace those of the pipeline's call; texts are parsed as on the command line."""
    cache: bool | None = None
    debug: bool = False
    simulate: str | None = None
    """Accelerators to simulate (`devices.probe`)."""
    quiet: bool = False
    run_file: str | None = None
    """The path of `--config`."""
    assignments: tuple[str, ...] = ()
    """The texts of `--set`."""
    attached: tuple[str, ...] = ()
    """The texts of `--with`."""
    environment: str | None = None
    """The text of `--environment`."""
    tags: tuple[str, ...] = ()
    id: str = ""
    """The id that the run gets; empty for one that is drawn."""
    name: str | None = None
    upgrade: bool = False
    """Whether the newest packages are looked for, although there is a lock."""
    offline: bool = False
    """Whether the plan asks nothing: no index, no registry, no cluster, no cloud."""
    detach: bool = False
    """Whether the run goes on with a driver elsewhere."""
    began: Callable[[str], None] | None = None
    """Called with the run's id when the run begins."""

    def document(self, *, stack: str, run_file: str) -> dict[str, Any]:
        """What a later run needs to be asked for the same, as JSON; `run_file` is the text of the run file."""
        words = {
            "stack": stack,
            "run_file": run_file,
            "assignments": list(self.assignments),
            "attached": list(self.attached),
            "environment": self.environment,
            "simulate": self.simulate,
            "tags": list(self.tags),
            "name": self.name,
            "no_cache": self.cache is False,
        }
        return {name: value for name, value in words.items() if value}

    def merge_over(self, document: Mapping[str, Any], *, run_file: str | None) -> RunRequest:
        """This request with what it does not say from the document of an earlier one.

        `run_file` is the path of a file with the text of the earlier run file. Assignments of both count, these last.
        """
        return attrs.evolve(
            self,
            stack=self.stack or document.get("stack"),
            run_file=self.run_file or run_file,
            assignments=(*document.get("assignments", ()), *self.assignments),
            attached=self.attached or tuple(document.get("attached", ())),
            environment=self.environment or document.get("environment"),
            simulate=self.simulate or document.get("simulate"),
            tags=(*document.get("tags", ()), *self.tags),
            name=self.name or document.get("name"),
        )


@frozen(kw_only=True)
class RunOption:
    """An option on a command line that starts runs, such as `--stack NAME`."""

    name: str
    """As it is written, without the dashes."""
    help: str
    """What it does, in the words of `--help`."""
    value: str = ""
    """What its value is called in the help; empty for a flag."""
    optional: bool = False
    """Whether it may be given without its value, which then follows an equals sign only."""
    many: bool = False
    """Whether it may be given again; its value is a list then."""
    apply: Callable[[RunRequest, Any], RunRequest] | None = None
    """Changes a request by the option's value; None where the command that has the option reads it."""
    pair: Callable[[str], bool] | None = None
    """Whether a second word follows this first one: `--config NAME FILE` is then the same as `--config NAME=FILE`."""

    @property
    def flag(self) -> str:
        """As it is written: "--no-cache"."""
        return "--" + self.name


REQUEST: Final[ContextVar[RunRequest | None]] = ContextVar("stoker_request", default=None)
"""The request that a pipeline uses when the user's own code calls it."""

WORKER = False
"""A worker is importing the user's module: a pipeline that is called now must not start a run."""


class NotTheDriver(BaseException):
    """A pipeline was called while a worker imported its module; ends the import where the call stands.

    No `Exception`, so that a user's `except Exception` around the call does not swallow it.
    """
