"""The machine on which a cluster's commands are called: this one, or one that is reached by ssh.

Whoever asks does not see which of the two it is. Files are read and written many at a time, because each question may
cost a round trip. Knows no cluster.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
from typing import Final, Mapping, Protocol, Sequence

from stoker.core.errors import Away, BackendError, DiskFull
from stoker.core.hosts import ssh_address
from stoker.ssh.connection import Ran, Ssh

__all__ = ["Here", "Login", "Ran", "Ssh", "login"]

TIMEOUT: Final = 60.0
"""Seconds that a command may take; a controller that is busy answers within tens."""
PIECE: Final = 1 << 20
"""Bytes of one file that `tails` brings at most; the rest comes with the next call."""
FILE: Final = 4096
"""Bytes of a small file: the least that a disk gives to one."""
NOT_FOUND: Final = 127
"""What a shell ends with where there is no such command.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_08_02"""


class Login(Protocol):
    """Commands and files of one machine. Each call may raise `Away`, and may then be repeated."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = TIMEOUT) -> Ran:
        """Call a command to its end; code 127 where there is none of that name."""

    def write(self, files: Mapping[str, bytes], *, mode: int = 0o600) -> None:
        """Write files by absolute path, each whole or not at all; folders are made as needed, for nobody else."""

    def append(self, path: str, data: bytes) -> None:
        """Append to a file that only we write: all of the data or nothing, though perhaps twice after `Away`."""

    def read(self, path: str) -> bytes | None:
        """A file, None where there is none."""

    def tails(self, offsets: Mapping[str, int], *, limit: int = PIECE) -> Mapping[str, bytes]:
        """What files have beyond an offset, at most `limit` bytes of each; those without news are left out.

        Of very many bytes only a part comes at once: ask again until nothing comes."""

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""

    def remove(self, folders: Sequence[str]) -> None:
        """Take folders, or files, away; those that are gone are fine."""

    def bring(self, folder: str, target: str) -> None:
        """Have a copy of a folder of this machine there, made once: a target that is there is left as it is."""

    def expand(self, path: str) -> str:
        """A path as that machine has it: "~" and "$NAME" by what a person finds who logs in there."""

    def is_full(self, folder: str) -> bool:
        """Whether the disk of a folder has no room for a small file."""

    def close(self) -> None:
        """Hang up."""

    def abandon(self) -> None:
        """Break off the command that runs, from another thread: it raises `Away`, and so does every later one."""


def login(host: str | None) -> Login:
    """The machine that a setting names, this one without a name; `SettingsError` for a wrong one. Nothing is asked."""
    return Here() if host is None else Ssh(ssh_address(host))


class Here:
    """This machine."""

    def __init__(self) -> None:
        self._command: subprocess.Popen[bytes] | None = None
        self._abandoned = False

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = TIMEOUT) -> Ran:
        """Call a command to its end; it hears no Ctrl-C that is meant for us."""
        if self._abandoned:
            raise Away(f"{argv[0]} is not called any more")
        try:
            command = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            return Ran(code=NOT_FOUND, out="", err=f"{argv[0]}: not found")
        except OSError as error:
            raise BackendError(f"{argv[0]} cannot be called: {error}") from error
        self._command = command
        with command:
            try:
                out, err = command.communicate(input, timeout)
            except subprocess.TimeoutExpired:
                command.kill()
                raise Away(f"{_program(argv)} did not answer within {timeout:g} s") from None
            finally:
                self._command = None
                if command.poll() is None:
                    command.kill()
        if self._abandoned:
            raise Away(f"{_program(argv)} was broken off")
        return Ran(code=command.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))

    def write(self, files: Mapping[str, bytes], *, mode: int = 0o600) -> None:
        """Write files by absolute path, each whole or not at all."""
        for path, data in files.items():
            try:
                _private_folder(os.path.dirname(path))
                descriptor, beside = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".part-")
                with open(descriptor, "wb") as file:
                    file.write(data)
                os.chmod(beside, mode)
                os.replace(beside, path)
            except OSError as error:
                raise _unwritten(path, error) from error

    def append(self, path: str, data: bytes) -> None:
        """Append to a file; what a full disk did not take whole is cut off again."""
        try:
            with open(path, "ab", buffering=0) as file:
                size = file.tell()
                try:
                    if file.write(data) != len(data):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError:
                    file.truncate(size)
                    raise
        except OSError as error:
            raise _unwritten(path, error) from error

    def read(self, path: str) -> bytes | None:
        """A file, None where there is none."""
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise Away(f"{path} cannot be read now: {error.strerror}") from error

    def tails(self, offsets: Mapping[str, int], *, limit: int = PIECE) -> Mapping[str, bytes]:
        """What files have beyond an offset."""
        pieces = {}
        for path, offset in offsets.items():
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(offset)
                data = file.read(limit)
                if data:
                    pieces[path] = data
        return pieces

    def exists(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        return os.path.exists(path)

    def remove(self, folders: Sequence[str]) -> None:
        """Take folders, or files, away."""
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(folder)

    def bring(self, folder: str, target: str) -> None:
        """Have a copy of a folder there, made once."""
        if os.path.exists(target):
            return
        beside = ""
        try:
            _private_folder(os.path.dirname(target))
            beside = tempfile.mkdtemp(dir=os.path.dirname(target), prefix=".part-")
            shutil.copytree(folder, beside, dirs_exist_ok=True)
            os.rename(beside, target)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            if not os.path.exists(target):  # somebody else may have been first
                raise _unwritten(target, error) from error

    def expand(self, path: str) -> str:
        """A path with "~" and "$NAME" as they are here."""
        expanded = os.path.expandvars(os.path.expanduser(path))
        if not os.path.isabs(expanded) or "$" in expanded:
            raise BackendError(f"{path} is no absolute path on this machine", fix="write one, such as ~/.stoker/slurm")
        return expanded

    def is_full(self, folder: str) -> bool:
        """Whether the disk of a folder has no room for a small file."""
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(FILE))
                file.flush()
        except OSError as error:
            return error.errno in (errno.ENOSPC, errno.EDQUOT)
        return False

    def close(self) -> None:
        """There is nothing to let go."""

    def abandon(self) -> None:
        """Kill the command that runs, with all that it started."""
        self._abandoned = True
        command = self._command
        if command is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)


def _program(argv: Sequence[str]) -> str:
    """The program that a command calls, behind `env` and its options."""
    words = iter(argv)
    for word in words:
        if word == "-u":
            next(words, "")
        elif os.path.basename(word) != "env" and "=" not in word:
            return os.path.basename(word)
    return argv[0]


def _private_folder(folder: str) -> None:
    """Make a folder and those above it for nobody else; those that are there stay as they are."""
    if not os.path.isdir(folder):
        _private_folder(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _unwritten(path: str, error: OSError) -> BackendError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        fix = "make room there, or give another folder: the setting `folder`"
        return DiskFull(f"{path} cannot be written: {error.strerror}", fix=fix)
    return BackendError(
        f"{path} cannot be written: {error.strerror}", fix="give a folder that you may write to: the setting `folder`"
    )
