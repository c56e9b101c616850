"""The folders of one container on this machine: what it may read and write, and nothing else of the home or the store.

    SCRATCH/containers/NAME/       its document, its result, its labels, where the nodes of a gang meet
    STORE/jobs/NAME/inputs/        the blobs that the job names, read-only: hard links, which copy nothing
    STORE/jobs/NAME/store/         what it writes as blobs; they are moved into the store when the container is over

The second and third are on the file system of the store, so that neither a large input nor a large output is copied. A
blob that cannot be linked is mounted as a single file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import struct
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.overlays import Mount
from stoker.backends.base.statuses import read_result
from stoker.core.artifact import from_wire
from stoker.core.codec import to_json
from stoker.core.errors import BackendError, DamagedArtifact, StoreError
from stoker.core.protocol import RESULT
from stoker.store import artifacts
from stoker.store.access import make_folders
from stoker.store.blobs import INPUTS, SUMS, Blobs, remove_tree

LABELS: Final = "labels.json"
"""The container's labels, by which a later driver finds its result although the container is gone."""
GANG: Final = "gang"
OUTPUT: Final = "output"
"""The file in a job's folder that its output goes to in a container that takes several."""
_DIGEST: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_UNLINKABLE: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS})
"""Why a hard link is refused: another file system, a blob of another user of a shared store, one without links."""

_ACL: Final = "system.posix_acl_access"
_ACL_VERSION: Final = struct.pack("<I", 2)
_ACL_ENTRY: Final = struct.Struct("<HHI")
_NO_ID: Final = 0xFFFFFFFF
_USER_OBJECT, _USER, _GROUP_OBJECT, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
# https://github.com/torvalds/linux/blob/master/include/uapi/linux/posix_acl_xattr.h
_READ: Final = 4

Owner = tuple[int, int]
"""uid and gid of a container's user."""


@attrs.frozen(kw_only=True)
class JobFiles:
    """Where a container's files are."""

    notes: str
    """Its folder of documents."""
    blobs: str
    """Its folder beside the store's blobs; empty where it has none on this machine."""
    store: str = ""
    """The store's folder, at whose path the container finds what it reads and writes."""

    @property
    def document(self) -> str:
        """The path of the job's document."""
        return f"{self.notes}/job.json"

    @property
    def output(self) -> str:
        """The file that the output of a job goes to in a container that takes several."""
        return f"{self.notes}/{OUTPUT}"

    @property
    def inputs(self) -> str:
        """The folder of blobs that the container may read."""
        return f"{self.blobs}/{INPUTS}"

    @property
    def outputs(self) -> str:
        """The folder that is the container's store."""
        return f"{self.blobs}/store"

    def mounts(self) -> Iterator[Mount]:
        """What the container gets of it, each at the path that it has for the driver."""
        yield Mount(self.notes, self.notes)
        if self.blobs:
            yield Mount(self.outputs, self.store)
            yield Mount(self.inputs, f"{self.store}/{INPUTS}", True)


def job_files(name: str, *, scratch: str, store: str) -> JobFiles:
    """The files of a container by its name; `store` is the folder of the store's blobs, empty without one here."""
    blobs = f"{store}/jobs/{name}" if store else ""
    return JobFiles(notes=f"{scratch}/containers/{name}", blobs=blobs, store=store)


def prepare(files: JobFiles, spec: Any, labels: Mapping[str, str], digests: Iterable[str], blobs: Blobs) -> list[Mount]:
    """Make a container's folders with its document and its inputs; returns mounts of the inputs that are not linked.

    What the same attempt left of an earlier container is removed.
    """
    clear(files)
    make_private(files.notes)
    write_documents(files, spec, labels)
    if spec.job.gang is not None:
        os.makedirs(f"{files.notes}/{GANG}", exist_ok=True)
    if not files.blobs:
        return []
    make_folders(files.blobs)
    os.chmod(files.blobs, 0o700)
    os.mkdir(files.outputs)
    # Inside the container it is the place at which the inputs are mounted.
    for folder in (files.inputs, f"{files.outputs}/{INPUTS}"):
        os.mkdir(folder)
        os.chmod(folder, 0o755)
    return list(link_inputs(files, digests, blobs))


def write_documents(files: JobFiles, spec: Any, labels: Mapping[str, str]) -> None:
    """Write a job's document and labels into its folder."""
    for name, content in (("job.json", to_json(spec)), (LABELS, dict(labels))):
        with open(os.open(f"{files.notes}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(content, file)


def link_inputs(files: JobFiles, digests: Iterable[str], blobs: Blobs) -> Iterator[Mount]:
    """Link blobs into a container's folder of inputs; yields mounts of those that are not linked."""
    for digest in digests:
        source = blobs.local_file(digest)
        linked = True
        for path, name in ((source, digest), (blobs.sums_path(digest), digest + SUMS)):
            try:
                os.link(path, f"{files.inputs}/{name}")
            except FileNotFoundError:
                # Few blobs have checksums, the container fetches those of an object store, and reports lost ones.
                continue
            except OSError as error:
                if error.errno not in _UNLINKABLE:
                    raise
                if name == digest:
                    linked = False
        if not linked:
            target = f"{files.inputs}/{digest}"
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o444))  # the place at which it is mounted
            yield Mount(source, f"{files.store}/{INPUTS}/{digest}", True)
        unpacked = blobs.unpacked(digest)
        if os.path.isdir(unpacked):
            yield Mount(unpacked, unpacked, True)


def names_in_job(document: Any, blobs: Blobs) -> list[str]:
    """The digests of all blobs that a job's document names, elements of lists too; other texts of that form as well."""
    digests: dict[str, None] = {}
    _collect(document, blobs, digests)
    return list(digests)


def _collect(document: Any, blobs: Blobs, digests: dict[str, None]) -> None:
    if isinstance(document, str):
        digests.update(dict.fromkeys(_DIGEST.findall(document)))
    elif isinstance(document, Mapping):
        if document.get("s") == "list" and isinstance(document.get("d"), str):
            with contextlib.suppress(StoreError):  # the list itself is lost: the worker says so
                for item in artifacts.items(from_wire(document), blobs):
                    if item.digest not in digests:
                        _collect(item.wire(), blobs, digests)
        elif document.get("s") and document.get("i") is not None:
            return  # a small value is part of the document
        for value in document.values():
            _collect(value, blobs, digests)
    elif isinstance(document, (list, tuple)):
        for value in document:
            _collect(value, blobs, digests)


# Rights


def give(files: JobFiles, owner: Owner | None, folders: Sequence[str] = (), inputs: Sequence[str] = ()) -> None:
    """Let a container's user write in its folders, also in `folders`, and read its inputs, also the files `inputs`.

    Without `owner`, where the user has a name that nobody knows, everybody may: the folders above are closed to others.
    """
    us = os.geteuid(), os.getegid()
    if owner is not None and owner[0] == us[0]:
        return
    writable = [files.notes, *folders, *([files.outputs] if files.blobs else [])]
    for folder in writable:
        for path in (folder, *_below(folder)):
            _hand_over(path, owner)
    paths = [*inputs]
    if files.blobs:
        paths += [f"{files.inputs}/{name}" for name in os.listdir(files.inputs)]
    for path in paths:
        _let_read(path, None if owner is None else owner[0])


def open_to_all(folder: str) -> None:
    """Let everybody read a folder of Stoker's own code, whatever the umask was when it was made."""
    for path in (folder, *_below(folder)):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:  # bytecode that another driver is just writing, and renames
            continue
        wanted = 0o055 if stat.S_ISDIR(mode) or mode & 0o100 else 0o044
        if not stat.S_ISLNK(mode) and mode & wanted != wanted:
            os.chmod(path, mode & 0o777 | wanted)


def _hand_over(path: str, owner: Owner | None) -> None:
    """Give a file or folder to a user; where only root may do that, or nobody knows the user, everybody may write."""
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return
    if owner is not None:
        try:
            os.lchown(path, *owner)
        except PermissionError:
            owner = None
    if owner is None and status.st_uid == os.geteuid():
        os.chmod(path, 0o777 if stat.S_ISDIR(status.st_mode) else 0o666)


def _let_read(path: str, user: int | None) -> None:
    """Let one user read a file of ours by an entry of its access list, everybody where there are no such lists."""
    status = os.stat(path)
    if status.st_mode & stat.S_IROTH:
        return
    try:
        if user is None:
            os.chmod(path, status.st_mode & 0o777 | 0o044)
            return
        os.setxattr(path, _ACL, _with_reader(path, status, user))
    except (OSError, AttributeError) as error:  # no lists on this file system, or on this system
        try:
            os.chmod(path, status.st_mode & 0o777 | 0o044)
        except PermissionError:
            raise BackendError(
                f"the container's user {user} cannot be let read {path}, which belongs to another user: {error}",
                fix="run the container as yourself: user=… out of its settings",
            ) from error


def _with_reader(path: str, status: os.stat_result, user: int) -> bytes:
    """The access list of a file with one more user who may read it."""
    mode = status.st_mode
    entries = {
        (_USER_OBJECT, _NO_ID): mode >> 6 & 7,
        (_GROUP_OBJECT, _NO_ID): mode >> 3 & 7,
        (_OTHER, _NO_ID): mode & 7,
    }
    with contextlib.suppress(OSError):  # it has none yet
        data = os.getxattr(path, _ACL)[len(_ACL_VERSION) :]
        entries = {(tag, id): bits for tag, bits, id in _ACL_ENTRY.iter_unpack(data)}
    entries[_USER, user] = _READ
    entries[_MASK, _NO_ID] = entries.get((_MASK, _NO_ID), 0) | _READ | entries[_GROUP_OBJECT, _NO_ID]
    return _ACL_VERSION + b"".join(_ACL_ENTRY.pack(tag, bits, id) for (tag, id), bits in sorted(entries.items()))


def take_back(folders: Iterable[str]) -> list[str]:
    """Make what a container wrote in these folders the user's own; returns the paths that only root can change."""
    foreign: list[str] = []
    us = os.geteuid(), os.getegid()
    for folder in folders:
        for path in (folder, *_below(folder, foreign)):
            try:
                if os.lstat(path).st_uid != us[0]:
                    os.lchown(path, *us)
            except FileNotFoundError:
                continue
            except PermissionError:
                foreign.append(path)
    return foreign


def _below(folder: str, unreadable: list[str] | None = None) -> Iterator[str]:
    """All that is in a folder, itself left out; folders that cannot be read are added to `unreadable`."""

    def add(error: OSError) -> None:
        if unreadable is not None and isinstance(error, PermissionError) and error.filename:
            unreadable.append(str(error.filename))

    for parent, folders, names in os.walk(folder, onerror=add):
        for name in (*folders, *names):
            yield os.path.join(parent, name)


# The end


def collect(files: JobFiles, blobs: Blobs) -> None:
    """Move the blobs that a container wrote into the store. Raises `DamagedArtifact` for one with another digest.

    What it unpacked of its inputs comes too: whoever uses that next compares it with its artifact.
    """
    if not files.blobs:
        return
    for start, rest in _pairs(f"{files.outputs}/objects"):
        path = f"{files.outputs}/objects/{start}/{rest}"
        try:
            blobs.take(path, start + rest)
        except OSError as error:  # a link, for one
            raise DamagedArtifact(
                f"the step's container wrote {path}, which cannot be read: {error.strerror}",
                digest=start + rest,
                fix="run the step again",
            ) from error

    for start, rest in _pairs(f"{files.outputs}/unpacked"):
        target = blobs.unpacked(start + rest)
        with contextlib.suppress(OSError):  # another job was faster, or it cannot be moved: it is unpacked again
            if os.path.exists(f"{files.inputs}/{start}{rest}") and not os.path.lexists(target):
                make_folders(os.path.dirname(target))
                os.rename(f"{files.outputs}/unpacked/{start}/{rest}", target)


def _pairs(folder: str) -> Iterator[tuple[str, str]]:
    """The first two letters and the others of each digest after which something in a folder is called."""
    with contextlib.suppress(FileNotFoundError):
        for start in sorted(os.listdir(folder)):
            if not os.path.islink(f"{folder}/{start}") and os.path.isdir(f"{folder}/{start}"):
                yield from (
                    (start, rest) for rest in os.listdir(f"{folder}/{start}") if _DIGEST.fullmatch(start + rest)
                )


def clear(files: JobFiles) -> None:
    """Remove a container's folders; what cannot be removed is left for `stoker gc`."""
    for folder in filter(None, (files.notes, files.blobs)):
        with contextlib.suppress(OSError):
            if os.path.isdir(folder):
                remove_tree(folder)


def make_private(folder: str) -> None:
    """Make a folder that is closed to others."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o700)


# Results whose container is gone


@attrs.frozen(kw_only=True)
class SavedResult:
    """The result of a container that is over, in its folder."""

    name: str
    """The container's name."""
    labels: Mapping[str, str]
    data: bytes
    """The result as the worker wrote it."""


def saved_results(scratch: str) -> Iterator[SavedResult]:
    """The results that lie in the folders of containers."""
    folder = f"{scratch}/containers"
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            with contextlib.suppress(OSError, ValueError):  # not over, or not a container's
                with open(f"{folder}/{name}/{LABELS}", "rb") as file:
                    labels = json.load(file)
                with open(f"{folder}/{name}/{RESULT}", "rb") as file:
                    yield SavedResult(name=name, labels=labels, data=file.read())


def names_of_run(run: str, scratch: str, store: str) -> list[str]:
    """The names of a run's containers that have folders."""
    names: set[str] = set()
    for folder in (f"{scratch}/containers", f"{store}/jobs"):
        with contextlib.suppress(FileNotFoundError):
            names.update(name for name in os.listdir(folder) if name.startswith(f"stoker-{run}-"))
    return sorted(names)


def labels_of(scratch: str, name: str) -> Mapping[str, str]:
    """The labels of a container from its folder; empty where they are not there."""
    with contextlib.suppress(OSError, ValueError), open(f"{scratch}/containers/{name}/{LABELS}", "rb") as file:
        labels = json.load(file)
        return labels if isinstance(labels, dict) else {}
    return {}


def name_of(container: Mapping[str, Any]) -> str:
    """The name of a container that an engine lists."""
    return str(container["Names"][0]).lstrip("/")


def went_well(result: bytes) -> bool:
    """Whether a worker's result is a success."""
    return read_result(result).ok


def write_result(files: JobFiles, labels: Mapping[str, str], result: bytes) -> None:
    """Keep the result of a container on an engine elsewhere, so that the container may go."""
    make_private(files.notes)
    for name, data in ((LABELS, json.dumps(dict(labels)).encode()), (RESULT, result)):
        beside = f"{files.notes}/.{name}"
        with open(beside, "wb") as file:
            file.write(data)
        os.replace(beside, f"{files.notes}/{name}")
