"""Where the client looks for flows and runs in this process: in which namespace, and in the store of which stack."""

from __future__ import annotations

from typing import Final

from stoker.client.client import Client
from stoker.core.errors import UsageError
from stoker.flows.parameters import username

_here: dict[str, str | None] = {}
"""What was chosen in this process: "namespace", "stack"."""
_OF_STACK: Final = "stack@"


def default_namespace() -> str:
    """Go back to one's own namespace, `user:` and the name; returns it."""
    _here.pop("namespace", None)
    return str(get_namespace())


def get_namespace() -> str | None:
    """The namespace in which flows and runs are looked for; None is everybody's."""
    return _here["namespace"] if "namespace" in _here else f"user:{username()}"


def namespace(ns: str | None) -> str | None:
    """Look in another namespace from now on; None is everybody's."""
    if ns == "":
        raise UsageError("an empty text is no namespace", fix='write namespace("user:ann") or namespace(None)')
    _here["namespace"] = ns
    return get_namespace()


def metadata(ms: str) -> str:
    """Read the store of another stack from now on: `metadata("team")`, or what `get_metadata()` returned."""
    stack = ms.removeprefix(_OF_STACK)
    if "@" in stack or "/" in stack:
        raise UsageError(
            f"metadata({ms!r}) is none of Stoker's: runs are found in the database of a stack",
            fix='write metadata("NAME") with the name of a stack; `stoker stack list` has them',
        )
    Client(stack).store.close()  # that there is none is told here, and not by whatever comes next
    _here["stack"] = stack
    return get_metadata()


def get_metadata() -> str:
    """Where runs are looked for: `stack@` and the stack's name."""
    from stoker import stacks

    return f"{_OF_STACK}{stacks.load(_here.get('stack')).name}"


def default_metadata() -> str:
    """Go back to the active stack's store; returns what `get_metadata` does."""
    _here.pop("stack", None)
    return get_metadata()


def client() -> Client:
    """A client of the store that was chosen."""
    return Client(_here.get("stack"))
