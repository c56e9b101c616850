"""The records that the program of a Ray job writes, from its journal's file or from the job's log at Ray's dashboard.

The log is followed over a WebSocket (https://www.rfc-editor.org/rfc/rfc6455). It begins anew with each connection: what
was read already is skipped.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import select
import struct
import urllib.parse
from typing import Any, Final, Iterator, Mapping, Protocol

from stoker.backends.base.platforms import Away
from stoker.backends.ray.jobs import Jobs
from stoker.core.protocol import MARK

MOST: Final = 1 << 22
"""Bytes that are read at one poll; what is more at the next."""


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
                with contextlib.suppress(ValueError):
                    yield json.loads(line[len(self._mark) :])
            else:
                self.words = [*self.words[-9:], line.decode("utf-8", "replace")]


class JournalFile:
    """A journal in a folder that this machine sees."""

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
        self._data = b""

    def read(self) -> list[Mapping[str, Any]]:
        """The complete records since the last call; `Away` where the dashboard does not answer."""
        if self._connection is None:
            self._connect()
        records: list[Mapping[str, Any]] = []
        for text in self._texts():
            data = text[min(self._skip, len(text)) :]
            self._skip -= len(text) - len(data)
            self._read_bytes += len(data)
            records += self._lines.feed(data)
        return records

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        connection = self._jobs.connect()
        key = base64.b64encode(os.urandom(16)).decode()
        upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
        path = urllib.parse.urlsplit(self._jobs.address).path + f"/api/jobs/{self._id}/logs/tail"
        self._jobs.request_count += 1
        try:
            connection.request(
                "GET",
                path,
                headers={**self._jobs.headers, **upgrade, "Sec-WebSocket-Key": key, "Sec-WebSocket-Version": "13"},
            )
            # Not by getresponse: that reads beyond the header, into what the socket is to give us.
            header = _header(connection.sock)
        except OSError as error:
            connection.close()
            raise Away(f"the log of the Ray job {self._id} cannot be read: {error}") from error
        if b" 101 " not in header.partition(b"\r\n")[0]:
            connection.close()
            raise Away(f"the log of the Ray job {self._id} cannot be read: {header[:80]!r}")
        connection.sock.settimeout(10.0)
        self._connection, self._skip, self._data = connection, self._read_bytes, b""

    def _texts(self) -> Iterator[bytes]:
        """The texts that have arrived; after the connection's end, the next call reads those of the next connection."""
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
            while (frame := _frame(self._data)) is not None:
                code, payload, self._data = frame
                if code == 8:  # the job is over, or the dashboard leaves
                    self.close()
                elif code == 9:
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
