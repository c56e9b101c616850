"""Commands without the start of an interpreter: scripts that are forked from one that has imported Stoker.

The suite runs programs thousands of times, and each spends most of its time on importing Stoker. `run` runs a
script as `subprocess.run` does, in a process of its own with its own arguments, folder, variables and pipes, but from a
server that is there already. It is not for what the start of Python decides: `run` returns None where variables are for
the interpreter itself, or where a module of the program has the name of one that the server has imported.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

IMPORTED = (
    "concurrent.futures.thread",
    "libcst.metadata",
    "sqlite3",
    "yaml",
    *("stoker.client", "stoker.config", "stoker.flow", "stoker.flows.cli", "stoker.flows.spec"),
    *("stoker.engine.runner", "stoker.run.session", "stoker.migrate.metaflow", "stoker.migrate.zenml"),
    *(
        f"stoker.cli.{name}"
        for name in ("devices", "doctor", "logs", "main", "migrate", "plan", "report", "rerun", "runs", "show")
    ),
    *(
        f"stoker.backends.{name}.backend"
        for name in ("aws_batch", "docker", "kubeflow", "kubernetes", "local", "ray", "sagemaker", "skypilot", "slurm")
    ),
    *("stoker.devices.leases", "stoker.plan.preflight", "stoker.plan.components.torch"),
    *("stoker.plan.components.jaxtensorflow", "stoker.plan.components.machine", "stoker.plan.components.wheels"),
    "stoker.vendors.nvidia.probe",
)
"""What the server imports, with all that these import; none of it reads variables or the working folder then."""
STARTS = re.compile(r"STOKER_SYSTEM|PYTHON[A-Z]|LC_|LANG|LD_|MALLOC_")
"""How the names of variables begin that count when an interpreter starts, or imports Stoker."""
_ENVIRONMENT = dict(os.environ)
"""The variables before any test has changed some."""


class Server:
    """The server, as the tests see it."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair()
        self._starts = _starts(_ENVIRONMENT)
        self.cpu = 0.0
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                pass_fds=[other.fileno()],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End it; what it has forked goes on."""
        self._control.close()
        self._process.wait()

    def run(
        self, argv: list[str], *, cwd: Path, env: Mapping[str, str], input: str, timeout: float
    ) -> subprocess.CompletedProcess[str] | None:
        """`subprocess.run` of a script with its output captured; None: this one needs an interpreter of its own."""
        if _starts(env) != self._starts or len(input) > 16_000:  # which a pipe takes before anybody reads it
            return None
        request = {"argv": argv, "cwd": str(cwd), "env": dict(env)}
        mine, its = socket.socketpair()
        with contextlib.ExitStack() as opened:
            opened.enter_context(mine)
            with tempfile.TemporaryFile() as file, its:
                file.write(json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogateescape"))
                file.seek(0)
                (stdin, given), (read_output, stdout), (read_errors, stderr) = os.pipe(), os.pipe(), os.pipe()
                os.write(given, input.encode())
                readers = [opened.enter_context(open(one, "rb", buffering=0)) for one in (read_output, read_errors)]
                theirs = [stdin, stdout, stderr]
                socket.send_fds(self._control, [b"x"], [file.fileno(), its.fileno(), *theirs])
                for one in (*theirs, given):
                    os.close(one)
            replies = opened.enter_context(mine.makefile("r"))
            begun = json.loads(replies.readline() or "null")
            if begun is None:
                raise RuntimeError("the server that forks programs of tests has ended; its error stands above")
            if begun < 0:
                return None
            try:
                output, errors = _contents(readers, time.monotonic() + timeout)
            except TimeoutError:
                os.kill(begun, signal.SIGKILL)
                raise subprocess.TimeoutExpired(argv, timeout) from None
            status, cpu = json.loads(replies.readline())
            self.cpu += cpu
        return subprocess.CompletedProcess(argv, status, output, errors)


def _starts(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if STARTS.match(name)}


def _contents(readers: list[Any], deadline: float) -> list[str]:
    """What comes out of pipes until nobody holds their other ends."""
    contents = {reader: bytearray() for reader in readers}
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(deadline - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if data := key.fileobj.read(1 << 16):  # type: ignore[union-attr]
                    contents[key.fileobj] += data
                else:
                    selector.unregister(key.fileobj)
    return [bytes(content).decode().replace("\r\n", "\n") for content in contents.values()]


_SERVER: list[Server] = []


def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str] | None:
    """`Server.run` of this process's server, which the first call starts."""
    if not _SERVER:
        _SERVER.append(Server())
    return _SERVER[0].run(argv, **options)


def cpu() -> float:
    """Seconds of CPU time of all that was forked and has ended."""
    return sum(server.cpu for server in _SERVER)


def _served(control: socket.socket) -> dict[str, Any] | None:
    """The server's loop; it returns in each process that it forks, with what that is to run."""
    replies: dict[int, socket.socket] = {}
    woken, wakes = socket.socketpair()
    for one in (woken, wakes):
        one.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                woken.recv(4096)
                for ended, status, seconds in _ended():
                    with replies.pop(ended) as reply, contextlib.suppress(OSError):
                        reply.sendall(json.dumps([status, seconds]).encode() + b"\n")
            if control not in ready:
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1, 8)
            if not message:
                return None
            with open(descriptors[0], encoding="utf-8", errors="surrogateescape") as file:
                request: dict[str, Any] = json.load(file)
            reply = socket.socket(fileno=descriptors[1])
            fits = _fits(request["argv"][1:], request["cwd"])
            pid = os.fork() if fits else -1
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for place, descriptor in enumerate(descriptors[2:]):
                    os.dup2(descriptor, place)
                    os.close(descriptor)
                for one in (control, woken, wakes, reply, *replies.values()):
                    one.close()
                return request
            for descriptor in descriptors[2:]:
                os.close(descriptor)
            if fits:
                replies[pid] = reply
            with contextlib.suppress(OSError):
                reply.sendall(json.dumps(pid).encode() + b"\n")
            if not fits:
                reply.close()


def _ended() -> Iterator[tuple[int, int, float]]:
    """Processes that have ended, with their exit statuses and their seconds of CPU time."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            yield pid, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime


def _fits(words: list[str], cwd: str) -> bool:
    """Whether the program would find the modules that are imported here: none of its own has the name of one."""
    files = [os.path.join(cwd, "-"), *(os.path.join(cwd, word) for word in words if ".py" in word)]
    beside: set[str] = set()
    for folder in {os.path.dirname(os.path.realpath(file)) for file in files}:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            beside |= {one.name.removesuffix(".py") for one in entries if one.name.endswith(".py") or one.is_dir()}
    return beside.isdisjoint(sys.modules)


def _become(request: dict[str, Any]) -> None:
    """Do what `python script arguments…` does."""
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        sys.exit(f"{request['cwd']}: {error}")
    sys.orig_argv = request["argv"]
    sys.argv = request["argv"][1:]
    script = os.path.join(os.getcwd(), sys.argv[0])
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    module = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", script)
    module.__dict__.update(__file__=script, __builtins__=__builtins__, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = module
    code = None
    try:
        with open(script, "rb") as file:
            source = file.read()
        code = compile(source, script, "exec", dont_inherit=True)
        exec(code, module.__dict__)
        _leave(0)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            _leave(ended.code or 0)
        raise
    except BaseException as error:
        frames = error.__traceback__
        # Python shows it without the frame of this function, and does the rest.
        error.__traceback__ = frames.tb_next if frames is not None and code is not None else None
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = lambda *_: None
        raise


def _leave(code: int) -> None:
    """End as Python does, but leave the modules to the system: taking them down costs more than many a program does."""
    with contextlib.suppress(OSError, ValueError):  # Python says so itself
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.modules["__main__"].__dict__.clear()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def main() -> None:
    """The server's program: the descriptor of its socket is its only argument."""
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):  # what is optional may be absent
            importlib.import_module(name)
    config = sys.modules["stoker.config"]
    for name in config.__all__:
        getattr(config, name)
    gc.collect()
    gc.freeze()
    request = None
    with contextlib.suppress(KeyboardInterrupt):
        request = _served(socket.socket(fileno=int(sys.argv[1])))
    if request is not None:
        _become(request)


if __name__ == "__main__":
    main()
