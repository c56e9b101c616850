"""The program of a pod that takes several steps: starts the worker of a pool, and serves the driver by exec.

    keep STATE WORKER SPEC    the pod's own command; WORKER has the parts of the worker, SPEC its `core.orders.PoolSpec`
    serve STATE [CLAIM]       a session, by exec; CLAIM is the folder of the artifact store's claim

STATE is a folder of the pod: a pool (`core.orders`) with one worker, and a folder for each order that the driver has
not told to forget. A session reads questions from standard input, each a line of JSON with `bytes` bytes of content
behind it where it says so, and writes what is new in the same form. The last session alone may order; an earlier one
ends.

    {"do": "order", "number", "mark", "bytes"}, {"do": "follow", "number", "offset"}, {"do": "end", "number", "grace"},
    {"do": "forget", "number"}, {"do": "close"}, {"do": "ping"}

    {"hello": [{"number", "mark", "claimed", "over", "ok"}], "place", "next"}, {"claimed": number},
    {"output": number, "bytes"}, {"over": number, "code", "result", "samples"}, {"refused": number}, {"closed": why}

When the worker leaves, the pod writes what no driver has taken to its log, where a later driver finds it: for each
order {"kubernetes": "order", "number", "mark", "begun", "code"}, its output, its samples and its result, as `pod`
writes them, and {"kubernetes": "end"} last. The program's text (`pods.program`) is a variable of the pod, and it uses
the standard library only, so that any image with Python 3.10 runs it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import select
import shutil
import signal
import sys
import time
from typing import Any, Iterator

from stoker.backends.kubernetes.request.pod import resolved, unpack, write  # in a pod their text stands here

Question = dict[str, Any]
PROGRAM = "STOKER_POOL_PROGRAM"
WORKER = "worker"
"""The name of the worker in its pool."""
TMP = "tmp"
"""The folder of STATE for temporary files, emptied between steps."""
PLACES = ("claim://", "pool://")
"""What stands for the folders of the claim and of STATE at the beginning of a text."""
PIECE = 1 << 18
"""Bytes of output in one message."""
SOON = 0.002
LATER = 0.05
"""Seconds between two looks for what an order has written: a twentieth of those since the last news, within these."""
IDLE = 0.5
"""Seconds between two looks while nothing is followed."""
START = 300.0
"""Seconds in which the worker must have begun."""
SILENCE = 900.0
"""Seconds without a question after which a session ends whose client may be gone."""


def main(words: list[str]) -> int:
    """Keep the pod, or serve a session."""
    kind, state, *rest = words
    os.umask(0o077)
    if kind == "keep":
        return keep(state, *rest)
    return PoolSession(state, rest[0] if rest else "").serve()


def keep(state: str, worker: str, spec: str) -> int:
    """Run the pool's worker until it leaves; the exit code is 0 where it left by its own rules."""
    # The first process of a container has no defaults; the worker has handlers of its own from its start. A pod that is
    # ended before has begun nothing: it does not end as an error.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for name in (PROGRAM, "JOB_COMPLETION_INDEX"):  # a step would take the number of its worker for its own
        os.environ.pop(name, None)
    sys.path[:] = [place for place in sys.path if place]
    if os.path.isdir(worker):
        bundle = os.path.join(state, "bundle")
        unpack(worker, bundle)
        sys.path.insert(0, bundle)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [bundle, os.environ.get("PYTHONPATH", "")]))
    document = json.loads(spec)
    temporary = os.path.join(state, TMP)
    if os.environ.get("TMPDIR") == temporary:
        os.makedirs(temporary, exist_ok=True)
        document["emptied"] = [temporary]
    write_file(os.path.join(state, "pool.json"), json.dumps(document))
    os.mkfifo(os.path.join(state, f"wake-{WORKER}"), 0o600)
    write_file(os.path.join(state, "orders"), "")
    try:
        from stoker.worker import pool
    except ImportError as error:
        sys.exit(f"{sys.executable} cannot import Stoker's worker: {error}")
    code = pool.main([state, WORKER])
    leave(state)
    return code


def leave(state: str) -> None:
    """Write to the log what no driver has taken. The worker is gone: what was ordered and not begun never is."""
    codes = {note["over"]: note.get("code", 0) for note in journal(state, 0)[0] if note.get("over", -1) >= 0}
    for number in numbers(state):
        folder = os.path.join(state, str(number))
        begun = os.path.exists(os.path.join(state, "claims", str(number)))
        facts = {"number": number, "mark": read_json(os.path.join(folder, "mark.json")), "begun": begun}
        write("order", code=codes.get(number), **facts)
        with contextlib.suppress(OSError), open(os.path.join(folder, "output"), "rb") as file:
            last = b"\n"
            while data := file.read(PIECE):
                last = data[-1:]
                put(1, data)
            put(1, b"" if last == b"\n" else b"\n")
        for name, text in samples(folder).items():
            write("samples", text, name=name)
        result = read_text(os.path.join(folder, "result.json"))
        if result:
            write("result", result)
    write("end")


class PoolSession:
    """Answers one driver."""

    def __init__(self, state: str, claim: str) -> None:
        self.state = state
        self.places = dict(zip(PLACES, (claim, state)))
        self.token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.data = b""
        self.journal_at = 0
        self.claimed: set[int] = set()
        self.over: dict[int, int] = {}
        self.closed = ""
        self.followed: dict[int, int] = {}
        """Orders whose output is told, and how much of it was."""
        self.heard = self.news = time.monotonic()
        self.ended = False

    def serve(self) -> int:
        """Answer until the input ends, another session has begun, or nobody asks for a while."""
        until = time.monotonic() + START
        while not os.path.exists(os.path.join(self.state, "orders")):
            # Nobody asks anything before the first answer: what comes now is the end of the input.
            if select.select([0], [], [], 0.01)[0] or time.monotonic() > until:
                return 1
        with self.alone(check=False):
            write_file(os.path.join(self.state, "session"), self.token)
        self.read_journal(tell=False)
        there = [self.facts(number) for number in numbers(self.state)]
        self.tell({"hello": there, "place": self.state, "next": self.next_number()})
        if self.closed:
            self.tell({"closed": self.closed})
        while not self.ended and time.monotonic() - self.heard < SILENCE:
            self.look()
            since = time.monotonic() - self.news
            pause = min(max(since / 20, SOON), LATER) if self.followed else IDLE
            if select.select([0], [], [], pause)[0]:
                self.receive()
        return 0

    @contextlib.contextmanager
    def alone(self, *, check: bool = True) -> Iterator[bool]:
        """Within the block no other session begins; whether this one is the last that has."""
        lock = os.open(os.path.join(self.state, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield not check or read_text(os.path.join(self.state, "session")) == self.token
        finally:
            os.close(lock)

    def next_number(self) -> int:
        """A number that no order has had, also none that is forgotten: its claim stays."""
        lines = read_text(os.path.join(self.state, "orders")).splitlines()
        return max((int(json.loads(line).get("number", -1)) for line in lines), default=-1) + 1

    def facts(self, number: int) -> dict[str, Any]:
        """What is known of an order."""
        folder = os.path.join(self.state, str(number))
        result = read_json(os.path.join(folder, "result.json"))
        return {
            "number": number,
            "mark": read_json(os.path.join(folder, "mark.json")),
            "claimed": number in self.claimed,
            "over": number in self.over,
            "ok": bool(isinstance(result, dict) and result.get("ok")),
        }

    # What is new

    def look(self) -> None:
        """Tell what is new of the worker and of the orders that are followed."""
        self.read_journal(tell=True)
        for number, offset in list(self.followed.items()):
            over = number in self.over  # before its output is read: after that, nothing more comes
            folder = os.path.join(self.state, str(number))
            data = b""
            with contextlib.suppress(OSError), open(os.path.join(folder, "output"), "rb") as file:
                file.seek(offset)
                data = file.read(PIECE)
            if data:
                self.followed[number] = offset + len(data)
                self.tell({"output": number, "bytes": len(data)}, data)
            elif over:
                del self.followed[number]
                result = read_text(os.path.join(folder, "result.json"))
                self.tell({"over": number, "code": self.over[number], "result": result, "samples": samples(folder)})
            elif self.closed and number not in self.claimed:
                del self.followed[number]
                self.tell({"refused": number})

    def read_journal(self, *, tell: bool) -> None:
        """Take in what the worker has noted."""
        notes, self.journal_at = journal(self.state, self.journal_at)
        for note in notes:
            number = note.get("claimed", -1)
            if number >= 0:
                self.claimed.add(number)
                if tell:
                    self.tell({"claimed": number})
            elif note.get("over", -1) >= 0:
                self.over[note["over"]] = note.get("code", 0)
            elif note.get("closed"):
                self.closed = note["closed"]
                if tell:
                    self.tell({"closed": self.closed})

    def tell(self, message: dict[str, Any], content: bytes = b"") -> None:
        """Write a message."""
        self.news = time.monotonic()
        try:
            put(1, json.dumps(message).encode() + b"\n" + content)
        except OSError:
            self.ended = True

    # What is asked

    def receive(self) -> None:
        """Take what has come, and do it."""
        data = os.read(0, PIECE)
        if not data:
            self.ended = True
            return
        self.heard = time.monotonic()
        self.data += data
        while b"\n" in self.data and not self.ended:
            line, _, rest = self.data.partition(b"\n")
            question = json.loads(line)
            size = question.get("bytes", 0)
            if len(rest) < size:
                return
            self.data = rest[size:]
            with self.alone() as last:
                if not last:
                    self.ended = True
                    return
                self.do(question, rest[:size])

    def do(self, question: Question, content: bytes) -> None:
        """Do what a question asks."""
        kind, number = question["do"], question.get("number", -1)
        folder = os.path.join(self.state, str(number))
        if kind == "order":
            self.order(number, question["mark"], content)
            self.followed[number] = 0
        elif kind == "follow":
            self.followed[number] = question["offset"]
        elif kind == "end":
            self.append({"number": number, "end": True, "grace": question["grace"]})
        elif kind == "forget":
            shutil.rmtree(folder, ignore_errors=True)
        elif kind == "close":
            self.append({"close": True})

    def order(self, number: int, mark: Any, document: bytes) -> None:
        """Order a job; one that was ordered before is run once all the same, as its claim is made once."""
        folder = os.path.join(self.state, str(number))
        if not os.path.isdir(folder):
            beside = f"{folder}.new"
            shutil.rmtree(beside, ignore_errors=True)
            os.mkdir(beside)
            spec = resolved(json.loads(gzip.decompress(document)), self.places)
            theirs = (spec["job"].get("accelerators") or {}).get("samples", "")
            if theirs:
                spec["job"]["accelerators"]["samples"] = os.path.join(folder, "samples.jsonl")
                write_file(os.path.join(beside, "samples.name"), theirs)
            write_file(os.path.join(beside, "mark.json"), json.dumps(mark))
            write_file(os.path.join(beside, "job.json"), json.dumps(spec))
            os.rename(beside, folder)
        output = os.path.join(folder, "output")
        self.append({"number": number, "spec": os.path.join(folder, "job.json"), "out": output, "err": output})

    def append(self, line: dict[str, Any]) -> None:
        """Append a line to the pool's orders, and wake the worker."""
        descriptor = os.open(os.path.join(self.state, "orders"), os.O_WRONLY | os.O_APPEND)
        try:
            put(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):  # nobody reads it yet: the worker begins by reading the orders
            descriptor = os.open(os.path.join(self.state, f"wake-{WORKER}"), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"\n")
            finally:
                os.close(descriptor)


# Files


def journal(state: str, offset: int) -> tuple[list[dict[str, Any]], int]:
    """The notes of the worker from an offset on, and the offset behind them."""
    try:
        with open(os.path.join(state, f"journal-{WORKER}"), "rb") as file:
            file.seek(offset)
            data = file.read()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


def numbers(state: str) -> list[int]:
    """The orders that are not forgotten."""
    return sorted(int(name) for name in os.listdir(state) if name.isdecimal())


def samples(folder: str) -> dict[str, str]:
    """What is recorded of an order's devices, by the name of the file on the driver's machine."""
    name = read_text(os.path.join(folder, "samples.name"))
    text = read_text(os.path.join(folder, "samples.jsonl"))
    return {name: text} if name and text else {}


def read_text(path: str) -> str:
    """A file's text; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path: str) -> Any:
    """A file's document; None where there is none."""
    try:
        return json.loads(read_text(path))
    except ValueError:
        return None


def write_file(path: str, text: str) -> None:
    """Write a file that is whole or absent."""
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)


# Output


def put(descriptor: int, data: bytes) -> None:
    """Write all of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
