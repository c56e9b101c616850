"""`stoker cancel RUN`: ask the run's driver, on whichever machine it is, to stop the run."""

from __future__ import annotations

import click

from stoker.cli.options import run_argument, stack_option
from stoker.cli.output import say
from stoker.client import Client


@click.command("cancel")
@run_argument
@click.option("--now", is_flag=True, help="Without giving steps time to leave.")
@stack_option
def command(*, run_id: str, now: bool, client: Client) -> None:
    """Ask a run to stop.

    Its driver looks for this every second, asks the steps that run to end, and ends them after a while; with --now at
    once. A run that is over already is fine.
    """
    run = client.run(run_id)
    if not run.cancel(now):
        say(f"run {run.id} does not run any more: {run.refresh().status}")
    elif run.awaits and run.refresh().status == "cancelled":
        say(f"run {run.id} is cancelled: its driver had not begun")
    else:
        say(f"run {run.id} is asked to stop{' now' if now else ''}")
