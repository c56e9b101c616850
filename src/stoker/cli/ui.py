"""`stoker ui`: the runs of a store in a browser."""

from __future__ import annotations

import importlib
import os
import secrets
from typing import Any, Final

import click

from stoker import stacks
from stoker.client import Client
from stoker.core.errors import MissingPackage
from stoker.report.streams import say

TOKEN: Final = "STOKER_UI_TOKEN"
"""The variable with the token that browsers must show."""
_PACKAGES: Final = frozenset({"starlette", "uvicorn", "jinja2"})


@click.command("ui")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7480, show_default=True, help="0 is any free port.")
@click.option("--token", is_flag=True, help=f"Ask browsers for a token: that of {TOKEN}, or a new one.")
@click.option("--user-header", metavar="NAME", default="", help="A reverse proxy lets users in, and names them in it.")
@click.option(
    "--proxy", "proxies", metavar="ADDRESS", multiple=True, help="Where that proxy is, if not on this machine."
)
@click.option("--read-only", is_flag=True, help="Nothing can be cancelled, resumed or started.")
@click.option("--stack", metavar="NAME", help="Whose store to show; the current stack's if not given.")
@click.option("--no-open", is_flag=True, help="Open no browser.")
def command(
    *,
    host: str,
    port: int,
    token: bool,
    user_header: str,
    proxies: tuple[str, ...],
    read_only: bool,
    stack: str | None,
    no_open: bool,
) -> None:
    """Show the runs of a store in a browser: lists, graphs, live logs, metrics, devices, comparisons.

    Without --token, and without a reverse proxy, it listens on this machine alone and answers only its own user. The
    address is printed; Ctrl-C ends it, and no run with it.
    """
    pages = _pages()
    given = os.environ.get(TOKEN, "")
    shared = given or (secrets.token_hex(16) if token else "")
    access = importlib.import_module("stoker.ui.access").PageAccess(
        host=host,
        token=shared,
        user_header=user_header,
        proxies=proxies or ("127.0.0.1", "::1"),
        read_only=read_only,
    )

    def tell(address: str) -> None:
        say(f"Stoker is at {address}  (Ctrl-C ends it)")
        if not no_open:
            _open(address)

    client = Client(stack)
    try:
        pages.serve(client, access, port=port, stack=stack, stack_name=stacks.load(stack).name, tell=tell)
    finally:
        client.close()


def _pages() -> Any:
    try:
        return importlib.import_module("stoker.ui.app")
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise MissingPackage(f"`stoker ui` needs the package '{error.name}'", fix="pip install 'stoker[ui]'") from error


def _open(address: str) -> None:
    """Open a browser where there is a screen for it."""
    if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        import webbrowser

        webbrowser.open(address)
