"""One build at a time of what several runs need at once, also where they are other users' or on other machines.

The lock is a container of the engine on which the image is built: an engine gives a name once. It is never started. Its
holder changes a file in it every few seconds; who waits and sees no change for a minute takes the holder for dead and
removes the container, by its id, so that nobody else's is removed. Nobody's clock is compared with another one's.

Processes of one user wait for a lock of the file system first, which is free as soon as its holder is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from stoker.images.engine import SECONDS, ImageEngine
from stoker.images.sharing import hold

IMAGE: Final = "localhost/stoker-build-lock:1"
"""The image of such containers: one small file."""
BEAT: Final = 10.0
"""Seconds between two changes of the file in a lock."""
SILENT: Final = 60.0
"""Seconds without a change after which the holder counts as dead: an engine that is busy may take 30 for an answer."""
LOOK: Final = 1.0
"""Seconds between two looks of who waits."""
_FILE: Final = "beat"
_TAKEN: Final = re.compile(r"already in use", re.IGNORECASE)


@contextlib.contextmanager
def one_build(engine: ImageEngine, tag: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the only build of a tag on an engine; `waiting` is called once where another one has it.

    An engine that makes no such container, as buildah, has the lock of this user's processes only: what is built twice
    is the same.
    """
    calls = [waiting]

    def say() -> None:
        if calls:
            calls.pop()()

    with _one_of_this_user(f"{engine.environ.get('DOCKER_HOST', '')} {tag}", say):
        if engine.kind == "buildah":
            yield
            return
        container = _create(engine, f"stoker-build-{hashlib.sha256(tag.encode()).hexdigest()[:24]}", say)
        if not container:
            yield
            return
        over = threading.Event()
        beating = threading.Thread(target=_beat, args=(engine, container, over), daemon=True)
        beating.start()
        try:
            yield
        finally:
            over.set()
            beating.join()
            _run(engine, "rm", "--force", container)


def _create(engine: ImageEngine, name: str, say: Callable[[], None]) -> str:
    """The id of a new container of this name, once nobody else has one; empty where the engine makes none."""
    seen: tuple[str, bytes] = ("", b"")
    since = time.monotonic()
    while True:
        created = _run(engine, "create", "--name", name, "--network", "none", IMAGE, f"/{_FILE}")
        if created.returncode == 0:
            return created.stdout.decode().strip().splitlines()[-1]
        if not _TAKEN.search(created.stderr.decode(errors="replace")):
            if _run(engine, "image", "inspect", IMAGE).returncode == 0 or not _import(engine):
                return ""
            continue
        say()
        holder = _run(engine, "container", "inspect", "--format", "{{.Id}}", name).stdout.decode().strip()
        state = (holder, _run(engine, "cp", f"{holder}:/{_FILE}", "-").stdout if holder else b"")
        now = time.monotonic()
        if state != seen:
            seen, since = state, now
        elif holder and now > since + SILENT:
            _run(engine, "rm", "--force", holder)
            continue
        time.sleep(LOOK)


def _beat(engine: ImageEngine, container: str, over: threading.Event) -> None:
    """Change the file in a lock until it is given back."""
    count = 0
    while not over.wait(BEAT):
        count += 1
        _run(engine, "cp", "-", f"{container}:/", input=_archive(count))


def _import(engine: ImageEngine) -> bool:
    """Make the image of locks; whether it is there then."""
    return _run(engine, "import", "-", IMAGE, input=_archive(0)).returncode == 0


def _archive(count: int) -> bytes:
    """A tar archive with the file."""
    packed, content = io.BytesIO(), f"{count}\n".encode()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        info = tarfile.TarInfo(_FILE)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _run(engine: ImageEngine, *arguments: str, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """A command of an engine with binary streams; one that takes too long has failed."""
    words = [*engine.program, *arguments]
    try:
        return subprocess.run(words, env=engine.environ, input=input, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, b"", b"")


@contextlib.contextmanager
def _one_of_this_user(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the only build of this name among this user's processes."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "stoker", "builds")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:  # a home that cannot be written
        folder = os.path.join(tempfile.gettempdir(), f"stoker-builds-{os.getuid()}")
        os.makedirs(folder, mode=0o700, exist_ok=True)
    place = Path(folder, hashlib.sha256(name.encode()).hexdigest()[:32])
    with hold(place, waiting, fix="put XDG_CACHE_HOME on a file system that knows locks"):
        yield
