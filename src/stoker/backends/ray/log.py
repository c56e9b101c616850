"""The records that the program of a Ray job writes, from its journal's file or from the job's log at Ray's dashboard.

The log is followed as a stream of the dashboard's state API, which brings a line within milliseconds; where Ray is too
old for that, over a WebSocket (https://www.rfc-editor.org/rfc/rfc6455), within a second. Both begin anew with each
connection: what was read already is skipped.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import select
import struct
import time
import urllib.parse
from typing import Any, Callable, Final, Iterator, Mapping, Protocol

from stoker.backends.base.platforms import Away
from stoker.backends.ray.jobs import OVER, Jobs
from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError
from stoker.core.protocol import MARK

MOST: Final = 1 << 22
"""Bytes that are read at one poll; what is more at the next."""

STREAMS: Final = (2, 60)
"""The first Ray whose stream is known to be the log's bytes alone: older ones put a byte before each piece."""
INTERVAL: Final = 0.02
"""Seconds between two looks of the dashboard at the log's end."""
AGAIN: Final = 0.2
"""Seconds before a log that is not there yet is asked for again."""


class RecordSource(Protocol):
    """A journal or a log."""

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call."""

    def close(self) -> None:
        """Close what is open."""


class RecordLines:
    """Cuts bytes into records; the last other lines are kept in `words`."""

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._rest = b""
        self.words: list[str] = []

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The complete records."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for line in whole:
            if line.startswith(self._mark):
                with contextlib.suppress(SettingsError):
                    yield parse_object(line[len(self._mark) :])
            else:
                self.words = [*self.words[-9:], line.decode("utf-8", "replace")]


class JournalFile:
    """A journal in a folder that this machine sees; it is opened anew for each look, as a network disk wants it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines = RecordLines(b"")
        self._offset = 0

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call."""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read(MOST)
            self._offset += len(data)
            return list(self._lines.feed(data))
        return []

    def close(self) -> None:
        """Nothing is open between two calls."""


class DashboardLog:
    """A job's log at the dashboard."""

    def __init__(self, jobs: Jobs, id: str) -> None:
        self._jobs = jobs
        self._id = id
        self._lines = RecordLines(MARK.encode())
        self._read_bytes = self._skip = 0
        self._connection: http.client.HTTPConnection | None = None
        self._split: Callable[[bytes], tuple[int, bytes, bytes] | None] = _frame
        self._data = b""
        self._next_try = 0.0
        self._whole = False

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call; `Away` where the dashboard does not answer."""
        records: list[Mapping[str, Any]] = []
        with self._jobs.using():
            self._read(records)
        return records

    def _read(self, records: list[Mapping[str, Any]]) -> None:
        if self._connection is None and not self._whole and time.monotonic() >= self._next_try:
            self._next_try = time.monotonic() + AGAIN
            records += self._take(self._open())
        for data in self._pieces():
            records += self._take(data)

    def close(self) -> None:
        """Close the connection; a later `read` opens another one."""
        self._next_try = 0.0
        if self._connection is not None:
            self._jobs.drop(self._connection)
            self._connection = None

    def _take(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The records of a piece, without what was read over an earlier connection."""
        rest = data[min(self._skip, len(data)) :]
        self._skip -= len(data) - len(rest)
        self._read_bytes += len(rest)
        return self._lines.feed(rest)

    def _open(self) -> bytes:
        """Follow the log of a job that runs; all of it at once, if the job is over."""
        job = self._jobs.job(self._id) or {}
        node = job.get("driver_node_id")
        self._skip, self._data = self._read_bytes, b""
        query = urllib.parse.urlencode({"node_id": node, "filename": f"job-driver-{self._id}.log", "lines": -1})
        if job.get("status") in OVER:
            self._whole = True
            return self._jobs.content(f"/api/v0/logs/file?{query}") or b""
        if job.get("status") != "RUNNING":
            return b""
        if node and self._jobs.release() >= STREAMS:
            path = f"/api/v0/logs/stream?{query}&interval={INTERVAL}"
            self._connect(path, {}, "200", _chunk)
        else:
            key = base64.b64encode(os.urandom(16)).decode()
            upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
            upgrade.update({"Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"})
            self._connect(f"/api/jobs/{self._id}/logs/tail", upgrade, "101", _frame)
        return b""

    def _connect(
        self,
        path: str,
        headers: Mapping[str, str],
        status: str,
        split: Callable[[bytes], tuple[int, bytes, bytes] | None],
    ) -> None:
        connection = self._jobs.connect()
        prefix = urllib.parse.urlsplit(self._jobs.address).path
        self._jobs.request_count += 1
        try:
            connection.request("GET", prefix + path, headers={**self._jobs.headers, **headers})
            # Not by getresponse: that reads beyond the header, into what the socket is to give us.
            header = _header(connection.sock)
        except (OSError, http.client.HTTPException) as error:
            self._jobs.drop(connection)
            raise Away(f"the log of the Ray job {self._id} cannot be read: {error}") from error
        if f" {status} ".encode() not in header.partition(b"\r\n")[0]:
            self._jobs.drop(connection)
            raise Away(f"the log of the Ray job {self._id} cannot be read: {header[:80]!r}")
        connection.sock.settimeout(10.0)
        self._connection, self._split = connection, split

    def _pieces(self) -> Iterator[bytes]:
        """What has arrived; after the connection's end, a later call reads what another connection brings."""
        while self._connection is not None:
            sock = self._connection.sock
            if not select.select([sock], [], [], 0)[0] and not _pending(sock):
                return
            try:
                data = sock.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._data += data
            while (piece := self._split(self._data)) is not None:
                code, payload, self._data = piece
                if code == 8:  # the job is over, or the dashboard leaves
                    self.close()
                    return
                if code == 9:
                    with contextlib.suppress(OSError):
                        sock.sendall(bytes([0x8A, 0x80 | len(payload)]) + bytes(4) + payload)  # masked with zeros
                elif code in (0, 1, 2):
                    yield payload


def _pending(sock: Any) -> bool:
    """Whether TLS has buffered data."""
    pending = getattr(sock, "pending", None)
    return bool(pending and pending())


def _header(sock: Any) -> bytes:
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the connection was closed")
        data += byte
    return data


def _frame(data: bytes) -> tuple[int, bytes, bytes] | None:
    """The first frame's code and payload, and what follows; None while it is not whole. Servers do not mask."""
    if len(data) < 2:
        return None
    length, start = data[1] & 0x7F, 2
    if length == 126:
        start = 4
    elif length == 127:
        start = 10
    if len(data) < start:
        return None
    if start > 2:
        (length,) = struct.unpack("!H" if start == 4 else "!Q", data[2:start])
    if len(data) < start + length:
        return None
    return data[0] & 0x0F, data[start : start + length], data[start + length :]


def _chunk(data: bytes) -> tuple[int, bytes, bytes] | None:
    """As `_frame`, of a body in chunks (https://www.rfc-editor.org/rfc/rfc9112#section-7.1); the last one is empty."""
    size, newline, rest = data.partition(b"\r\n")
    if not newline:
        return None
    length = int(size.partition(b";")[0], 16)
    if len(rest) < length + 2:
        return None
    return (2 if length else 8), rest[:length], rest[length + 2 :]
