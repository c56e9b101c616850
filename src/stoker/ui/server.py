"""Serves the pages until it is told to end."""

from __future__ import annotations

import errno
import resource
import socket
from typing import Callable, Final

import uvicorn

from stoker.client import Client
from stoker.core.errors import InfrastructureError, UsageError
from stoker.ui.access import LOGIN, PageAccess, check
from stoker.ui.app import Guarded, application

PORT: Final = 7480
_SILENT: Final = 300
"""Seconds after which a connection is closed whose other end takes nothing of what it is sent: a browser hangs, or its
machine is gone. A download that is paused for longer begins anew."""
_FILES: Final = 8192
"""Open files that are enough for every log and connection."""
_FOR_PAGES: Final = 200
"""Open files for pages, their threads' connections to the database, and downloads."""
_LEAVE: Final = 2
"""Seconds that answers get to end when the server does: a browser connects again."""


class _Server(uvicorn.Server):
    """Ends the streams of logs first: they would end with their logs alone."""

    def __init__(self, config: uvicorn.Config, app: Guarded, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._guarded = app
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._guarded.streams.close()
        await super().shutdown(sockets)


def serve(
    client: Client,
    access: PageAccess,
    *,
    port: int,
    stack: str | None,
    stack_name: str,
    tell: Callable[[str], None],
) -> None:
    """Serve until SIGINT or SIGTERM. `tell` gets the address as soon as it answers.

    Raises `UsageError` for an address that strangers could use, `InfrastructureError` for one that is taken.
    """
    check(access)
    listening = _listen(access.host, port)
    number = listening.getsockname()[1]
    app = application(client, access, stack=stack, stack_name=stack_name)
    app.streams.most = (_most_files() - _FOR_PAGES) // 2
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the guard decides whom to believe
        timeout_graceful_shutdown=_LEAVE,
        lifespan="on",
    )
    host = f"[{access.host}]" if ":" in access.host else access.host
    query = f"{LOGIN}?token={access.token}" if access.token else "/"
    server = _Server(config, app, lambda: tell(f"http://{host}:{number}{query}"))
    server.run(sockets=[listening])


def _most_files() -> int:
    """How many files this process may open, after it has asked for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _FILES
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections have what the listening socket has (tcp(7))
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT * 1000)
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} of {host} is taken, perhaps by another `stoker ui`"
            raise InfrastructureError(
                message, fix=f"choose another: --port {port + 1}, or --port 0 for a free one"
            ) from error
        message = f"{host}:{port} cannot be listened on: {error.strerror or error}"
        raise UsageError(message, fix="name an address of this machine, such as 127.0.0.1") from error
    return listening
