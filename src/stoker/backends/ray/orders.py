"""What a driver tells the program of its Ray job while that runs: orders, in a file or in the cluster.

An order is JSON:

    {"token": of the order, "first": number of its first step, "steps": […], "ends": {"3": 9.0}, "close": true}

"steps" are to be run, "ends" are seconds in which steps are to end ("all": every step), "close" means that nothing more
will come. Where
the cluster sees the driver's folders, orders are lines of a file. Elsewhere each order is a package of the Jobs API,
named by its number: the driver sends it by HTTP, and the program reads it from Ray's key-value store, where Ray keeps
packages. Ray removes a package that nothing uses after some minutes.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Final, Mapping, Protocol

from stoker.core.codec import parse_object
from stoker.core.errors import SettingsError

FILE: Final = "orders"
"""The file of orders, in the folder of the Ray job."""
PROTOCOL: Final = "gcs"
"""Of packages in Ray's key-value store, whose keys are their URIs: ray/_private/runtime_env/packaging.py."""


def package_of(id: str, number: int) -> str:
    """The name of the package with an order of a Ray job; 0 is the document with which it begins."""
    return f"{id}-order-{number}"


def uri_of(name: str) -> str:
    """A package as a place of `backends.ray.job`."""
    return f"{PROTOCOL}://{name}"


def append(path: str, order: Mapping[str, Any]) -> None:
    """Append an order to a file, in one piece; one whose writer was killed in the middle is ended by a newline."""
    data = json.dumps(order, separators=(",", ":")).encode() + b"\n"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)


GONE: Final = 2.0
"""Seconds for which the file must be missing: a network disk may not know a name for a moment."""


class OrderSource(Protocol):
    """Where the program finds its orders."""

    eager: float
    """Seconds between two looks while orders come."""

    def read(self) -> list[Mapping[str, Any]]:
        """The orders since the last call."""

    def close(self) -> None:
        """Remove what is left."""


class OrderLines:
    """Orders in a file; it is opened anew for each look, since only then NFS asks the server."""

    eager = 0.005

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0
        self._missed = 0.0

    def read(self) -> list[Mapping[str, Any]]:
        """The orders since the last call. Where the folder is gone, nobody wants anything any more: all is to end."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            now = time.monotonic()
            self._missed = self._missed or now
            return [{"all": 0.0, "close": True}] if now > self._missed + GONE else []
        self._missed = 0.0
        data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        return [_order(line) for line in data.splitlines()]

    def close(self) -> None:
        """The driver removes the folder."""


class OrderPackages:
    """Orders in the cluster's key-value store, as packages of a Ray job; each is removed when it was read.

    `store` is Ray's module `ray.experimental.internal_kv`.
    """

    eager = 0.01

    def __init__(self, id: str, store: Any) -> None:
        self._id = id
        self._store = store
        self._next = 1

    def read(self) -> list[Mapping[str, Any]]:
        """The orders since the last call."""
        orders = []
        while (data := take_package(uri_of(package_of(self._id, self._next)), self._store)) is not None:
            self._next += 1
            orders.append(_order(data))
        return orders

    def close(self) -> None:
        """Remove the orders that came too late."""
        self._store._internal_kv_del(uri_of(package_of(self._id, 0))[:-1], del_by_prefix=True)


def take_package(uri: str, store: Any) -> bytes | None:
    """Take a package out of the key-value store; None where there is none. The store may be away for a while."""
    try:
        data = store._internal_kv_get(uri)
        if data is not None:
            store._internal_kv_del(uri)
    except Exception:  # whatever Ray raises: the kinds differ from version to version
        return None
    return None if data is None else bytes(data)


def _order(data: bytes) -> Mapping[str, Any]:
    """An order; one that was cut off asks for nothing."""
    try:
        return parse_object(data)
    except SettingsError:
        return {}
