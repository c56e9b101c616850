"""The fork servers of one driver, each started when the first step needs it.

There is a warm one and a clean one (`local` says which step needs which), of the driver's own Python, and of each
environment that steps have of their own. Knows processes, not what a job means.
"""

from __future__ import annotations

import selectors
from typing import Callable, Iterable

import attrs

from stoker.core.errors import BackendError
from stoker.core.packages import Interpreter
from stoker.core.plan import Site
from stoker.vendors.table import NO_DEVICES
from stoker.worker.forked import ForkServer, Line

Interpreters = Callable[[str], Interpreter]
"""Finds the interpreter of an environment by its name."""


class Servers:
    """Fork servers by whether they are clean, and by the name of their environment; "" is the driver's own."""

    def __init__(self, site: Site, selector: selectors.BaseSelector) -> None:
        self._site = site
        self._selector = selector
        self._known: dict[tuple[bool, str], ForkServer] = {}

    def get(self, environment: str, interpreters: Interpreters | None, *, clean: bool) -> ForkServer:
        """The server of a kind, which hears in the selector from now on."""
        server = self._known.get((clean, environment))
        if server is None:
            site = attrs.evolve(self._site, sources=()) if clean else attrs.evolve(self._site, preload=())
            interpreter = None
            if environment:
                if interpreters is None:
                    raise BackendError(f"nobody told this backend where environment {environment} is")
                interpreter = interpreters(environment)
                site = attrs.evolve(site, path=interpreter.path)
            server = self._known[clean, environment] = ForkServer(site, NO_DEVICES, interpreter)
            self._selector.register(server.fileno(), selectors.EVENT_READ, server)
        return server

    def warm(self, lines: Iterable[Line], environment: str) -> list[Line]:
        """Those of the workers that the warm server of an environment begot."""
        server = self._known.get((False, environment))
        return [line for line in lines if line.server is server]

    def gone(self, server: ForkServer) -> None:
        """One went away: the next job starts another one."""
        self._known = {kind: other for kind, other in self._known.items() if other is not server}
        self._selector.unregister(server.fileno())

    def close(self) -> None:
        """End all of them, with all that they started."""
        for server in self._known.values():
            self._selector.unregister(server.fileno())
            server.close()
        self._known = {}
