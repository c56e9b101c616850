"""`stoker completion SHELL`, and what a shell's completion offers: commands, options, runs, stacks, backends, files.

click asks and answers; its script calls `stoker` on each Tab, with a variable that says so. Names of commands come from
the table, and nothing of a command is imported before its name is complete.
"""

from __future__ import annotations

from typing import Callable, Final, Iterable

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

from stoker.core.errors import StokerError
from stoker.core.request import RunOption
from stoker.report.streams import echo

SHELLS: Final = ("bash", "zsh", "fish")
_MOST: Final = 20
"""Runs that are offered, the newest first."""
_INTO: Final = {
    "bash": 'eval "$(stoker completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(stoker completion zsh)" in ~/.zshrc',
    "fish": "stoker completion fish > ~/.config/fish/completions/stoker.fish",
}


@click.command("completion", epilog="; ".join(_INTO.values()))
@click.argument("shell", type=click.Choice(SHELLS))
def command(*, shell: str) -> None:
    """Print the script by which a shell completes stoker's commands."""
    kind = get_completion_class(shell)
    assert kind is not None
    # Not the class's own method, which starts a shell to ask for its version.
    echo(ShellComplete.source(kind(click.Command("stoker"), {}, "stoker", "_STOKER_COMPLETE")))


def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest runs."""
    from stoker.client import Client

    try:
        found = Client(ctx.params.get("stack")).runs(limit=_MOST)
    except StokerError:
        return []
    items = [CompletionItem(run.id, help=f"{run.pipeline} {run.status}") for run in found]
    return _beginning([CompletionItem("latest", help="the newest run"), *items], incomplete)


def stacks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The known stacks."""
    return stack_names(incomplete)


def stack_names(incomplete: str) -> list[CompletionItem]:
    """The names of the known stacks that begin so."""
    from stoker import stacks as known

    try:
        return _beginning(
            [CompletionItem(one.name, help=one.orchestrator.flavor) for one in known.stacks()], incomplete
        )
    except StokerError:
        return []


def backends(incomplete: str) -> list[CompletionItem]:
    """The backends that begin so."""
    from stoker.backends.registry import BACKENDS

    return _beginning(map(CompletionItem, BACKENDS.names()), incomplete)


_VALUES: Final[dict[str, Callable[[str], list[CompletionItem]]]] = {"--stack": stack_names, "--with": backends}
"""Option of a run → what completes its value."""


def file_command(name: str) -> click.Command | None:
    """What stands for a command that takes FILE; None for any other command."""
    from stoker.cli.target import FILE_COMMANDS
    from stoker.run.commandline import RUN_OPTIONS

    return FileCommand(name, (*FILE_COMMANDS[name], *RUN_OPTIONS)) if name in FILE_COMMANDS else None


class FileCommand(click.Command):
    """Stands for a command that takes FILE and a run's options, which click does not parse, while it is completed."""

    def __init__(self, name: str, options: Iterable[RunOption]) -> None:
        super().__init__(name, add_help_option=False)
        self.run_options = tuple(options)
        self.words: list[str] = []

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words, of which the last says what comes."""
        self.words = list(args)
        ctx.args = []
        return []

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Options, the values of some, and files."""
        before = self.words[-1] if self.words else ""
        if before in _VALUES:
            return _VALUES[before](incomplete)
        if incomplete.startswith("-"):
            flags = [CompletionItem(one.flag, help=one.help) for one in self.run_options]
            return _beginning([*flags, CompletionItem("--help")], incomplete)
        return [CompletionItem(incomplete, type="file")]


def _beginning(items: Iterable[CompletionItem], incomplete: str) -> list[CompletionItem]:
    return [item for item in items if item.value.startswith(incomplete)]
