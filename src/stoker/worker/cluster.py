"""A gang: the nodes that run one step together, from their rendezvous to their results.

A platform's variables tell a node its number, the number of nodes, and the head's address (`TOPOLOGIES`). The first
node, the head, listens on a free port and writes its address into a note that all nodes can read; the others connect,
and when the last one has, all start. The connections stay open: a node reports a failure to the head, the head tells
the others to end, and a node that goes away is noticed at once.

    node → head  {"op": "here", "node", "token", "address"} … {"op": "result", "node", "result"}
    head → node  {"op": "go", "port", "hosts"} … {"op": "end"}
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import time
from typing import Any, Callable, Final, Mapping

import attrs

from stoker.core import wire
from stoker.core.codec import from_json, to_json
from stoker.core.protocol import GangTask, StepResult, Topology
from stoker.store import notes

TOPOLOGIES: Final[Mapping[str, Topology]] = {
    # Where Stoker itself starts the nodes: on this machine, and in containers of one network.
    "stoker": Topology(
        node="STOKER_NODE_RANK", nodes="STOKER_NODES", head="STOKER_HEAD_ADDR", address="STOKER_NODE_ADDR"
    ),
    # https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES
    "slurm": Topology(node="SLURM_NODEID", nodes="SLURM_JOB_NUM_NODES"),
    # An indexed Job: https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode
    "kubernetes": Topology(node="JOB_COMPLETION_INDEX", nodes="STOKER_NODES", head="STOKER_HEAD_ADDR"),
    # https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
    "aws_batch": Topology(
        node="AWS_BATCH_JOB_NODE_INDEX",
        nodes="AWS_BATCH_JOB_NUM_NODES",
        head="AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",
    ),
    # https://docs.skypilot.co/en/latest/running-jobs/environment-variables.html
    "skypilot": Topology(node="SKYPILOT_NODE_RANK", nodes="SKYPILOT_NUM_NODES", hosts="SKYPILOT_NODE_IPS"),
}
"""platform → the variables by which a node learns its number. Addresses that a platform does not give, the nodes tell
each other: the head's note has its own."""

LOOK: Final = 0.1
"""Seconds between two looks for the head's note."""


class GangIncomplete(Exception):
    """Not all nodes came in time; `missing` has those that did not reach the head, none if that is the head itself."""

    def __init__(self, missing: list[int], nodes: int, timeout: float) -> None:
        self.missing = missing
        who = ", ".join(map(str, missing)) or "0 (the head)"
        plural = "s" if len(missing) > 1 else ""
        super().__init__(f"node{plural} {who} of {nodes} did not come up within {timeout:g} s")


@attrs.frozen(kw_only=True)
class Member:
    """A node of a gang."""

    node: int
    """Its number; node 0 is the head."""
    nodes: int
    """Nodes of the gang."""
    head: str = ""
    """The head's address; empty where the platform does not give it."""
    address: str = ""
    """This node's address for the others; empty where the platform does not give it."""


def topology_of(task: GangTask) -> Topology:
    """The variables by which a node of this gang learns its number: its backend's, or those of a platform by name."""
    return TOPOLOGIES[task.topology] if task.variables is None else task.variables


def member_of(topology: Topology, environment: Mapping[str, str]) -> Member:
    """The node that a platform's variables describe; `KeyError` or `ValueError` where they do not."""
    hosts = environment.get(topology.hosts, "").split() if topology.hosts else []
    return Member(
        node=int(environment[topology.node]),
        nodes=int(environment[topology.nodes]),
        head=hosts[0] if hosts else environment.get(topology.head, ""),
        address=environment.get(topology.address, "") if topology.address else "",
    )


class Gang:
    """This node's connections to the others. `port` and `hosts` are known once all have gathered."""

    def __init__(self, member: Member, *, note: str, token: str, timeout: float | None) -> None:
        self.member = member
        self.port = 0
        self.hosts: tuple[str, ...] = ()
        self.results: dict[int, StepResult] = {}
        self.lost: list[int] = []
        self._warned = False
        self.should_end = False
        self._note = note
        self._token = token
        self._timeout = timeout
        self._connections: dict[socket.socket, tuple[int, wire.Frames]] = {}

    @property
    def is_head(self) -> bool:
        """Whether this node reports for all."""
        return self.member.node == 0

    # Gathering

    def gather(self, stopped: Callable[[], bool]) -> bool:
        """Wait until all nodes are there; False if it was stopped meanwhile. `GangIncomplete` where one is missing when
        time is up."""
        until = None if self._timeout is None else time.monotonic() + self._timeout
        return self._accept_all(until, stopped) if self.is_head else self._connect(until, stopped)

    def _accept_all(self, until: float | None, stopped: Callable[[], bool]) -> bool:
        address = self.member.address or own_address(self.member.head)
        with listening(address) as listener:
            note = {"address": address, "port": listener.getsockname()[1], "token": self._token}
            notes.put(self._note, json.dumps(note).encode())
            hosts = {0: address}
            while len(hosts) < self.member.nodes:
                if stopped():
                    return False
                if not select.select([listener], [], [], LOOK)[0]:
                    if until is None or time.monotonic() < until:
                        continue
                    missing = [node for node in range(self.member.nodes) if node not in hosts]
                    raise GangIncomplete(missing, self.member.nodes, self._timeout or 0.0)
                connection, peer = listener.accept()
                hello = _first(connection, 5.0)
                if hello is None or hello.get("token") != self._token or hello["node"] in hosts:
                    connection.close()  # of another gang, or of an earlier attempt
                    continue
                hosts[hello["node"]] = hello["address"] or peer[0]
                self._connections[connection] = (hello["node"], wire.Frames())
        self.hosts = tuple(hosts[node] for node in range(self.member.nodes))
        self.port = free_port(address)
        self._send({"op": "go", "port": self.port, "hosts": self.hosts})
        notes.remove(self._note)
        return True

    def _connect(self, until: float | None, stopped: Callable[[], bool]) -> bool:
        missing_head = GangIncomplete([], self.member.nodes, self._timeout or 0.0)
        while not stopped():
            with contextlib.suppress(OSError, ValueError):
                note = json.loads(notes.get(self._note) or b"{}")
                if note.get("token") == self._token:
                    connection = socket.create_connection((note["address"], note["port"]), timeout=5.0)
                    break
            if until is not None and time.monotonic() > until:
                raise missing_head
            time.sleep(LOOK)
        else:
            return False
        hello = {"op": "here", "node": self.member.node, "token": self._token, "address": self.member.address}
        connection.sendall(wire.framed(hello))
        go = None
        while go is None:
            if stopped():
                connection.close()
                return False
            if select.select([connection], [], [], LOOK)[0]:
                go = _first(connection, None)
                if go is None:
                    connection.close()
                    raise missing_head
        self.port, self.hosts = go["port"], tuple(go["hosts"])
        connection.settimeout(None)
        self._connections[connection] = (0, wire.Frames())
        return True

    # Together

    def connections(self) -> list[socket.socket]:
        """The connections to other nodes: each is readable when its node has sent something or is gone."""
        return list(self._connections)

    def hear(self, connection: socket.socket) -> bool:
        """Receive a node's messages; returns False when it hung up."""
        node, frames = self._connections[connection]
        try:
            data = connection.recv(1 << 18)
        except (ConnectionResetError, TimeoutError):
            data = b""
        if not data:
            del self._connections[connection]
            connection.close()
            if self.is_head and node not in self.results:
                self.lost.append(node)
            if not self.is_head:
                self.should_end = True  # the head is gone: no one takes the result
            return False
        for message in frames.feed(data):
            if message["op"] == "result":
                self.results[node] = from_json(StepResult, message["result"], strict=False)
            elif message["op"] == "failing":
                self._warned = True
            elif message["op"] == "end":
                self.should_end = True
        return True

    @property
    def failed(self) -> bool:
        """Whether another node failed or went away."""
        return self._warned or bool(self.lost) or any(not result.ok for result in self.results.values())

    @property
    def complete(self) -> bool:
        """Whether each other node has reported a result or is lost."""
        return len(self.results) + len(self.lost) >= self.member.nodes - 1

    def end(self) -> None:
        """As the head, tell the others to end."""
        self._send({"op": "end"})

    def warn(self) -> None:
        """Tell the head that a rank here failed: its result follows when the others here have ended."""
        self._send({"op": "failing"})

    def report(self, result: StepResult) -> None:
        """Tell the head this node's result."""
        self._send({"op": "result", "node": self.member.node, "result": to_json(result)})

    def close(self) -> None:
        """Hang up."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _send(self, message: Mapping[str, Any]) -> None:
        data = wire.framed(message)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # a node that is gone is noticed by `hear`
                connection.sendall(data)


def listening(address: str) -> socket.socket:
    """A socket on a free port of an address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(1024)
    return listener


def free_port(address: str) -> int:
    """A port of an address that is free at this moment."""
    with listening(address) as probe:
        return int(probe.getsockname()[1])


def port_is_free(port: int) -> bool:
    """Whether a server can listen on a port of all addresses of this machine, as a launcher's store does."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                # Connections of an earlier attempt that the kernel still remembers do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
        except OverflowError:  # no valid port, which the launcher refuses itself
            break
    return True


def own_address(stated: str) -> str:
    """This node's address for others: as the platform states it, else that of the default route."""
    if stated:
        return stated
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # RFC 5737, for documentation; nothing is sent, only the route is chosen
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _first(connection: socket.socket, patience: float | None) -> dict[str, Any] | None:
    """The first message that a node sends; None where it hangs up or sends none in time."""
    frames = wire.Frames()
    connection.settimeout(patience)
    try:
        while data := connection.recv(1 << 16):
            for message in frames.feed(data):
                connection.settimeout(None)
                first: dict[str, Any] = message
                return first
    except (OSError, ValueError):
        return None
    return None


def gang_of(task: GangTask) -> Gang:
    """This node's gang, as a job tells it and the platform's variables."""
    member = member_of(topology_of(task), os.environ)
    return Gang(member, note=task.note, token=task.token, timeout=task.timeout)
