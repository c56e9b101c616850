"""The program of a job that runs elsewhere, in a container or on a cluster's node: fetches the user's code, runs the
job beside its monitor, and leaves the result.

    python -m stoker.worker.boot SPEC

SPEC is a file, or a URI that fsspec knows, with a document that whoever sent the job wrote:

    {"job", "step", "blobs", "package", "root", "folder", "path", "checkpoints", "environment", "simulate", "grace",
     "warning"}

"job" and "step" are what a worker is told on any machine. "package" is the digest of the user's code in the artifact
store, made from the folder "root" of the driver's machine; what "job" and "step" say of files below it is meant in the
folder where the package is unpacked here. Without a package the driver's folders are taken for this machine's own. A
lease whose devices are not known is filled in with those that the platform gave (`worker.granted`).

"warning" is 0, or how many seconds before the platform's limit of the job's time it sends SIGUSR1, or somebody makes
the file `warned` beside SPEC: the step sees that it should stop (`worker.notice`).

`result.json` appears beside SPEC when the job is over, whole or not at all: the worker's document, or, where the worker
died, `{"exited": …}` as the fork server tells it, with `oom` where the kernel killed for want of memory. Of the further
nodes of a gang it is `result-1.json`, and so on, so that all may share one SPEC.

Standard output and error are the step's, line by line. What is no output of its own stands between them on standard
output, in lines that begin with `MARK`: `{"up": version}` before anything else, `{"lease": document}`, `{"began":
seconds}`, and what the agent of a distributed step sends on.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import sys
import tempfile
import time
import traceback
from typing import Any, Final, Iterator, Mapping

from stoker.core import wire
from stoker.core.plan import LogLine
from stoker.core.status import CAUSES, INPUT_ERROR
from stoker.store import notes
from stoker.vendors.table import NO_DEVICES
from stoker.worker import cluster, forkserver
from stoker.worker.ending import Ending
from stoker.worker.forked import Output
from stoker.worker.memory_pressure import OomKills
from stoker.worker.notice import limit_file, warned
from stoker.worker.protocol import CREDENTIALS, MARK, RESULT, UP_VERSION
from stoker.worker.travelled import leave, moved, named_as_there, unpacked

GRACE: Final = 9.0
"""Seconds between SIGTERM and SIGKILL that a step gets where SPEC does not say: engines kill all after 10."""
_LINE: Final = 1 << 14
"""Bytes of a message with lines of ranks: an engine keeps what is longer in several pieces."""
_WORKER: Final = 1
_LOOK: Final = 1.0
"""Seconds between two looks for the file of a warning."""
WARNED: Final = "warned"


def main(arguments: list[str] | None = None) -> int:
    """Run the job that SPEC tells; the exit code is 0 where it went well."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        sys.stderr.write("usage: python -m stoker.worker.boot SPEC\n")
        return 2
    place = given[0]
    ending = Ending(beside(place, WARNED))
    _say({"up": UP_VERSION})
    text = notes.get(place)
    if text is None:
        sys.stderr.write(f"there is no {place} here: the folder that holds it is not mounted, or another one\n")
        return 2
    spec = json.loads(text)
    result = _result(spec, ending)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):  # a pipe, which has nothing to be written out
            os.fsync(descriptor)  # on a shared disk the last lines are there before the result is
    notes.put(beside(place, of_node(RESULT, node_of(spec))), json.dumps(result).encode())
    return _code(result)


def node_of(spec: Mapping[str, Any]) -> int:
    """Which node of its gang this is; 0 for a job of one node."""
    gang = spec["job"].get("gang")
    return 0 if gang is None else cluster.member_of(cluster.TOPOLOGIES[gang["topology"]], os.environ).node


def of_node(name: str, node: int) -> str:
    """A file's name for one node of a gang; the first one's is as it stands."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def beside(place: str, name: str) -> str:
    """The place of another file in SPEC's folder."""
    return place.rpartition("/")[0] + "/" + name


def _result(spec: Mapping[str, Any], ending: Ending) -> dict[str, Any]:
    """The job's result, or what is known of its worker's end."""
    job, here = spec["job"], ""
    try:
        _make_at_home(spec)
        here = unpacked(spec)
        job, step, path, folder = moved(spec, here)
        job = _with_devices(job, spec)
    except Exception as error:  # the top of a process: whatever it is, the driver must be told
        cause = getattr(error, "cause", "")
        message = str(error)
        if cause not in CAUSES:
            traceback.print_exc()
            cause, message = INPUT_ERROR, f"the place could not be made ready: {type(error).__name__}: {error}"
        document = {"type": type(error).__name__, "message": message, "traceback": "", "place": ""}
        leave(here)
        now = time.time()
        failed = {"job": job["job"], "ok": False, "outputs": {}, "cause": cause, "error": document}
        return {**failed, "start": now, "end": now, "cpu": 0.0}
    kills = OomKills()
    before = kills.now()
    result = _Job(spec, {**job, "steps": {str(job["step"]): step}}, path, folder, ending).run()
    leave(here)
    if "exited" in result:
        result["exited"]["oom"] = kills.since(before)
    return named_as_there(result, here, spec["root"]) if here else result


def _with_devices(job: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The job with the devices that the platform gave it, if those are to be found out here."""
    lease = job.get("accelerators")
    if lease is None:
        os.environ.update(NO_DEVICES)  # it asked for none: it sees none, whatever the platform left open
        return job
    if lease.get("devices") is not None:
        return job
    from stoker.core.codec import from_json, to_json  # these only for steps with devices
    from stoker.core.devices import Lease
    from stoker.worker import granted

    samples = of_node(lease["samples"], node_of(spec))
    lease = to_json(granted.taken(from_json(Lease, {**lease, "samples": samples}, strict=False), spec["simulate"]))
    _say({"lease": lease})
    return {**job, "accelerators": lease}


def _make_at_home(spec: Mapping[str, Any]) -> None:
    """What a process needs that runs as a user whom the image does not know."""
    os.umask(0o022)
    with contextlib.suppress(FileNotFoundError), open(CREDENTIALS, encoding="utf-8") as file:
        os.environ.update(json.load(file))
    os.environ.update(spec["environment"])
    place = os.environ.get("STOKER_NODE_ADDR", "")
    if place:
        # A container knows its own name; others may not, on engines whose networks have no name service.
        with contextlib.suppress(OSError):
            os.environ["STOKER_NODE_ADDR"] = socket.gethostbyname(place)
    home = os.environ.get("HOME", "/")
    if not os.access(home, os.W_OK):
        # Caches of frameworks (torch, Hugging Face, matplotlib) are below it, and fail where nothing can be written.
        os.environ["HOME"] = os.path.join(tempfile.gettempdir(), f"home-{os.getuid()}")
        os.makedirs(os.environ["HOME"], mode=0o700, exist_ok=True)
    # `getpass.getuser`, which torch asks for the name of its cache, fails for a uid that /etc/passwd lacks.
    os.environ.setdefault("USER", f"user-{os.getuid()}")
    os.environ.setdefault("LOGNAME", os.environ["USER"])


class _Job:
    """One job in a process forked for it, by a fork server that is forked from this process."""

    def __init__(
        self, spec: Mapping[str, Any], message: dict[str, Any], path: list[str], folder: str, ending: Ending
    ) -> None:
        self._spec = spec
        self._message = message
        self._ending = ending
        self._result: dict[str, Any] | None = None
        self._exited: dict[str, Any] | None = None
        self._told = False
        self._limit = ""
        if spec.get("warning"):
            descriptor, self._limit = tempfile.mkstemp(prefix="stoker-limit-")
            os.close(descriptor)
            limit_file(self._limit)
            self._message = {**message, "limit": self._limit}
        self._lines: dict[str, list[LogLine]] = {}
        self._control = self._server()
        self._tell(
            {
                "op": "hello",
                "path": path,
                "cwd": folder,
                "blobs": spec["blobs"],
                "checkpoints": spec["checkpoints"],
                "environment": {},
                "preload": [],
                "sources": [],
            }
        )

    def _server(self) -> socket.socket:
        here, there = wire.packet_pair()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                here.close()
                self._ending.forget()
                there.setblocking(True)
                forkserver.ForkServer(there).run()
                code = 0
            except BaseException:  # the top of a process
                traceback.print_exc()
            finally:
                os._exit(code)
        there.close()
        return here

    def _tell(self, message: Mapping[str, Any]) -> None:
        data = wire.packed(message)
        if len(data) > wire.DATAGRAM_LIMIT:
            data = wire.packed({"file": _file(data)})
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is heard in the loop
            self._control.send(data)

    def run(self) -> dict[str, Any]:
        """Until the worker is gone, and its monitor with it."""
        self._begin()
        with selectors.DefaultSelector() as selector:
            for source in (self._control, self._results, self._ending.wakeup.descriptor):
                selector.register(source, selectors.EVENT_READ)
            for output in self._outputs:
                selector.register(output.descriptor, selectors.EVENT_READ)
            there = True
            while self._exited is None and there:
                ready = {key.fd for key, _ in selector.select(_LOOK if self._limit else None)}
                for output in self._outputs:
                    if output.descriptor in ready and not output.read(self._lines, all=False):
                        selector.unregister(output.descriptor)
                self._write()
                if self._results.fileno() in ready and not self._read():
                    selector.unregister(self._results)
                if self._limit and self._ending.warned():
                    warned(self._limit, self._spec["warning"])
                    self._limit = ""
                if self._ending.wakeup.descriptor in ready:
                    self._ending.wakeup.clear()
                if self._ending.asked and not self._told:
                    self._told = True
                    self._tell({"op": "end", "worker": _WORKER, "grace": self._spec.get("grace") or GRACE})
                if self._control.fileno() in ready:
                    there = self._hear()
        while self._read():
            continue
        for output in self._outputs:
            output.read(self._lines, all=True)
            output.end(self._lines)
        self._write()
        self._control.close()
        if "limit" in self._message:
            os.unlink(self._message["limit"])
        if self._result is not None:
            return self._result
        return {"job": self._message["job"], "ok": False, "exited": self._exited or {}}

    def _begin(self) -> None:
        """Have the worker forked, and send it the job."""
        jobs, reader = wire.packet_pair()
        reader.setblocking(True)
        self._results, there = socket.socketpair()
        self._results.setblocking(False)
        self._frames = wire.Frames()
        pipes = [os.pipe() for _ in range(2)]
        self._outputs = (Output("stdout", pipes[0][0]), Output("stderr", pipes[1][0]))
        for output in self._outputs:
            os.set_blocking(output.descriptor, False)
            output.owners.append(self._message["job"])
        fork: dict[str, Any] = {"op": "fork", "worker": _WORKER, "once": True, "environment": {}}
        if self._message.get("accelerators", {}).get("devices"):
            fork["watch"] = self._message["accelerators"]
        given = [reader.fileno(), there.fileno(), *(write for _, write in pipes)]
        socket.send_fds(self._control, [wire.packed(fork)], given)
        data = wire.packed(self._message)
        jobs.send(wire.packed({"file": _file(data)}) if len(data) > wire.DATAGRAM_LIMIT else data)
        for end in (jobs, reader, there):
            end.close()
        for _, write in pipes:
            os.close(write)

    def _read(self) -> bool:
        """Take in what the worker says; False once there is nothing more."""
        try:
            data = self._results.recv(1 << 18)
        except BlockingIOError:
            return self._exited is None
        except ConnectionResetError:
            return False
        for message in self._frames.feed(data):
            if "ok" in message:
                self._result = message
            else:
                for part in _parts(message):
                    _say(part)
        return bool(data)

    def _hear(self) -> bool:
        try:
            data = self._control.recv(2 * wire.DATAGRAM_LIMIT)
        except (BlockingIOError, ConnectionResetError):
            data = b""
        message = wire.unpacked(data) if data else {}
        if message.get("op") == "exited":
            self._exited = {name: message[name] for name in ("code", "signal", "cpu", "peak")}
        return bool(data)

    def _write(self) -> None:
        for lines in self._lines.values():
            for line in lines:
                _put(1 if line.stream == "stdout" else 2, line.text + "\n")
        self._lines.clear()


def _parts(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A message in pieces that an engine keeps as one line each, if it is one with many lines of ranks."""
    rows = message.get("lines")
    if not rows:
        yield message
        return
    rest = {name: value for name, value in message.items() if name != "lines"}
    part: list[Any] = []
    size = 0
    for row in rows:
        length = len(row[3].encode("utf-8", "surrogatepass"))
        if part and size + length > _LINE:
            yield {**rest, "lines": part}
            part, size = [], 0
        part.append(row)
        size += length + 64
    yield {**rest, "lines": part}


def _say(message: Mapping[str, Any]) -> None:
    _put(1, MARK + json.dumps(message, separators=(",", ":")) + "\n")


def _put(descriptor: int, text: str) -> None:
    data = memoryview(text.encode("utf-8", "replace"))
    while data.nbytes:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return  # nobody reads it any more: the step goes on all the same


def _file(data: bytes) -> str:
    descriptor, path = tempfile.mkstemp(prefix="stoker-message-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return path


def _code(result: Mapping[str, Any]) -> int:
    """What the container leaves with: as a shell says it where the worker was ended by a signal."""
    exited = result.get("exited")
    if exited is None:
        return 0 if result["ok"] else 1
    if exited.get("signal"):
        return 128 + int(exited["signal"])
    return int(exited.get("code") or 1)


if __name__ == "__main__":
    sys.exit(main())
