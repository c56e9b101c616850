"""Another machine by OpenSSH's own client: one connection, over which every command and file goes.

Whatever a person has set up for `ssh HOST` holds here too: aliases, keys, agents, jump hosts. Nobody is there to be
asked for a password; who has to type one opens a connection first, and it is used (ControlPath in ~/.ssh/config).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shutil
import socket
import string
import subprocess
import tempfile
import threading
from typing import IO, BinaryIO, Callable, Final, Iterator, Mapping, Sequence

import attrs

from stoker.core.errors import Away, BackendError, DiskFull
from stoker.core.hosts import Address
from stoker.ssh import scripts

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
STILL: Final = 120.0
"""Seconds without a moved byte after which a transfer counts as stuck: a shared disk that is busy holds a write up for
tens of seconds, and a network that is gone is noticed before, by the signs of life."""
Sink = Callable[[bytes], None]
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
_BEGIN_LINE: Final = f"{scripts.BEGIN}\n".encode()
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


@attrs.frozen(kw_only=True)
class Answer:
    """How a script ended, and what it wrote behind its first line."""

    code: int
    out: bytes
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

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, in one round trip; what a full disk did not take whole is cut off again."""
        self._expect(self._script(scripts.append(path, data), UPLOAD), "write files")

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

    def client(self, *, terminal: bool = False) -> tuple[str, ...]:
        """The command of this machine that has the far one's shell run a line, which follows; with a terminal there if
        it is asked for. It uses this connection, which is to stay open meanwhile."""
        return self._connection.words(terminal=terminal)

    def login_words(self) -> tuple[str, ...]:
        """What comes before a command of such a line so that it has the PATH of a login shell."""
        variables = self._login_environment()
        return ("env", *(f"{name}={variables[name]}" for name in _TAKEN_ON if name in variables))

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

    def is_full(self, folder: str) -> bool:
        """Whether the disk of a folder has no room for a small file."""
        path = f"{folder}/.room-{os.urandom(4).hex()}"
        answer = self._script(scripts.write({path: bytes(4096)}, 0o600))
        if not answer.code:
            self._script(scripts.remove([path]))
        return bool(answer.code) and scripts.says_full(answer.err)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def abandon(self) -> None:
        """Kill the client whose command runs; the connection behind it ends by itself."""
        self._connection.abandon()

    def _login_environment(self) -> Mapping[str, str]:
        if not self._greeting:
            answer = self._script(scripts.greeting())
            home, _, lines = answer.out.decode(errors="surrogateescape").partition("\n")
            pairs = (line.partition("=") for line in lines.splitlines() if "=" in line)
            self._greeting = {**{name: value for name, _, value in pairs if name.isidentifier()}, "HOME": home}
        return self._greeting

    @property
    def stood(self) -> bool:
        """Whether a command was answered."""
        return self._connection.stood

    def ask(self, script: str) -> Answer:
        """Run a script of `ssh.scripts` to its end."""
        return self._script(script)

    def transfer(self, script: str, *, source: BinaryIO | None = None, sink: Sink | None = None) -> Answer:
        """Run a script with the rest of a file on its standard input; what it writes goes to `sink`, if any."""
        return self._connection.transfer(script, source=source, sink=sink)

    def _script(self, script: str, timeout: float = TIMEOUT) -> Answer:
        return self._connection.call(scripts.SHELL, script.encode(errors="surrogateescape"), timeout)

    def _expect(self, answer: Answer, doing: str) -> None:
        if answer.code and scripts.says_full(answer.err):
            fix = "make room there, or give another folder: the setting `folder`"
            raise DiskFull(f"{self.address} cannot {doing}: {answer.err.strip()}", fix=fix)
        if answer.code:
            raise BackendError(
                f"{self.address} cannot {doing}: {answer.err.strip() or f'code {answer.code}'}",
                fix="give a folder that you may write to: the setting `folder`",
            )


def _ran(answer: Answer) -> Ran:
    return Ran(code=answer.code, out=answer.out.decode(errors="replace"), err=answer.err)


class _Connection:
    """One user's calls over the master connection to a host, which all users of that host in this process share."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._master: _Master | None = None
        self._closed = False
        self._abandoned = False
        self._clients: set[subprocess.Popen[bytes]] = set()
        self.stood = False
        """Whether a command was answered over it."""

    def call(self, command: str, input: bytes, timeout: float) -> Answer:
        """Have the far machine's shell run a command; `Away` where it is not known how that went."""
        with self._client(command) as client:
            try:
                out, err = client.communicate(input, timeout)
            except subprocess.TimeoutExpired:
                self._drop()
                raise self._away(f"no answer within {timeout:g} s") from None
        before, begun, out = out.partition(_BEGIN_LINE)
        return self._answer(client.returncode, bool(begun), out if begun else before, err)

    def transfer(self, script: str, *, source: BinaryIO | None = None, sink: Sink | None = None) -> Answer:
        """Run a script with the rest of a file on its standard input; what it writes goes to `sink`, if there is one.

        `Away` where it is not known how that went, and where no byte moves for `STILL` seconds.
        """
        head = script.encode(errors="surrogateescape")
        with self._client(scripts.reading(len(head))) as client:
            pump = _Pump(client, head, source, sink)
            try:
                pump.run()
            except subprocess.TimeoutExpired:
                self._drop()
                raise self._away(f"nothing came or went for {STILL:g} s") from None
        return self._answer(client.returncode, pump.begun, bytes(pump.out), bytes(pump.err))

    def words(self, *, terminal: bool) -> tuple[str, ...]:
        """The command of a client, up to what the far machine's shell runs; the connection stands then."""
        master = self._connected()
        return (*master.client(terminal=terminal), *master.control, "--", self._address.host)

    def abandon(self) -> None:
        """Kill the clients whose commands run, and make no further connection."""
        self._abandoned = self._closed = True
        for client in list(self._clients):
            with contextlib.suppress(ProcessLookupError):
                client.kill()

    def close(self) -> None:
        """Make no further call, and end the connection if nobody else in this process uses it."""
        with self._lock:
            self._closed = True
            master, self._master = self._master, None
        if master is not None:
            _release(master)

    @contextlib.contextmanager
    def _client(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """A client that runs a command; when the block is left, it has ended, or is killed. `abandon` kills it, too."""
        master = self._connected()
        try:
            client = subprocess.Popen(
                [*master.words, *master.control, "--", self._address.host, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # no Ctrl-C that is meant for us
            )
        except OSError as error:
            raise _not_callable(error) from error
        self._clients.add(client)
        with client:
            try:
                yield client
            finally:
                self._clients.discard(client)
                if client.poll() is None:
                    client.kill()

    def _answer(self, code: int, begun: bool, out: bytes, err: bytes) -> Answer:
        """What a client's end means."""
        if self._abandoned:
            raise self._away("its command was broken off")
        words = err.decode(errors="replace")
        if code == _LOST or code < 0:
            self._drop()
            raise self._away(words)
        if not begun:  # no shell, as of an account that is locked, or one that lets nobody do anything but copy files
            text = words or out.decode(errors="replace")
            raise self._away(f"its shell did not begin (code {code}): {text}")
        self.stood = True
        return Answer(code=code, out=out, err=words)

    def _connected(self) -> _Master:
        with self._lock:
            if self._closed:
                raise Away(f"the connection to {self._address} is closed")
            if self._master is None:
                self._master = _take(self._address)
            master = self._master
        error = master.connect()
        if error:
            raise self._away(error)
        return master

    def _drop(self) -> None:
        """What stands may be dead without knowing it: the next call makes a new one."""
        if self._master is not None:
            self._master.drop()

    def _away(self, words: str) -> Away:
        lines = [line.strip() for line in words.splitlines() if line.strip()]
        text = " ".join(lines[-3:]) or "the connection was cut"
        low = words.lower()
        known_fix = next((fix for sign, fix in _FIXES.items() if sign in low), "")
        name = f"{self._address.user}@{self._address.host}" if self._address.user else self._address.host
        port = f"-p {self._address.port} " if self._address.port else ""
        fix = (known_fix or _TRY).format(host=f"{port}{name}")
        return Away(f"{self._address} does not answer: {text}", fix=fix, lasting=bool(known_fix))


class _Pump:
    """Moves bytes between a client and files until the client closes its outputs."""

    def __init__(
        self, client: subprocess.Popen[bytes], head: bytes, source: BinaryIO | None, sink: Sink | None
    ) -> None:
        self.begun = False
        """Whether the script wrote its first line; what comes before is a login script's."""
        self.out = bytearray()
        """What came without a sink, or before the first line."""
        self.err = bytearray()
        self._client = client
        self._pending = memoryview(head)
        self._source = source
        self._sink = sink

    def run(self) -> None:
        """Move everything; raises `subprocess.TimeoutExpired` where nothing moves any more."""
        assert self._client.stdin is not None and self._client.stdout is not None and self._client.stderr is not None
        os.set_blocking(self._client.stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._client.stdin, selectors.EVENT_WRITE, self._write)
            selector.register(self._client.stdout, selectors.EVENT_READ, self._read_out)
            selector.register(self._client.stderr, selectors.EVENT_READ, self._read_err)
            while selector.get_map():
                ready = selector.select(STILL)
                if not ready:
                    raise subprocess.TimeoutExpired("ssh", STILL)
                for key, _ in ready:
                    if not key.data(key.fd):
                        selector.unregister(key.fileobj)
                        if key.fileobj is self._client.stdin:
                            _close_quietly(self._client.stdin)
        self._client.wait(STILL)

    def _write(self, descriptor: int) -> bool:
        if not self._pending and self._source is not None:
            self._pending = memoryview(self._source.read(PIECE))
        if not self._pending:
            return False
        try:
            self._pending = self._pending[os.write(descriptor, self._pending) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:  # the script ended before it had read all, and says why
            return False
        return True

    def _read_out(self, descriptor: int) -> bool:
        data = os.read(descriptor, PIECE)
        if not self.begun:
            self.out += data
            _, begun, rest = bytes(self.out).partition(_BEGIN_LINE)
            if begun:
                self.begun = True
                self.out.clear()
                self._take(rest)
        else:
            self._take(data)
        return bool(data)

    def _take(self, data: bytes) -> None:
        if self._sink is None:
            self.out += data
        elif data:
            self._sink(data)

    def _read_err(self, descriptor: int) -> bool:
        data = os.read(descriptor, PIECE)
        self.err += data
        return bool(data)


class _Master:
    """A connection in the background that is made when it is needed, and again when it was lost."""

    def __init__(self, address: Address, config_file: str) -> None:
        self.users = 0
        """How many `_Connection`s use it."""
        self._address = address
        self._config_file = config_file
        self._lock = threading.Lock()
        self._folder = ""
        self._theirs = False

    @property
    def words(self) -> list[str]:
        """The command of a client, up to the options of the connection."""
        return self.client()

    def client(self, *, terminal: bool = False) -> list[str]:
        """The same, with a terminal if it is asked for: of options that are given twice ssh takes the first."""
        words = ["ssh", *(["-F", self._config_file] if self._config_file else [])]
        words += ["-o", "RequestTTY=force", "-o", "EscapeChar=none"] if terminal else []
        words += ["-l", self._address.user] if self._address.user else []
        words += ["-p", str(self._address.port)] if self._address.port else []
        return [*words, *(word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}"))]

    @property
    def control(self) -> list[str]:
        """The options by which a client finds the connection."""
        return ["-o", "ControlMaster=no", *([] if self._theirs else ["-o", f"ControlPath={self._socket}"])]

    def connect(self) -> str:
        """Make the connection if it does not stand; why it cannot be made, empty where it stands."""
        with self._lock:
            if self._theirs or (self._folder and _listens(self._socket)):
                return ""
            self._theirs = self._theirs_stands()
            return "" if self._theirs else self._open()

    def drop(self) -> None:
        """End what stands."""
        with self._lock:
            self._theirs = False
            self._end()

    @property
    def _socket(self) -> str:
        return f"{self._folder}/s"

    def _theirs_stands(self) -> bool:
        """Whether the person opened a connection, by the ControlPath of their own configuration."""
        return self._quietly(["-O", "check"]) == 0

    def _quietly(self, options: Sequence[str]) -> int:
        """The code of an ssh that talks to a master on this machine only."""
        try:
            return subprocess.run(
                [*self.words, *options, "--", self._address.host],
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

    def _open(self) -> str:
        """Make a connection that stays in the background; why it does not stand."""
        self._end()
        self._folder = _short_folder()
        try:
            error = self._start()
        except BackendError:
            self._end()
            raise
        if error is None:
            return ""
        self._end()
        return error or "the connection was cut"

    def _start(self) -> str | None:
        """Start the process that holds the connection; what it says where it could not."""
        control = {"ControlMaster": "yes", "ControlPath": self._socket, "ControlPersist": str(PERSIST)}
        options = [word for name, value in control.items() for word in ("-o", f"{name}={value}")]
        # A file, because the process that stays in the background may hold on to what it writes to.
        with tempfile.TemporaryFile() as errors:
            try:
                code = subprocess.run(
                    [*self.words, *options, "-f", "-N", "--", self._address.host],
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

    def _end(self) -> None:
        if self._folder:
            if os.path.exists(self._socket):
                self._quietly(["-o", f"ControlPath={self._socket}", "-O", "exit"])
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


_MASTERS: Final[dict[tuple[int, Address, str], _Master]] = {}
"""The connections of this process, by its id, which a process that it forks has not, the host and ssh's configuration.
"""
_MASTERS_LOCK: Final = threading.Lock()


def _take(address: Address) -> _Master:
    """The connection to a host for one more user."""
    config_file = os.environ.get(CONFIG_VARIABLE, "")
    with _MASTERS_LOCK:
        if not _MASTERS:
            atexit.register(_end_all, os.getpid())
        master = _MASTERS.setdefault((os.getpid(), address, config_file), _Master(address, config_file))
        master.users += 1
        return master


def _release(master: _Master) -> None:
    """End a connection that its last user has closed."""
    with _MASTERS_LOCK:
        master.users -= 1
        if master.users:
            return
        for key in [key for key, other in _MASTERS.items() if other is master]:
            del _MASTERS[key]
    master.drop()


def _end_all(pid: int) -> None:
    """At the end of a process: end the connections whose users did not close them."""
    for (owner, _, _), master in list(_MASTERS.items()):
        if owner == pid == os.getpid():
            master.drop()


def _close_quietly(stream: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        stream.close()


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
