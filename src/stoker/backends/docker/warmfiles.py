"""The folders of a container that takes jobs one after another, on this machine.

    SCRATCH/containers/NAME/labels.json    the container's labels
    SCRATCH/containers/NAME/pool/          its pool (`core.orders`) of one worker, and in `job` the present job's folder
    SCRATCH/containers/NAME/checkpoints/   the present job's checkpoints, at the path that they have on this machine
    STORE/jobs/NAME/inputs/, store/        as those of a container of its own (`jobfiles`), filled anew for each job

Mounts of a running container cannot change: what is mounted stays, and a job's files are put below it. When the job is
over, they are moved to where those of a container of its own lie, so that the next job sees nothing of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any, Final, Iterable, Iterator, Mapping

import attrs

from stoker.backends.base.overlays import Mount
from stoker.backends.docker.jobfiles import (
    LABELS,
    JobFiles,
    clear,
    job_files,
    link_inputs,
    make_private,
    write_documents,
)
from stoker.core.codec import to_json
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
from stoker.store.access import make_folders
from stoker.store.blobs import INPUTS, Blobs, remove_tree

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
