"""`stoker resume RUN`: what the run finished is kept, the rest runs."""

from __future__ import annotations

import os

import click

from stoker.cli.options import run_argument
from stoker.cli.output import say
from stoker.client import Client
from stoker.core.errors import NotFound
from stoker.core.request import RunRequest
from stoker.run import detaching, driver


@click.command("resume")
@run_argument
@click.option("--stack", metavar="NAME", help="Whose store to look into, and where to run.")
@click.option("--config", "run_file", metavar="FILE", help="A YAML file with settings.")
@click.option("--set", "assignments", metavar="KEY=VALUE", multiple=True, help="A setting; may be given again.")
@click.option("--no-cache", is_flag=True, help="Run every step that is left, also those whose results are known.")
@click.option("--debug", is_flag=True, help="Run every step in this process, one by one.")
@click.option("--simulate", metavar="DEVICES", help='Pretend that this machine has "4xH100-80GB,1xA10", for example.')
@click.option("--quiet", is_flag=True, help="Show the summary only.")
def command(
    *,
    run_id: str,
    stack: str | None,
    run_file: str | None,
    assignments: tuple[str, ...],
    no_cache: bool,
    debug: bool,
    simulate: str | None,
    quiet: bool,
) -> None:
    """Go on with a run where it stopped, with the code as it is now."""
    request = RunRequest(
        stack=stack,
        run_file=run_file,
        assignments=assignments,
        cache=False if no_cache else None,
        debug=debug,
        simulate=simulate,
        quiet=quiet,
    )
    token = os.environ.pop(detaching.TOKEN, "")  # nobody whom this process starts is a run's driver
    try:
        run = driver.resume(Client(stack).run(run_id).id, request, token=token)
    except NotFound:
        if not token:
            raise
        say(f"run {run_id} is not there any more: nothing is left to do")
        return
    if token and run.status != "succeeded":
        say(f"run {run.id} is {run.status}: somebody was first, and nothing is left to do")
