"""An OpenSSH server of the tests' own on a free port of loopback, with its own keys and a home of its own.

Needs Debian's `openssh-server` (`make test` installs it where it may). Nobody's ~/.ssh is read or written: ssh gets its
key by a configuration file of the server's.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import psutil
import pytest
from tests.servers.containers import program
from tests.servers.postgres import free_port

ALIAS = "login"
START_SECONDS = 60.0


@attrs.frozen(kw_only=True)
class Sshd:
    """A running server. `config` is for `ssh -F`; its host `login` is this server."""

    folder: Path
    port: int
    config: Path
    home: Path
    """What is "~" over there."""
    pid: int

    def sessions(self) -> list[psutil.Process]:
        """The processes of those that are logged in, with all that they started; not those that have ended and wait for
        their parent to hear of it."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def cut(self) -> None:
        """End all connections, as a network does: without a word."""
        for process in self.sessions():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "sshd":
                    process.kill()

    def refuse(self) -> None:
        """Let nobody in until `admit`; who is in stays."""
        (self.folder / "authorized_keys").rename(self.folder / "authorized_keys.away")

    def admit(self) -> None:
        """Let the key in again."""
        (self.folder / "authorized_keys.away").rename(self.folder / "authorized_keys")


def absence() -> str:
    """Why no server can be started here; "" where one can."""
    missing = [name for name in ("sshd", "ssh", "ssh-keygen") if not program(name)]
    return f"not installed: {', '.join(missing)} (Debian: apt-get install openssh-server)" if missing else ""


@contextlib.contextmanager
def running(environment: Mapping[str, str]) -> Iterator[Sshd]:
    """A server that lives as long as the block, and gives its sessions these variables."""
    folder = Path(tempfile.mkdtemp(prefix="stoker-sshd-"))  # a socket's path may have 107 characters: not pytest's
    port, home = free_port(), folder / "home"
    home.mkdir()
    for name in ("host", "user"):
        key = [program("ssh-keygen") or "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name]
        subprocess.run([*key, "-f", str(folder / name)], check=True, capture_output=True)
    shutil.copy(folder / "user.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    variables = {"HOME": str(home), **environment}
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile {folder}/pid\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\nUseDNS no\n"
        f"SetEnv {' '.join(f'{name}={text}' for name, text in variables.items())}\n"
    )
    (folder / "config").write_text(
        f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {port}\n  User {getpass.getuser()}\n"
        f"Host 127.0.0.1 {ALIAS}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # it insists on this empty folder
    with (folder / "log").open("wb") as output:
        server = subprocess.Popen(
            [program("sshd") or "sshd", "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    found = Sshd(folder=folder, port=port, config=folder / "config", home=home, pid=server.pid)
    try:
        end = time.monotonic() + START_SECONDS
        while not (folder / "pid").exists():
            assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.02)
        yield found
    finally:
        family = found.sessions() if server.poll() is None else []
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == "sshd":
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def refuse(reason: str) -> None:
    """Skip where there can be no server; on CI, where there must be one, fail."""
    if reason and os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"CI must have an SSH server: {reason}")
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def ssh_server() -> Iterator[Sshd]:
    """A server for the whole session."""
    refuse(absence())
    with running({}) as server:
        yield server
