"""The program of a detached driver's pod: unpacks Stoker, runs the driver, and says whether it is to be started again.

    python3 -c PROGRAM START WORKER HOME ACCOUNT MESSAGE

START is the file with what the driver needs (`kubernetes.running.detach`), compressed; WORKER the folder with the
parts of Stoker; HOME the driver's home; ACCOUNT the folder of the pod's service account; MESSAGE the file of the
container's termination message. The program's text is the argument itself, so that any image with Python 3.10 runs it:
it uses the standard library only.

What the driver writes goes to standard output and to a file beside the run's logs. SIGTERM, which the kubelet sends
when the pod is to go, has the driver leave its run to the next start. The exit code is 0 where there is none to be: the
run is over, or the image lacks what a driver needs. The kubelet then starts nothing more.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import IO, Any

from stoker.backends.kubernetes.request.pod import unpack  # in a pod its text stands here

LEFT = 75  # backends.base.backend.LEFT: nothing of Stoker's is here yet
INTERRUPTED = 130
LAST = 1500
"""Bytes of the driver's last words that become the termination message."""


def main(words: list[str]) -> int:
    """Run the driver; the exit code is 0 where it is not to be started again."""
    start, worker, home, account, message = words
    with gzip.open(start) as packed:
        document = json.load(packed)
    lacking = [name for name in document["requires"] if importlib.util.find_spec(name) is None]
    if lacking:
        why = f"the image {document['image']} lacks what the driver reads database and artifacts with"
        return give_up(f"{why}: {', '.join(lacking)}; name another one by driver = {{image = …}}", message)
    folder = tempfile.mkdtemp(prefix="stoker-driver-")
    os.umask(0o077)
    bundle = os.path.join(folder, "stoker")
    keep(
        unpack(worker, bundle), os.path.join(home, "wheels", f"{document['bundle']}-{sys.implementation.cache_tag}.gz")
    )
    stacks = os.path.join(folder, "stoker.toml")
    with open(stacks, "w", encoding="utf-8") as file:
        file.write(document["stacks"])
    environment = {
        **os.environ,
        **document["environment"],
        "PYTHONPATH": os.pathsep.join(filter(None, [bundle, os.environ.get("PYTHONPATH", "")])),
        "STOKER_HOME": home,
        "STOKER_STACKS": stacks,
        "STOKER_SERVICE_ACCOUNT": account,
    }
    if not os.access(os.environ.get("HOME") or "/", os.W_OK):
        environment["HOME"] = folder
    output = os.path.join(home, document["output"])
    os.makedirs(os.path.dirname(output), exist_ok=True)
    driver = subprocess.Popen(
        [sys.executable, *document["words"]],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    asked = []

    def leave(number: int, frame: Any) -> None:
        asked.append(number)
        driver.send_signal(signal.SIGUSR1)

    signal.signal(signal.SIGTERM, leave)
    assert driver.stdout is not None
    last = pass_on(driver.stdout, output)
    code = driver.wait()
    code = code if code >= 0 else 128 - code
    if asked or code in document["again"] or (code > 128 and code != INTERRUPTED):
        return code or LEFT
    if code:
        tell(message, last.decode("utf-8", "replace"))
    return 0


def keep(archive: bytes, path: str) -> None:
    """Keep the archive where the driver looks for it: the pods of steps get the same."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if not os.path.exists(path):
        beside = f"{path}.{os.getpid()}"
        with open(beside, "wb") as file:
            file.write(archive)
        os.replace(beside, path)


def pass_on(stream: IO[bytes], output: str) -> bytes:
    """Write what the driver writes to standard output and to a file; its last bytes."""
    last = b""
    with open(output, "ab", buffering=0) as file:
        while data := os.read(stream.fileno(), 1 << 16):
            last = (last + data)[-LAST:]
            for place in (1, file.fileno()):
                view = memoryview(data)
                while view:
                    view = view[os.write(place, view) :]
    return last


def give_up(why: str, message: str) -> int:
    """Say why no driver can run here; the exit code of a pod that is not started again."""
    os.write(1, f"{why}\n".encode())
    tell(message, why)
    return 0


def tell(message: str, text: str) -> None:
    """Leave a text to whoever asks for the pod's end."""
    try:
        with open(message, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
