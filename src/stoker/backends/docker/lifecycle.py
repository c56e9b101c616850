"""What every container of a run goes through: created and started, its output read, what it wrote taken back.

Functions that call the engine and wait for it, and the thread of an attempt, which calls them.
"""

from __future__ import annotations

import io
import os
import re
import tarfile
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Final, Mapping, Sequence

from stoker.backends.base.channel import Channel, Reader
from stoker.backends.base.overlays import Mount
from stoker.backends.base.statuses import failed
from stoker.backends.docker.engines import End, Engine, EngineGone, Refused
from stoker.backends.docker.jobfiles import Owner, take_back
from stoker.backends.docker.requests import BUNDLE, INSIDE, LABEL, mount_body
from stoker.backends.docker.settings import SECRETS
from stoker.core.errors import BackendError, StoreError
from stoker.core.plan import JobStatus, LogLine
from stoker.core.protocol import WorkerEvent
from stoker.core.status import CANCELLED, REFUSED, WORKER_LOST
from stoker.nodecache.cache import FOLDER

if TYPE_CHECKING:
    from stoker.core.devices import Lease

PATIENCE: Final = 60.0
"""Seconds for which an engine may be away, as for an update, before its containers are given up."""
_CHOWN: Final = """
import os, sys
uid, gid = map(int, sys.argv[1].split(":"))
for top in sys.argv[2:]:
    os.lchown(top, uid, gid)
    for parent, folders, names in os.walk(top):
        for name in folders + names:
            os.lchown(os.path.join(parent, name), uid, gid)
"""
"""What a container as root runs so that the files of another user become the driver's."""

Output = tuple[list[LogLine], list[WorkerEvent]]


# The beginning


def fetch_image(engine: Engine, image: str, pull: str, report: Callable[[str], None]) -> None:
    """Pull an image where `pull` ("missing", "always", "never") says so."""
    if pull == "always" or (pull == "missing" and not engine.has(image)):
        report(f"pulling {image}")
        engine.pull(image, report)


def create_container(engine: Engine, name: str, body: Mapping[str, Any]) -> str:
    """Create a container, in place of one of that name which a driver that died left; its id."""
    for variable in body["Env"]:
        if variable.startswith(f"{FOLDER}="):  # an engine would make the folder as root
            os.makedirs(variable.partition("=")[2], exist_ok=True)
    try:
        return engine.create(name, body)
    except Refused as error:
        if error.status == 409:
            engine.remove(name)
            return engine.create(name, body)
        if error.status != 404:
            raise
        image = body["Image"]
        raise Refused(
            f"there is no image {image} in the engine at {engine.address}",
            fix=f"docker pull {image}, or build it there; pull='missing' fetches what is not there",
        ) from error


def start_container(engine: Engine, id: str, body: Mapping[str, Any]) -> None:
    """Start a container that was created by this request."""
    try:
        engine.start(id)
    except Refused as error:
        if re.search(r"executable file .*not found|exec.*no such file or directory", str(error)) is None:
            raise
        raise Refused(
            f"the image {body['Image']} has no {body['Entrypoint'][0]}",
            status=error.status,
            fix="take an image with Python, say where it is by python=… of ContainerSettings, or leave skip_build "
            "out: then an image is built that has it",
        ) from error


def owner_in(engine: Engine, id: str, user: str, image: str) -> Owner:
    """uid and gid of a container's user, as its image knows them; a container whose image does not is removed."""
    name, _, group = user.partition(":")
    if not name:
        return 0, 0
    if name.isdecimal() and group.isdecimal():
        return int(name), int(group)
    people = _table(engine.get(id, "/etc/passwd"))
    row_of_user = next((row for row in people if name == row[0] or name == row[2]), None)
    if row_of_user is None and not name.isdecimal():
        engine.remove(id)
        raise Refused(
            f"the image {image} has no user '{name}'",
            fix='write numbers, as in user="1000:1000", or add the user in the Dockerfile: RUN useradd …',
        )
    gid = row_of_user[3] if row_of_user is not None else "0"
    if group:
        groups = _table(engine.get(id, "/etc/group"))
        gid = group if group.isdecimal() else next((row[2] for row in groups if row[0] == group), "")
        if not gid:
            engine.remove(id)
            raise Refused(f"the image {image} has no group '{group}'", fix="write its number")
    return int(name if row_of_user is None else row_of_user[2]), int(gid)


def is_root(user: str) -> bool:
    """Whether an image's `USER` is root, as it is where the image names none."""
    return user.partition(":")[0] in ("", "root", "0")


def archive(files: Mapping[str, bytes], owner: Owner | None, *, bundle: str = "") -> bytes:
    """The archive that is put into a container before it starts: files by their paths, and Stoker's worker.

    Only the container's user can read them; everybody, where the user is not known.
    """
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for folder in (SECRETS, INSIDE):
            tar.addfile(_member(folder, owner, directory=True))
        for path, content in files.items():
            member = _member(path, owner, directory=False)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        if bundle:
            tar.add(bundle, BUNDLE.lstrip("/"), filter=_without_bytecode)
    return data.getvalue()


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if os.path.basename(member.name) == "__pycache__" else member


def _member(path: str, owner: Owner | None, *, directory: bool) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path.lstrip("/"))
    member.mtime = int(time.time())
    private = owner is not None
    if owner is not None:
        member.uid, member.gid = owner
    if directory:
        member.type, member.mode = tarfile.DIRTYPE, 0o700 if private else 0o777
    else:
        member.mode = 0o400 if private else 0o444
    return member


def _table(data: bytes | None) -> list[list[str]]:
    """The rows of /etc/passwd or /etc/group."""
    lines = (data or b"").decode("utf-8", "replace").splitlines()
    return [line.split(":") for line in lines if line.count(":") >= 3]


# Following


def read_to_end(
    engine: Engine, id: str, reader: Reader, pass_on: Callable[[Output], None], *, look: float
) -> End | None:
    """Read a container's output to its end; the container's end, None where it was removed.

    An engine that is updated comes back, with its containers or without them: it is asked again after `look` seconds,
    for `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            reader.restart()
            for stream, data in engine.output(id):
                pass_on(reader.read(stream, data))
                deadline = time.monotonic() + PATIENCE
            end = engine.end(id)
            if end is None or not end.running:
                pass_on(reader.end())
                return end
        except (EngineGone, Refused) as error:
            if isinstance(error, Refused) and error.status == 404:
                pass_on(reader.end())
                return None
            if time.monotonic() > deadline:
                raise
        time.sleep(look)


# The end


def take_files_back(
    engine: Engine,
    paths: Sequence[str],
    owner: Owner | None,
    *,
    name: str,
    body: Mapping[str, Any],
    rootless: bool,
) -> None:
    """Make what a container wrote in these folders and files the user's own; `name` and `body` are the container's."""
    if owner is not None and owner[0] == os.geteuid():
        return
    if take_back(paths):
        _take_back_by_engine(engine, paths, name=name, body=body, rootless=rootless)


def _take_back_by_engine(
    engine: Engine, paths: Sequence[str], *, name: str, body: Mapping[str, Any], rootless: bool
) -> None:
    """Let a container as root give files to this user, who may not do so: it sees these paths and nothing else."""
    new_owner = "0:0" if rootless else f"{os.geteuid()}:{os.getegid()}"
    mounts = [mount_body(Mount(path, path)) for path in paths if os.path.lexists(path)]
    request = {
        "Image": body["Image"],
        "Entrypoint": [body["Entrypoint"][0], "-c", _CHOWN],
        "Cmd": [new_owner, *(str(mount["Target"]) for mount in mounts)],
        "User": "0:0",
        "Labels": {**body["Labels"], LABEL: "owner"},
        "HostConfig": {"Mounts": mounts, "NetworkMode": "none"},
    }
    engine.remove(f"{name}-owner")
    id = engine.create(f"{name}-owner", request)
    try:
        engine.start(id)
        code = engine.wait(id)
    finally:
        engine.remove(id)
    if code:
        raise StoreError("the files of the container's user cannot be given to you", fix="user=… out of its settings")


class EndSignals:
    """Sends signals by `send`, in threads of their own: an engine may take its time to answer."""

    def __init__(self, send: Callable[[str], None]) -> None:
        self._send = send
        self._timers: list[threading.Timer] = []

    def end(self, grace: float) -> None:
        """SIGTERM now and SIGKILL after the grace; SIGKILL at once where there is none."""
        for seconds, signal in ((0.0, "SIGTERM"), (grace, "SIGKILL")) if grace > 0 else ((0.0, "SIGKILL"),):
            timer = threading.Timer(seconds, self._send, (signal,))
            timer.daemon = True
            self._timers.append(timer)
            timer.start()

    def close(self) -> None:
        """Send nothing more."""
        for timer in self._timers:
            timer.cancel()


class AttemptThread:
    """Runs one attempt in a thread, by `run`."""

    def __init__(self, engine: Engine, name: str, channel: Channel) -> None:
        self._engine = engine
        self._name = name
        self._channel = channel
        self._cancelled = False
        self._recorded = threading.Event()
        self._signals = EndSignals(self._signal)
        self.thread = threading.Thread(target=self.run, name="stoker-container", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def run(self) -> None:
        """Run the attempt to its end, in this thread."""
        raise NotImplementedError

    def recorded(self) -> None:
        """Take the end of the job as recorded: only then do its containers and files go."""
        self._recorded.set()

    def _signal(self, signal: str) -> None:
        """Send a signal to what runs."""
        raise NotImplementedError

    def _refuse_cancelled(self) -> None:
        if self._cancelled:
            raise Refused("the step was cancelled before it began")

    def _report_pull(self, text: str) -> None:
        self._refuse_cancelled()
        self._channel.put(self._name, JobStatus(state="queued", message=text))

    def _pass_on(self, output: Output) -> None:
        lines, events = output
        if lines:
            self._channel.write(self._name, lines)
        for event in events:
            self._channel.event(self._name, event)

    def _broken(self, error: BackendError, lease: Lease | None = None, *, begun: bool) -> JobStatus:
        """The status of an attempt that an error ended; one of which nothing began may be submitted again."""
        if isinstance(error, EngineGone) and not begun:
            return JobStatus(state="unknown", lost=True, message=str(error))
        cause = CANCELLED if self._cancelled else WORKER_LOST if begun else REFUSED
        return failed(cause, str(error), lease)
