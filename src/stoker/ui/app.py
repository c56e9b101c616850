"""The application: its addresses, what stands before every page, and the server that serves it until it is told to end.

The guard refuses who may not use the server, and says to browsers what a page may load.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
from http.cookies import CookieError, SimpleCookie
from importlib import resources
from typing import AsyncIterator, Callable, Final, Mapping
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker import stacks
from stoker.client import Client
from stoker.core.errors import InfrastructureError, StokerError, UsageError
from stoker.report.machine import NodeWatch
from stoker.report.markup import stylesheet
from stoker.system import system
from stoker.ui import access as rules
from stoker.ui import api, names, pages
from stoker.ui.access import COOKIE, LOGIN, PageAccess, PageRefusal, Visit, check
from stoker.ui.actions import StartedCommands
from stoker.ui.rendering import State, error_page
from stoker.ui.streams import Streams

_TABLES: Final[Mapping[bool, str]] = {False: "net/tcp", True: "net/tcp6"}
"""Whether the address is one of IPv6 → the table. https://www.kernel.org/doc/Documentation/networking/proc_net_tcp.txt"""
_LOCAL: Final = 1
_REMOTE: Final = 2
_UID: Final = 7


def is_of_this_user(client: tuple[str, int], server: tuple[str, int]) -> bool:
    """Whether the program that connected from `client` to `server` runs as this process's user, or as root.

    False for a connection that is not in the table any more.
    """
    uid = _owner(_TABLES[":" in client[0]], client[1], server[1])
    return uid is not None and uid in (os.geteuid(), 0)


def _owner(table: str, client_port: int, server_port: int) -> int | None:
    for line in system.kernel_file(table).decode("ascii").splitlines()[1:]:
        fields = line.split()
        if _port(fields[_LOCAL]) == client_port and _port(fields[_REMOTE]) == server_port:
            return int(fields[_UID])
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No script and no style but the files of this server: what a user's text brings into a page does nothing there."""
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer that has none of its own."""


class Guard:
    """Answers the requests that `access` lets through by an application, and refuses the others."""

    def __init__(self, app: ASGIApp, access: PageAccess) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = rules.refusal(self._access, visit_of(scope, self._access))
        if refusal is None:
            await self._app(scope, receive, send_guarded)
            return
        scope["app"] = self._app
        await _answer(refusal, Request(scope))(scope, receive, send_guarded)


def visit_of(scope: Scope, access: PageAccess) -> Visit:
    """What a request says of itself, and what the kernel says of who sent it."""
    headers = Headers(scope=scope)
    peer = scope.get("client") or ("", 0)
    server = scope.get("server") or ("", 0)
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        morsel = None
    return Visit(
        method=scope["method"],
        path=scope["path"],
        headers=dict(headers),
        cookie="" if morsel is None else morsel.value,
        peer=peer[0],
        of_owner=is_of_this_user((peer[0], peer[1]), (server[0], server[1])) if access.by_owner else None,
    )


def _answer(refusal: PageRefusal, request: Request) -> Response:
    """The answer to a refused request, as its sender reads it best."""
    if request.url.path.startswith("/api/"):
        code = 401 if refusal.kind == "login" else 403
        return JSONResponse({"error": refusal.message, "fix": refusal.fix}, status_code=code)
    if refusal.kind == "login":
        if request.method == "GET" and "hx-request" not in request.headers:
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(f"{LOGIN}?next={quote(request.url.path + query, safe='')}", status_code=303)
        return error_page(request, 401, refusal.message, refusal.fix)
    return error_page(request, 403, refusal.message, refusal.fix)


_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "ui.css": ("static/ui.css", "text/css"),
    "ui.js": ("static/ui.js", "text/javascript"),
    "htmx.js": ("static/vendor/htmx.min.js", "text/javascript"),
    "icon.svg": ("static/icon.svg", "image/svg+xml"),
}
"""Name in an address → file in this folder and its type. No other file is served."""


def application(client: Client, access: PageAccess, *, stack: str | None = None, stack_name: str = "") -> Guarded:
    """The application over a store, as `access` allows."""
    folder = os.getcwd()
    streams = Streams()

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        streams.close()

    app = Starlette(
        routes=[
            Route("/", pages.home),
            Route("/runs", pages.runs),
            Route("/runs/{run}", pages.run),
            Route("/runs/{run}/step", pages.step),
            Route("/runs/{run}/log", pages.log),
            Route("/runs/{run}/log/file", pages.log_file),
            Route("/runs/{run}/log/stream", pages.log_stream),
            Route("/runs/{run}/artifact", pages.artifact),
            Route("/runs/{run}/artifact/file", pages.artifact_file),
            Route("/runs/{run}/artifact/image", pages.artifact_image),
            Route("/runs/{run}/artifact/frame", pages.artifact_frame),
            Route("/runs/{run}/card", pages.card_frame),
            Route("/runs/{run}/request", pages.request_page),
            Route("/runs/{run}/{action}", pages.action),
            Route("/runs/{run}/{action}", pages.do_action, methods=["POST"]),
            Route("/commands/{command}", pages.command),
            Route("/compare", pages.comparison),
            Route("/artifacts", names.artifact_list),
            Route("/artifacts/{name:path}", names.artifact),
            Route("/artifacts/{name:path}", names.change, methods=["POST"]),
            Route("/models", names.model_list),
            Route("/models/{name:path}", names.model),
            Route("/models/{name:path}", names.change, methods=["POST"]),
            Route("/devices", pages.devices),
            Route("/schedules", pages.schedules),
            Route(LOGIN, pages.login),
            Route(LOGIN, pages.do_login, methods=["POST"]),
            Route("/logout", pages.logout, methods=["POST"]),
            Route("/static/{name}", static),
            *api.routes(),
        ],
        exception_handlers={StokerError: pages.problem, HTTPException: pages.missing, Exception: pages.defect},
        lifespan=life,
    )
    app.state.stoker = State(
        client=client,
        access=access,
        stack=stack,
        stack_name=stack_name,
        folder=folder,
        commands=StartedCommands(folder),
        streams=streams,
        nodes=NodeWatch(stacks.load(stack)),
    )
    return Guarded(app, access)


class Guarded(Guard):
    """The guard, with the application that it guards at hand for the one who serves it."""

    def __init__(self, app: Starlette, access: PageAccess) -> None:
        super().__init__(app, access)
        self.streams: Streams = app.state.stoker.streams


def static(request: Request) -> Response:
    """A file of the pages'."""
    name = request.path_params["name"]
    headers = {"cache-control": "public, max-age=3600"}
    if name == "design.css":
        return Response(stylesheet(), media_type="text/css", headers=headers)
    if name not in _FILES:
        raise HTTPException(404)
    path, kind = _FILES[name]
    data = (resources.files("stoker.ui") / path).read_bytes()
    return Response(data, media_type=kind, headers=headers)


PORT: Final = 7480
_SILENT: Final = 300
"""Seconds after which a connection is closed whose other end takes nothing of what it is sent: a browser hangs, or its
machine is gone. A download that is paused for longer begins anew."""
_DESCRIPTORS: Final = 8192
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
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _DESCRIPTORS
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
