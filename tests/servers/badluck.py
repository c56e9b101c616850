"""An HTTP server on loopback that hands requests on to another one, and has bad luck with every tenth of them.

Requests are counted over all connections, so that every tenth call fails, whatever it is: the answer is 500, 503 or
429, the connection is reset before it or in the middle of its body, or nothing comes for a while.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

ALL: Final = ("503", "500", "429", "reset", "cut", "stall")
_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "server", "date"})
"""Headers of one connection, or that the answer gets anew. https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1"""


class BadLuck:
    """What a proxy does, and what it has seen."""

    def __init__(self, address: str, kinds: Sequence[str], *, every: int, stall: float, rate: float) -> None:
        self.target = urlsplit(address)
        self.every, self.stall, self.rate = every, stall, rate
        self.done: Counter[str] = Counter()
        """How often each kind of bad luck came."""
        self.seen: Counter[str] = Counter()
        """Method, and whether it is of a part or a range → requests that were handed on and answered."""
        self.first_parts: threading.Semaphore | None = None
        """How many parts of uploads are handed on; the others wait for ever."""
        self._kinds = itertools.cycle(kinds)
        self._number = itertools.count(1)
        self._lock = threading.Lock()

    def draw(self) -> str:
        """What happens to the next request; empty for nothing."""
        with self._lock:
            if next(self._number) % self.every:
                return ""
            kind = next(self._kinds)
            self.done[kind] += 1
            return kind


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    luck: BadLuck

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing."""

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # a client that was killed
            super().handle()

    def _any(self) -> None:
        luck = self.luck
        body = self._body()
        what = "part" if "partNumber=" in self.path else "range" if self.headers.get("Range") else ""
        if what == "part" and luck.first_parts is not None:
            luck.first_parts.acquire()
        kind = luck.draw()
        if kind == "reset":
            self._reset()
        elif kind.isdigit():
            self._answer(int(kind), {"Content-Length": "0"}, b"")
        else:
            time.sleep(luck.stall if kind == "stall" else 0.0)
            self._hand_on(body, cut=kind == "cut")
            luck.seen[f"{self.command} {what}".strip()] += 1

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815  # names that the base class calls

    def _hand_on(self, body: bytes, *, cut: bool) -> None:
        luck = self.luck
        connection = http.client.HTTPConnection(luck.target.hostname or "", luck.target.port, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
            headers = {name: text for name, text in answer.getheaders() if name.lower() not in _HOP}
            headers.setdefault("Content-Length", str(len(data)))
        finally:
            connection.close()
        time.sleep((len(body) + len(data)) / luck.rate)
        if cut and data:
            self._answer(answer.status, headers, data[: len(data) // 2])
            self._reset()
        else:
            self._answer(answer.status, headers, data)

    def _body(self) -> bytes:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():  # trailers
                pass
            del self.headers["Transfer-Encoding"]
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
            self.wfile.flush()

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.connection.close()


@contextlib.contextmanager
def before(
    address: str, kinds: Sequence[str] = ALL, *, every: int = 10, stall: float = 0.5, rate: float = 1e12
) -> Iterator[tuple[str, BadLuck]]:
    """The address of a proxy before a server, and what it does; a request has `rate` bytes a second."""
    luck = BadLuck(address, kinds, every=every, stall=stall, rate=rate)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"luck": luck}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", luck
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
