"""`stoker acme-hello`: a command of ours beside Stoker's."""

from __future__ import annotations

import click


@click.command("acme-hello")
@click.option("--name", default="world", help="Who is greeted.")
def command(*, name: str) -> int:
    """Greet somebody."""
    click.echo(f"Acme greets {name}")
    return 0
