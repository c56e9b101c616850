"""Options that several commands share."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

import click

from stoker.client import Client

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Only JSON on stdout.")(command)


def stack_option(command: F) -> F:
    """`--stack`; the command gets a `client` of the stack's store."""

    def client(ctx: click.Context, param: click.Parameter, value: str | None) -> Client:
        return Client(value)

    help_text = "Whose store to look into; the current stack's if not given."
    return click.option("--stack", "client", metavar="NAME", callback=client, help=help_text)(command)


def run_argument(command: F) -> F:
    """RUN: a run's id, the beginning of one, or "latest" or "last" for the newest run."""
    return click.argument("run_id", metavar="RUN")(command)
