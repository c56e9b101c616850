"""How commands run beside a step in a pod: by exec over the API server, in the pods of the attempt, without kubectl.

    python -m stoker.backends.kubernetes.running.beside SETTINGS NAMESPACE POD CONTAINER [--terminal] -- COMMAND …

runs a command in a container, with the streams and the exit code of its process. SETTINGS are those of the cluster, as
JSON. With `--terminal` the command gets a terminal of the size of this one, which passes on every key. Where there is
no way to the command, the last line of the standard error says why, and the exit code is `FAILED`.

A pod that takes several steps is entered as any other: which process is the step's is seen inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import ssl
import sys
import termios
import time
import tty
from typing import Any, Final, Iterator, Mapping, Sequence

from stoker.backends.base.backend import NOT_HERE, Beside, RunningAttempt, no_way
from stoker.backends.kubernetes.api.client import ApiError, Cluster, reached
from stoker.backends.kubernetes.api.execution import (
    BINARY,
    CLOSE,
    CLOSE_STREAM,
    PIECE,
    PING,
    PONG,
    PROTOCOLS,
    RESIZE,
    STATUS,
    STDERR,
    STDIN,
    STDOUT,
    Messages,
    frame,
    opened,
)
from stoker.backends.kubernetes.explain.refusals import refusal_of
from stoker.backends.kubernetes.objects import Object, index_of, is_deleted, main_name, name, phase
from stoker.backends.kubernetes.settings import KubernetesSettings
from stoker.core.codec import parse_json, parse_object
from stoker.core.errors import Away, SettingsError, StokerError

FAILED: Final = 125
"""The exit code where the command was not run, or nothing is known of its end: as `docker exec` has it."""
BROKEN_PIPE: Final = 141
"""The exit code where nobody reads the output: 128 and SIGPIPE, as a shell has it."""
ALIVE: Final = 15.0
"""Seconds between two signs of life. Load balancers in between cut what is silent for a minute."""
DEAD: Final = 60.0
"""Seconds without an answer to them after which the connection counts as lost."""
LINGER: Final = 2.0
"""Seconds after the end of the command in which the rest of its output may come."""
HELD: Final = 1 << 20
"""Bytes of a stream that are held; what is more is read later."""
WRITE: Final = 4096
"""Bytes that are written at once: as many as a pipe takes that is ready (pipe(7), PIPE_BUF)."""
_NO_PROGRAM: Final = re.compile(
    r'exec: "(?P<program>[^"]+)": (?:executable file not found|stat \S+: no such file|no such file)', re.IGNORECASE
)


class PodCommand:
    """A running command, whose streams are this process's."""

    def __init__(self, sock: socket.socket, protocol: str, came: bytes) -> None:
        self._sock = sock
        self._half_closes = protocol == PROTOCOLS[0]
        """Whether the end of the standard input can be told."""
        self._parser = Messages()
        self._came = came
        self._out = bytearray()
        """What is to be sent."""
        self._held = {STDOUT: bytearray(), STDERR: bytearray()}
        """What is to be written here."""
        self._status: Mapping[str, Any] | None = None
        self._closed = False
        self._reads = True
        """Whether this process's standard input is open."""
        self._heard = self._pinged = time.monotonic()

    def run(self, wakeup: int = -1) -> Mapping[str, Any]:
        """Carry the streams until the command ends; the API's `Status` of the end. `wakeup` is readable when the size
        of the terminal changes.

        Raises `Away` where the connection breaks before, and `BrokenPipeError` where nobody reads the output.
        """
        self._sock.setblocking(False)
        if wakeup >= 0:
            self._resize()
        self._receive(self._came)
        while not self._is_over():
            held = sum(map(len, self._held.values()))
            reading: list[int] = [] if self._closed or held > HELD else [self._sock.fileno()]
            reading += [STDIN] if self._reads and len(self._out) < HELD and self._status is None else []
            reading += [wakeup] if wakeup >= 0 else []
            writing = [stream for stream, data in self._held.items() if data]
            writing += [self._sock.fileno()] if self._out and not self._closed else []
            ready, able, _ = select.select(reading, writing, [], 1.0)
            if wakeup in ready:
                os.read(wakeup, 4096)
                self._resize()
            if STDIN in ready:
                self._read_input()
            for stream in (STDOUT, STDERR):
                if stream in able:
                    self._write_output(stream)
            if self._sock.fileno() in ready:
                self._read_socket()
            if self._out and not self._closed:
                self._write_socket()
            self._stay_alive()
        if self._status is None:
            raise Away("the connection ended before the command did")
        return self._status

    def _is_over(self) -> bool:
        if any(self._held.values()):
            return False
        return self._closed or (self._status is not None and time.monotonic() > self._heard + LINGER)

    def _read_input(self) -> None:
        data = os.read(STDIN, PIECE)
        if data:
            self._queue(BINARY, bytes([STDIN]) + data)
            return
        self._reads = False
        if self._half_closes:
            self._queue(BINARY, bytes([CLOSE_STREAM, STDIN]))

    def _write_output(self, stream: int) -> None:
        data = self._held[stream]
        del data[: os.write(stream, bytes(data[:WRITE]))]

    def _read_socket(self) -> None:
        try:
            while sum(map(len, self._held.values())) <= HELD:  # TLS may hold what `select` does not see
                data = self._sock.recv(1 << 18)
                if not data:
                    self._closed = True
                    return
                self._receive(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._lose(error)

    def _write_socket(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        """The connection is gone: that is an error unless the command has ended."""
        self._closed = True
        if self._status is None:
            raise Away(f"the connection broke: {error.strerror or error}") from error

    def _receive(self, data: bytes) -> None:
        self._heard = time.monotonic()
        try:
            for kind, payload in self._parser.feed(data):
                self._take(kind, payload)
        except ValueError as error:
            raise Away(str(error)) from None

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == PING:
            self._queue(PONG, payload)
        elif kind == CLOSE:
            self._closed = True
        elif kind == BINARY and payload:
            stream = payload[0]
            if stream in self._held:
                self._held[stream] += payload[1:]
            elif stream == STATUS and len(payload) > 1:
                self._status = _status(payload[1:])

    def _queue(self, kind: int, payload: bytes) -> None:
        self._out += frame(kind, payload)

    def _resize(self) -> None:
        """Tell the size of this terminal."""
        columns, lines = os.get_terminal_size(STDIN)
        self._queue(BINARY, bytes([RESIZE]) + json.dumps({"Width": columns, "Height": lines}).encode())

    def _stay_alive(self) -> None:
        now = time.monotonic()
        if now > self._heard + DEAD:
            raise Away(f"the API server has said nothing for {DEAD:g} s")
        if now > max(self._heard, self._pinged) + ALIVE:
            self._pinged = now
            self._queue(PING, b"")


def exit_code(status: Mapping[str, Any]) -> int | None:
    """The exit code of a command by the `Status` of its end; None where it was not run."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or ():
        if cause.get("reason") == "ExitCode" and str(cause.get("message", "")).isdecimal():
            return int(cause["message"])
    return None


def failure_words(status: Mapping[str, Any], pod: str, container: str) -> str:
    """Why a command was not run, by the `Status` of its end."""
    message = " ".join(str(status.get("message") or "the API server does not say why").split())
    missing = _NO_PROGRAM.search(message)
    if missing is not None:
        return (
            f"the image of container {container} of the pod {pod} has no {missing['program']}, by which a step is "
            f"entered ({NOT_HERE}); use an image with a shell, or read what the step writes: stoker logs"
        )
    return f"the pod {pod} cannot be entered: {message} ({NOT_HERE})"


@contextlib.contextmanager
def raw_terminal() -> Iterator[int]:
    """Within the block keys are passed on as they are; a descriptor that is readable when the size changes."""
    before = termios.tcgetattr(STDIN)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGWINCH, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        tty.setraw(STDIN)
        yield reader
    finally:
        termios.tcsetattr(STDIN, termios.TCSADRAIN, before)


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit code."""
    settings, namespace, pod, container, *rest = arguments
    terminal = rest[0] == "--terminal"
    command = rest[rest.index("--") + 1 :]
    cluster = Cluster(KubernetesSettings(**parse_object(settings)), os.environ)
    try:
        sock, protocol, came = opened(cluster, namespace, pod, command, container=container, terminal=terminal)
        with sock:
            running = PodCommand(sock, protocol, came)
            if terminal:
                with raw_terminal() as wakeup:
                    status = running.run(wakeup)
            else:
                status = running.run()
    except ApiError as error:
        refusal = refusal_of(error.status, error.words, namespace=namespace)
        return _failed(f"the pod {pod} cannot be entered: {refusal.text} ({NOT_HERE})")
    except StokerError as error:
        return _failed("; ".join(filter(None, (error.message, error.fix))))
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    code = exit_code(status)
    return _failed(failure_words(status, pod, container)) if code is None else code


def _failed(words: str) -> int:
    sys.stderr.write(f"{' '.join(words.split())}\n")
    return FAILED


def _status(payload: bytes) -> Mapping[str, Any]:
    try:
        document = parse_json(payload.decode("utf-8", "replace"))
    except SettingsError:
        document = None
    return document if isinstance(document, dict) else {"message": payload.decode("utf-8", "replace")[:300]}


# The pods of an attempt. What only they need is not loaded by the program.

_ACCESS: Final = ("context", "kubeconfig")
"""The settings by which a cluster is reached."""


def places(options: Mapping[str, Any], attempt: RunningAttempt) -> Iterator[Beside]:
    """The attempt's pods, by rank; a `UsageError` where none runs, or the account may not see them.

    Raises `Away` where the API server does not answer.
    """
    from stoker.backends.kubernetes.request.jobs import RUN, label_text
    from stoker.backends.kubernetes.running.ending import ASKED

    selector, namespace = f"{RUN}={label_text(attempt.run)}", str(attempt.identity.get("namespace") or "")
    try:
        with reached(options, patience=ASKED) as cluster:
            namespace = namespace or cluster.namespace
            found = cluster.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=selector).get("items") or ()
    except ApiError as error:
        refusal = refusal_of(error.status, error.words, namespace=namespace)
        raise no_way(attempt, refusal.message, fix=refusal.fix) from None
    running = [pod for pod in found if phase(pod) == "Running" and not is_deleted(pod)]
    pods = pods_of(running, str(attempt.identity.get("pod", "")))
    if not pods:
        raise no_way(attempt, "none of its pods runs", fix="see why it waits with `stoker show`")
    access = json.dumps({key: options[key] for key in _ACCESS if key in options})
    for pod in pods:
        words = (sys.executable, "-m", __name__, access, namespace, name(pod), main_name(pod))
        yield Beside(
            where=f"the pod {namespace}/{name(pod)}",
            argv=(*words, "--"),
            terminal=(*words, "--terminal", "--"),
            environment=attempt.environment,
        )


def pods_of(pods: list[Object], named: str) -> list[Object]:
    """Of the run's pods those in which an attempt may be: the one that was recorded, with the others of its gang, by
    their index; all where that is gone, as of a step that was sent again."""
    own = next((pod for pod in pods if name(pod) == named), None)
    gang = _gang(own) if own is not None else ""
    if gang:
        pods = [pod for pod in pods if _gang(pod) == gang]
    elif own is not None:
        pods = [own]
    return sorted(pods, key=lambda pod: (index_of(pod) or 0, name(pod)))


def _gang(pod: Object) -> str:
    from stoker.backends.kubernetes.request.pods import GANG_LABEL

    return str(((pod.get("metadata") or {}).get("labels") or {}).get(GANG_LABEL, ""))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
