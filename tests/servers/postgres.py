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
from collections.abc import Iterator
from pathlib import Path

import psutil


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


@contextlib.contextmanager
def running(folder: Path, programs: Path) -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    # The server refuses to run as root; Debian's package brings a user for it.
    owner = pwd.getpwnam("postgres") if os.getuid() == 0 else None
    if owner is not None:
        for parent in (folder, *folder.parents):
            if parent == Path("/"):
                break
            with contextlib.suppress(PermissionError):
                parent.chmod(parent.stat().st_mode | 0o011)
        os.chown(folder, owner.pw_uid, owner.pw_gid)

    def run(*command: str) -> None:
        done = subprocess.run(
            command,
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"

    data, port = folder / "data", free_port()
    run(str(programs / "initdb"), "-D", str(data), "-U", "stoker", "-A", "trust", "--no-sync", "-E", "UTF8")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
    log = folder / "server.log"
    run(str(programs / "pg_ctl"), "-D", str(data), "-o", options, "-l", str(log), "-w", "-t", "60", "start")
    server = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    try:
        yield f"postgresql://stoker@127.0.0.1:{port}/postgres"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            family = [server, *server.children(recursive=True)]
            server.send_signal(signal.SIGQUIT)  # "immediate shutdown" in PostgreSQL's words
            for process in psutil.wait_procs(family, timeout=30)[1]:
                process.kill()
