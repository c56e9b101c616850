"""A command in a container of a pod, over the API's websocket: its standard input, its output, and how it ended.

`Execution` is for one thread that asks and waits; `running.beside` carries all of a command's streams.

https://kubernetes.io/docs/concepts/architecture/control-plane-node-communication/ and RFC 6455. The protocol of the
messages is v5.channel.k8s.io or v4.channel.k8s.io: the first byte of each says which stream it belongs to.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import struct
from collections import deque
from typing import Final, Iterator, Mapping, Sequence

from stoker.backends.kubernetes.api.client import ApiError, Cluster, head_of, is_whole
from stoker.core.codec import parse_json
from stoker.core.errors import Away, BackendError, SettingsError

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
STATUS: Final = 3
"""The stream on which the API server says how the command ended."""
RESIZE: Final = 4
"""The stream on which the client says how large its terminal is."""
CLOSE_STREAM: Final = 255
"""Followed by a stream's number: nothing more comes on it. Since v5."""
PIECE: Final = 1 << 16
"""Bytes of one message at most that are sent: proxies in between hold whole messages in memory."""
LARGEST: Final = 32 << 20
"""Bytes of one message at most that are taken."""
WORDS: Final = 4096
"""Bytes of the command's standard error that are kept."""
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""https://www.rfc-editor.org/rfc/rfc6455#section-1.3"""
BINARY, CLOSE, PING, PONG = 2, 8, 9, 10
"""Kinds of messages: https://www.rfc-editor.org/rfc/rfc6455#section-5.2"""


def opened(
    cluster: Cluster, namespace: str, pod: str, command: Sequence[str], *, container: str, terminal: bool = False
) -> tuple[socket.socket, str, bytes]:
    """Start a command in a container: the connection, the protocol of its messages, and what came already.

    `ApiError` where the API server refuses the command, `Away` where no answer comes.
    """
    request = _ExecRequest(namespace, pod, command, container=container, terminal=terminal)
    for again in (True, False):
        sock = cluster.ask_upgrade(request.path, request.params, request.headers)
        try:
            return (sock, *_accepted(cluster, sock, request))
        except BackendError as error:  # `Away` too
            sock.close()
            refused = isinstance(error, ApiError) and error.status == 401
            if not (refused and again and cluster.access.renewable):
                raise
            cluster.access.renew()
    raise AssertionError("a second answer is returned or raised")


def _accepted(cluster: Cluster, sock: socket.socket, request: _ExecRequest) -> tuple[str, bytes]:
    """Wait for the answer that accepts a command: the protocol, and what came behind it."""
    data = b""
    with cluster.answers.question(f"GET {request.path}"):
        try:
            while (head := head_of(data)) is None or (head[0] != 101 and not is_whole(head[1], head[2])):
                piece = sock.recv(1 << 18)
                if not piece:
                    break
                data += piece
        except OSError as error:
            raise cluster.away(str(error) or type(error).__name__) from error
        if head is None:
            raise cluster.away("the connection ended before an answer came")
        if head[0] != 101:
            raise cluster.upgrade_refusal(request.path, head[0], head[2])
        return request.protocol(head[1]), head[2]


class _ExecRequest:
    """The request that starts a command, and what its answer must say."""

    def __init__(
        self, namespace: str, pod: str, command: Sequence[str], *, container: str, terminal: bool = False
    ) -> None:
        streams = [("stdin", "true"), ("stdout", "true"), ("container", container)]
        streams += [("tty", "true")] if terminal else [("stderr", "true")]  # a terminal has one output
        self._key = base64.b64encode(os.urandom(16))
        self.path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
        self.params = [*(("command", word) for word in command), *streams]
        self.headers = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": self._key.decode(),
            "Sec-WebSocket-Protocol": ", ".join(PROTOCOLS),
        }

    def protocol(self, fields: Mapping[str, str]) -> str:
        """The protocol of an answer with these headers; `BackendError` where it is none of ours."""
        accepted = base64.b64encode(hashlib.sha1(self._key + _GUID).digest()).decode()
        protocol = fields.get("sec-websocket-protocol", "")
        if fields.get("sec-websocket-accept") != accepted or protocol not in PROTOCOLS:
            raise BackendError(
                f"the Kubernetes API server offers no exec by websocket (it answers with {protocol or 'no protocol'})",
                fix="use Kubernetes 1.29 or later, or an object store: artifact_store = 's3://…'",
            )
        return protocol


def frame(kind: int, payload: bytes) -> bytes:
    """A message as a client sends it."""
    size = len(payload)
    head = bytes([0x80 | kind])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, size)
    else:
        head += struct.pack("!BQ", 0x80 | 127, size)
    mask = os.urandom(4)
    return head + mask + _masked(payload, mask)


class Messages:
    """Puts messages together from the bytes of a connection; control messages may stand between parts of others."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._kind = 0
        self._parts = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The kind and the payload of each message that is complete with these bytes; `ValueError` for a frame that is
        larger than `LARGEST`."""
        self._raw += data
        at = 0
        try:
            while (found := self._frame_at(at)) is not None:
                first, payload, at = found
                opcode = first & 0x0F
                if opcode >= CLOSE:
                    yield opcode, payload
                    continue
                self._kind = opcode or self._kind
                self._parts += payload
                if first & 0x80:
                    whole, self._parts = bytes(self._parts), bytearray()
                    yield BINARY if self._kind in (1, BINARY) else self._kind, whole
        finally:
            del self._raw[:at]

    def _frame_at(self, at: int) -> tuple[int, bytes, int] | None:
        """The first byte of the frame at a place, its payload, and where the next one begins; None while it is not
        whole."""
        raw = self._raw
        if len(raw) - at < 2:
            return None
        first, second = raw[at], raw[at + 1]
        at += 2
        size, length = second & 0x7F, {126: 2, 127: 8}.get(second & 0x7F, 0)
        if length:
            if len(raw) - at < length:
                return None
            size = int.from_bytes(raw[at : at + length], "big")
            at += length
        if size > LARGEST:
            raise ValueError(f"a message of {size} bytes came")
        mask = bytes(raw[at : at + 4]) if second & 0x80 else b""
        at += 4 if second & 0x80 else 0
        if len(raw) - at < size:
            return None
        payload = bytes(raw[at : at + size])
        return first, _masked(payload, mask) if mask else payload, at + size


class Execution:
    """A running command. What it writes is read as one stream of bytes; `Away` where the connection breaks.

    Used by one thread at a time. `ApiError` from the constructor where the API server refuses the command; with
    `wait=False` from `take`, and nothing may be written before `is_open`.
    """

    def __init__(
        self, cluster: Cluster, namespace: str, pod: str, command: Sequence[str], *, container: str, wait: bool = True
    ) -> None:
        self._cluster = cluster
        self._head: bytes | None = None
        """What came of the answer to `_request`; None once the command runs."""
        self._pod = f"{namespace}/{pod}"
        self._bytes = bytearray()
        self._at = 0
        self._words = b""
        self._ended: str | None = None
        """How the command ended, in words; None while it runs."""
        self._error: Away | None = None
        """Why `take` gets nothing more."""
        self._parser = Messages()
        self._messages: deque[tuple[int, bytes]] = deque()
        if wait:
            self._sock, _, rest = opened(cluster, namespace, pod, command, container=container)
            self._feed(rest)
        else:
            self._request = _ExecRequest(namespace, pod, command, container=container)
            self._sock = cluster.ask_upgrade(self._request.path, self._request.params, self._request.headers)
            self._head = b""

    @property
    def is_open(self) -> bool:
        """Whether the API server has accepted the command."""
        return self._head is None

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes to the command's standard input."""
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            self._send(BINARY, bytes([STDIN]) + view[at : at + PIECE])

    def line(self) -> bytes:
        """The next line that the command writes, without its end."""
        while (end := self._bytes.find(b"\n", self._at)) < 0:
            self._receive()
        line = bytes(self._bytes[self._at : end])
        self._take(end + 1)
        return line

    def read(self, most: int) -> bytes:
        """Bytes that the command writes, at least one and at most so many."""
        while self._at == len(self._bytes):
            self._receive()
        data = bytes(self._bytes[self._at : self._at + most])
        self._take(self._at + len(data))
        return data

    def fileno(self) -> int:
        """The descriptor that is readable when `take` has something; -1 for a closed one."""
        return self._sock.fileno()

    def take(self) -> bytes:
        """What the command has written since the last call, without waiting; `Away` once no more comes, and `ApiError`
        where the API server refuses the command."""
        if self._error is None:
            try:
                more = self._take_raw()
                while self._messages:
                    self._receive()
                if not more:
                    self._error = self._broken("the connection ended")
            except Away as error:
                self._error = error
        data = bytes(self._bytes[self._at :])
        self._take(len(self._bytes))
        if not data and self._error is not None:
            raise self._error
        return data

    def _take_raw(self) -> bool:
        """Take what has come; whether more may come."""
        patience = self._sock.gettimeout()
        self._sock.setblocking(False)
        try:
            while data := self._sock.recv(1 << 18):
                self._feed(data if self._head is None else self._behind_head(data))
            self._check_refusal(ended=True)
            return False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error
        finally:
            with contextlib.suppress(OSError):
                self._sock.settimeout(patience)

    def _behind_head(self, data: bytes) -> bytes:
        """What comes behind the answer that accepts the command; nothing while that is not there."""
        self._head = (self._head or b"") + data
        head = head_of(self._head)
        if head is None or head[0] != 101:
            self._check_refusal(ended=False)
            return b""
        self._request.protocol(head[1])
        self._head = None
        return head[2]

    def _check_refusal(self, *, ended: bool) -> None:
        """Raise the error of an answer that does not accept the command, once it is whole."""
        head = head_of(self._head) if self._head else None
        if head is not None and (ended or is_whole(head[1], head[2])):
            raise self._cluster.upgrade_refusal(self._request.path, head[0], head[2])

    def close(self) -> None:
        """End the connection; the command's standard input ends with it."""
        with contextlib.suppress(OSError):
            self._sock.close()

    def _take(self, end: int) -> None:
        """Forget what was read."""
        self._at = end
        if self._at == len(self._bytes):
            self._bytes.clear()
            self._at = 0

    def _send(self, kind: int, payload: bytes) -> None:
        try:
            self._sock.sendall(frame(kind, payload))
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error

    def _receive(self) -> None:
        """Take one message; `Away` once no more comes."""
        if self._ended is not None:
            raise self._broken(self._ended)
        while not self._messages:
            self._feed(self._more())
        kind, payload = self._messages.popleft()
        if kind == PING:
            self._send(PONG, payload)
        elif kind == CLOSE:
            raise self._broken("the API server closed the connection")
        elif kind == BINARY and payload:
            if payload[0] == STDOUT:
                if self._at:
                    del self._bytes[: self._at]
                    self._at = 0
                self._bytes += payload[1:]
            elif payload[0] == STDERR:
                self._words = (self._words + payload[1:])[-WORDS:]
            elif payload[0] == STATUS:
                self._ended = _status_text(payload[1:])

    def _more(self) -> bytes:
        try:
            data = self._sock.recv(1 << 18)
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error
        if not data:
            raise self._broken("the connection ended")
        return data

    def _feed(self, data: bytes) -> None:
        try:
            self._messages.extend(self._parser.feed(data))
        except ValueError as error:
            raise self._broken(str(error)) from None

    def _broken(self, why: str) -> Away:
        words = self._words.decode("utf-8", "replace").strip().splitlines()
        return Away(f"the connection to a command in the pod {self._pod} broke: {words[-1] if words else why}")


def _masked(data: bytes, mask: bytes) -> bytes:
    """XOR with a repeated mask of four bytes: as one large number, since a loop takes a second for a few megabytes."""
    size = len(data)
    repeated = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")


def _status_text(payload: bytes) -> str:
    """How a command ended, by the `Status` that the API server sends."""
    try:
        status = parse_json(payload.decode("utf-8", "replace"))
    except SettingsError:
        return payload.decode("utf-8", "replace")[:300]
    if isinstance(status, dict) and status.get("status") != "Success":
        return str(status.get("message") or "the command failed")
    return "the command has ended"
