"""Who may use the pages: decided for the server when it starts, and for each request by what is known of it. Pure."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from typing import Final, Literal, Mapping
from urllib.parse import urlsplit

import attrs

from stoker.core.errors import UsageError
from stoker.core.values import frozen

OPEN_ADDRESS: Final = "STK340"
WEAK_TOKEN: Final = "STK341"
OTHER_USER: Final = "STK342"
OTHER_ORIGIN: Final = "STK343"
READ_ONLY: Final = "STK344"

LOOPBACK: Final = "127.0.0.1"
COOKIE: Final = "stoker_ui"
LOGIN: Final = "/login"
STATIC: Final = "/static/"
"""Styles and scripts, which say nothing of any run; the login needs them."""
_SHORTEST_TOKEN: Final = 16
"""Characters: 64 bits of a token of hexadecimal digits."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@frozen(kw_only=True)
class PageAccess:
    """Who may use a server."""

    host: str = LOOPBACK
    """The address on which it listens."""
    token: str = attrs.field(default="", repr=False)
    """What a browser must show once; empty for none."""
    user_header: str = ""
    """The header in which a reverse proxy names the user that it has let in; empty without such a proxy."""
    proxies: tuple[str, ...] = (LOOPBACK, "::1")
    """The addresses from which that header is believed."""
    read_only: bool = False
    """Whether nothing can be cancelled, resumed or started."""

    @property
    def on_loopback(self) -> bool:
        """Whether only programs of this machine reach it."""
        return is_loopback(self.host)

    @property
    def by_owner(self) -> bool:
        """Whether it answers the user alone who started it: nothing else tells users of this machine apart."""
        return not self.token and not self.user_header


@frozen(kw_only=True)
class Visit:
    """What is known of a request."""

    method: str = "GET"
    path: str = "/"
    headers: Mapping[str, str] = attrs.field(factory=dict)
    """By their names in lower case."""
    cookie: str = ""
    """The value of the session's cookie."""
    peer: str = LOOPBACK
    """The address that it comes from."""
    of_owner: bool | None = None
    """Whether the program that sent it is the server's own user's; None where nobody asked."""


@frozen(kw_only=True)
class PageRefusal:
    """Why a request is refused."""

    kind: Literal["login", "forbidden"]
    message: str
    fix: str = ""


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, which no other reaches."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check(access: PageAccess) -> None:
    """`UsageError` for a server that strangers could use."""
    if not access.on_loopback and access.by_owner:
        raise UsageError(
            f"{OPEN_ADDRESS}: on {access.host}, everybody who reaches this machine could read the store and start runs",
            fix="add --token, or --user-header NAME behind a reverse proxy that logs users in",
        )
    if access.token and len(access.token) < _SHORTEST_TOKEN:
        raise UsageError(
            f"{WEAK_TOKEN}: a token of {len(access.token)} characters can be guessed",
            fix=f"write {_SHORTEST_TOKEN} or more, such as those of `openssl rand -hex 16`",
        )


def cookie_of(token: str) -> str:
    """The cookie of a browser that has shown the token: it tells nobody the token."""
    return hmac.new(token.encode(), b"stoker ui session", hashlib.sha256).hexdigest()


def refusal(access: PageAccess, visit: Visit) -> PageRefusal | None:
    """Why a request is refused; None for one that is answered."""
    return _stranger(access, visit) or _forgery(access, visit)


def _stranger(access: PageAccess, visit: Visit) -> PageRefusal | None:
    """Why whoever sends a request may not use the server."""
    if access.by_owner:
        if not _names_loopback(visit.headers.get("host", ""), access.host):
            message = f"this server is not {visit.headers.get('host', '')}"
            return PageRefusal(kind="forbidden", message=message, fix=f"open it by its address: {access.host}")
        if visit.of_owner is False:
            message = f"{OTHER_USER}: this server answers only the user who started it"
            return PageRefusal(kind="forbidden", message=message, fix="start your own, or have it started with --token")
        return None
    if access.user_header:
        if visit.peer not in access.proxies:
            message = f"a request from {visit.peer} did not come through the reverse proxy"
            return PageRefusal(kind="forbidden", message=message, fix="open the proxy's address, or name it by --proxy")
        if visit.headers.get(access.user_header.lower(), "").strip():
            return None
        if not access.token:
            message = f"the reverse proxy named no user in {access.user_header}"
            return PageRefusal(kind="forbidden", message=message, fix="log in at the proxy")
    if visit.path == LOGIN or visit.path.startswith(STATIC) or has_token(access, visit):
        return None
    return PageRefusal(kind="login", message="this server asks for its token", fix="the address that it printed has it")


def has_token(access: PageAccess, visit: Visit) -> bool:
    """Whether a request shows the token, or the cookie of a browser that showed it."""
    scheme, _, given = visit.headers.get("authorization", "").partition(" ")
    bearer = scheme.lower() == "bearer" and same(given.strip(), access.token)
    return bearer or same(visit.cookie, cookie_of(access.token))


def same(given: str, expected: str) -> bool:
    """Whether two texts are equal, in a time that says nothing of how much of them is."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _forgery(access: PageAccess, visit: Visit) -> PageRefusal | None:
    """Why a request that changes something may not: nothing says that a page of this server sent it."""
    if visit.method in _SAFE_METHODS:
        return None
    if access.read_only and visit.path != LOGIN:
        message = f"{READ_ONLY}: this server only shows runs"
        return PageRefusal(
            kind="forbidden", message=message, fix="use the command line, or start one without --read-only"
        )
    origin, host = visit.headers.get("origin", ""), visit.headers.get("host", "")
    if origin and origin != "null":
        # This server speaks HTTP, and its pages are https:// behind a proxy with TLS, so that the schemes may differ.
        # Where the proxy says so, a page of the same name without TLS may be anybody's in the network.
        parts = urlsplit(origin)
        is_secured = visit.headers.get("x-forwarded-proto", "").partition(",")[0].strip().lower() == "https"
        if parts.netloc.lower() == host.lower() and not (is_secured and parts.scheme.lower() != "https"):
            return None
    elif not origin and (visit.headers.get("sec-fetch-site") == "same-origin" or _by_bearer(access, visit)):
        return None
    message = f"{OTHER_ORIGIN}: the request did not come from a page of this server"
    return PageRefusal(kind="forbidden", message=message, fix="use the page's own buttons")


def _by_bearer(access: PageAccess, visit: Visit) -> bool:
    """Whether a program sent the token itself: a page of somebody else's cannot."""
    scheme, _, given = visit.headers.get("authorization", "").partition(" ")
    return bool(access.token) and scheme.lower() == "bearer" and same(given.strip(), access.token)


def _names_loopback(header: str, host: str) -> bool:
    """Whether a Host header is the server's own: a name that somebody else's DNS points here is not."""
    name = urlsplit(f"//{header}").hostname or ""
    return is_loopback(name) or name == host.lower()
