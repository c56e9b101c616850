"""The application: its addresses, behind what guards them."""

from __future__ import annotations

import contextlib
import os
from importlib import resources
from typing import AsyncIterator, Final, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stoker import stacks
from stoker.client import Client
from stoker.core.errors import StokerError
from stoker.report.design import stylesheet
from stoker.report.machineuse import NodeWatch
from stoker.ui import api, pages
from stoker.ui.access import LOGIN, PageAccess
from stoker.ui.actions import StartedCommands
from stoker.ui.guard import Guard
from stoker.ui.state import State
from stoker.ui.streams import Streams

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
            Route("/devices", pages.devices),
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
