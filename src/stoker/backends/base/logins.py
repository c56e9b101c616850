"""The machine on which a cluster's commands are called: this one, or one that is reached by ssh.

Whoever asks does not see which of the two it is. Files are read and written many at a time, because each question may
cost a round trip. Knows no cluster.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from typing import Final, Mapping, Protocol, Sequence

from stoker.backends.base.platforms import Away
from stoker.backends.base.ssh import Ran, Ssh
from stoker.core.errors import BackendError
from stoker.core.hosts import ssh_address

__all__ = ["Here", "Login", "Ran", "Ssh", "login"]

TIMEOUT: Final = 60.0
"""Seconds that a command may take; a controller that is busy answers within tens."""
PIECE: Final = 1 << 20
"""Bytes of one file that `tails` brings at most; the rest comes with the next call."""
NOT_FOUND: Final = 127
"""What a shell ends with where there is no such command.
https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_08_02"""


class Login(Protocol):
    """Commands and files of one machine. Each call may raise `Away`, and may then be repeated."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = TIMEOUT) -> Ran:
        """Call a command to its end; code 127 where there is none of that name."""

    def write(self, files: Mapping[str, bytes], *, mode: int = 0o600) -> None:
        """Write files by absolute path, each whole or not at all; folders are made as needed, for nobody else."""

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

    def close(self) -> None:
        """Hang up."""


def login(host: str | None) -> Login:
    """The machine that a setting names, this one without a name; `SettingsError` for a wrong one. Nothing is asked."""
    return Here() if host is None else Ssh(ssh_address(host))


class Here:
    """This machine."""

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float = TIMEOUT) -> Ran:
        """Call a command to its end; it hears no Ctrl-C that is meant for us."""
        try:
            done = subprocess.run(
                argv, input=input, capture_output=True, timeout=timeout, check=False, start_new_session=True
            )
        except FileNotFoundError:
            return Ran(code=NOT_FOUND, out="", err=f"{argv[0]}: not found")
        except subprocess.TimeoutExpired:
            raise Away(f"{argv[0]} did not answer within {timeout:g} s") from None
        except OSError as error:
            raise BackendError(f"{argv[0]} cannot be called: {error}") from error
        return Ran(
            code=done.returncode, out=done.stdout.decode(errors="replace"), err=done.stderr.decode(errors="replace")
        )

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

    def close(self) -> None:
        """There is nothing to let go."""


def _private_folder(folder: str) -> None:
    """Make a folder and those above it for nobody else; those that are there stay as they are."""
    if not os.path.isdir(folder):
        _private_folder(os.path.dirname(folder))
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)


def _unwritten(path: str, error: OSError) -> BackendError:
    return BackendError(
        f"{path} cannot be written: {error.strerror}", fix="give a folder that you may write to: the setting `folder`"
    )
