"""`stoker watch RUN`: a run as its own terminal shows it, from another one."""

from __future__ import annotations

import sys
from typing import Final

import click

from stoker.cli.options import run_argument, stack_option
from stoker.client import Client
from stoker.core.errors import EXIT_FAILED, EXIT_INTERRUPTED
from stoker.report.streams import echo, say

EXIT_CODES: Final = {"succeeded": 0, "cancelled": EXIT_INTERRUPTED}
"""The run's status → the command's exit code; of any other that of a failed step."""


@click.command("watch")
@run_argument
@stack_option
def command(*, run_id: str, client: Client) -> int:
    """Show a run as it goes on.

    The view is the one of the terminal that the run was started in; a detached run has one in this way. It shows what
    steps write from now on (`stoker logs` has all). In a pipe it is a line for each change. Ctrl-C leaves the run
    alone. The exit code is that of the run: 0 if it succeeded, 1 if not, 130 if it was cancelled.
    """
    from stoker.cli.show import run_lines
    from stoker.report.following import RunWatch
    from stoker.report.terminal import Terminal

    run = client.run(run_id)
    if run.find_lost_driver() or (run.status != "running" and not run.restarted_by):
        echo("\n".join(run_lines(run, elements=False)))
        return EXIT_CODES.get(run.status, EXIT_FAILED)
    terminal = Terminal(sys.stdout)
    watch = RunWatch(client.store, run, terminal)
    try:
        watch.begin()
        status = watch.follow()
    except KeyboardInterrupt:
        terminal.leave_terminal()
        say(f"\nrun {run.id} goes on: `stoker watch {run.id}` shows it again, `stoker cancel {run.id}` ends it")
        return EXIT_INTERRUPTED
    terminal.ended(status)
    if status == "interrupted":
        say(f"the driver of run {run.id} is gone: `stoker resume {run.id}` goes on with what was done")
    return EXIT_CODES.get(status, EXIT_FAILED)
