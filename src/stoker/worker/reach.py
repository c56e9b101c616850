"""Whether the nodes of a gang reach each other's ports, before their ranks wait for each other for ever.

Ranks connect in pairs, to ports that the kernel chooses. Each node therefore listens on one, and connects to those of
all others; who answers with the gang's token is the node that it should be. `holder` says which program of this machine
listens on a port, as /proc shows it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from typing import Any, Callable, Final, Mapping, Sequence

from stoker.system import system

PATIENCE: Final = 10.0
"""Seconds until a connection counts as blocked: what a firewall drops is never answered. Linux sends the first packet
again after 1, 3 and 7 seconds."""
SETTING: Final = "STOKER_PORT_CHECK"
"""The variable that leaves the look at others out, where it is 0: for nodes that need no more than the ports that are
open between them."""
FIX: Final = (
    "let the nodes reach all ports of each other: a firewall or a NetworkPolicy stands between them; "
    f"environment={{{SETTING!r}: '0'}} starts the ranks all the same"
)
_LOOK: Final = 0.1


class PortCheck:
    """A listener on a port of all addresses, and a look at those of the other nodes. Used by `with`."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._listener = _listener()
        self._listener.settimeout(_LOOK)
        self._accepted: list[socket.socket] = []
        self._ended = threading.Event()
        self._answering = threading.Thread(target=self._answer, name="stoker-ports", daemon=True)
        self.port = int(self._listener.getsockname()[1])
        """The port that it listens on; free again afterwards."""

    def __enter__(self) -> PortCheck:
        self._answering.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._ended.set()
        self._answering.join()
        # The others have hung up by now: whoever does so first keeps the port from others for a minute.
        for connection in (*self._accepted, self._listener):
            connection.close()

    def _answer(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError):  # nobody came, or somebody left at once
                connection, _ = self._listener.accept()
                self._accepted.append(connection)
                connection.settimeout(PATIENCE)
                connection.sendall(self._token)

    def blocked(self, places: Mapping[int, tuple[str, int]], stopped: Callable[[], bool]) -> dict[int, str]:
        """The nodes that this one cannot reach, each with the reason; `places` are their addresses and ports.

        None where `SETTING` says so.
        """
        reasons: dict[int, str] = {}
        if os.environ.get(SETTING) == "0":
            return reasons
        until = time.monotonic() + PATIENCE
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            for node, (address, port) in places.items():
                connection = stack.enter_context(socket.socket(family_of(address), socket.SOCK_STREAM))
                connection.setblocking(False)
                reasons[node] = f"no answer within {PATIENCE:g} s"
                code = connection.connect_ex((address, port))
                if code in (0, errno.EINPROGRESS):
                    selector.register(connection, selectors.EVENT_READ, node)
                else:
                    reasons[node] = os.strerror(code)
            while selector.get_map() and time.monotonic() < until and not stopped():
                for key, _ in selector.select(_LOOK):
                    selector.unregister(key.fileobj)
                    problem = self._problem(key.fileobj)
                    if problem:
                        reasons[key.data] = problem
                    else:
                        del reasons[key.data]
        return reasons

    def _problem(self, connection: Any) -> str:
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return os.strerror(code)
        try:
            answer = connection.recv(len(self._token))
        except OSError as error:
            return error.strerror or str(error)
        return "" if answer == self._token else "another program answers there"


def pairs_text(blocked: Mapping[int, Mapping[int, str]], places: Mapping[int, tuple[str, int]]) -> str:
    """Which nodes cannot reach which: "node 2 cannot reach node 1 (10.0.0.2, port 41233): no answer within 10 s".

    `blocked` has for each node those that it cannot reach, with the reason, `places` addresses and ports by node.
    """
    return shortened(
        [
            pair_text(node, other, places[other], reason)
            for node, reasons in sorted(blocked.items())
            for other, reason in sorted(reasons.items())
        ]
    )


def pair_text(node: int, other: int, place: tuple[str, int], reason: str) -> str:
    """That a node cannot reach another one at its place, and why."""
    return f"node {node} cannot reach node {other} ({place[0]}, port {place[1]}): {reason}"


def shortened(texts: Sequence[str]) -> str:
    """The first pairs, and how many more there are."""
    more = f"; and {len(texts) - 3} more pairs" if len(texts) > 3 else ""
    return "; ".join(texts[:3]) + more


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # switched off in this container
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def family_of(address: str) -> socket.AddressFamily:
    """The family of an address or of a host's name, which counts as one of IPv4."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


_LISTEN: Final = "0A"
"""The state of a listening socket in /proc/net/tcp (include/net/tcp_states.h of the kernel)."""


def holder(port: int) -> str:
    """The program that listens on a port, such as "pid 4711, python train.py"; empty where nobody may see it.

    Other users' processes and those of other containers are not seen.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return ""
    for pid in system.pids():
        if any(target in sockets for _, target in system.descriptors_of(pid)):
            return f"pid {pid}, {_command(pid)}".rstrip(", ")
    return ""


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen on a port of any address."""
    inodes: set[str] = set()
    for name in ("tcp", "tcp6"):
        rows = [line.split() for line in system.kernel_file(f"net/{name}").decode().splitlines()][1:]
        inodes.update(row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port)
    return inodes


def _command(pid: int) -> str:
    """The first words of a process's command line."""
    text = system.command_of(pid)
    return text if len(text) <= 80 else f"{text[:79]}…"
