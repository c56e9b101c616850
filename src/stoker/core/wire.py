"""How the driver, the fork server and the workers on one machine talk: JSON over Unix sockets.

Jobs travel as datagrams, one a message, so that the driver, which keeps the reading end too, can take back what a busy
worker has not read. Results travel as a stream of frames: four bytes of length, then JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from typing import Any, Final, Iterator

from stoker.core.codec import parse_object
from stoker.core.errors import BackendError, SettingsError
from stoker.system import system

FRAME_LIMIT: Final = 1 << 30
"""Bytes of a frame: more than any result has. A length above it is no length: something else wrote into the stream."""
DATAGRAM_LIMIT: Final = 96 * 1024
"""Bytes of a message that one reader gets; larger ones go through a file."""
MARK: Final = b"\x1e\x00stoker-end "
"""Begins the line that a worker writes into stdout and stderr where one job's output ends and the next one's begins."""

_LENGTH: Final = struct.Struct("!I")


class Wakeup:
    """A pipe that ends a wait: `set`, from any thread or signal handler, makes `descriptor` readable until `clear`."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt `set` in the same thread
        self._closed = False

    def set(self) -> None:
        """End the present wait, or the next one."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # it is full: the next wait ends at once anyway
                    os.write(self._write, b"x")

    def clear(self) -> bytes:
        """What `descriptor` was readable for has been seen: what was written, the numbers of signals among it."""
        try:
            return os.read(self.descriptor, 1 << 16)
        except BlockingIOError:
            return b""

    def writer(self) -> int:
        """The end to write to, for `signal.set_wakeup_fd`."""
        return self._write

    def close(self) -> None:
        """Give the descriptors back; a later `set` does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.descriptor)
                os.close(self._write)


def packed(document: Any) -> bytes:
    """A document as compact JSON."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def unpacked(data: bytes) -> dict[str, Any]:
    """The document of compact JSON; a `BackendError` where the bytes are no JSON object."""
    try:
        return parse_object(data.decode("utf-8", "surrogatepass"))
    except (SettingsError, UnicodeDecodeError) as error:
        text = error.message if isinstance(error, SettingsError) else str(error)
        raise BackendError(f"a message between processes cannot be read: {text}") from None


def message(document: Any, folder: str) -> bytes:
    """A document as a datagram; one that is too big goes through a file in `folder`, which `received` removes."""
    data = packed(document)
    if len(data) <= system.MESSAGE_LIMIT:
        return data
    import tempfile

    os.makedirs(folder, exist_ok=True)
    descriptor, path = tempfile.mkstemp(prefix="message-", suffix=".json", dir=folder)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return packed({"file": path})


def received(data: bytes) -> dict[str, Any]:
    """The document of a datagram, or of the file that it names; a `BackendError` where it cannot be read."""
    document = unpacked(data)
    if document.keys() == {"file"}:
        path = document["file"]
        if not isinstance(path, str):
            raise BackendError("a message between processes names no file")
        try:
            with open(path, "rb") as file:
                document = unpacked(file.read())
            os.unlink(path)
        except (OSError, ValueError) as error:
            raise BackendError(f"the file of a message between processes cannot be read: {error}") from None
    return document


def framed(document: Any) -> bytes:
    """A document as a frame of a stream."""
    data = packed(document)
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Puts a stream's bytes together into documents."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """The documents that are whole now; a `BackendError` where the stream holds something else than frames."""
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > FRAME_LIMIT:
                raise BackendError(f"a message between processes claims to have {length:,} bytes")
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
