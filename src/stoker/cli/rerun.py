"""`stoker rerun RUN`: a new run with the parameters and settings of another one, changed as asked."""

from __future__ import annotations

from typing import Final

import attrs
import click

from stoker.cli.run import Unparsed
from stoker.client import Client
from stoker.core.errors import UsageError
from stoker.core.request import RunOption
from stoker.report.streams import echo
from stoker.run import commandline, rerun
from stoker.run.commandline import HELP, RUN_OPTIONS

_FROM: Final = RunOption(
    name="from",
    value="STEP",
    help="run this step and what comes after it; results of the steps before are the other run's",
)
_CODE: Final = RunOption(
    name="code", value="WHICH", help="current (default): the code as it is now; original: as it was for the other run"
)
_USAGE: Final = "Usage: stoker rerun RUN [OPTIONS] [PARAMETERS]"
_SUMMARY: Final = "Starts a new run with the parameters and settings of another one; what is given here replaces them."


@click.command("rerun", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> None:
    """Start a new run with the parameters and settings of another one, changed as asked."""
    options, rest = commandline.split(words, (_FROM, _CODE, HELP, RUN_OPTIONS[0]))
    if options.get("help") or not rest:
        echo("\n".join([_USAGE, "", f"  {_SUMMARY}", "", commandline.options_text((_FROM, _CODE, *RUN_OPTIONS))]))
        if options.get("help"):
            return
        raise UsageError("no run is named", fix="write `stoker rerun latest`, for example")
    if rest[0].startswith("-"):
        raise UsageError(f"{rest[0]} stands before the run", fix=f"write stoker rerun RUN {rest[0]} …")
    code = options.get("code", "current")
    if code not in ("current", "original"):
        raise UsageError(f"--code {code}: neither current nor original", fix="write --code original")
    client = Client(options.get("stack"))
    earlier = rerun.earlier_run(client.run(rest[0]).id, client.store)
    if code == "original":
        earlier = rerun.with_original_code(earlier, client.store)
    program, request = commandline.read(rerun.program_in(earlier), rest[1:])
    request = attrs.evolve(request, stack=options.get("stack"))
    start = options.get("from", "")
    rerun.rerun(earlier, program, request, start=start, reuse=bool(start))
