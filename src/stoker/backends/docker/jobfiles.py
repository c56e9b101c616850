"""The folders of containers on this machine: what they may read and write, and nothing else of the home or the store.

    SCRATCH/containers/NAME/       its document, its result, its labels, where the nodes of a gang meet
    STORE/jobs/NAME/inputs/        the blobs that the job names, read-only: hard links, which copy nothing
    STORE/jobs/NAME/store/         what it writes as blobs; they are moved into the store when the container is over

The second and third are on the file system of the store, so that neither a large input nor a large output is copied. A
blob that cannot be linked is mounted as a single file. Of a container that takes jobs one after another:

    SCRATCH/containers/NAME/labels.json    the container's labels
    SCRATCH/containers/NAME/pool/          its pool (`core.orders`) of one worker, and in `job` the present job's folder
    SCRATCH/containers/NAME/checkpoints/   the present job's checkpoints, at the path that they have on this machine
    STORE/jobs/NAME/inputs/, store/        as above, filled anew for each job

Mounts of a running container cannot change: what is mounted stays, and a job's files are put below it. When the job is
over, they are moved to where those of a container of its own lie, so that the next job sees nothing of it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import stat
import struct
from typing import Any, Final, Iterable, Iterator, Mapping, Sequence

import attrs

from stoker.backends.base.overlays import Mount
from stoker.backends.base.statuses import read_result
from stoker.core.artifact import from_wire
from stoker.core.codec import to_json
from stoker.core.errors import BackendError, DamagedArtifact, StoreError
from stoker.core.orders import (
    CLAIMS,
    DRIVER,
    ORDERS,
    SPEC,
    PoolNote,
    PoolOrder,
    PoolSpec,
    documents,
    journal_of,
    line,
    wake_of,
    whole,
)
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


WORKER: Final = "worker"
"""The name of a container's one worker in its pool."""
ORDER_LABEL: Final = "stoker.order"
"""Among the labels of a job: the number of its order."""
CONTAINER_LABEL: Final = "stoker.container"
"""Among the labels of a job: the name that a container of its own would have, which its files have afterwards."""
CHECKPOINTS_LABEL: Final = "stoker.checkpoints"
"""Among a container's labels: the folder below which checkpoints are."""


@attrs.frozen(kw_only=True)
class WarmFiles:
    """Where the files of a container are that takes several jobs."""

    root: str
    """Its folder of documents."""
    blobs: str
    """Its folder beside the store's blobs; empty where it has none on this machine."""
    store: str = ""
    """The store's folder."""
    place: str = ""
    """The folder below which the checkpoints of all runs are; empty without checkpoints."""

    @property
    def pool(self) -> str:
        """The folder of its pool."""
        return f"{self.root}/pool"

    @property
    def job(self) -> JobFiles:
        """The files of the present job."""
        return JobFiles(notes=f"{self.pool}/job", blobs=self.blobs, store=self.store)

    @property
    def checkpoints(self) -> str:
        """The folder that is mounted at `place`."""
        return f"{self.root}/checkpoints"

    @property
    def output(self) -> str:
        """The file that the job's standard output and error go to."""
        return self.job.output

    def mounts(self) -> Iterator[Mount]:
        """What the container gets of it; what the driver writes for the worker cannot be changed by a step."""
        yield Mount(self.pool, self.pool)
        for name in (SPEC, ORDERS):
            yield Mount(f"{self.pool}/{name}", f"{self.pool}/{name}", True)
        if self.blobs:
            yield Mount(self.job.outputs, self.store)
            yield Mount(self.job.inputs, f"{self.store}/{INPUTS}", True)
        if self.place:
            yield Mount(self.checkpoints, self.place)


def warm_files(name: str, *, scratch: str, store: str, checkpoints: str) -> WarmFiles:
    """The files of a container by its name."""
    own = job_files(name, scratch=scratch, store=store)
    return WarmFiles(root=own.notes, blobs=own.blobs, store=store, place=checkpoints)


def warm_name(run: str, number: int) -> str:
    """The name of a run's container that takes several jobs."""
    return f"{_prefix(run)}{number}"


def warm_names(run: str, scratch: str, store: str) -> list[str]:
    """The names of a run's containers of this kind that have folders."""
    names: set[str] = set()
    for folder in (f"{scratch}/containers", f"{store}/jobs"):
        with contextlib.suppress(FileNotFoundError):
            names.update(name for name in os.listdir(folder) if name.startswith(_prefix(run)))
    return sorted(names)


def number_of(name: str) -> int:
    """The number in a name that `warm_name` made."""
    return int(name.rpartition("-")[2])


def _prefix(run: str) -> str:
    return f"stoker-{run}.warm-"  # no step's: after "stoker-RUN" theirs have "-"


# A container and its jobs


def make_folders_of(files: WarmFiles, labels: Mapping[str, str], spec: PoolSpec) -> None:
    """Make the folders of a container that is about to be created."""
    clear_warm(files)
    make_private(files.root)
    make_private(files.pool)
    os.mkdir(f"{files.pool}/{CLAIMS}")
    os.mkfifo(f"{files.pool}/{wake_of(WORKER)}", 0o600)
    texts = {f"{files.root}/{LABELS}": dict(labels), f"{files.pool}/{SPEC}": to_json(spec)}
    for path, document in texts.items():
        with open(path, "w") as file:
            json.dump(document, file)
    open(f"{files.pool}/{ORDERS}", "xb").close()
    for path in (f"{files.pool}/{SPEC}", f"{files.pool}/{ORDERS}"):
        os.chmod(path, 0o644)
    if files.place:
        make_private(files.checkpoints)
    if files.blobs:
        make_folders(files.blobs)
        os.chmod(files.blobs, 0o700)
        os.mkdir(files.job.outputs)
        for folder in (files.job.inputs, f"{files.job.outputs}/{INPUTS}"):
            os.mkdir(folder)
            os.chmod(folder, 0o755)


def put_job(files: WarmFiles, spec: Any, labels: Mapping[str, str], digests: Iterable[str], blobs: Blobs) -> bool:
    """Put a job's files into a container's folders; False, and nothing is there, where an input needs a mount."""
    if any(link_inputs(files.job, digests, blobs)):
        empty(files)
        return False
    make_private(files.job.notes)
    open(files.output, "xb").close()
    if files.place:
        os.makedirs(_inner_checkpoints(files, labels), exist_ok=True)
    write_documents(files.job, spec, labels)
    return True


def _inner_checkpoints(files: WarmFiles, labels: Mapping[str, str]) -> str:
    """The folder of the present job's checkpoints below that of the container."""
    return files.checkpoints + labels[CHECKPOINTS_LABEL][len(files.place) :]


def put_order(files: WarmFiles, number: int) -> None:
    """Order the job whose files are there."""
    order = PoolOrder(number=number, spec=files.job.document, out=files.output, err=files.output)
    descriptor = os.open(f"{files.pool}/{ORDERS}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(descriptor, line(order))
    finally:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # nobody reads it yet: the worker begins by reading the orders
        descriptor = os.open(f"{files.pool}/{wake_of(WORKER)}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


def ordered(files: WarmFiles) -> list[int]:
    """The numbers of all orders of a container."""
    with contextlib.suppress(OSError), open(f"{files.pool}/{ORDERS}", "rb") as file:
        return [order.number for order in documents(PoolOrder, whole(file.read()))]
    return []


def present_job(files: WarmFiles) -> Mapping[str, str]:
    """The labels of the job whose files are in a container's folders; empty where there is none."""
    with contextlib.suppress(OSError, ValueError), open(f"{files.job.notes}/{LABELS}", "rb") as file:
        labels = json.load(file)
        return labels if isinstance(labels, dict) else {}
    return {}


def present_result(files: WarmFiles) -> bytes:
    """The result of that job; empty until it is over."""
    with contextlib.suppress(OSError), open(f"{files.job.notes}/{RESULT}", "rb") as file:
        return file.read()
    return b""


def claimed_by(files: WarmFiles, number: int) -> str | None:
    """Who took an order; None as long as nobody has."""
    try:
        with open(f"{files.pool}/{CLAIMS}/{number}", encoding="utf-8") as file:
            return file.read() or WORKER
    except FileNotFoundError:
        return None


def was_begun(files: WarmFiles, number: int) -> bool:
    """Whether a worker took an order."""
    return claimed_by(files, number) not in (None, DRIVER)


def take_order_back(files: WarmFiles, number: int) -> bool:
    """Whether no worker has begun an order, and none will."""
    path = f"{files.pool}/{CLAIMS}/{number}"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return claimed_by(files, number) == DRIVER
    except FileNotFoundError:
        return False  # somebody removed its folders, and nothing is known of it
    try:
        os.write(descriptor, DRIVER.encode())
    finally:
        os.close(descriptor)
    return True


class WorkerNotes:
    """Reads what a container's worker notes, as it comes."""

    def __init__(self, files: WarmFiles) -> None:
        self._path = f"{files.pool}/{journal_of(WORKER)}"
        self._offset = 0

    def read(self) -> list[PoolNote]:
        """The notes since the last call."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            data = whole(os.pread(descriptor, 1 << 20, self._offset))
        finally:
            os.close(descriptor)
        self._offset += len(data)
        return list(documents(PoolNote, data))


# The end of a job


def move_out(files: WarmFiles, name: str, scratch: str) -> JobFiles:
    """Move the present job's documents to where those of a container of its own with this name lie; its blobs are in
    the store."""
    own = job_files(name, scratch=scratch, store="")
    with contextlib.suppress(FileNotFoundError):
        remove_tree(own.notes)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(files.output)
    os.rename(files.job.notes, own.notes)
    empty(files)
    return own


def empty(files: WarmFiles) -> None:
    """Remove what the present job has in a container's folders; its checkpoints go to their place."""
    keep_checkpoints(files)
    with contextlib.suppress(FileNotFoundError):
        remove_tree(files.job.notes)
    for folder in (files.job.inputs, files.job.outputs) if files.blobs else ():
        for name in os.listdir(folder):
            path = f"{folder}/{name}"
            if name == INPUTS and folder == files.job.outputs:
                continue  # the place at which the inputs are mounted
            if os.path.isdir(path) and not os.path.islink(path):
                remove_tree(path)
            else:
                os.unlink(path)


def keep_checkpoints(files: WarmFiles) -> None:
    """Move what a job wrote as its checkpoints to where they belong."""
    if not files.place or not os.path.isdir(files.checkpoints):
        return
    for run in os.listdir(files.checkpoints):
        for key in os.listdir(f"{files.checkpoints}/{run}"):
            source, target = f"{files.checkpoints}/{run}/{key}", f"{files.place}/{run}/{key}"
            if os.path.isdir(source) and os.listdir(source):
                make_folders(target)
                for name in os.listdir(source):
                    _move(f"{source}/{name}", f"{target}/{name}")
        remove_tree(f"{files.checkpoints}/{run}")


def _move(source: str, target: str) -> None:
    """Move a file or folder, over what is there."""
    try:
        os.rename(source, target)
    except OSError:  # another file system, or a folder that is not empty
        if os.path.isdir(target) and not os.path.islink(target):
            remove_tree(target)
        shutil.move(source, target)


def settle(files: WarmFiles, scratch: str) -> None:
    """Clear the folders of a container that is gone; the job in it, if it has a result, is left as that of a container
    of its own whose result and output nobody has taken."""
    labels = present_job(files)
    if labels and present_result(files):
        own = job_files(labels[CONTAINER_LABEL], scratch=scratch, store=files.store)
        keep_checkpoints(files)
        if files.blobs and os.path.isdir(files.blobs):  # else whoever did this before came no further
            clear(own)
            os.rename(files.blobs, own.blobs)
        os.rename(files.job.notes, own.notes)
    clear_warm(files)


def clear_warm(files: WarmFiles) -> None:
    """Remove the folders of a container that is gone; what cannot be removed is left for `stoker gc`."""
    with contextlib.suppress(OSError):
        keep_checkpoints(files)
    clear(JobFiles(notes=files.root, blobs=files.blobs, store=files.store))


def files_of_labels(name: str, labels: Mapping[str, str], scratch: str) -> WarmFiles:
    """The files of a container from its labels."""
    store, checkpoints = labels.get("stoker.store", ""), labels.get(CHECKPOINTS_LABEL, "")
    return warm_files(name, scratch=scratch, store=store, checkpoints=checkpoints)
