"""A registry that asks for tokens, and the server that grants them, on loopback.

https://distribution.github.io/distribution/spec/auth/token/: a request without a token is refused with the address of
the token server; that one grants the part of the scope which the login has, and the registry refuses what is lacking.
"""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs, urlparse

import attrs
from tests.servers.loopback import reply, serving


@attrs.define
class TokenRegistry:
    """A registry whose tokens have scopes."""

    address: str = ""
    rights: Mapping[str, str] = attrs.field(factory=dict)
    """`user:password` → the actions that it may do: "pull" or "pull,push"."""
    lifetime: int = 1000
    """How often a token is taken before it has expired."""
    requests: list[tuple[str, str]] = attrs.field(factory=list)
    scopes: list[str] = attrs.field(factory=list)
    """The scopes that were asked for."""
    issued: dict[str, tuple[str, int]] = attrs.field(factory=dict)
    """Token → (its actions, how often it is taken yet)."""
    create: bool = True
    """Whether a push makes a repository that is not there."""


@contextlib.contextmanager
def token_registry(rights: Mapping[str, str]) -> Iterator[TokenRegistry]:
    """A registry and its token server; it has no image, and takes whatever a token allows."""
    state = TokenRegistry(rights=rights)

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length") or 0))
        state.requests.append((request.command, request.path))
        authorization = request.headers.get("Authorization", "")
        if request.path.startswith("/token"):
            grant(request, authorization)
            return
        actions, left = state.issued.get(authorization.removeprefix("Bearer "), ("", 0))
        action = "push" if request.command in ("POST", "PUT") else "pull"
        if action not in actions.split(",") or left < 1:
            error = "insufficient_scope" if left else "invalid_token"
            challenge = f'Bearer realm="http://{state.address}/token",service="tests",error="{error}"'
            reply(request, 401, b'{"errors": [{"code": "UNAUTHORIZED"}]}', {"WWW-Authenticate": challenge})
            return
        state.issued[authorization.removeprefix("Bearer ")] = (actions, left - 1)
        if request.command == "POST" and state.create:
            reply(request, 202, b"", {"Location": f"{request.path}upload?state=one"})
        elif request.command == "DELETE":
            reply(request, 204)
        else:
            reply(request, 404, b'{"errors": [{"code": "NAME_UNKNOWN"}]}')

    def grant(request: http.server.BaseHTTPRequestHandler, authorization: str) -> None:
        scope = parse_qs(urlparse(request.path).query)["scope"][0]
        state.scopes.append(scope)
        login = base64.b64decode(authorization.removeprefix("Basic ")).decode() if authorization else ""
        if login not in state.rights:
            reply(request, 401, b'{"details": "incorrect username or password"}')
            return
        wanted = scope.rpartition(":")[2].split(",")
        token = f"token-{len(state.scopes)}"
        state.issued[token] = (",".join(set(wanted) & set(state.rights[login].split(","))), state.lifetime)
        reply(request, 200, json.dumps({"token": token, "expires_in": 60}).encode())

    with serving(answer) as address:
        state.address = address
        yield state
