"""What stands before every page: it refuses who may not use the server, and says to browsers what a page may load."""

from __future__ import annotations

from http.cookies import CookieError, SimpleCookie
from typing import Final, Mapping
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.ui import access as rules
from stoker.ui.access import COOKIE, LOGIN, PageAccess, PageRefusal, Visit
from stoker.ui.peers import is_of_this_user
from stoker.ui.rendering import error_page

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
