"""`stoker resume RUN`: run the steps that a run has not finished."""

from __future__ import annotations

import os
import signal
from typing import Any, Final

import click

from stoker.backends.base.backend import RESTARTED_BY
from stoker.cli.options import run_argument
from stoker.client import Client
from stoker.core.errors import NotFound
from stoker.core.request import RunRequest
from stoker.report.streams import say
from stoker.run import detaching, driver
from stoker.run.commandline import RUN_OPTIONS, apply_run_options
from stoker.run.detaching import Detachment

_OPTIONS: Final = tuple(
    option
    for option in RUN_OPTIONS
    if option.name in ("stack", "config", "set", "no-cache", "debug", "simulate", "quiet")
)
"""The options of every run that a run takes which goes on."""


def _run_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        help = f"{option.help[:1].upper()}{option.help[1:]}{'; may be given again' if option.many else ''}."
        command = click.option(
            option.flag, metavar=option.value or None, is_flag=not option.value, multiple=option.many, help=help
        )(command)
    return command


@click.command("resume")
@run_argument
@_run_options
def command(*, run_id: str, **given: Any) -> None:
    """Go on with a run where it stopped, with the code of its steps as it is now.

    What `@step(…)` says of them counts as it was when the run began; change it with --set. `stoker rerun` takes all of
    the program as it is now.
    """
    options = {name.replace("_", "-"): value for name, value in given.items() if value}
    request = apply_run_options(_OPTIONS, options, RunRequest())
    # Nobody whom this process starts is a run's driver.
    token, job = os.environ.pop(detaching.TOKEN, ""), os.environ.pop(RESTARTED_BY, "")
    if job:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background process ignores it
    try:
        before = Client(request.stack).run(run_id)
        if not token and before.status == "succeeded":
            say(f"run {before.id} has succeeded: nothing is left to do; `stoker rerun {before.id}` runs it once more")
        run = driver.resume(before.id, request, detachment=Detachment(token=token, job=job))
    except NotFound:
        if not token:
            raise
        say(f"run {run_id} is not there any more: nothing is left to do")
        return
    if token and run.status != "succeeded":
        say(f"run {run.id} is {run.status}: somebody was first, and nothing is left to do")
