"""The program of the pod that has an artifact store's claim: keeps the pod alive while it is used, and serves files.

    keep STATE IDLE               the pod's own command: it ends IDLE seconds after the last session
    serve STATE FOLDER SILENCE    a session, by exec; it ends after SILENCE seconds without a question

A session reads questions from standard input and answers them in turn on standard output. Each is a line of JSON, with
`bytes` bytes of a file's content behind it where it says so. Paths are relative to FOLDER. STATE is a folder in which
sessions hold a lock. The program's text is a variable of the pod, and it uses the standard library only, so that any
image with Python 3.10 runs it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
from typing import Any

Question = dict[str, Any]
Answer = dict[str, Any]
PIECE = 1 << 20
"""Bytes that are read or written at once."""
LOOK = 0.5
"""Seconds between two looks at whether a session is there."""


def main(words: list[str]) -> int:
    """Keep the pod, or serve a session."""
    kind, state, *rest = words
    os.umask(0o077)
    # Sessions of one pod are of one user; a volume's folder may be another's, and be writable all the same.
    lock = os.open(os.path.join(state, "sessions"), os.O_RDWR | os.O_CREAT, 0o600)
    if kind == "keep":
        return keep(lock, float(rest[0]))
    fcntl.flock(lock, fcntl.LOCK_SH)
    return StoreSession(lock, rest[0], float(rest[1])).serve()


def keep(lock: int, idle: float) -> int:
    """Wait until there was no session for so many seconds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    used = time.monotonic()
    while time.monotonic() - used < idle:
        if is_used(lock):
            used = time.monotonic()
        time.sleep(LOOK)
    return 0


def is_used(lock: int) -> bool:
    """Whether anybody else holds the lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


class StoreSession:
    """Answers the questions of one client."""

    def __init__(self, lock: int, folder: str, silence: float) -> None:
        self.lock = lock
        self.folder = folder
        self.silence = silence
        self.data = b""

    def serve(self) -> int:
        """Answer until the input ends, or nobody asks for a while."""
        while True:
            line = self.line()
            if not line:
                return 0
            question = json.loads(line)
            content = self.exactly(question.get("bytes", 0))
            try:
                answer = getattr(self, "do_" + question["do"])(question, content)
            except OSError as error:
                answer = {"error": errno.errorcode.get(error.errno or 0, ""), "words": str(error)}
            if answer is not None:
                self.write(json.dumps(answer).encode() + b"\n")

    def do_look(self, question: Question, content: bytes) -> Answer:
        """Size and age of those of the files that are there."""
        files = {}
        for path in question["paths"]:
            try:
                facts = os.stat(self.at(path))
            except (FileNotFoundError, NotADirectoryError):
                continue
            files[path] = [facts.st_size, time.time() - facts.st_mtime]
        return {"files": files}

    def do_read(self, question: Question, content: bytes) -> Answer | None:
        """A file's size, and its bytes from an offset on."""
        try:
            handle = os.open(self.at(question["path"]), os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return {"missing": True}
        with open(handle, "rb") as file:
            size = os.fstat(handle).st_size
            at = min(question["offset"], size)
            file.seek(at)
            self.write(json.dumps({"size": size, "bytes": size - at}).encode() + b"\n")
            while at < size:
                # A file that shrinks or fails half way would leave the client with the wrong bytes: end the session.
                piece = file.read(min(PIECE, size - at))
                if not piece:
                    sys.exit(f"{question['path']} has become shorter")
                self.write(piece)
                at += len(piece)
        return None

    def do_append(self, question: Question, content: bytes) -> Answer:
        """Write bytes to a partial file at an offset; what stood behind it is gone."""
        path = self.at(question["path"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < question["offset"]:
                return {"size": os.fstat(handle).st_size}
            os.ftruncate(handle, question["offset"])
            os.lseek(handle, question["offset"], os.SEEK_SET)
            view = memoryview(content)
            while view:
                view = view[os.write(handle, view) :]
            if question["last"]:
                os.fsync(handle)
            return {"size": os.fstat(handle).st_size}
        finally:
            os.close(handle)

    def do_finish(self, question: Question, content: bytes) -> Answer:
        """Give a partial file of so many bytes its name; it is read-only from then on."""
        part, path = self.at(question["part"]), self.at(question["path"])
        try:
            size = os.stat(part).st_size
        except FileNotFoundError:
            # The answer to an earlier question got lost.
            return {"size": os.stat(path).st_size if os.path.exists(path) else -1}
        if size == question["size"]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.chmod(part, 0o400)
            os.replace(part, path)
        return {"size": size}

    def do_renew(self, question: Question, content: bytes) -> Answer:
        """Give a file of this size the present time."""
        path = self.at(question["path"])
        try:
            there = os.stat(path).st_size == question["size"]
            if there:
                os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            there = False
        return {"there": there}

    def do_rename(self, question: Question, content: bytes) -> Answer:
        """Move a file."""
        path, target = self.at(question["path"]), self.at(question["target"])
        if not os.path.exists(path):
            return {"there": False}
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.replace(path, target)
        return {"there": True}

    def do_files(self, question: Question, content: bytes) -> Answer:
        """The paths of all files in a folder."""
        paths = []
        for place, _, names in os.walk(self.at(question["path"])):
            paths += [os.path.relpath(os.path.join(place, name), self.folder) for name in names]
        return {"files": paths}

    def do_remove(self, question: Question, content: bytes) -> Answer:
        """Remove files; those that are gone are fine."""
        for path in question["paths"]:
            try:
                os.unlink(self.at(path))
            except (FileNotFoundError, NotADirectoryError):
                pass
        return {}

    def do_remove_older(self, question: Question, content: bytes) -> Answer:
        """Remove a file that was written longer ago than this."""
        path = self.at(question["path"])
        try:
            facts = os.stat(path)
            if not stat.S_ISREG(facts.st_mode) or time.time() - facts.st_mtime <= question["seconds"]:
                return {}
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        return {"size": facts.st_size}

    def do_leave(self, question: Question, content: bytes) -> Answer:
        """Whether this was the only session; it is none any more."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            last = True
        except OSError:
            last = False
        fcntl.flock(self.lock, fcntl.LOCK_UN)
        return {"last": last}

    def at(self, path: str) -> str:
        """A path in the folder; refused where it leads out of it."""
        if path.startswith("/") or ".." in path.split("/"):
            raise PermissionError(errno.EPERM, "the path leads out of the store", path)
        return os.path.join(self.folder, path)

    def line(self) -> bytes:
        """The next line; empty at the end of the input."""
        while b"\n" not in self.data:
            if not self.more():
                return b""
        line, _, self.data = self.data.partition(b"\n")
        return line

    def exactly(self, size: int) -> bytes:
        """So many bytes of the input; the session ends where they do not come."""
        pieces = [self.data[:size]]
        self.data = self.data[size:]
        missing = size - len(pieces[0])
        while missing:
            if not self.more():
                sys.exit(0)
            pieces.append(self.data[:missing])
            self.data = self.data[missing:]
            missing -= len(pieces[-1])
        return b"".join(pieces)

    def more(self) -> bool:
        """Take what comes next; False at the end of the input, and where nobody asks for long."""
        if not select.select([0], [], [], self.silence)[0]:
            return False
        data = os.read(0, PIECE)
        self.data += data
        return bool(data)

    def write(self, data: bytes) -> None:
        """Write all of it."""
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
