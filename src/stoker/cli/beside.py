"""`stoker exec`, `stoker dump` and `stoker forward`: what a person does beside a running step."""

from __future__ import annotations

import click

from stoker.cli.output import run_argument, stack_option
from stoker.client import Client
from stoker.core.errors import EXIT_INTERRUPTED, UsageError
from stoker.report.streams import echo, say


@click.command("dump")
@run_argument
@click.argument("step")
@stack_option
def dump(*, run_id: str, step: str, client: Client) -> None:
    """Print where a running step stands: the stacks of all threads of its process, or of each rank.

    py-spy prints them where it is installed and permitted; otherwise the process does it itself. The step goes on.
    """
    from stoker.run import beside

    echo(beside.dump(beside.reach(client, run_id, step), rank=None).rstrip())


@click.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@run_argument
@click.argument("step")
@click.option("--rank", type=click.IntRange(min=0), help="Of a distributed step: beside this process, not rank 0.")
@stack_option
@click.argument("argv", metavar="[-- COMMAND …]", nargs=-1, type=click.UNPROCESSED)
def execute(*, run_id: str, step: str, rank: int | None, client: Client, argv: tuple[str, ...]) -> int:
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


@click.command("forward")
@run_argument
@click.argument("step")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--local", type=click.IntRange(0, 65535), help="The port of this machine, not the same; 0: any free one.")
@click.option("--rank", type=click.IntRange(min=0), help="Of a distributed step: this process's place, not rank 0's.")
@stack_option
def forward(*, run_id: str, step: str, port: int, local: int | None, rank: int | None, client: Client) -> int:
    """Reach a port at which a running step listens, such as TensorBoard's or a debugger's.

    It listens at 127.0.0.1 until Ctrl-C, and prints the address. The step must listen at its own 127.0.0.1, or at all
    addresses.
    """
    from stoker.run import beside

    reached = beside.reach(client, run_id, step)

    def ready(number: int) -> None:
        echo(f"127.0.0.1:{number}")
        say(f"port {port} of {step} is port {number} of this machine, until Ctrl-C")

    try:
        beside.forward(reached, port, local=port if local is None else local, rank=rank, ready=ready)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0
