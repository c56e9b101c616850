"""A PostgreSQL server of the tests' own, in a folder of its own, on a free port of loopback.

Needs Debian's `postgresql` (`make test` installs it where it may) or any `initdb` on the PATH.
"""

from __future__ import annotations

import contextlib
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg


def binaries() -> Path | None:
    """The folder of `initdb` and `postgres`; None where they are not installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if found:
        return Path(found[-1]).parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server with a data folder of its own, which can be stopped and started again at the same address."""

    def __init__(self, programs: Path, *, connections: int = 100, primary: Server | None = None) -> None:
        # Not below a test's folder: each session of pytest that starts takes others' rights to its users' folder back.
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-"))
        # The server refuses to run as root; Debian's package brings a user for it.
        self._owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None
        if self._owner is not None:
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._programs = programs
        self._data = self._folder / "data"
        self._connections = connections
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self.uri = f"postgresql://stoker@{self.address}/postgres"
        if primary is None:
            self._run("initdb", "-D", str(self._data), "-U", "stoker", "-A", "trust", "--no-sync", "-E", "UTF8")
        else:
            source = primary.uri.replace("/postgres", "/")
            self._run("pg_basebackup", "-D", str(self._data), "-d", source, "-R", "-c", "fast", "--no-sync")

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        options = (
            f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off "
            f"-c max_connections={self._connections}"
        )
        log = self._folder / "server.log"
        self._run("pg_ctl", "-D", str(self._data), "-o", options, "-l", str(log), "-w", "-t", "60", "start")

    def stop(self, mode: str) -> None:
        """Stop it, in one of pg_ctl's modes: "fast" ends its connections, "immediate" is as good as a crash."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "-t", "60", "stop")

    def replica(self) -> Server:
        """A started server that follows this one, which from now on commits only what both have."""
        other = Server(self._programs, connections=self._connections, primary=self)
        other.start()
        self.set("synchronous_standby_names", "*")
        return other

    def set(self, name: str, text: str) -> None:
        """Change a setting, for sessions that are open, too."""
        with psycopg.connect(self.uri, autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET {name} = '{text}'")
            connection.execute("SELECT pg_reload_conf()")

    def promote(self) -> None:
        """Make a replica the server that takes writes."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-t", "60", "promote")

    def freeze(self) -> None:
        """Stop every process of it where it stands; its connections stay open."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # one that served a connection, or cleaned up
                process.suspend()

    def thaw(self) -> None:
        """Let it go on."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def kill(self) -> None:
        """End every process of it, in whatever state it is, and remove its folder."""
        self._kill()
        shutil.rmtree(self._folder)

    def processes(self) -> list[psutil.Process]:
        """The server's processes, the first of all first."""
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        return [server, *server.children(recursive=True)]

    def _kill(self) -> None:
        try:
            family = self.processes()
            server = family[0]
            server.send_signal(signal.SIGQUIT)  # "immediate shutdown" in PostgreSQL's words
        except (FileNotFoundError, psutil.NoSuchProcess):
            return
        for process in psutil.wait_procs(family, timeout=30)[1]:
            process.kill()

    def _run(self, program: str, *words: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *words],
            user=None if self._owner is None else self._owner.pw_uid,
            group=None if self._owner is None else self._owner.pw_gid,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout}\n{done.stderr}"


@contextlib.contextmanager
def running(programs: Path) -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    server = Server(programs)
    server.start()
    try:
        yield server.uri
    finally:
        server.kill()
