"""`stoker exec RUN STEP -- COMMAND`: a command, or a shell, in the environment and the place of a running step."""

from __future__ import annotations

import click

from stoker.cli.options import run_argument, stack_option
from stoker.client import Client
from stoker.core.errors import UsageError


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_argument
@click.argument("step")
@click.option("--rank", type=click.IntRange(min=0), help="Of a distributed step: beside this process, not rank 0.")
@stack_option
@click.argument("argv", metavar="[-- COMMAND …]", nargs=-1, type=click.UNPROCESSED)
def command(*, run_id: str, step: str, rank: int | None, client: Client, argv: tuple[str, ...]) -> int:
    """Run a command beside a running step; without a command, a shell.

    It has the environment with which the step's process was started, its devices, its folder and its Python, and runs
    as a process of its own: the step goes on, and does not end it. The exit code is the command's. Steps
    are reached on this machine, in containers, in pods, in jobs of Slurm, and on clusters of SkyPilot; on Ray by
    commands that only print.
    """
    from stoker.run import beside

    # click takes options only before the first argument: those of this command may also stand before "--".
    words = list(argv)
    if words and words[0].startswith("--rank="):
        words[:1] = words[0].split("=", 1)
    if words[:1] == ["--rank"]:
        if len(words) < 2 or not words[1].isdecimal():
            raise UsageError("--rank takes the number of a process", fix=f"stoker exec {run_id} {step} --rank 0 -- …")
        rank, words = int(words[1]), words[2:]
    words = words[1:] if words[:1] == ["--"] else words
    return beside.execute(beside.reach(client, run_id, step), words, rank=rank)
