"""`stoker forward RUN STEP PORT`: a port of a running step's place, as one of this machine."""

from __future__ import annotations

import click

from stoker.cli.options import run_argument, stack_option
from stoker.client import Client
from stoker.core.errors import EXIT_INTERRUPTED
from stoker.report.streams import echo, say


@click.command("forward")
@run_argument
@click.argument("step")
@click.argument("port", type=click.IntRange(1, 65535))
@click.option("--local", type=click.IntRange(0, 65535), help="The port of this machine, not the same; 0: any free one.")
@click.option("--rank", type=click.IntRange(min=0), help="Of a distributed step: this process's place, not rank 0's.")
@stack_option
def command(*, run_id: str, step: str, port: int, local: int | None, rank: int | None, client: Client) -> int:
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
