"""`stoker run FILE`: the file is run as `python FILE` would, and what the command line says goes to its pipeline."""

from __future__ import annotations

import importlib
from typing import Final

import click

from stoker.cli import target as targets
from stoker.core.errors import UsageError
from stoker.pipelines import arguments
from stoker.pipelines.arguments import CommandLine, RunOption
from stoker.pipelines.functional import Pipeline
from stoker.run import start

OPTIONS: Final = (RunOption(name="pipeline", value="NAME", help="which pipeline of the file; also FILE:NAME"),)
USAGE: Final = "[OPTIONS] FILE[:PIPELINE] [PARAMETERS]"


class Unparsed(click.Command):
    """A command that gets its words as they were written: which are options, the pipeline's signature decides."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Leave them."""
        ctx.params["words"] = list(args)
        ctx.args = []
        return []


def command_line(words: list[str], extra: tuple[RunOption, ...]) -> tuple[targets.Target | None, CommandLine]:
    """The file that is named, if one is, and everything else."""
    options, rest = arguments.split(words, extra)
    if rest and rest[0].startswith("-"):
        named = next((word for word in rest if word.endswith(".py")), "FILE")
        raise UsageError(f"{rest[0]} stands before the file", fix=f"write {named} {rest[0]} …")
    named = options.pop("pipeline", "")
    if not rest:
        if named or not options.get("help"):
            raise UsageError("no file is named", fix="write `stoker run train.py`, for example")
        return None, CommandLine(options=options, arguments=())
    found = targets.parse(rest[0], named)
    return found, CommandLine(options=options, arguments=rest[1:], wanted=found.pipeline)


def help_for(found: targets.Target | None, verb: str, extra: tuple[RunOption, ...], told: str) -> str:
    """The help of a command that takes a file; with a file also that of its pipeline."""
    if found is None:
        return "\n".join([f"Usage: stoker {verb} {USAGE}", "", f"  {told}", "", arguments.options_text(extra)])
    pipeline = targets.choose(targets.load(found), found)
    return arguments.help_text(pipeline, f"stoker {verb} {found.shown}", extra)


@click.command("run", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> None:
    """Run a pipeline of a file, as `python FILE` would."""
    found, line = command_line(words, OPTIONS)
    if found is None or line.options.get("help"):
        told = "Runs a pipeline; `stoker run FILE --help` lists its parameters."
        click.echo(help_for(found, "run", OPTIONS, told))
        return
    with targets.executed(found, line) as main:
        if not line.calls:
            pipeline = targets.choose(main, found)
            if not isinstance(pipeline, Pipeline):
                importlib.import_module("stoker.flows.cli").run_from_stoker(pipeline, line)
                return
            start.run(pipeline, {}, arguments.request(pipeline, line.options, line.arguments))
