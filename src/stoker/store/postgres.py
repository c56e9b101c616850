"""Connections to a PostgreSQL server, each of which ends when the server says nothing for too long.

libpq and the kernel notice a machine or a network that is gone: nobody acknowledges what was sent. They do not notice a
server process that is stopped or stuck, because its kernel goes on acknowledging. libpq has no deadline for an answer,
and a `statement_timeout` is kept by the server itself. So `PostgresConnection` counts the seconds in which nothing
arrives. This module is imported only for stores on PostgreSQL: psycopg takes 100 ms.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator
from typing import Any, Final, Mapping, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.waiting import Ready, Wait

from stoker.core.units import duration_text

T = TypeVar("T")

SERVER_SECONDS: Final = 10
"""How long a server may take to accept a connection; psycopg's default is 130 s."""

PARAMETERS: Final[Mapping[str, int]] = {
    "connect_timeout": SERVER_SECONDS,
    # A machine that vanished without closing its connections is noticed after 30 s; Linux's defaults are 15 minutes
    # for data that nobody acknowledges and 2 hours for an idle connection.
    "tcp_user_timeout": 30_000,
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""Parameters of libpq that the address does not have, https://www.postgresql.org/docs/current/libpq-connect.html."""


_INTERVAL: Final = 0.1
"""Seconds after which psycopg resumes a statement whose socket is not ready; its own default."""


class PostgresConnection(psycopg.Connection[Any]):  # type: ignore[misc]  # mypy sees nothing of psycopg
    """A connection that is closed when its server is silent for `silence` seconds while a statement waits for it."""

    silence: float = 0.0
    """Seconds; 0 waits for ever. Rows that arrive one after the other are no silence, however long all of them take."""

    def wait(self, gen: Generator[Wait, Ready, T], interval: float = _INTERVAL, **keywords: Any) -> T:
        """What a statement's generator returns. Raises `psycopg.OperationalError` after too long a silence."""
        if self.silence:
            gen = self._limited(gen)
        result: T = super().wait(gen, interval, **keywords)
        return result

    def _limited(self, statement: Generator[Wait, Ready, T]) -> Generator[Wait, Ready, T]:
        """The same statement. psycopg resumes it when the socket is ready, and else every `_INTERVAL`."""
        answered = time.monotonic()
        try:
            readiness = next(statement)
            while True:
                waiting_since = time.monotonic()
                state = yield readiness
                now = time.monotonic()
                # Resumed early, the socket is ready. Before version 3.3, psycopg's state does not always tell.
                if now - waiting_since < _INTERVAL / 2 or self._is_ready(readiness):
                    answered = now
                elif now - answered >= self.silence:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server was silent for {duration_text(self.silence)}, the address's tcp_user_timeout, so "
                        "the connection was closed"
                    )
                readiness = statement.send(state)
        except StopIteration as end:
            result: T = end.value
            return result

    def _is_ready(self, readiness: Wait) -> bool:
        sockets = select.poll()
        events = (select.POLLIN if readiness & Wait.R else 0) | (select.POLLOUT if readiness & Wait.W else 0)
        sockets.register(self.pgconn.socket, events)
        return bool(sockets.poll(0))


def open_connection(address: str) -> PostgresConnection:
    """A new connection that commits each statement outside a transaction.

    The address's `tcp_user_timeout`, in milliseconds, limits both how long what was sent may stay unacknowledged, as
    in libpq, and how long the server may be silent.
    """
    own = conninfo_to_dict(address)
    parameters = {name: value for name, value in PARAMETERS.items() if name not in own}
    connection: PostgresConnection = PostgresConnection.connect(address, autocommit=True, **parameters)
    connection.silence = int(own.get("tcp_user_timeout") or PARAMETERS["tcp_user_timeout"]) / 1000
    return connection
