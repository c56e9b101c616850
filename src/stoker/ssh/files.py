"""Files of another machine by their paths, over ssh: what `store.transport.Transport` asks for.

A file appears whole or not at all. A transfer that the network cuts goes on where it was, and a call waits for a
machine that does not answer for as long as `PATIENCE`.
"""

from __future__ import annotations

import logging
import os
import time
from typing import BinaryIO, Callable, Final, Iterator, Mapping, Sequence, TypeVar

import attrs

from stoker.core.errors import Away, BackendError, DiskFull
from stoker.core.hosts import folder_elsewhere
from stoker.ssh import scripts
from stoker.ssh.connection import Answer, Ssh

log = logging.getLogger(__name__)

PATIENCE: Final = 60.0
"""Seconds for which a call is repeated that gets no further: networks of laptops change within that time."""
FIRST_PATIENCE: Final = 5.0
"""The same before the machine ever answered: a wrong name or a network that is not there is said soon."""
_LONGEST_PAUSE: Final = 10.0

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class RemoteFile:
    """What is known of a file."""

    size: int
    """Bytes."""
    age: float
    """Seconds since it was written, by the clock of its own machine."""


class SshFiles:
    """Files below a folder of a host, by paths relative to that folder."""

    def __init__(self, uri: str) -> None:
        address, self._path = folder_elsewhere(uri)
        self._ssh = Ssh(address)
        self._folder = ""

    def write(self, source: BinaryIO, path: str, *, part: str) -> None:
        """Write a file; until it is whole it is called `part`, a name that nobody else uses.

        Raises `DiskFull`, `Away`, or `BackendError` where it cannot be written.
        """
        size = os.fstat(source.fileno()).st_size
        target, beside = self._at(path), self._at(part)

        def offset() -> int:
            there = self._sizes([part]).get(part)
            return 0 if there is None or there.size > size else there.size

        progress = _Progress()
        answer = self._patiently(lambda: self._send(source, target, beside, size, offset, progress), progress)
        if answer.code:
            self._ssh.ask(scripts.unlink([beside]))
            if answer.code == scripts.SHORT:
                raise BackendError(
                    f"{self._ssh.address} did not get all bytes of {target}",
                    fix="see whether something else writes there, and run again: finished steps are kept",
                )
            self._refuse(answer, target, "written")

    def read(self, path: str, into: Callable[[bytes], object]) -> bool:
        """Hand on a file's bytes in pieces; False where there is none. Raises `Away`, `BackendError`."""
        progress = _Progress()
        target = self._at(path)
        answer = self._patiently(lambda: self._receive(target, into, progress), progress)
        if answer.code == scripts.MISSING:
            return False
        self._refuse(answer, target, "read")
        return True

    def look(self, paths: Sequence[str]) -> Mapping[str, RemoteFile]:
        """Those of the files that are there."""
        return self._patiently(lambda: self._sizes(paths)) if paths else {}

    def renew(self, path: str, size: int) -> bool:
        """Give a file of this size the present time; False where there is none of this size."""
        return self._asked(scripts.renew(self._at(path), size), path, "renewed") is not None

    def remove_older(self, path: str, seconds: float) -> int | None:
        """Remove a file that was written longer ago than this; its size, or None where it stays or is gone."""
        written = self._asked(scripts.remove_older(self._at(path), seconds), path, "removed")
        return int(written) if written else None

    def rename(self, path: str, target: str) -> bool:
        """Move a file; False where there is none."""
        return self._asked(scripts.rename(self._at(path), self._at(target)), path, "moved") is not None

    def files(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder."""
        root = self._at("")
        for line in (self._asked(scripts.files(self._at(folder)), folder, "listed") or b"").splitlines():
            yield os.fsdecode(line).replace("//", "/").removeprefix(root)

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are gone are fine."""
        self._asked(scripts.unlink([self._at(path) for path in paths]), ", ".join(paths[:3]), "removed")

    def close(self) -> None:
        """Hang up."""
        self._ssh.close()

    def _send(
        self,
        source: BinaryIO,
        target: str,
        part: str,
        size: int,
        offset: Callable[[], int],
        progress: _Progress,
    ) -> Answer:
        """Send what the partial file lacks."""
        sent = offset() if progress.begun else 0
        progress.reach(sent)
        progress.begun = True
        source.seek(sent)
        answer = self._ssh.transfer(scripts.receive(target, part, size, sent), source=source)
        if answer.code == scripts.SHORT and progress.retries < _SHORT_RETRIES:
            # What an earlier connection still wrote stands behind what was there: from the beginning.
            progress.retries += 1
            progress.begun = False
            return self._send(source, target, part, size, offset, progress)
        return answer

    def _receive(self, target: str, into: Callable[[bytes], object], progress: _Progress) -> Answer:
        """Receive what has not come yet."""
        head = bytearray()
        size = -1

        def sink(data: bytes) -> None:
            nonlocal size
            if size < 0:
                head.extend(data)
                line, newline, data = bytes(head).partition(b"\n")
                if not newline:
                    return
                size = int(line)
            if data:
                into(data)
                progress.reach(progress.at + len(data))

        answer = self._ssh.transfer(scripts.send(target, progress.at), sink=sink)
        if not answer.code and progress.at != size:
            raise Away(f"{self._ssh.address} sent {progress.at} of {size} bytes of {target}")
        return answer

    def _sizes(self, paths: Sequence[str]) -> Mapping[str, RemoteFile]:
        by_name = {self._at(path): path for path in paths}
        answer = self._ssh.ask(scripts.sizes(list(by_name)))
        # Whatever else stat says, and a stat that does not know its options, tells nothing of whether a file is there.
        unknown = [line for line in answer.err.splitlines() if "stat: " in line and not line.endswith(_ABSENT)]
        self._refuse(attrs.evolve(answer, code=1) if unknown else answer, self._at(""), "looked into")
        try:
            *lines, now = os.fsdecode(answer.out).splitlines()
            moment = float(now)
            rows = [line.split(" ", 2) for line in lines]
            return {
                by_name[name]: RemoteFile(size=int(size), age=moment - float(written)) for size, written, name in rows
            }
        except (ValueError, KeyError):
            raise BackendError(
                f"{self._ssh.address} lists files in words that are not understood: {os.fsdecode(answer.out)[:200]!r}",
                fix="see what `stat -L -c '%s %Y %n' /` and `date +%s` print there",
            ) from None

    def _asked(self, script: str, path: str, doing: str) -> bytes | None:
        """What a script writes; None where the file that it is about is not there."""
        answer = self._patiently(lambda: self._ssh.ask(script))
        if answer.code == scripts.MISSING:
            return None
        self._refuse(answer, path, doing)
        return answer.out

    def _refuse(self, answer: Answer, path: str, doing: str) -> None:
        """Raise what a script's code means."""
        if not answer.code:
            return
        words = " ".join(answer.err.split()) or f"code {answer.code}"
        message = f"{path} on {self._ssh.address} cannot be {doing}: {words}"
        if scripts.says_full(answer.err):
            raise DiskFull(message, fix="make room there")
        raise BackendError(message, fix="see whether you may do so there, and whether its disk is well")

    def _at(self, path: str) -> str:
        """A path on the other machine."""
        if not self._folder:
            self._folder = self._patiently(lambda: self._ssh.expand(self._path)).rstrip("/") + "/"
        return self._folder + path

    def _patiently(self, attempt: Callable[[], T], progress: _Progress | None = None) -> T:
        """What an attempt returns, repeated while the machine does not answer and bytes moved lately."""
        pause, reached, warned = 0.5, 0, False
        deadline = time.monotonic() + (PATIENCE if self._ssh.stood else FIRST_PATIENCE)
        while True:
            try:
                return attempt()
            except Away as error:
                if progress is not None and progress.at > reached:
                    reached, pause, deadline = progress.at, 0.5, time.monotonic() + PATIENCE
                # Before the first answer a refused key is a mistake; later it may be a ticket that is being renewed.
                if (error.lasting and not self._ssh.stood) or time.monotonic() > deadline:
                    raise
                if not warned:
                    log.warning("%s; asked again", error.message)
                    warned = True
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


_ABSENT: Final = ("No such file or directory", "Not a directory")
"""How stat says that a file is not there."""
_SHORT_RETRIES: Final = 3
"""How often a file is sent from its beginning, where the other side had a wrong number of bytes."""


class _Progress:
    """How far the transfer of one file got."""

    def __init__(self) -> None:
        self.at = 0
        """Bytes that are on the other side."""
        self.begun = False
        """Whether a partial file may be there."""
        self.retries = 0

    def reach(self, at: int) -> None:
        """Note how far it got."""
        self.at = at
