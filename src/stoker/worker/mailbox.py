"""The program of a task that a platform starts by itself: waits for the driver's orders in a mailbox, and runs them.

    python -m stoker.worker.mailbox FOLDER PATIENCE

FOLDER is a mailbox (`core.orders`): a folder, or a URI that fsspec knows. Each order is run by `worker.boot` in a
process of its own; its output goes into the mailbox piece by piece, and to this program's own output, where the
platform's log has it. The program ends with the code that the driver's last order names, so that the platform shows
the task as the step ended; with `LOST` where no order came for PATIENCE seconds.

SIGTERM ends the running job within its grace; the program ends then.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any, Final, TypeVar

import attrs

from stoker.core import orders, wire
from stoker.core.codec import from_json, parse_json, parse_object, to_json
from stoker.core.orders import LOST, MailEnd, MailOrder, MailPiece, MailState
from stoker.core.protocol import MARK, RESULT
from stoker.store import notes

SOON: Final = 0.1
"""Seconds between two looks for an order, at first."""
LATER: Final = 2.0
"""The same when none has come for a while; an object store charges for each look."""
SLOWER: Final = 1.2
"""By what the pause grows from look to look."""
PIECE: Final = 1.0
"""Seconds in which output is gathered into one piece."""
LARGE: Final = 1 << 18
"""Bytes of output at which a piece is not waited for any longer."""
LOOK: Final = 2.0
"""Seconds between two looks whether the running job is to end."""
LEAST: Final = 2.0
"""Seconds after a job's grace in which its program may still write how it ended."""
MESSAGE: Final = MARK.encode()
_CHUNK: Final = 1 << 16

Note = TypeVar("Note")


class Waiter:
    """The program: at most one job at a time."""

    def __init__(self, folder: str, patience: float) -> None:
        self._folder = folder.rstrip("/")
        self._patience = patience
        self._boot: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self._wakeup = wire.Wakeup()

    def run(self) -> int:
        """Take orders until one says to leave; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        order = self._resume()
        self._put(orders.UP, MailState(host=socket.gethostname(), began=time.time()))
        while True:
            letter = self._next(order)
            if letter is None:
                return 128 + signal.SIGTERM if self._stopped else LOST
            if letter.leave >= 0:
                return letter.leave
            self._execute(order)
            order += 1

    def _on_signal(self, number: int, frame: Any) -> None:
        self._stopped = True
        if self._boot is not None:
            self._boot.send_signal(signal.SIGTERM)
        self._wakeup.set()

    def _resume(self) -> int:
        """The number of the first order that nobody has taken. One that an earlier program took, and that is not over,
        is lost: its node is gone, or was ended by the platform."""
        numbers = sorted(int(name) for name in notes.names(self._folder) if name.isdecimal())
        for number in numbers:
            state = self._get(orders.state_note(number), MailState)
            if state is None:
                return number
            if not state.over:
                self._put(orders.state_note(number), attrs.evolve(state, over=True, lost=True))
        return numbers[-1] + 1 if numbers else 0

    def _next(self, number: int) -> MailOrder | None:
        """The order, once it is there; None where none comes, or the program is to end."""
        pause, until = SOON, time.monotonic() + self._patience
        while not self._stopped:
            order = self._get(orders.order_note(number), MailOrder)
            if order is not None:
                return order
            if time.monotonic() >= until:
                sys.stdout.write(
                    f"no order has come for {self._patience:g} s: the driver of this run is gone; "
                    "`stoker resume` goes on with the run\n"
                )
                return None
            select.select([self._wakeup.descriptor], [], [], pause)
            pause = min(pause * SLOWER, LATER)
        return None

    def _execute(self, number: int) -> None:
        """Run an order to its end."""
        state = MailState(host=socket.gethostname(), began=time.time())
        self._put(orders.state_note(number), state)
        if self._get(orders.end_note(number), MailEnd) is not None:  # it was cancelled before it began
            self._put(orders.state_note(number), attrs.evolve(state, over=True, code=-signal.SIGTERM))
            return
        place = f"{self._folder}/{orders.order_folder(number)}"
        here = tempfile.mkdtemp(prefix="stoker-job-")
        try:
            document = parse_object(notes.get(f"{place}/{orders.JOB}") or b"")
            names = _localize(document, here)
            with open(f"{here}/{orders.JOB}", "w", encoding="utf-8") as file:
                json.dump(document, file)
            self._boot = boot = subprocess.Popen(
                [sys.executable, "-m", "stoker.worker.boot", f"{here}/{orders.JOB}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            if self._stopped:
                boot.send_signal(signal.SIGTERM)
            try:
                state = self._follow(boot, number, state, names)
            finally:
                code = boot.wait()
                self._boot = None
            for name in (RESULT, orders.SAMPLES):
                for path in _files_of(here, name):
                    with open(path, "rb") as plain:
                        notes.put(f"{place}/{name}", plain.read())
        finally:
            shutil.rmtree(here, ignore_errors=True)
        self._put(orders.state_note(number), attrs.evolve(state, over=True, code=code))

    def _follow(
        self, boot: subprocess.Popen[bytes], number: int, state: MailState, names: tuple[bytes, bytes] | None
    ) -> MailState:
        """Pass on the job's output, and the driver's request to end it; the state with the last piece. `names`: what
        messages call a file here, and what the driver calls it."""
        assert boot.stdout is not None and boot.stderr is not None
        size, frames, splitter = 0, list[tuple[str, str]](), Splitter(names)
        flush_at = look_at = time.monotonic()
        kill_at = float("inf")
        with selectors.DefaultSelector() as selector, boot.stdout, boot.stderr:
            for name, stream in (("stdout", boot.stdout), ("stderr", boot.stderr)):
                selector.register(stream, selectors.EVENT_READ, name)
            while selector.get_map():
                until = min(look_at, kill_at, flush_at if frames else look_at)
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    data = os.read(key.fd, _CHUNK)
                    if not data:
                        selector.unregister(key.fileobj)
                    ready = splitter.split(key.data, data)
                    if ready:
                        frames.append((key.data, ready.decode("latin-1")))
                        size += len(ready)
                now = time.monotonic()
                if frames and (now >= flush_at or size >= LARGE or not selector.get_map()):
                    self._put(orders.piece_note(number, state.pieces), MailPiece(frames=tuple(frames)))
                    state = attrs.evolve(state, pieces=state.pieces + 1)
                    self._put(orders.state_note(number), state)
                    size, flush_at = 0, now + PIECE
                    frames.clear()
                if now >= look_at and kill_at == float("inf"):
                    look_at = now + LOOK
                    end = self._get(orders.end_note(number), MailEnd)
                    if end is not None:
                        kill_at, look_at = now + end.grace + (LEAST if end.grace else 0.0), float("inf")
                        boot.send_signal(signal.SIGTERM)
                if now >= kill_at:
                    kill_at = look_at = now + LOOK
                    boot.kill()
        return state

    def _get(self, name: str, kind: type[Note]) -> Note | None:
        data = notes.get(f"{self._folder}/{name}")
        return None if data is None else from_json(kind, parse_json(data), strict=False)

    def _put(self, name: str, note: Any) -> None:
        notes.put(f"{self._folder}/{name}", json.dumps(to_json(note), separators=(",", ":")).encode())


class Splitter:
    """Cuts output so that a message is never in two pieces, and repeats the step's own lines for the platform's log."""

    def __init__(self, names: tuple[bytes, bytes] | None) -> None:
        self._names = names
        self._rest: dict[str, bytes] = {}

    def split(self, stream: str, data: bytes) -> bytes:
        """What of a stream can be passed on; its rest at its end, which is a piece without bytes."""
        whole, newline, rest = (self._rest.pop(stream, b"") + data).rpartition(b"\n")
        ready = whole + newline
        if rest and data and MESSAGE.startswith(rest[: len(MESSAGE)]):
            self._rest[stream] = rest
        else:
            ready += rest
        lines = ready.splitlines(keepends=True)
        own = b"".join(line for line in lines if not line.startswith(MESSAGE))
        with contextlib.suppress(OSError):  # nobody reads it any more
            os.write(1 if stream == "stdout" else 2, own)
        if self._names is None or len(own) == len(ready):
            return ready
        return b"".join(line.replace(*self._names) if line.startswith(MESSAGE) else line for line in lines)


def _localize(document: dict[str, Any], here: str) -> tuple[bytes, bytes] | None:
    """Have the devices be accounted for in a file of this machine; what that file is called here and by the driver."""
    lease = document["job"].get("accelerators")
    if not lease:
        return None
    theirs, lease["samples"] = lease["samples"], f"{here}/{orders.SAMPLES}"
    names = [json.dumps(name.removesuffix(".jsonl"))[1:-1].encode() for name in (lease["samples"], theirs)]
    return names[0], names[1]


def _files_of(here: str, name: str) -> list[str]:
    """The file of a job's folder; one of a gang's other nodes has the node's number in its name (`boot.of_node`)."""
    stem, dot, ending = name.rpartition(".")
    return [path for path in (f"{here}/{name}", *glob.glob(f"{here}/{stem}-*{dot}{ending}")) if os.path.exists(path)]


def main() -> int:
    """The program."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m stoker.worker.mailbox FOLDER PATIENCE\n")
        return 2
    return Waiter(sys.argv[1], float(sys.argv[2])).run()


if __name__ == "__main__":
    sys.exit(main())
