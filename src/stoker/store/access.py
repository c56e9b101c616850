"""Who may use what a store creates: the owner of the home alone, or the members of its group too.

The mode of the home says which. What is created below it follows the folder that it is created in, so that workers,
containers and other users of the home need not be told.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Final

_GROUP: Final = stat.S_ISGID | stat.S_IRWXG
"""A folder with these bits is shared: its group may write in it, and what is created in it has the same group."""
_FOLDERS: Final = ("artifacts", "checkpoints", "environments", "journals", "logs", "scratch", "wheels")
"""Folders of a home that several users write in."""


def prepare_home(home: str, *, shared: bool) -> None:
    """Make the home, for its owner alone, or with `shared` for its group; an empty one is treated as a new one.

    A home that is in use keeps its mode. Does nothing where it cannot be made: the database says why.
    """
    try:
        os.makedirs(os.path.dirname(home), exist_ok=True)
        try:
            os.mkdir(home, 0o700)
        except FileExistsError:
            if os.listdir(home) or os.stat(home).st_uid != os.geteuid():
                return
        os.chmod(home, stat.S_IRWXU | (_GROUP if shared else 0))
        for name in _FOLDERS if shared else ():
            make_folders(os.path.join(home, name))
    except OSError:
        return


def make_folders(path: str) -> None:
    """`os.makedirs(path, exist_ok=True)`; a folder in a shared one is shared, whatever the umask."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return
    except FileNotFoundError:
        make_folders(_above(path))
        make_folders(path)
        return
    if is_shared(_above(path)):
        os.chmod(path, stat.S_IRWXU | _GROUP)


def is_shared(folder: str) -> bool:
    """Whether the folder's group may write in it."""
    return os.stat(folder).st_mode & _GROUP == _GROUP


def create_file(path: str, flags: int, mode: int = 0o600) -> int:
    """`os.open` of a file that is created; in a shared folder its group has its owner's rights, whatever the umask."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, mode)
    if is_shared(_above(path)):
        with contextlib.suppress(PermissionError):  # it was there, and is another user's
            os.fchmod(descriptor, mode & 0o700 | (mode & 0o700) >> 3)
    return descriptor


def _above(path: str) -> str:
    return os.path.dirname(path.rstrip("/")) or "."


def is_foreign(path: str) -> bool:
    """Whether a file or folder belongs to another user, who is not root; False for one that is not there."""
    try:
        return os.stat(path).st_uid not in (0, os.geteuid())
    except OSError:
        return False
