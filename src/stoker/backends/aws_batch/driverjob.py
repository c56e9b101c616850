"""The program of a schedule's job on AWS Batch: brings Stoker from the artifact store, and runs the driver.

    python3 -c PROGRAM

`STOKER_START` is what the driver needs (`aws_batch.timers`), which ECS takes from AWS Secrets Manager; `STOKER_WORKER`
the archive of Stoker in the artifact store; `AWS_PROFILES` names profiles of the stack, all of which are the job's role
here. What follows is done as in a driver's pod.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile

from stoker.backends.kubernetes.running.driverpod import main as drive  # in a job its text stands before this one's


def bring() -> int:
    """Run the driver; the exit code is 0 where the run is over, or was not to be started."""
    try:
        import fsspec
    except ImportError:
        sys.exit("the image has no fsspec, with which the artifact store is read: name another one by driver = {image}")
    folder = tempfile.mkdtemp(prefix="stoker-schedule-")
    start, worker = os.path.join(folder, "start"), os.path.join(folder, "worker")
    os.umask(0o077)
    os.mkdir(worker)
    with open(start, "wb") as file:
        file.write(base64.b64decode(os.environ.pop("STOKER_START")))
    with fsspec.open(os.environ["STOKER_WORKER"], "rb") as source, open(os.path.join(worker, "part-0"), "wb") as target:
        target.write(source.read())
    profiles = os.environ.get("AWS_PROFILES")
    if profiles:
        os.environ["AWS_CONFIG_FILE"] = os.path.join(folder, "config")
        with open(os.environ["AWS_CONFIG_FILE"], "w", encoding="utf-8") as config:
            config.writelines(f"[profile {name}]\n" for name in profiles.split(","))
    return drive([start, worker, os.path.join(folder, "home"), "", os.path.join(folder, "message")])


if __name__ == "__main__":
    sys.exit(bring())
