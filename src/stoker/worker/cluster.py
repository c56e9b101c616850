"""A gang: the nodes that run one step together, from their rendezvous to their results.

A platform's variables tell a node its number, the number of nodes, and the head's address (`TOPOLOGIES`). The first
node, the head, listens on a free port and writes its address into a note that all nodes can read; the others connect,
and when the last one has, all start. The connections stay open: a node reports a failure to the head, the head tells
the others to end, and a node that goes away is noticed at once.

    node → head  {"op": "here", "node", "token", "address", "port"}, {"op": "reached", "blocked"} …
                 {"op": "result", "node", "result"}
                 {"op": "failed", "node", "token", "result"}: instead of "here", from a node that cannot take part
    head → node  {"op": "reach", "places"}, {"op": "go", "round", "port", "nodes", "hosts"} … {"op": "end"}
                 {"op": "again"}: after the node's result, to be answered by "here"

Between "reach" and "reached" each node connects to all others (`worker.reach`). A node that cannot even connect to the
head leaves a note beside the head's, which the head reads while it waits.

A gang that needs `least` of its nodes only gathers again when one goes away or comes back: all end their ranks, and
those that are there start new ones, as another world.
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
from stoker.core.codec import from_json, parse_object, to_json
from stoker.core.errors import BackendError, SettingsError
from stoker.core.protocol import GangTask, StepError, StepResult, Topology
from stoker.store import notes
from stoker.worker import reach

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
JOIN: Final = 30.0
"""Seconds for which a gang that does not need all nodes waits for further ones, since the last one came; as torchrun
does: https://docs.pytorch.org/docs/stable/elastic/rendezvous.html (`last_call_timeout`)"""
RETURNS: Final = 3
"""How often a node may come back to a gang."""
LATE: Final = 5.0
"""Seconds between two looks of the head for notes of nodes that have not come. There are none for `reach.PATIENCE`."""


class GangIncomplete(Exception):
    """Not all nodes came in time; `missing` has those that did not reach the head, none if that is the head itself."""

    def __init__(self, missing: list[int], nodes: int, timeout: float) -> None:
        self.missing = missing
        who = ", ".join(map(str, missing)) or "0 (the head)"
        plural = "s" if len(missing) > 1 else ""
        super().__init__(f"node{plural} {who} of {nodes} did not come up within {timeout:g} s")


class NodeFailed(Exception):
    """A node cannot take part; `result` is its own, which names it."""

    def __init__(self, result: StepResult, node: int, nodes: int) -> None:
        error = result.error or StepError()
        message = f"node {node} of {nodes} cannot take part: {error.message or result.cause}"
        super().__init__(message)
        self.result = attrs.evolve(result, error=attrs.evolve(error, message=message, node=node))


class GangBlocked(Exception):
    """Nodes came that cannot connect to each other; its text names the pairs."""


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
    """This node's connections to the others. `port`, `nodes` and `hosts` are known once they have gathered.

    `least` is the number of nodes that it needs, 0 for all of them.
    """

    def __init__(self, member: Member, *, note: str, token: str, timeout: float | None, least: int = 0) -> None:
        self.member = member
        self.port = 0
        self.round = 0
        """How often they have gathered."""
        self.nodes: tuple[int, ...] = ()
        self.hosts: tuple[str, ...] = ()
        self.results: dict[int, StepResult] = {}
        self.lost: list[int] = []
        self.should_end = False
        self.listener: socket.socket | None = None
        """Where the head hears nodes that come while the others are at work; None where all are needed."""
        self._warned = False
        self._called = False
        self._note = note
        self._token = token
        self._timeout = timeout
        self._least = least
        self._connections: dict[socket.socket, tuple[int, wire.Frames]] = {}
        self._comers: dict[int, tuple[socket.socket, tuple[str, int]]] = {}
        self._returns: dict[int, int] = {}
        self._seen: set[int] = set()

    @property
    def is_head(self) -> bool:
        """Whether this node reports for all."""
        return self.member.node == 0

    @property
    def rank(self) -> int:
        """This node's place among those that have gathered."""
        return self.nodes.index(self.member.node)

    @property
    def is_elastic(self) -> bool:
        """Whether it goes on without some of its nodes."""
        return 0 < self._least < self.member.nodes

    # Gathering

    def gather(self, stopped: Callable[[], bool]) -> bool:
        """Wait until all nodes are there and reach each other; False if it was stopped meanwhile.

        An elastic gang waits for the least number of them, and `JOIN` for more; where it gathers again, for those that
        are still there. `GangIncomplete` where one is missing when time is up; on the head `NodeFailed` where one
        cannot take part, and `GangBlocked` where two cannot connect.
        """
        until = self._until()
        with reach.PortCheck(self._token) as check:
            there = self._accept_all(until, stopped, check) if self.is_head else self._connect(until, stopped, check)
        self.results, self.lost, self._warned, self.should_end = {}, [], False, False
        return there

    def _accept_all(self, until: float | None, stopped: Callable[[], bool], check: reach.PortCheck) -> bool:
        address = self.member.address or own_address(self.member.head)
        again = self.listener is not None
        with contextlib.ExitStack() as stack:
            listener = self.listener or listening(address)
            if self.is_elastic:
                self.listener = listener
            else:
                stack.enter_context(listener)
            if not again:
                note = {"address": address, "port": listener.getsockname()[1], "token": self._token}
                notes.put(self._note, json.dumps(note).encode())
            places = {0: (address, check.port)}
            if again:
                places |= self._call_again(stopped)
            came_at = next_look = time.monotonic()
            next_look += reach.PATIENCE
            while len(places) < self.member.nodes:
                now = time.monotonic()
                if self.is_elastic and len(places) >= self._least and (again or now >= came_at + JOIN):
                    break
                if stopped():
                    return False
                if not select.select([listener], [], [], LOOK)[0]:
                    if now >= next_look:
                        next_look = now + min(LATE, reach.PATIENCE)
                        self._look_for_shut_out([node for node in range(self.member.nodes) if node not in places])
                    if until is None or now < until:
                        continue
                    missing = [node for node in range(self.member.nodes) if node not in places]
                    raise GangIncomplete(missing, self.member.nodes, self._timeout or 0.0)
                came = self._welcome(listener, places)
                if came is not None:
                    node, connection, places[node] = came
                    self._connections[connection] = (node, wire.Frames())
                    came_at = time.monotonic()
        if not self.is_elastic:
            notes.remove(self._note)
        return self._begin(places, stopped, check)

    def _welcome(
        self, listener: socket.socket, places: Mapping[int, tuple[str, int]]
    ) -> tuple[int, socket.socket, tuple[str, int]] | None:
        """The node that connects, its connection and place; None for one of another gang, or of an earlier attempt."""
        connection, peer = listener.accept()
        hello = _first(connection, 5.0)
        if hello is None or hello.get("token") != self._token or hello["node"] in places:
            connection.close()
            return None
        if self.nodes:
            self._returns[hello["node"]] = self._returns.get(hello["node"], 0) + 1
            if hello["op"] == "failed" or self._returns[hello["node"]] > RETURNS:
                connection.close()  # the others go on without it
                return None
        if hello["op"] == "failed":
            connection.close()
            self.end()
            result = from_json(StepResult, hello["result"], strict=False)
            raise NodeFailed(result, hello["node"], self.member.nodes)
        return hello["node"], connection, (hello["address"] or peer[0], hello["port"])

    def _begin(
        self, places: Mapping[int, tuple[str, int]], stopped: Callable[[], bool], check: reach.PortCheck
    ) -> bool:
        """Have all nodes look at each other, and begin; False if it was stopped meanwhile."""
        self.nodes = tuple(sorted(places))
        self._seen.update(places)
        self._send({"op": "reach", "places": places})
        blocked = {0: check.blocked({node: place for node, place in places.items() if node}, stopped)}
        for connection, (node, _) in list(self._connections.items()):
            answer = self._await(connection, stopped)
            if stopped():
                return False
            if answer is None:  # it went away, which is noticed once the ranks are to start
                continue
            blocked[node] = {int(other): str(reason) for other, reason in answer["blocked"].items()}
        if any(blocked.values()) and not self.is_elastic:
            self.end()
            raise GangBlocked(reach.pairs_text(blocked, places))
        self.hosts = tuple(places[node][0] for node in self.nodes)
        # The port that the others have just reached.
        self.port = check.port
        self.round += 1
        self._send({"op": "go", "round": self.round, "port": self.port, "nodes": self.nodes, "hosts": self.hosts})
        return True

    # Gathering again

    @property
    def changes(self) -> bool:
        """As the head, whether to gather again: nodes went away, or have come."""
        return self.is_elastic and bool(self._comers or self.lost)

    def hear_comer(self) -> bool:
        """As the head, take in a node that connects while the others are at work; whether one waits now."""
        assert self.listener is not None
        came = self._welcome(self.listener, {})
        if came is not None:
            node, connection, place = came
            self._comers[node] = (connection, place)
        return bool(self._comers)

    def change_text(self) -> str:
        """As the head, what changed: "node 2 went away; node 1 came back"."""
        gone = [node for node in self.lost if node not in self._comers]
        texts = [f"node {node} went away" for node in sorted(gone)]
        texts += [f"node {node} came{' back' if node in self._seen else ''}" for node in sorted(self._comers)]
        return "; ".join(texts)

    def _call_again(self, stopped: Callable[[], bool]) -> dict[int, tuple[str, int]]:
        """The places of the nodes that are there: those that were at work, and those that came meanwhile."""
        places = {}
        self._send({"op": "again"})
        for connection, (node, _) in list(self._connections.items()):
            hello = self._await(connection, stopped)
            while hello is not None and hello["op"] != "here":  # its result
                hello = self._await(connection, stopped)
            if hello is None or node in self._comers:
                del self._connections[connection]
                connection.close()
            else:
                places[node] = (hello["address"] or connection.getpeername()[0], hello["port"])
        for node, (connection, place) in self._comers.items():
            places[node] = place
            self._connections[connection] = (node, wire.Frames())
        self._comers.clear()
        return places

    def gather_again(self, stopped: Callable[[], bool]) -> bool:
        """After this node's result: wait for the head's word; whether all gather again."""
        for connection in self._connections:
            while not self._called:
                message = self._await(connection, stopped)
                if message is None:
                    return False
                self._called = message.get("op") == "again"
        called, self._called = self._called, False
        return called

    def _look_for_shut_out(self, nodes: list[int]) -> None:
        """`GangBlocked` where one of these nodes has noted that it cannot connect to this one."""
        texts = []
        for path, data in notes.get_all([self._shut_out_note(node) for node in nodes]).items():
            with contextlib.suppress(SettingsError, KeyError, TypeError):
                note = parse_object(data)
                if note["token"] == self._token:
                    texts.append(reach.pair_text(note["node"], 0, (note["address"], note["port"]), note["reason"]))
                    notes.remove(path)
        if texts:
            notes.remove(self._note)
            self.end()
            raise GangBlocked(reach.shortened(texts))

    def _shut_out_note(self, node: int) -> str:
        """The note by which a node tells the head that it cannot connect to it."""
        return f"{self._note}-{node}"

    def _connect(self, until: float | None, stopped: Callable[[], bool], check: reach.PortCheck) -> bool:
        connection = next(iter(self._connections), None) or self._reach_head(until, stopped)
        if connection is None:
            return False
        self._connections[connection] = (0, wire.Frames())
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            message = self._introduce(connection, check, stopped)
            if stopped() or message is None or message.get("op") != "go":
                if stopped() or message is not None:
                    return False  # the head ends the gang, and says why
                raise self._missing_head()
            stack.pop_all()
        self.round, self.port = message["round"], message["port"]
        self.nodes, self.hosts = tuple(message["nodes"]), tuple(message["hosts"])
        return True

    def _until(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _missing_head(self) -> GangIncomplete:
        return GangIncomplete([], self.member.nodes, self._timeout or 0.0)

    def _reach_head(self, until: float | None, stopped: Callable[[], bool]) -> socket.socket | None:
        """A connection to the head, once it listens; None if this was stopped, `GangIncomplete` when time is up."""
        tried_since = 0.0
        while not stopped():
            with contextlib.suppress(OSError, SettingsError, KeyError, TypeError):
                note = parse_object(notes.get(self._note) or b"{}")
                if note.get("token") == self._token:
                    tried_since = tried_since or time.monotonic()
                    place = (str(note["address"]), int(note["port"]))
                    try:
                        return socket.create_connection(place, timeout=5.0)
                    except OSError as error:
                        if time.monotonic() >= tried_since + reach.PATIENCE:
                            self._note_shut_out(place, error)
                            tried_since = float("inf")
            if until is not None and time.monotonic() > until:
                raise self._missing_head()
            time.sleep(LOOK)
        return None

    def _note_shut_out(self, place: tuple[str, int], error: OSError) -> None:
        """Leave a note that the head cannot be reached at its place."""
        timed_out = isinstance(error, TimeoutError)
        reason = f"no answer within {reach.PATIENCE:g} s" if timed_out else error.strerror or str(error)
        own = self.member.node
        note = {"node": own, "token": self._token, "address": place[0], "port": place[1], "reason": reason}
        notes.put(self._shut_out_note(own), json.dumps(note).encode())

    def decline(self, result: StepResult, stopped: Callable[[], bool]) -> None:
        """Instead of `gather`: tell the head why this node cannot take part, and wait until it knows."""
        if self.is_head:
            return  # its result is the step's
        with contextlib.suppress(GangIncomplete, OSError):  # without a head nobody wants to know
            connection = self._reach_head(self._until(), stopped)
            if connection is not None:
                message = {"op": "failed", "node": self.member.node, "token": self._token, "result": to_json(result)}
                with connection:
                    connection.sendall(wire.framed(message))
                    self._await(connection, stopped)

    def _introduce(
        self, connection: socket.socket, check: reach.PortCheck, stopped: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Tell the head of this node, and which others it reaches; the head's last word, None where it hangs up."""
        own = self.member.node
        hello = {"op": "here", "node": own, "token": self._token, "address": self.member.address, "port": check.port}
        try:
            connection.sendall(wire.framed(hello))
            message = self._await(connection, stopped)
            if message is not None and message.get("op") == "reach":
                places = {int(node): (str(host), int(port)) for node, (host, port) in message["places"].items()}
                del places[own]
                connection.sendall(wire.framed({"op": "reached", "blocked": check.blocked(places, stopped)}))
                message = self._await(connection, stopped)
        except OSError:  # it is gone
            return None
        return message

    def _await(self, connection: socket.socket, stopped: Callable[[], bool]) -> dict[str, Any] | None:
        """The next message of a node; None where it hangs up, and when this was stopped."""
        frames = self._connections[connection][1] if connection in self._connections else wire.Frames()
        data = b""  # the last message may have come with this one
        with contextlib.suppress(OSError, BackendError):
            while not stopped():
                for message in frames.feed(data):
                    heard: dict[str, Any] = message
                    return heard
                data = b""
                if select.select([connection], [], [], LOOK)[0]:
                    data = connection.recv(1 << 16)
                    if not data:
                        break
        return None

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
            return self._hung_up(connection, node)
        try:
            for message in frames.feed(data):
                operation = message.get("op")
                if operation == "result":
                    self.results[node] = from_json(StepResult, message.get("result"), strict=False)
                elif operation == "failing":
                    self._warned = True
                elif operation == "end":
                    self.should_end = True
                elif operation == "again":
                    self._called = True
        except (BackendError, SettingsError):
            return self._hung_up(connection, node)
        return True

    def _hung_up(self, connection: socket.socket, node: int) -> bool:
        del self._connections[connection]
        connection.close()
        if self.is_head and node not in self.results:
            self.lost.append(node)
        if not self.is_head:
            self.should_end = True  # the head is gone: no one takes the result
        return False

    @property
    def failed(self) -> bool:
        """Whether another node failed or went away."""
        return self._warned or bool(self.lost) or any(not result.ok for result in self.results.values())

    @property
    def complete(self) -> bool:
        """Whether each other node has reported a result or is lost."""
        return len(self.results) + len(self.lost) >= len(self.nodes) - 1

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
        for comer, _ in self._comers.values():
            comer.close()
        if self.listener is not None:
            self.listener.close()
            notes.remove(self._note)
        self._connections.clear()

    def _send(self, message: Mapping[str, Any]) -> None:
        data = wire.framed(message)
        for connection in self._connections:
            with contextlib.suppress(OSError):  # a node that is gone is noticed by `hear`
                connection.sendall(data)


def listening(address: str) -> socket.socket:
    """A socket on a free port of an address."""
    listener = socket.socket(reach.family_of(address), socket.SOCK_STREAM)
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
    except (OSError, ValueError, BackendError):
        return None
    return None


def gang_of(task: GangTask) -> Gang:
    """This node's gang, as a job tells it and the platform's variables."""
    member = member_of(topology_of(task), os.environ)
    return Gang(member, note=task.note, token=task.token, timeout=task.timeout, least=task.least)
