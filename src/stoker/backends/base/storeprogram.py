"""What the container of a job runs: fetches Stoker's worker and the job from the artifact store, and leaves the result.

    python3 -c PROGRAM

PROGRAM is this module's text: it uses the standard library only, and fsspec to read the artifact store. `STOKER_WORKER`
is the zip archive of Stoker's worker there, empty where the image has it; `STOKER_JOB` the folder of the job, with the
document that the driver wrote. An array's container of AWS Batch takes the element of its index, and a node of a gang
the only one.

The step's lines and Stoker's events go to standard output, which AWS sends to CloudWatch: each as an event behind MARK
(`worker.boot`). The same lines, the result, and the samples of devices are left in the folder, with the number of the
element and of the node. The last line of the output says that no more comes: {"batch": "end"}.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
import threading
import zipfile
from typing import IO, Any, cast

MARK = "\x1estoker "  # core.protocol.MARK: nothing of Stoker's is here yet
CHUNK = 1 << 16
LAST = 5.0
"""Seconds for output of processes that the step left behind."""


def main(element: int = 0, node: int = 0) -> int:
    """Run the job of this container; the exit code is 0 where it succeeds."""
    place, worker = os.environ["STOKER_JOB"], os.environ.get("STOKER_WORKER", "")
    with opened(f"{place}/jobs.json.gz") as file:
        document = json.loads(gzip.decompress(file.read()))
    folder = tempfile.mkdtemp(prefix="stoker-job-")
    sys.path[:] = [path for path in sys.path if path]
    if worker:
        unpack(worker, os.path.join(folder, "worker"))
    spec = document["entries"][element]
    path = os.path.join(folder, "job.json")
    with open(path, "w", encoding="utf-8") as target:
        json.dump(spec, target)
    try:
        from stoker.store import notes
        from stoker.worker import boot
    except ImportError as error:
        sys.exit(f"{sys.executable} cannot import Stoker's worker: {error}")
    copy = Copy(os.path.join(folder, "log"))
    code = boot.main([path], sync=False, merged=True)
    with open(copy.finish(), "rb") as log:
        notes.put(f"{place}/log-{element}-{node}.gz", gzip.compress(log.read(), 6))
    samples = (spec["job"].get("accelerators") or {}).get("samples", "")
    for name, here in (
        ("samples", boot.of_node(samples, node)),
        ("result", boot.of_node(f"{folder}/result.json", node)),
    ):
        if here and os.path.exists(here):
            with open(here, "rb") as source:
                notes.put(f"{place}/{name}-{element}-{node}.json", source.read())
    os.write(1, (MARK + json.dumps({"batch": "end"}) + "\n").encode())
    return code


class Copy:
    """Copies all that is written to standard output and error from now on to standard output and to a file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._output = os.dup(1)
        self._error = os.dup(2)
        reader, writer = os.pipe()
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._pass_on, args=(reader,), daemon=True)
        self._thread.start()

    def _pass_on(self, reader: int) -> None:
        with open(self._path, "wb", buffering=0) as file:
            while data := os.read(reader, CHUNK):
                file.write(data)
                while data:
                    data = data[os.write(self._output, data) :]

    def finish(self) -> str:
        """Give standard output and error back; the file's path."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(self._output, 1)
        os.dup2(self._error, 2)
        self._thread.join(LAST)
        return self._path


def unpack(worker: str, folder: str) -> None:
    """Put Stoker's worker before everything that is imported, here and in processes that follow."""
    with opened(worker) as source, tempfile.TemporaryFile() as archive:
        archive.write(source.read())
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH", "")]))


def opened(place: str) -> IO[bytes]:
    """A file for reading, of a mounted folder or of an object store."""
    if "://" not in place:
        return open(place, "rb")
    try:
        import fsspec
    except ImportError:
        protocol = place.partition("://")[0]
        sys.exit(
            "the image has no fsspec, with which the artifact store is read: add it, and what it needs for "
            f"{protocol}, to the step's requirements"
        )
    opener: Any = fsspec.open(place, "rb")
    return cast(IO[bytes], opener.open())


if __name__ == "__main__":
    # https://docs.aws.amazon.com/batch/latest/userguide/job_env_vars.html
    index = os.environ.get("AWS_BATCH_JOB_ARRAY_INDEX", "0")
    sys.exit(main(int(index), int(os.environ.get("AWS_BATCH_JOB_NODE_INDEX", "0"))))
