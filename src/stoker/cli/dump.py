"""`stoker dump RUN STEP`: where the Python code of a running step stands, in all of its ranks."""

from __future__ import annotations

import click

from stoker.cli.options import run_argument, stack_option
from stoker.client import Client
from stoker.report.streams import echo


@click.command("dump")
@run_argument
@click.argument("step")
@stack_option
def command(*, run_id: str, step: str, client: Client) -> None:
    """Print where a running step stands: the stacks of all threads of its process, or of each rank.

    py-spy prints them where it is installed and permitted; otherwise the process does it itself. The step goes on.
    """
    from stoker.run import beside

    echo(beside.dump(beside.reach(client, run_id, step), rank=None).rstrip())
