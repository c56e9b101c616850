"""Open MPI over the nodes of a gang, without ssh: `mpirun` on the head, its daemons where the nodes are.

mpirun starts a daemon on each further node by ssh, or by a program in its stead. Here that program is this module: it
asks the node to start the daemon itself, so that ranks are processes of their node, with its variables and devices.

    python -m stoker.worker.mpigang lead mpirun …       on the head: waits for the nodes, runs mpirun, ends as it does
    python -m stoker.worker.mpigang follow              on the others: starts what it is told to, until mpirun is over
    python -m stoker.worker.mpigang reach HOST WORDS…   what mpirun runs as ssh

    node → head  {"op": "here", "node", "nonce"}, {"op": "proof", "proof"}, {"op": "ended", "code"}
    head → node  {"op": "proof", "proof", "nonce"}, {"op": "start", "command"}, {"op": "over", "code"}

https://docs.open-mpi.org/en/v4.1.x/ has `plm_rsh_agent`; Open MPI 5 has another runtime, whose ranks lose each other
where several nodes are one machine, and is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core import wire
from stoker.core.printable import printable
from stoker.core.protocol import GangTask
from stoker.launchers.base import LOOPBACK, Argv, Launcher, Node, NodeCommand, bracket_address
from stoker.launchers.mpi import OPEN_MPI
from stoker.worker.cluster import free_port
from stoker.worker.rankstate import AGENT
from stoker.worker.reach import family_of

_MODULE: Final = "stoker.worker.mpigang"
MEET: Final = "STOKER_MPI_MEET"
"""host:port at which the head waits for the other nodes."""
TOKEN: Final = "STOKER_MPI_TOKEN"
"""The secret of the gang's nodes."""
NODE: Final = "STOKER_MPI_NODE"
NODES: Final = "STOKER_MPI_NODES"
PATIENCE: Final = "STOKER_MPI_PATIENCE"
"""Seconds that nodes wait for each other."""
_REACH: Final = "STOKER_MPI_REACH"
"""The head's socket for the program that mpirun runs as ssh."""
HOST: Final = "stoker-node-"
"""Names of further nodes for mpirun; they are in no hosts file, and are never resolved."""

FOREVER: Final = 10 * 365 * 86400.0
"""Seconds for nodes that wait for each other without a limit."""
LOOK: Final = 0.1
"""Seconds between two tries to reach the head."""
LEAVE: Final = 10.0
"""Seconds that a daemon may take to leave when mpirun is over."""
_CHUNK: Final = 1 << 16


class MpiGangFailed(Exception):
    """Why mpirun could not be started on all nodes."""


def hosts(nodes: int) -> tuple[str, ...]:
    """The nodes' names for mpirun; the first is where it runs."""
    return (LOOPBACK, *(f"{HOST}{node}" for node in range(1, nodes)))


def main(words: Sequence[str]) -> int:
    """Run one of the three programs; returns its exit code."""
    if words[0] == "reach":
        return _reach(words[1], " ".join(words[2:]))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # folders are removed on the way out
    try:
        return _lead(words[1:]) if words[0] == "lead" else _follow()
    except MpiGangFailed as error:
        sys.stderr.write(printable(f"error: {error}\n"))
        return 1


def start_command(
    launcher: Launcher, argv: Argv, node: Node, arguments: Mapping[str, Any], gang: GangTask | None
) -> NodeCommand:
    """What a node runs to start its ranks; `gang` is the job's, with mpirun on nodes that Stoker itself started."""
    program = launcher.head(arguments)
    if gang is None or gang.topology != "stoker" or program is None or not program.by_ssh:
        return launcher(argv, node, arguments)
    head = attrs.evolve(node, rank=0, hosts=hosts(node.nodes))
    command = over_nodes(launcher(argv, head, arguments), node, token=gang.token, patience=gang.timeout)
    # A rank speaks with the agent of its own node, wherever mpirun runs.
    return attrs.evolve(command, environment={**command.environment, AGENT: argv[-1]})


def over_nodes(command: NodeCommand, node: Node, *, token: str, patience: float | None) -> NodeCommand:
    """What a node runs so that mpirun, which a launcher made for the head's `hosts`, reaches it.

    The nodes meet at the gang's port, and the ranks at another one.
    """
    meet = {
        MEET: f"{bracket_address(node.head)}:{node.port}",
        TOKEN: token,
        NODE: str(node.rank),
        NODES: str(node.nodes),
        PATIENCE: str(FOREVER if patience is None else patience),
    }
    environment = (
        {**command.environment, "MASTER_PORT": str(free_port(node.head))} if node.rank == 0 else command.environment
    )
    part = ("lead", *command.argv) if node.rank == 0 else ("follow",)
    return NodeCommand(argv=(sys.executable, "-m", _MODULE, *part), environment={**environment, **meet})


# The head


def _lead(command: Sequence[str]) -> int:
    _check(command[0])
    nodes, patience = int(os.environ[NODES]), float(os.environ[PATIENCE])
    host, port = _meeting()
    connections: dict[int, socket.socket] = {}
    # Closed when mpirun starts: the ranks may meet at the same port.
    with socket.create_server((host, port), family=family_of(host), backlog=nodes) as listener:
        until = time.monotonic() + patience
        while len(connections) < nodes - 1:
            listener.settimeout(max(0.01, until - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = ", ".join(str(node) for node in range(1, nodes) if node not in connections)
                raise MpiGangFailed(
                    f"node {missing} did not come to mpirun within {patience:g} s: every node has to start it"
                ) from None
            node = _admit(connection)
            if node is None or node in connections:
                connection.close()
            else:
                connections[node] = connection
    with tempfile.TemporaryDirectory(prefix="stoker-mpi-") as folder:
        return _Lead(connections, folder).run(command)


class _Lead:
    """mpirun on the head, and the nodes that it starts daemons on."""

    def __init__(self, connections: Mapping[int, socket.socket], folder: str) -> None:
        self._connections = connections
        self._folder = folder
        self._selector = selectors.DefaultSelector()
        self._asking: dict[int, socket.socket] = {}

    def run(self, command: Sequence[str]) -> int:
        """Run mpirun to its end, and tell the nodes."""
        address = os.path.join(self._folder, "reach")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(address)
            listener.listen(len(self._connections) + 1)
            self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept_request(listener))
            for node, connection in self._connections.items():
                self._selector.register(connection, selectors.EVENT_READ, self._hearing(node, connection))
            process = subprocess.Popen(command, env=self._environment(address))
            code: int | None = None
            try:
                while (code := process.poll()) is None:
                    for key, _ in self._selector.select(LOOK):
                        key.data()
            finally:
                if code is None:
                    process.terminate()
                for connection in self._connections.values():
                    with contextlib.suppress(OSError):  # a node that is gone
                        connection.sendall(wire.framed({"op": "over", "code": 1 if code is None else code}))
        return _exit_code(code)

    def _environment(self, address: str) -> dict[str, str]:
        # Called ssh, it would be given options of ssh.
        program = os.path.join(self._folder, "stoker-reach")
        with open(program, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" -m {_MODULE} reach "$@"\n')
        os.chmod(program, 0o700)
        parameters = {
            "plm": "rsh",
            "plm_rsh_agent": program,
            "plm_rsh_no_tree_spawn": "1",  # else the nodes' daemons would start each other's
            "orte_do_not_resolve": "1",
            "orte_leave_session_attached": "1",  # else the daemons would leave their nodes' processes
        }
        if _meeting()[0].startswith("127."):
            # The nodes are one machine: the loopback is left out by default, and each node would bind the same cores.
            parameters |= {"oob_tcp_if_include": "127.0.0.0/8", "btl_tcp_if_include": "127.0.0.0/8"}
            parameters |= {"hwloc_base_binding_policy": "none", "mpi_yield_when_idle": "1"}
        variables = {f"OMPI_MCA_{name}": value for name, value in parameters.items()}
        inherited = {name: value for name, value in os.environ.items() if name != TOKEN}
        return {_REACH: address, **variables, **inherited}

    def _accept_request(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        message = _message(connection, None)
        name = "" if message is None else str(message["host"]).removeprefix(HOST)
        node = int(name) if name.isdecimal() else 0
        if message is None or node not in self._connections:
            connection.close()
            return
        self._asking[node] = connection
        self._connections[node].sendall(wire.framed({"op": "start", "command": message["command"]}))

    def _hearing(self, node: int, connection: socket.socket) -> Any:
        frames = wire.Frames()

        def hear() -> None:
            try:
                data = connection.recv(_CHUNK)
            except OSError:
                data = b""
            if not data:
                self._selector.unregister(connection)
                self._answer(node, 255)
            for message in frames.feed(data):
                self._answer(node, int(message["code"]))

        return hear

    def _answer(self, node: int, code: int) -> None:
        asking = self._asking.pop(node, None)
        if asking is not None:
            with asking, contextlib.suppress(OSError):
                asking.sendall(wire.framed({"code": code}))


def _check(program: str) -> None:
    """Refuse any program but mpirun of Open MPI 4."""
    try:
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError as error:
        raise MpiGangFailed(f"'{program}' cannot be started: {error.strerror}: install Open MPI 4") from None
    if not OPEN_MPI.search(version):
        what = version.partition("\n")[0] or "an MPI that does not say its version"
        raise MpiGangFailed(f"'{program}' is {what}; several nodes need Open MPI 4: install it, or ask for one node")


# The other nodes


def _follow() -> int:
    host, port = _meeting()
    until = time.monotonic() + float(os.environ[PATIENCE])
    while True:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((host, port), timeout=max(0.01, until - time.monotonic()))
            if _introduce(connection, int(os.environ[NODE])):
                break
            connection.close()
        if time.monotonic() > until:
            raise MpiGangFailed(f"node 0 did not come to mpirun within {os.environ[PATIENCE]} s")
        time.sleep(LOOK)
    with connection, _folders() as folders:
        frames = wire.Frames()
        daemon: subprocess.Popen[bytes] | None = None
        selector = selectors.DefaultSelector()
        selector.register(connection, selectors.EVENT_READ)
        reported = False
        while True:
            if daemon is not None and daemon.poll() is not None and not reported:
                reported = True
                connection.sendall(wire.framed({"op": "ended", "code": daemon.returncode}))
            if not selector.select(LOOK):
                continue
            data = connection.recv(_CHUNK)
            for message in frames.feed(data):
                if message["op"] == "over":
                    return _over(daemon, int(message["code"]))
                daemon = subprocess.Popen(["/bin/sh", "-c", message["command"]], env=_daemon(folders))
            if not data:
                return _over(daemon, 1)


def _over(daemon: subprocess.Popen[bytes] | None, code: int) -> int:
    """Wait for the daemon after the end of mpirun, or end it; returns the exit code."""
    if daemon is not None:
        try:
            daemon.wait(LEAVE)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    return _exit_code(code)


def _exit_code(code: int) -> int:
    """A process's exit code as a shell gives it."""
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _folders() -> Iterator[tuple[str, str]]:
    """Folders for the daemon's sockets and for its ranks' shared memory; nodes of one machine must not share them."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="stoker-mpi-") as session:
        shared = tempfile.mkdtemp(prefix="stoker-mpi-", dir=memory)
        try:
            yield session, shared
        finally:
            shutil.rmtree(shared, ignore_errors=True)


def _daemon(folders: tuple[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != TOKEN}
    variables = {"OMPI_MCA_orte_tmpdir_base": folders[0], "OMPI_MCA_btl_vader_backing_directory": folders[1]}
    return {**inherited, **variables}


def _reach(host: str, command: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(os.environ[_REACH])
        connection.sendall(wire.framed({"host": host, "command": command}))
        message = _message(connection, None)
    return 255 if message is None else int(message["code"]) & 0xFF


# Authentication


def _admit(connection: socket.socket) -> int | None:
    """The number of the node that connected, once it has proved that it is of this gang; None for any other."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        hello = _message(connection, LEAVE)
        if hello is None:
            return None
        nonce = secrets.token_hex(16)
        connection.sendall(wire.framed({"op": "proof", "proof": _proof("head", hello["nonce"]), "nonce": nonce}))
        answer = _message(connection, LEAVE)
        if answer is not None and hmac.compare_digest(answer["proof"], _proof(f"node {hello['node']}", nonce)):
            return int(hello["node"])
    return None


def _introduce(connection: socket.socket, node: int) -> bool:
    """Prove to the head that this node is of its gang; returns whether the head has proved itself, too."""
    nonce = secrets.token_hex(16)
    connection.sendall(wire.framed({"op": "here", "node": node, "nonce": nonce}))
    answer = _message(connection, LEAVE)
    if answer is None or not hmac.compare_digest(answer["proof"], _proof("head", nonce)):
        return False
    connection.sendall(wire.framed({"op": "proof", "proof": _proof(f"node {node}", answer["nonce"])}))
    connection.settimeout(None)
    return True


def _proof(who: str, nonce: str) -> str:
    return hmac.new(os.environ[TOKEN].encode(), f"{who} {nonce}".encode(), "sha256").hexdigest()


def _meeting() -> tuple[str, int]:
    host, _, port = os.environ[MEET].rpartition(":")
    return host.strip("[]"), int(port)


def _message(connection: socket.socket, patience: float | None) -> dict[str, Any] | None:
    """The next message; None where the other end hangs up."""
    frames = wire.Frames()
    connection.settimeout(patience)
    while data := connection.recv(_CHUNK):
        for message in frames.feed(data):
            connection.settimeout(None)
            first: dict[str, Any] = message
            return first
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
