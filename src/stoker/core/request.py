"""What is asked of one run beside the pipeline itself, and the marks by which a called pipeline knows where it is.

`stoker run` sets `REQUEST`, a worker sets `WORKER`; a pipeline looks at both when it is called.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Callable, Final, Mapping

import attrs


@attrs.frozen(kw_only=True)
class RunRequest:
    """What the command line, or whoever starts a run, says about it; None and empty leave it to weaker places.

    `simulate` describes accelerators to pretend (`devices.simulate`). `parameters` override the arguments of the
    pipeline's call, and the driver applies them; texts are parsed as the command line's are. `assignments` are the
    texts of `--set`, `attached` those of `--with`, `environment` is that of `--environment`, `run_file` is the path of
    `--config`. `again` names steps that a resumed run is to run once more,
    also where they went well. `began` is called with the run's id when the run begins. `detach`: the run goes on by
    itself, with a driver elsewhere.
    """

    stack: str | None = None
    parameters: Mapping[str, Any] = attrs.field(factory=dict)
    cache: bool | None = None
    debug: bool = False
    simulate: str | None = None
    quiet: bool = False
    run_file: str | None = None
    assignments: tuple[str, ...] = ()
    attached: tuple[str, ...] = ()
    environment: str | None = None
    tags: tuple[str, ...] = ()
    name: str | None = None
    only_plan: bool = False
    again: tuple[str, ...] = ()
    detach: bool = False
    began: Callable[[str], None] | None = None


@attrs.frozen(kw_only=True)
class RunOption:
    """An option on a command line that starts runs, such as `--stack NAME`."""

    name: str
    """As it is written, without the dashes."""
    help: str
    """What it does, in the words of `--help`."""
    value: str = ""
    """What its value is called in the help; empty for a flag."""
    many: bool = False
    """Whether it may be given again; its value is a list then."""
    apply: Callable[[RunRequest, Any], RunRequest] | None = None
    """What it makes of a request; None where whoever offers the option looks at it itself."""
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
