"""What the pages of one server share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.client import Client
from stoker.core.values import define
from stoker.store.store import Store
from stoker.ui.access import PageAccess

if TYPE_CHECKING:
    from stoker.report.machineuse import NodeWatch
    from stoker.ui.actions import StartedCommands
    from stoker.ui.streams import Streams


@define(kw_only=True)
class State:
    """A server's store, who may use it, and what goes on in it."""

    client: Client
    access: PageAccess
    stack: str | None
    """The stack whose store it is; None for the current one."""
    stack_name: str
    folder: str
    """Where commands are started: where the server was."""
    commands: StartedCommands
    streams: Streams
    nodes: NodeWatch
    """The nodes of the stack's platforms."""

    @property
    def store(self) -> Store:
        """The store, from which nothing is unpickled."""
        store = self.client.store
        store.blobs.trusted = False
        return store
