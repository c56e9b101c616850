"""The files of another machine, as blobs need them; who reaches which machines is a table.

A transport knows nothing of blobs: it reads, writes, lists and removes files by their paths in one folder. What reaches
a machine in another way than ssh registers a transport for its own scheme.
"""

from __future__ import annotations

from typing import BinaryIO, Callable, Final, Iterator, Mapping, Protocol, Sequence

from stoker.core.plugins import Registry
from stoker.core.values import frozen


class FileFacts(Protocol):
    """What a transport knows of a file."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def age(self) -> float:
        """Seconds since it was written, by the clock of its own machine."""


class Transport(Protocol):
    """Files in a folder of another machine, by paths relative to it, with "/" between their parts.

    Each method may raise `Away` where the machine does not answer for a while, `DiskFull`, and `BackendError` for what
    the machine refuses; a file that is not there is none of these.
    """

    def read(self, path: str, into: Callable[[bytes], object]) -> bool:
        """Hand on a file's bytes in pieces; False where there is none."""

    def write(self, source: BinaryIO, path: str, *, part: str) -> None:
        """Write a file, whole or not at all; until it is whole it is called `part`, a name that nobody else uses."""

    def look(self, paths: Sequence[str]) -> Mapping[str, FileFacts]:
        """Those of the files that are there, in one round trip."""

    def renew(self, path: str, size: int) -> bool:
        """Give a file of this size the present time; False where there is none of this size."""

    def rename(self, path: str, target: str) -> bool:
        """Move a file; False where there is none."""

    def files(self, folder: str) -> Iterator[str]:
        """The paths of all files in a folder; none of a folder that is not there."""

    def remove(self, paths: Sequence[str]) -> None:
        """Remove files; those that are gone are fine."""

    def remove_older(self, path: str, seconds: float) -> int | None:
        """Remove a file that was written longer ago than this; its size, or None where it stays or is gone."""

    def close(self) -> None:
        """Let go of the connection."""


@frozen(kw_only=True)
class Reach:
    """How the folders behind one scheme of URIs are reached."""

    open: Callable[[str], Transport]
    """The transport of a folder's URI; nothing is asked yet. `SettingsError` for a wrong one."""


def _over_ssh(uri: str) -> Transport:
    from stoker.ssh.files import SshFiles

    return SshFiles(uri)


SSH: Final = Reach(open=_over_ssh)

TRANSPORTS: Final[Registry[Reach]] = Registry(
    group="stoker.transports",
    noun="transport",
    kind=Reach,
    builtin={"ssh": ("stoker.store.transport:SSH", "")},
)
"""scheme of an artifact store's URI → how its folder is reached"""
