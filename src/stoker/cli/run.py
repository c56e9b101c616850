"""`stoker run FILE`: run the file as `python FILE` does, with the command line for its pipeline."""

from __future__ import annotations

from typing import Any, Final

import click

from stoker.cli import target as targets
from stoker.core.errors import UsageError
from stoker.core.request import RunOption
from stoker.report.streams import echo
from stoker.run import commandline, start
from stoker.run.commandline import HELP, RUN_OPTIONS, CommandLine

OPTIONS: Final = (RunOption(name="pipeline", value="NAME", help="which pipeline of the file; also FILE:NAME"),)
USAGE: Final = "[OPTIONS] FILE[:PIPELINE] [PARAMETERS]"


class Unparsed(click.Command):
    """A command whose words are not parsed by click: the pipeline's signature decides which are options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words unparsed."""
        ctx.params["words"] = list(args)
        ctx.args = []
        return []


def command_line(
    words: list[str], extra: tuple[RunOption, ...]
) -> tuple[targets.ProgramFile | None, CommandLine, dict[str, Any]]:
    """(the file, None if none is named; the command line for its program; the command's own options)."""
    options, rest = commandline.split(words, (*extra, HELP))
    before, rest = _before_the_file(rest)
    if rest and rest[0].startswith("-"):
        pipeline = next((word for word in rest if word.endswith(".py")), "FILE")
        raise UsageError(f"{rest[0]} stands before the file", fix=f"write {pipeline} {rest[0]} …")
    pipeline = options.get("pipeline", "")
    if not rest:
        if pipeline or not options.get("help"):
            name = click.get_current_context().info_name or "run"
            raise UsageError("no file is named", fix=f"write `stoker {name} train.py`, for example")
        return None, CommandLine(), options
    target = targets.parse(rest[0], pipeline)
    return target, CommandLine(words=[*before, *rest[1:]], before=len(before), wanted=target.pipeline), options


def _before_the_file(words: list[str]) -> tuple[list[str], list[str]]:
    """Split the words into the run's options before the file, and the rest."""
    options = {option.flag: option for option in RUN_OPTIONS}
    position = 0
    while position < len(words):
        flag, equals, _ = words[position].partition("=")
        option = options.get(flag.replace("_", "-"))
        if option is None:
            break
        position += 2 if option.value and not equals else 1
    return words[:position], words[position:]


def help_for(target: targets.ProgramFile | None, verb: str, extra: tuple[RunOption, ...], summary: str) -> str:
    """The help of a command that takes a file; with a file, also the help of its pipeline."""
    if target is None:
        options = commandline.options_text((*extra, *RUN_OPTIONS, HELP))
        return "\n".join([f"Usage: stoker {verb} {USAGE}", "", f"  {summary}", "", options])
    program = targets.choose(targets.load(target), target)
    return commandline.help_text(program, f"stoker {verb} {target.text}", extra)


@click.command("run", cls=Unparsed, add_help_option=False)
def command(words: list[str]) -> None:
    """Run a pipeline of a file, as `python FILE` would."""
    target, line, options = command_line(words, OPTIONS)
    if target is None or options.get("help"):
        summary = "Runs a pipeline; `stoker run FILE --help` lists its parameters."
        echo(help_for(target, "run", OPTIONS, summary))
        return
    with targets.execute(target, line) as main:
        if not line.calls:
            program, request = line.read(targets.choose(main, target), {})
            start.run(program, {}, request)
