"""`NotFound` as Python's containers raise it, so that `in`, `.get` and `except KeyError` work as people expect."""

from __future__ import annotations

from stoker.core.errors import NotFound


class NoSuchKey(NotFound, KeyError):
    """A mapping of ours has no such key; the message names the nearest."""


class NoSuchIndex(NotFound, IndexError):
    """A fan-out has fewer elements."""
