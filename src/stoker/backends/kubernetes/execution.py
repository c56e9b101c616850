"""A command in a container of a pod, over the API's websocket: its standard input, its output, and how it ended.

https://kubernetes.io/docs/concepts/architecture/control-plane-node-communication/ and RFC 6455. The protocol of the
messages is v5.channel.k8s.io or v4.channel.k8s.io: the first byte of each says which stream it belongs to.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import ssl
import struct
from typing import Final, Sequence

from stoker.backends.kubernetes.client import Cluster
from stoker.core.codec import parse_json
from stoker.core.errors import Away, BackendError, SettingsError

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
STATUS: Final = 3
"""The stream on which the API server says how the command ended."""
PIECE: Final = 1 << 16
"""Bytes of one message at most that are sent: proxies in between hold whole messages in memory."""
LARGEST: Final = 32 << 20
"""Bytes of one message at most that are taken."""
WORDS: Final = 4096
"""Bytes of the command's standard error that are kept."""
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""https://www.rfc-editor.org/rfc/rfc6455#section-1.3"""
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class Execution:
    """A running command. What it writes is read as one stream of bytes; `Away` where the connection breaks.

    Used by one thread at a time. `ApiError` from the constructor where the API server refuses the command.
    """

    def __init__(self, cluster: Cluster, namespace: str, pod: str, command: Sequence[str], *, container: str) -> None:
        self._pod = f"{namespace}/{pod}"
        self._bytes = bytearray()
        self._at = 0
        self._words = b""
        self._ended: str | None = None
        """How the command ended, in words; None while it runs."""
        self._error: Away | None = None
        """Why `take` gets nothing more."""
        key = base64.b64encode(os.urandom(16))
        streams = [("stdin", "true"), ("stdout", "true"), ("stderr", "true"), ("container", container)]
        self._sock, answer, rest = cluster.upgrade(
            f"/api/v1/namespaces/{namespace}/pods/{pod}/exec",
            [*(("command", word) for word in command), *streams],
            {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": key.decode(),
                "Sec-WebSocket-Protocol": ", ".join(PROTOCOLS),
            },
        )
        self._raw = bytearray(rest)
        accepted = base64.b64encode(hashlib.sha1(key + _GUID).digest()).decode()
        protocol = answer.get("sec-websocket-protocol", "")
        if answer.get("sec-websocket-accept") != accepted or protocol not in PROTOCOLS:
            self.close()
            raise BackendError(
                f"the Kubernetes API server offers no exec by websocket (it answers with {protocol or 'no protocol'})",
                fix="use Kubernetes 1.29 or later, or an object store: artifact_store = 's3://…'",
            )

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes to the command's standard input."""
        view = memoryview(data)
        for at in range(0, len(view), PIECE):
            self._send(_BINARY, bytes([STDIN]) + view[at : at + PIECE])

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
        """What the command has written since the last call, without waiting; `Away` once no more comes."""
        if self._error is None:
            try:
                more = self._take_raw()
                while self._has_message():
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
                self._raw += data
            return False
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error
        finally:
            with contextlib.suppress(OSError):
                self._sock.settimeout(patience)

    def _has_message(self) -> bool:
        """Whether a message, or a frame that stands alone, has come as a whole."""
        at, raw = 0, self._raw
        while len(raw) - at >= 2:
            final, second = raw[at] & 0x80, raw[at + 1]
            size, length = second & 0x7F, {126: 2, 127: 8}.get(second & 0x7F, 0)
            at += 2 + length
            if at > len(raw):
                return False
            if length:
                size = int.from_bytes(raw[at - length : at], "big")
            if size > LARGEST:
                return True  # it is refused as it is read
            at += size + (4 if second & 0x80 else 0)
            if at > len(raw):
                return False
            if final:
                return True
        return False

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
        size = len(payload)
        head = bytes([0x80 | kind])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += struct.pack("!BH", 0x80 | 126, size)
        else:
            head += struct.pack("!BQ", 0x80 | 127, size)
        mask = os.urandom(4)
        try:
            self._sock.sendall(head + mask + _masked(payload, mask))
        except OSError as error:
            raise self._broken(str(error) or type(error).__name__) from error

    def _receive(self) -> None:
        """Take one message; `Away` once no more comes."""
        if self._ended is not None:
            raise self._broken(self._ended)
        kind, payload = self._message()
        if kind == _PING:
            self._send(_PONG, payload)
        elif kind == _CLOSE:
            raise self._broken("the API server closed the connection")
        elif kind == _BINARY and payload:
            if payload[0] == STDOUT:
                if self._at:
                    del self._bytes[: self._at]
                    self._at = 0
                self._bytes += payload[1:]
            elif payload[0] == STDERR:
                self._words = (self._words + payload[1:])[-WORDS:]
            elif payload[0] == STATUS:
                self._ended = _status_text(payload[1:])

    def _message(self) -> tuple[int, bytes]:
        """The next message, put together from its frames; a control frame may stand between them."""
        kind, parts = 0, b""
        while True:
            first, second = self._exactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self._exactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self._exactly(8))
            if size > LARGEST:
                raise self._broken(f"a message of {size} bytes came")
            mask = self._exactly(4) if second & 0x80 else b""
            payload = self._exactly(size)
            payload = _masked(payload, mask) if mask else payload
            opcode = first & 0x0F
            if opcode >= _CLOSE:
                if opcode == _PING and kind:
                    self._send(_PONG, payload)
                    continue
                return opcode, payload
            kind = opcode or kind
            parts += payload
            if first & 0x80:
                return _BINARY if kind in (1, _BINARY) else kind, parts

    def _exactly(self, size: int) -> bytes:
        while len(self._raw) < size:
            try:
                data = self._sock.recv(1 << 18)
            except OSError as error:
                raise self._broken(str(error) or type(error).__name__) from error
            if not data:
                raise self._broken("the connection ended")
            self._raw += data
        taken = bytes(self._raw[:size])
        del self._raw[:size]
        return taken

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
