"""Pages from templates: what every page has, and how a live part of it answers."""

from __future__ import annotations

import functools
import hashlib
import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Mapping
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from stoker.client import Client
from stoker.core.values import define
from stoker.core.words import attempts_text, count_text, memory_text, time_text
from stoker.report.markup import Html, badge, element, facts, favicon, icon, table
from stoker.store.rows import local_time
from stoker.store.store import Store
from stoker.ui.access import PageAccess

if TYPE_CHECKING:
    from stoker.report.machine import NodeWatch
    from stoker.ui.actions import StartedCommands
    from stoker.ui.streams import Streams


@define(kw_only=True)
class State:
    """A server's store, who may use it, and what goes on in it."""

    client: Client
    access: PageAccess
    stack: str | None
    """The stack whose store it is; None for the current one."""
    stack_name: str
    folder: str
    """Where commands are started: where the server was."""
    commands: StartedCommands
    streams: Streams
    nodes: NodeWatch
    """The nodes of the stack's platforms."""

    @property
    def store(self) -> Store:
        """The store, from which nothing is unpickled."""
        store = self.client.store
        store.blobs.trusted = False
        return store


REFRESH: Final = 2
"""Seconds between two looks at a part of a page that changes."""
_HASH: Final = 16
"""Digits of the hash by which a browser says which state of a part it shows."""


@functools.cache
def environment() -> Environment:
    """The templates, with every value escaped that is no markup by its type."""
    made = Environment(
        loader=PackageLoader("stoker.ui"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        badge=badge,
        icon=icon,
        facts=facts,
        table=table,
        moment=moment,
        local=local_time,
        url=url,
        named=named,
        seconds=time_text,
        memory=memory_text,
        count=count_text,
        tries=attempts_text,
        refresh=REFRESH,
    )
    return made


def page(
    request: Request, template: str, *, title: str, state: str = "", code: int = 200, **values: Any
) -> HTMLResponse:
    """A whole page; its title and icon tell `state`, the state of the run that it shows."""
    there: State = request.app.state.stoker
    text = environment().get_template(template)
    body = text.render(
        title=title,
        icon_address=favicon(state) if state else _mark(),
        state=state,
        path=request.url.path,
        read_only=there.access.read_only,
        stack=there.stack_name,
        logs_out=bool(there.access.token),
        **values,
    )
    return HTMLResponse(body, status_code=code)


def part(request: Request, template: str, *, title: str = "", state: str = "", **values: Any) -> Response:
    """A part of a page that its browser asked for again: nothing where it is as the browser has it."""
    markup, seen = live(request, template, state=state, **values)
    if request.query_params.get("seen") == seen:
        return Response(status_code=204)
    # htmx takes a title from what it loads; the icon follows what the element says.
    return HTMLResponse((f"<title>{title}</title>" if title else "") + markup.markup)


def live(
    request: Request, template: str, *, address: str, again: bool, state: str = "", **values: Any
) -> tuple[Html, str]:
    """A part that is looked at again while `again`, and the hash of what it shows."""
    there: State = request.app.state.stoker
    inner = environment().get_template(template).render(read_only=there.access.read_only, state=state, **values)
    seen = hashlib.sha256(f"{again}{inner}".encode()).hexdigest()[:_HASH]
    polling = {
        "hx-get": address,
        "hx-trigger": f"every {REFRESH}s",
        "hx-swap": "outerHTML",
        "hx-vals": json.dumps({"seen": seen, "part": 1}),
    }
    attributes = {"class": "live", "data-state": state or None, "data-icon": favicon(state) if state else None}
    return element("div", {**attributes, **(polling if again else {})}, Html(inner)), seen


def is_part(request: Request) -> bool:
    """Whether a browser asks for a live part of a page that it has."""
    return "hx-request" in request.headers and "part" in request.query_params


def in_place(request: Request) -> bool:
    """Whether a browser asks for what changes on a page that it has, and not for the page, as when it goes back."""
    return "hx-request" in request.headers and "hx-history-restore-request" not in request.headers


def error_page(request: Request, code: int, message: str, fix: str = "") -> HTMLResponse:
    """What is wrong, and what to do."""
    return page(request, "error.html", title=f"{code} · Stoker", code=code, number=code, message=message, fix=fix)


def moment(when: datetime | None) -> Html | str:
    """A time: the local one of the server in its text, which the browser shows as how long ago."""
    if when is None:
        return ""
    words = when.strftime("%Y-%m-%d %H:%M:%S")
    return element(
        "time", {"datetime": when.astimezone().isoformat(), "title": when.strftime("%Y-%m-%d %H:%M:%S %Z")}, words
    )


def url(path: str, values: Mapping[str, Any] | None = None, **more: Any) -> str:
    """An address with a query; empty values are left out."""
    query = {name: value for name, value in {**(values or {}), **more}.items() if value not in ("", None)}
    return f"{path}?{urlencode(query)}" if query else path


def named(kind: Literal["artifact", "model"], name: str, version: int | None = None, **query: Any) -> str:
    """The page of what has a name beyond its run, or of a version of it.

    A name may have any printable character but "@". Slashes stay as they are, unless a browser would take what is
    between them for a step through folders.
    """
    odd = {"", ".", ".."}.intersection(name.split("/"))
    at = f"@{version}" if version is not None else "@latest" if name in odd else ""
    return url(f"/{kind}s/{quote(name, safe='' if odd else '/:')}{at}", query)


def _mark() -> str:
    """The icon of pages that show no run."""
    return "/static/icon.svg"
