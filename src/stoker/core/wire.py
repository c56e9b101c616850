"""How the driver, the fork server and the workers on one machine talk: JSON over Unix sockets.

Jobs travel as datagrams, one a message, so that the driver, which keeps the reading end too, can take back what a busy
worker has not read. Results travel as a stream of frames: four bytes of length, then JSON.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from typing import Any, Final, Iterator

DATAGRAM_LIMIT: Final = 96 * 1024
"""Bytes of a message; larger ones go through a file. Linux allows about 200 KiB by default, macOS less."""
MARK: Final = b"\x1e\x00stoker-end "
"""Begins the line that a worker writes into stdout and stderr where one job's output ends and the next one's begins."""

_KIND: Final = socket.SOCK_SEQPACKET if sys.platform == "linux" else socket.SOCK_DGRAM
_LENGTH: Final = struct.Struct("!I")


def packet_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected sockets that keep messages apart and in order."""
    here, there = socket.socketpair(socket.AF_UNIX, _KIND)
    for end in (here, there):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * DATAGRAM_LIMIT)
    return here, there


def packed(document: Any) -> bytes:
    """A document as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def unpacked(data: bytes) -> Any:
    """The document of compact JSON."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def framed(document: Any) -> bytes:
    """A document as a frame of a stream."""
    data = packed(document)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Puts a stream's bytes together into documents."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The documents that are whole now."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            document = unpacked(bytes(self._data[_LENGTH.size : end]))
            del self._data[:end]
            yield document

    def rest(self) -> bytes:
        """What came behind the last document, taken out: where frames begin a stream of something else."""
        rest = bytes(self._data)
        self._data.clear()
        return rest
