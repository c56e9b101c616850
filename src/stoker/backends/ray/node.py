"""One node of a step on Ray: the task that holds its resources. The step itself runs in processes of its own.

Ray has the task's code by value, so that a worker of the cluster needs nothing of Stoker's to begin: it uses the
standard library only. A worker that runs its first task starts a process beside it (`backends.ray.warm`), which forks
the program of each step and dies with the worker. The task tells the program that started it (`backends.ray.job`) over
a connection what the step writes and how it ends. Frames are four bytes of length, then JSON:

    task → program  {"step", "node", "token", "host", "pid", "ray_node", "task"}, {"stream", "data"} …,
                    {"samples": [name, text]}, {"over": {"result", "code"}}
    program → task  {"end": seconds}    SIGTERM now, SIGKILL then
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from typing import IO, Any, Mapping

from stoker.system import system

MARK = "\x1estoker "  # core.protocol.MARK: this module imports nothing of Stoker's
CHUNK = 1 << 16
LINGER = 2.0
"""Seconds after the child's end in which its pipes may still be held open by what it left behind."""


def run(order: Mapping[str, Any], link: tuple[str, int, str]) -> None:
    """The task: one node of a step, from the connection to its end."""
    host, port, token = link
    tie = socket.create_connection((host, port), timeout=60.0)
    tie.settimeout(None)
    folder = tempfile.mkdtemp(prefix="stoker-ray-")
    try:
        import ray

        context = ray.get_runtime_context()
        hello = {
            **{name: order[name] for name in ("step", "node")},
            "token": token,
            "ray_node": context.get_node_id(),
            "task": context.get_task_id() or "",
        }
        _send(tie, {**hello, "host": socket.gethostname(), "pid": os.getpid()})
        place = os.path.join(folder, "job.json")
        spec = order["spec"]
        there = _samples(spec, folder, order)
        with open(place, "w", encoding="utf-8") as file:
            json.dump(spec, file)
        environment = {
            "STOKER_NODE_ID": context.get_node_id(),  # core.protocol.NODE_ID
            # As in Ray's own jobs: without it `ray.init()` joins the latest cluster of a node that has several.
            "RAY_ADDRESS": os.environ.get("RAY_ADDRESS", context.gcs_address),
        }
        if order["nodes"] > 1:
            environment["STOKER_NODE_RANK"] = str(order["node"])
            environment["STOKER_NODES"] = str(order["nodes"])
            environment["STOKER_NODE_ADDR"] = ray.util.get_node_ip_address()
        starter, program = _started(order, folder, place, context.get_accelerator_ids(), environment)
        renamed = (json.dumps(there[1])[1:-1].encode(), json.dumps(there[0])[1:-1].encode()) if there else None
        try:
            heard = _follow(program, tie, renamed)
        except OSError:
            heard = False
        program.close()
        if not heard:
            starter.close()  # with the program and all that it started
            return
        if program.code == -int(signal.SIGKILL) and starter.process.poll() is not None:
            words = starter.close().decode("utf-8", "replace")[-2000:]
            _send(tie, {"stream": "stderr", "data": words.encode().decode("latin-1")})
        if there is not None:
            _send_samples(tie, there, order["node"])
        result = None
        with contextlib.suppress(FileNotFoundError), open(_result(folder, order["node"]), encoding="utf-8") as file:
            result = json.load(file)
        _send(tie, {"over": {"result": result, "code": program.code}})
    finally:
        tie.close()
        shutil.rmtree(folder, ignore_errors=True)


def _samples(spec: Mapping[str, Any], folder: str, order: Mapping[str, Any]) -> tuple[str, str] | None:
    """Where samples are written here, if the driver's folder is not seen: its name for them, and ours."""
    lease = spec["job"].get("accelerators")
    if lease is None or order["shares"]:
        return None
    names = lease["samples"], os.path.join(folder, "samples.jsonl")
    lease["samples"] = names[1]
    return names


class Starter:
    """The process beside this one that forks programs; it stays for the tasks that this worker runs later."""

    def __init__(self, python: str, environment: Mapping[str, str], store: str) -> None:
        self.control, other_end = system.packet_pair()
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 kept open as long as the starter lives
        try:
            self.process = subprocess.Popen(
                [python, "-m", "stoker.backends.ray.warm", str(other_end.fileno()), str(os.getpid()), store],
                pass_fds=[other_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                env=dict(environment),
                start_new_session=True,
            )
        finally:
            other_end.close()

    def close(self) -> bytes:
        """End it with all that it started; what it wrote to its standard error."""
        self.control.close()
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        with self.errors:
            return self.errors.read()


class StepProgram:
    """A program that a starter has forked, with its output."""

    def __init__(self, starter: Starter, order: str) -> None:
        self._starter = starter
        self.control = starter.control
        pipes = {"stdout": os.pipe(), "stderr": os.pipe()}
        self.streams = {reading: name for name, (reading, _) in pipes.items()}
        self.code: int | None = None
        writing = [end for _, end in pipes.values()]
        try:
            socket.send_fds(starter.control, [json.dumps({"start": order}).encode()], writing)
        except OSError:
            self._lose()
        finally:
            for end in writing:
                os.close(end)

    def poll(self) -> int | None:
        """Its exit code; None while it runs. It is -9 for one whose starter is gone: that one takes it along."""
        if self.code is None and select.select([self._starter.control], [], [], 0)[0]:
            try:
                data = self._starter.control.recv(CHUNK)
            except OSError:
                data = b""
            if data:
                self.code = int(json.loads(data)["over"])
            else:
                self._lose()
        return self.code

    def _lose(self) -> None:
        self.code = -int(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        if self.code is None:
            with contextlib.suppress(OSError):
                self._starter.control.send(json.dumps({"signal": number}).encode())

    def close(self) -> None:
        """Close what is left of its output."""
        for stream in self.streams:
            os.close(stream)


_starters: dict[str, Starter] = {}
"""By interpreter: those of this worker. Ray starts a worker of its own for each runtime environment."""


def _started(
    order: Mapping[str, Any],
    folder: str,
    place: str,
    given: Mapping[str, list[str]],
    further: Mapping[str, str],
) -> tuple[Starter, StepProgram]:
    """Start the program of a step, by the starter that is there or a new one."""
    environment = dict(os.environ)
    if order["bundle"]:
        path = [order["bundle"], environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    python = order["python"] or sys.executable
    starter = _starters.get(python)
    if starter is None or starter.process.poll() is not None:
        starter = _starters[python] = Starter(python, environment, order["spec"]["blobs"])
    if given.get("GPU") and "CUDA_VISIBLE_DEVICES" not in environment and "HIP_VISIBLE_DEVICES" not in environment:
        # Ray was told to leave the variable alone (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES).
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(given["GPU"])
    environment.update(further)
    path_of_order = os.path.join(folder, "order.json")
    with open(path_of_order, "w", encoding="utf-8") as file:
        json.dump({"spec": place, "environment": environment}, file)
    return starter, StepProgram(starter, path_of_order)


def _follow(program: StepProgram, tie: socket.socket, renamed: tuple[bytes, bytes] | None) -> bool:
    """Send on what the program writes, and end it when told to, until it is gone; False if nobody listens any more."""
    rest = b""  # of standard output: a message is renamed as a whole line
    heard = b""
    kill_at = gone_at = float("inf")
    streams = program.streams
    while streams or program.poll() is None:
        waited: list[Any] = [*streams, tie]
        if program.code is None:
            waited.append(program.control)
        ready, _, _ = select.select(waited, [], [], 0.2)
        for descriptor in [one for one in ready if one in streams]:
            data = os.read(descriptor, CHUNK)
            stream, last = streams[descriptor], not data
            if last:
                os.close(descriptor)
                del streams[descriptor]
            if stream == "stdout" and renamed is not None:
                data, rest = _renamed(rest + data, renamed, last=last)
            if data:
                _send(tie, {"stream": stream, "data": data.decode("latin-1")})
        if tie in ready:
            news = tie.recv(CHUNK)
            if not news:  # who started us is gone, and nobody is left to hear of it
                return False
            heard += news
            for message in _messages(heard):
                program.signal(signal.SIGTERM if message["end"] > 0 else signal.SIGKILL)
                kill_at = min(kill_at, time.monotonic() + message["end"])
            heard = _unread(heard)
        now = time.monotonic()
        if now >= kill_at:
            kill_at = float("inf")
            program.signal(signal.SIGKILL)
        if program.poll() is not None:
            gone_at = min(gone_at, now)
            if now > gone_at + LINGER:
                break
    return True


def _renamed(data: bytes, renamed: tuple[bytes, bytes], *, last: bool) -> tuple[bytes, bytes]:
    """Whole lines, in whose messages the samples have the driver's name, and what is left."""
    whole, newline, rest = data.rpartition(b"\n")
    if last or len(rest) > CHUNK:
        whole, newline, rest = data, b"", b""
    lines = [
        line.replace(renamed[0], renamed[1]) if line.startswith(MARK.encode()) else line for line in whole.split(b"\n")
    ]
    return b"\n".join(lines) + newline, rest


def _send_samples(tie: socket.socket, names: tuple[str, str], node: int) -> None:
    there, here = (_of_node(name, node) for name in names)
    with contextlib.suppress(FileNotFoundError), open(here, encoding="utf-8") as file:
        _send(tie, {"samples": [there, file.read()]})


def _result(folder: str, node: int) -> str:
    return _of_node(os.path.join(folder, "result.json"), node)


def _of_node(name: str, node: int) -> str:
    """As `worker.boot.of_node`."""
    stem, dot, ending = name.rpartition(".")
    return f"{stem}-{node}{dot}{ending}" if node else name


def _send(tie: socket.socket, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode()
    tie.sendall(struct.pack("!I", len(data)) + data)


def _messages(data: bytes) -> list[Any]:
    found = []
    while len(data) >= 4 and len(data) >= 4 + struct.unpack_from("!I", data)[0]:
        (length,) = struct.unpack_from("!I", data)
        found.append(json.loads(data[4 : 4 + length]))
        data = data[4 + length :]
    return found


def _unread(data: bytes) -> bytes:
    while len(data) >= 4 and len(data) >= 4 + struct.unpack_from("!I", data)[0]:
        data = data[4 + struct.unpack_from("!I", data)[0] :]
    return data
