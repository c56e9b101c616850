"""What the container of a task runs: finds Stoker's worker, and waits for the driver's orders.

    python3 -c PROGRAM WORKER MAILBOX PATIENCE [SLOT]

PROGRAM is this module's text: it uses the standard library only, and fsspec where a place is a URI. WORKER is a zip
archive of Stoker's worker in the artifact store; an image that has Stoker's worker of the same digest does not need it.
SLOT is the number of a fan-out's pod, which has a mailbox of its own.
"""

import os
import sys
import tempfile
import zipfile
from typing import IO, cast


def main(worker: str, mailbox: str, patience: str, slot: str = "") -> None:
    """Replace this process with the waiting program."""
    folder = tempfile.mkdtemp(prefix="stoker-worker-")
    archive = os.path.join(folder, "worker.zip")
    with opened(worker) as source, open(archive, "wb") as target:
        target.write(source.read())
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    os.unlink(archive)
    others = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = folder + (os.pathsep + others if others else "")
    place = mailbox + ("/" + slot if slot else "")
    os.execv(sys.executable, [sys.executable, "-m", "stoker.worker.mailbox", place, patience])


def opened(place: str) -> IO[bytes]:
    """A file for reading, here or in an object store."""
    if "://" not in place:
        return open(place, "rb")
    try:
        import fsspec
    except ImportError:
        sys.exit(
            "the image has no fsspec, with which the artifact store is read: add it, and what it needs for "
            + place.partition("://")[0]
            + ", to the step's requirements"
        )
    return cast(IO[bytes], fsspec.open(place, "rb").open())


if __name__ == "__main__":
    main(*sys.argv[1:])
