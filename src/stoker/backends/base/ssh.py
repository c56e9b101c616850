"""Another machine by OpenSSH's own client: one connection, over which every command and file goes.

Whatever a person has set up for `ssh HOST` holds here too: aliases, keys, agents, jump hosts. Nobody is there to be
asked for a password; who has to type one opens a connection first, and it is used (ControlPath in ~/.ssh/config).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import string
import subprocess
import tempfile
import threading
from typing import Final, Mapping, Sequence

import attrs

from stoker.backends.base import sshscripts as scripts
from stoker.backends.base.platforms import Away
from stoker.core.errors import BackendError
from stoker.core.hosts import Address

CONFIG_VARIABLE: Final = "STOKER_SSH_CONFIG"
"""Names a file that is read instead of ~/.ssh/config, as `ssh -F` does."""
CONNECT: Final = 20
"""Seconds to wait for a host: a login node behind two jump hosts takes several."""
ALIVE: Final = 15
"""Seconds between two signs of life; after three that were not answered the connection counts as lost."""
PERSIST: Final = 300
"""Seconds that the connection outlives a driver that was killed; more than the longest pause between two looks."""
TIMEOUT: Final = 60.0
UPLOAD: Final = 600.0
PIECE: Final = 1 << 20
# All on the command line, where they win over what a configuration says. Forwarding, X11 and a command of its own are
# for people; the rest is explained above. https://man.openbsd.org/ssh_config
_OPTIONS: Final = {
    "BatchMode": "yes",
    "ConnectTimeout": str(CONNECT),
    "ServerAliveInterval": str(ALIVE),
    "ServerAliveCountMax": "3",
    "ClearAllForwardings": "yes",
    "ForwardX11": "no",
    "ForwardAgent": "no",
    "RequestTTY": "no",
    "RemoteCommand": "none",
    "PermitLocalCommand": "no",
    "LogLevel": "ERROR",
}
_TAKEN_ON: Final = ("PATH", "LD_LIBRARY_PATH", "SLURM_CONF")
"""Variables that a command gets as it would have them in a login shell: without a profile, many sites' sbatch is not
found. Others stay out, because sbatch hands its environment on to jobs."""
_SOCKET: Final = 70
"""Characters of the folder of a socket, whose whole path may have 107; ssh adds 17 of its own."""
_LOST: Final = 255
"""With this code ssh ends where it failed itself. https://man.openbsd.org/ssh"""
# What ssh says, in small letters, and what to do about it; the first that fits.
_FIXES: Final = {
    "permission denied": (
        "let ssh log in without asking: a key in ssh-agent, or IdentityFile in ~/.ssh/config. Where a password or a "
        "code must be typed, set ControlPath for the host in ~/.ssh/config and open a connection first, with "
        "`ssh -fNM {host}`: it is used as long as it stands"
    ),
    "too many authentication": "name the one key to use in ~/.ssh/config: IdentityFile, with IdentitiesOnly yes",
    "host identification": "the host has another key than before: ask its administrators, then `ssh-keygen -R {host}`",
    "host key": "log in once by hand, `ssh {host}`, and see that the key is the host's",
    "resolve hostname": "see whether the name is right, and whether this machine must be in a VPN to know it",
    "bad configuration": "mend the file that it names",
    "bad owner": "mend the file that it names",
    "too long for unix": "set TMPDIR to a shorter path",
}
_TRY: Final = "see what `ssh {host} true` says, and whether this machine has a way there (network, VPN)"


@attrs.frozen(kw_only=True)
class Ran:
    """How a command ended, and what it wrote; bytes that are no UTF-8 are replaced."""

    code: int
    out: str
    err: str


class Ssh:
    """Commands and files of a machine that is reached by ssh; what `logins.Login` promises. For many threads."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connection = _Connection(address)
        self._greeting: Mapping[str, str] = {}

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = TIMEOUT) -> Ran:
        """Call a command to its end, with the PATH of a login shell; its own code 255 is told as 254."""
        login_variables = self._login_environment()
        environment = {name: login_variables[name] for name in _TAKEN_ON if name in login_variables}
        if input:
            return _ran(self._connection.call(scripts.command_line(argv, environment), input, timeout))
        return _ran(self._script(scripts.command(argv, environment), timeout))

    def write(self, files: Mapping[str, bytes], *, mode: int = 0o600) -> None:
        """Write files by absolute path, each whole or not at all, in one round trip."""
        if files:
            self._expect(self._script(scripts.write(files, mode), UPLOAD), "write files")

    def read(self, path: str) -> bytes | None:
        """A file, None where there is none."""
        answer = self._script(scripts.read(path))
        if answer.code == scripts.MISSING:
            return None
        if answer.code:
            raise Away(f"{path} on {self.address} cannot be read now: {answer.err.strip()}")
        return answer.out

    def tails(self, offsets: Mapping[str, int], *, limit: int = PIECE) -> Mapping[str, bytes]:
        """What files have beyond an offset, at most `limit` bytes of each, in one round trip."""
        if not offsets:
            return {}
        answer = self._script(scripts.tails(offsets, limit))
        pieces = scripts.pieces(answer.out)
        if pieces is None:
            raise Away(f"{self.address} answered half: {answer.err.strip() or 'a file became shorter meanwhile'}")
        return pieces

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return self._script(scripts.exists(path)).code == 0

    def remove(self, folders: Sequence[str]) -> None:
        """Take folders, or files, away; those that are gone are fine."""
        if folders:
            self._expect(self._script(scripts.remove(folders), UPLOAD), "remove files")

    def bring(self, folder: str, target: str) -> None:
        """Have a copy of a folder of this machine there, made once."""
        if not self.exists(target):
            answer = self._connection.call(scripts.bring(target), scripts.archive(folder), UPLOAD)
            self._expect(answer, "write files")

    def expand(self, path: str) -> str:
        """A path with "~" and "$NAME" as they are for a person who logs in there."""
        login_variables = self._login_environment()
        text = f"{login_variables['HOME']}{path[1:]}" if path == "~" or path.startswith("~/") else path
        expanded = string.Template(text).safe_substitute(login_variables)
        if not expanded.startswith("/") or "$" in expanded:
            raise BackendError(
                f"{path} is no absolute path on {self.address}", fix="write one, such as ~/.stoker/slurm"
            )
        return expanded

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _login_environment(self) -> Mapping[str, str]:
        if not self._greeting:
            answer = self._script(scripts.greeting())
            home, _, lines = answer.out.decode(errors="surrogateescape").partition("\n")
            pairs = (line.partition("=") for line in lines.splitlines() if "=" in line)
            self._greeting = {**{name: value for name, _, value in pairs if name.isidentifier()}, "HOME": home}
        return self._greeting

    def _script(self, script: str, timeout: float = TIMEOUT) -> _Answer:
        return self._connection.call(scripts.SHELL, script.encode(errors="surrogateescape"), timeout)

    def _expect(self, answer: _Answer, doing: str) -> None:
        if answer.code:
            raise BackendError(
                f"{self.address} cannot {doing}: {answer.err.strip() or f'code {answer.code}'}",
                fix="give a folder that you may write to: the setting `folder`",
            )


@attrs.frozen(kw_only=True)
class _Answer:
    code: int
    out: bytes
    err: str


def _ran(answer: _Answer) -> Ran:
    return Ran(code=answer.code, out=answer.out.decode(errors="replace"), err=answer.err)


class _Connection:
    """A master connection that is made when it is needed, and again when it was lost."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._folder = ""
        self._theirs = False
        self._closed = False

    def call(self, command: str, input: bytes, timeout: float) -> _Answer:
        """Have the far machine's shell run a command; `Away` where it is not known how that went."""
        control = self._connected()
        try:
            done = subprocess.run(
                [*self._ssh(), *control, "--", self._address.host, command],
                input=input,
                capture_output=True,
                timeout=timeout,
                check=False,
                start_new_session=True,  # no Ctrl-C that is meant for us
            )
        except subprocess.TimeoutExpired:
            self._drop()
            raise self._away(f"no answer within {timeout:g} s") from None
        except OSError as error:
            raise _not_callable(error) from error
        words = done.stderr.decode(errors="replace")
        _, begun, out = done.stdout.partition(f"{scripts.BEGIN}\n".encode())
        if done.returncode == _LOST or done.returncode < 0:
            self._drop()
            raise self._away(words)
        if not begun:  # no shell, as of an account that is locked, or one that lets nobody do anything but copy files
            text = words or done.stdout.decode(errors="replace")
            raise self._away(f"its shell did not begin (code {done.returncode}): {text}")
        return _Answer(code=done.returncode, out=out, err=words)

    def close(self) -> None:
        """End the connection, if it is ours."""
        with self._lock:
            self._closed = True
            self._end()

    # The connection itself

    def _connected(self) -> list[str]:
        """The options by which a client finds the connection."""
        with self._lock:
            if self._closed:
                raise Away(f"the connection to {self._address} is closed")
            if not self._theirs and not (self._folder and _listens(self._socket)):
                self._theirs = self._theirs_stands()
                if not self._theirs:
                    self._open()
            return ["-o", "ControlMaster=no", *([] if self._theirs else ["-o", f"ControlPath={self._socket}"])]

    @property
    def _socket(self) -> str:
        return f"{self._folder}/s"

    def _ssh(self) -> list[str]:
        config_file = os.environ.get(CONFIG_VARIABLE)
        words = ["ssh", *(["-F", config_file] if config_file else [])]
        words += ["-l", self._address.user] if self._address.user else []
        words += ["-p", str(self._address.port)] if self._address.port else []
        return [*words, *(word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}"))]

    def _theirs_stands(self) -> bool:
        """Whether the person opened a connection, by the ControlPath of their own configuration."""
        return self._quietly(["-O", "check"]) == 0

    def _quietly(self, options: Sequence[str]) -> int:
        """The code of an ssh that talks to a master on this machine only."""
        try:
            return subprocess.run(
                [*self._ssh(), *options, "--", self._address.host],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=CONNECT,
                check=False,
                start_new_session=True,
            ).returncode
        except subprocess.TimeoutExpired:
            return _LOST
        except OSError as error:
            raise _not_callable(error) from error

    def _open(self) -> None:
        """Make a connection that stays in the background; returns when it stands."""
        self._end()
        self._folder = _short_folder()
        try:
            error = self._master()
        except BackendError:
            self._end()
            raise
        if error is not None:
            self._end()
            raise self._away(error)

    def _master(self) -> str | None:
        """Start the process that holds the connection; what it says where it could not."""
        control = {"ControlMaster": "yes", "ControlPath": self._socket, "ControlPersist": str(PERSIST)}
        options = [word for name, value in control.items() for word in ("-o", f"{name}={value}")]
        # A file, because the process that stays in the background may hold on to what it writes to.
        with tempfile.TemporaryFile() as errors:
            try:
                code = subprocess.run(
                    [*self._ssh(), *options, "-f", "-N", "--", self._address.host],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    timeout=CONNECT + TIMEOUT,
                    check=False,
                    start_new_session=True,
                ).returncode
            except subprocess.TimeoutExpired:
                return f"no connection within {CONNECT + TIMEOUT:g} s"
            except OSError as error:
                raise _not_callable(error) from error
            errors.seek(0)
            return errors.read().decode(errors="replace") if code else None

    def _drop(self) -> None:
        """What stands may be dead without knowing it: the next call makes a new one."""
        with self._lock:
            self._theirs = False
            self._end()

    def _end(self) -> None:
        if self._folder:
            if os.path.exists(self._socket):
                self._quietly(["-o", f"ControlPath={self._socket}", "-O", "exit"])
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _away(self, words: str) -> Away:
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        text = " ".join(lines[-3:]) or "the connection was cut"
        low = words.lower()
        fix = next((fix for sign, fix in _FIXES.items() if sign in low), _TRY)
        name = f"{self._address.user}@{self._address.host}" if self._address.user else self._address.host
        port = f"-p {self._address.port} " if self._address.port else ""
        return Away(f"{self._address} does not answer: {text}", fix=fix.format(host=f"{port}{name}"))


def _listens(path: str) -> bool:
    """Whether somebody listens at a socket."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(path)
        return True
    return False


def _short_folder() -> str:
    """A folder for nobody else whose path a socket may have."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    fitting = [place for place in places if place and len(place) < _SOCKET and os.access(place, os.W_OK)]
    return tempfile.mkdtemp(prefix="stoker-ssh-", dir=fitting[0] if fitting else None)


def _not_callable(error: OSError) -> BackendError:
    return BackendError(f"ssh cannot be called: {error}", fix="install OpenSSH's client (Debian: openssh-client)")
