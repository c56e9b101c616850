"""Saves the files and folders that a step returns as a `pathlib.Path`; they load as the path of a copy.

The copy is made once for each content and machine, and is read-only: steps with the same artifact share it. A folder is
a tar whose bytes depend only on names, content and the executable bit. A link inside the folder stays a link; one that
leads out is followed, because its target would not exist on another machine.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import shutil
import stat
import tarfile
import tempfile
import time
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, Iterator, Mapping

from stoker.core.errors import DamagedArtifact, SerializationError, StoreError
from stoker.core.words import count_text, memory_text
from stoker.store import integrity
from stoker.store.blobs import remove_tree, write_error
from stoker.store.serializers.base import Stored

_COPY: Final = 4 * 1024 * 1024
_LARGE: Final = 1 << 30
"""Bytes above which a copy is announced: seconds on most disks."""
_MANY: Final = 10_000
_OF_THE_SYSTEM: Final = (
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/lib",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/tmp",
)
"""Folders of the file system's hierarchy: https://refspecs.linuxfoundation.org/FHS_3.0/fhs/index.html"""
logger = logging.getLogger(__name__)


class PathContent:
    """`pathlib.Path` of an existing file or folder."""

    name: Final = "path"

    def fits(self, value: Path) -> bool:
        return True

    def save(self, value: Path, file: BinaryIO) -> Mapping[str, object]:
        try:
            mode = os.stat(value).st_mode
        except OSError as error:
            raise SerializationError(
                f"the path '{value}' cannot be saved: {error.strerror}",
                fix="return the path of a file or folder that exists, or str(path) if only the name matters",
            ) from error
        facts: dict[str, object] = {"name": Path(os.path.abspath(value)).name or "root"}
        try:
            if stat.S_ISDIR(mode):
                _pack(os.path.abspath(value), file)
                return {**facts, "kind": "folder"}
            if not stat.S_ISREG(mode):
                raise _not_a_file(str(value))
            _announce(str(value), os.stat(value).st_size)
            with open(value, "rb") as source:
                shutil.copyfileobj(source, file, _COPY)
        except OSError as error:
            raise SerializationError(
                f"the path '{value}' cannot be saved: {error}",
                fix="make sure that all of it can be read, and that nothing writes to it any more",
            ) from error
        return {**facts, "kind": "file", **({"executable": True} if mode & 0o100 else {})}

    def load(self, stored: Stored) -> Path:
        name = str(stored.meta["name"])
        folder = os.path.join(stored.blobs.unpacked(stored.artifact.digest), str(stored.meta["kind"]))
        if stored.meta.get("executable"):
            folder += "-executable"
        target = os.path.join(folder, name)
        try:
            if os.path.lexists(target) and not _is_whole(stored, target):
                _set_aside(stored, target)
        except StoreError:  # another user's, or in a container: nobody here can mend it
            own = os.path.join(_own_folder(), stored.artifact.digest)
            target = _materialize(stored, own, name, scratch=f"{own}-{time.time_ns()}")
        if not os.path.lexists(target):
            try:
                target = _materialize(stored, folder, name)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise
                # A store that may only be read: the copy is this process's own, and ends with it.
                own = os.path.join(_own_folder(), stored.artifact.digest)
                target = _materialize(stored, own, name, scratch=f"{own}-{time.time_ns()}")
        before = _file_states(target)
        stored.blobs.watch(lambda: _check_unchanged(stored, target, before))
        return Path(target)


PATH: Final = PathContent()


@cache
def _own_folder() -> str:
    folder = tempfile.mkdtemp(prefix="stoker-unpacked-")
    atexit.register(remove_tree, folder)
    return folder


def _is_whole(stored: Stored, copy: str) -> bool:
    """Whether the copy still is what the artifact says; a process checks it once, and again when it has changed."""
    digest = stored.artifact.digest
    try:
        if stored.meta["kind"] == "file":
            return stored.blobs.copy_is_whole(copy, digest)
        state = _file_states(copy)
        if integrity.is_known_whole(copy, digest, state):
            return True
        if not _has_entries(stored, copy):
            return False
    except (OSError, SerializationError):
        return False
    integrity.remember_whole(copy, digest, state)
    return True


def _has_entries(stored: Stored, copy: str) -> bool:
    """Whether a copy of a folder has all that the artifact has; what a step has added to it does not matter."""
    with stored.open() as source, tarfile.open(fileobj=source, mode="r|") as tar:
        for entry in tar:
            path = os.path.join(copy, entry.name)
            if entry.issym():
                same = os.readlink(path) == entry.linkname
            elif entry.isdir():
                same = os.path.isdir(path)
            else:
                content = tar.extractfile(entry)
                same = content is not None and os.lstat(path).st_size == entry.size and _is_same(content, path)
            if not same:
                return False
    return True


def _is_same(content: IO[bytes], path: str) -> bool:
    with open(path, "rb") as file:
        while part := content.read(_COPY):
            if file.read(len(part)) != part:
                return False
    return True


def _file_states(copy: str) -> dict[str, object]:
    """The state of each file of a copy: not of its folders, in which a step that may do so can make new files."""
    names = [name for name, _ in _entries(os.path.realpath(copy), "", (copy,))] if os.path.isdir(copy) else []
    states = {path: os.lstat(path) for path in (copy, *(os.path.join(copy, name) for name in names))}
    return {path: integrity.state_of(status) for path, status in states.items() if stat.S_ISREG(status.st_mode)}


def _check_unchanged(stored: Stored, copy: str, before: dict[str, object]) -> None:
    """Raise `DamagedArtifact` if a file of a copy changed since it was loaded; the next step gets another copy."""
    with contextlib.suppress(OSError):  # a file that is gone
        if all(integrity.state_of(os.lstat(path)) == state for path, state in before.items()):
            return
    if os.path.lexists(copy):
        if _is_whole(stored, copy):
            return
        _set_aside(stored, copy)
    raise DamagedArtifact(
        f"the copy {copy} of the artifact {stored.artifact.digest} was changed while a step read it",
        digest=stored.artifact.digest,
        fix="copy what a step is to change; if nothing changed it, check the disk",
    )


def _set_aside(stored: Stored, copy: str) -> None:
    """Remove a damaged copy; steps that have it open keep what they have."""
    scratch = stored.blobs.scratch()
    try:
        os.makedirs(scratch)
        os.chmod(copy, 0o755)  # a folder that is renamed must be writable
        os.rename(copy, os.path.join(scratch, "copy"))
    except FileNotFoundError:
        pass  # another process was faster
    except OSError as error:
        raise write_error(error, stored.blobs.folder) from error
    remove_tree(scratch)


def _materialize(stored: Stored, folder: str, name: str, scratch: str = "") -> str:
    """Write the copy to a scratch folder and rename it, and return its path; if another process was first, its copy
    stays."""
    if name in ("", ".", "..") or "/" in name or os.sep in name:
        raise StoreError(f"the saved path has a name that is none: '{name}'")
    scratch = scratch or stored.blobs.scratch()
    copy = os.path.join(scratch, name)
    os.makedirs(scratch)
    try:
        with stored.open() as source:
            if stored.meta["kind"] == "folder":
                _unpack(source, copy)
            else:
                with open(copy, "wb") as target:
                    shutil.copyfileobj(source, target, _COPY)
                os.chmod(copy, 0o555 if stored.meta.get("executable") else 0o444)
        os.makedirs(folder, exist_ok=True)
        try:
            os.rename(copy, os.path.join(folder, name))
        except OSError:
            if not os.path.lexists(os.path.join(folder, name)):
                raise
    finally:
        remove_tree(scratch)
    return os.path.join(folder, name)


def _announce(path: str, size: int, files: int = 1) -> None:
    """Log that much is copied, before it is: often only the path's name was meant."""
    if size > _LARGE or files > _MANY:
        logger.warning(
            "copying %s to the artifact store: %s in %s; str(path) hands on its name alone",
            path,
            memory_text(size),
            count_text(files, "file"),
        )


def _survey(real: str) -> None:
    """Refuse a folder that nobody means as a whole, and one with what is no file, before anything is copied."""
    whole = {os.path.realpath(folder) for folder in (*_OF_THE_SYSTEM, tempfile.gettempdir(), os.path.expanduser("~"))}
    if real in whole:
        raise SerializationError(
            f"the folder '{real}' cannot be saved: all that the machine or its user has there would be copied",
            fix="name a folder of its own inside, or str(path) if only the name matters",
        )
    size = files = 0
    for _, path in _entries(real, "", (real,)):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode) and _stays_inside(real, path):
            continue
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISREG(status.st_mode):
            raise _not_a_file(path)
        size, files = size + status.st_size, files + 1
    _announce(real, size, files)


def _pack(root: str, file: BinaryIO) -> None:
    real = os.path.realpath(root)
    _survey(real)
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_COPY) as tar:
        for name, path in _entries(real, "", (real,)):
            entry = tarfile.TarInfo(name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode) and _stays_inside(real, path):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
                tar.addfile(entry)
                continue
            status = os.stat(path)
            if stat.S_ISDIR(status.st_mode):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            entry.size = status.st_size
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            with open(path, "rb") as source:
                tar.addfile(entry, source)


def _entries(root: str, below: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Names inside the folder with their paths, sorted, each folder before its entries."""
    folder = os.path.join(root, below) if below else root
    for name in sorted(os.listdir(folder)):
        inside, path = f"{below}/{name}" if below else name, os.path.join(folder, name)
        link = os.path.islink(path)
        if link and not _stays_inside(above[0], path):
            target = os.path.realpath(path)
            if not os.path.exists(target) or target in above:
                raise SerializationError(
                    f"the link '{path}' leads to '{os.readlink(path)}', which "
                    + ("is a folder around it" if target in above else "does not exist"),
                    fix="remove the link, or put what it means in its place",
                )
            yield inside, path
            if os.path.isdir(target):
                yield from _entries(root, inside, (*above, target))
        else:
            yield inside, path
            if not link and os.path.isdir(path):
                yield from _entries(root, inside, above)


def _stays_inside(root: str, link: str) -> bool:
    """Whether a link is relative and leads to a file inside the folder, also after the folder was moved."""
    target = os.readlink(link)
    if os.path.isabs(target):
        return False
    path = os.path.normpath(os.path.join(os.path.dirname(link), target))
    real = os.path.realpath(link)
    return (
        path.startswith(root + os.sep)
        and real.startswith(root + os.sep)
        and os.path.realpath(os.path.dirname(link)).startswith(root)
    )


def _unpack(source: BinaryIO, root: str) -> None:
    """Unpack a folder. Raises `StoreError` for an entry that would be outside of it."""
    os.makedirs(root)
    real, folders = os.path.realpath(root), [root]
    with tarfile.open(fileobj=source, mode="r|") as tar:
        for entry in tar:
            path = os.path.join(root, _checked_name(entry.name))
            parent = os.path.dirname(path)
            if os.path.realpath(parent) != os.path.normpath(os.path.join(real, os.path.relpath(parent, root))):
                raise _unsafe_entry(entry.name)
            if entry.isdir():
                os.makedirs(path, exist_ok=True)
                folders.append(path)
            elif entry.issym():
                _checked_name(os.path.normpath(os.path.join(os.path.dirname(entry.name), entry.linkname)))
                os.symlink(entry.linkname, path)
            elif entry.isfile():
                content = tar.extractfile(entry)
                assert content is not None
                with open(path, "xb") as target:
                    shutil.copyfileobj(content, target, _COPY)
                os.chmod(path, 0o555 if entry.mode & 0o100 else 0o444)
            else:
                raise _unsafe_entry(entry.name)
    for folder in reversed(folders):
        os.chmod(folder, 0o555)


def _checked_name(name: str) -> str:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts:
        raise _unsafe_entry(name)
    return name


def _unsafe_entry(name: str) -> StoreError:
    return StoreError(
        f"the saved folder has an entry that leads out of it: '{name}'", fix="don't load it: somebody made it"
    )


def _not_a_file(path: str) -> SerializationError:
    return SerializationError(
        f"'{path}' is a socket, a device or a pipe, which cannot be saved", fix="return files and folders only"
    )
