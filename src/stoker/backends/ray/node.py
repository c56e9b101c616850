"""One node of a step on Ray, in two processes: the task that holds its resources, and the job itself.

Ray has the task's code by value, so that a worker of the cluster needs nothing of Stoker's to begin: it uses the
standard library only. The task runs `worker.boot` as a child, which dies with it, and tells the program that started
it (`backends.ray.job`) over a connection what the child writes and how it ends. Frames are four bytes of length, then
JSON:

    task → program  {"step", "node", "token", "host", "pid", "ray_node"}, {"stream", "data"} …,
                    {"samples": [name, text]}, {"over": {"result", "code"}}
    program → task  {"end": seconds}    SIGTERM now, SIGKILL then

As a program (`python -m stoker.backends.ray.node SPEC PARENT`) it is the child: tied to the task's life, and then
`worker.boot`.
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
from typing import Any, Mapping

MARK = "\x1estoker "  # core.protocol.MARK: this module imports nothing of Stoker's
CHUNK = 1 << 16
LINGER = 2.0
"""Seconds after the child's end in which its pipes may still be held open by what it left behind."""
PR_SET_PDEATHSIG = 1


def run(order: Mapping[str, Any], link: tuple[str, int, str]) -> None:
    """The task: one node of a step, from the connection to its end."""
    host, port, token = link
    tie = socket.create_connection((host, port), timeout=60.0)
    tie.settimeout(None)
    folder = tempfile.mkdtemp(prefix="stoker-ray-")
    try:
        import ray

        context = ray.get_runtime_context()
        hello = {"step": order["step"], "node": order["node"], "token": token, "ray_node": context.get_node_id()}
        _send(tie, {**hello, "host": socket.gethostname(), "pid": os.getpid()})
        place = os.path.join(folder, "job.json")
        spec = order["spec"]
        there = _samples(spec, folder, order)
        with open(place, "w", encoding="utf-8") as file:
            json.dump(spec, file)
        child = _started(order, place, context.get_accelerator_ids(), ray.util.get_node_ip_address())
        renamed = (json.dumps(there[1])[1:-1].encode(), json.dumps(there[0])[1:-1].encode()) if there else None
        _follow(child, tie, renamed)
        if there is not None:
            _send_samples(tie, there, order["node"])
        result = None
        with contextlib.suppress(FileNotFoundError), open(_result(folder, order["node"]), encoding="utf-8") as file:
            result = json.load(file)
        _send(tie, {"over": {"result": result, "code": child.returncode}})
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


def _started(
    order: Mapping[str, Any], place: str, given: Mapping[str, list[str]], address: str
) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if order["bundle"]:
        path = [order["bundle"], environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    if given.get("GPU") and "CUDA_VISIBLE_DEVICES" not in environment and "HIP_VISIBLE_DEVICES" not in environment:
        # Ray was told to leave the variable alone (RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES).
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(given["GPU"])
    if order["nodes"] > 1:
        environment["STOKER_NODE_RANK"] = str(order["node"])
        environment["STOKER_NODES"] = str(order["nodes"])
        environment["STOKER_NODE_ADDR"] = address
    return subprocess.Popen(
        [order["python"] or sys.executable, "-m", "stoker.backends.ray.node", place, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _follow(child: subprocess.Popen[bytes], tie: socket.socket, renamed: tuple[bytes, bytes] | None) -> None:
    """Send on what the child writes, and end it when told to, until it is gone."""
    assert child.stdout is not None and child.stderr is not None
    streams = {child.stdout.fileno(): "stdout", child.stderr.fileno(): "stderr"}
    rest = b""  # of standard output: a message is renamed as a whole line
    heard = b""
    kill_at = gone_at = float("inf")
    while streams:
        waited: list[Any] = [*streams, tie]
        ready, _, _ = select.select(waited, [], [], 0.2)
        for descriptor in [one for one in ready if one in streams]:
            data = os.read(descriptor, CHUNK)
            if streams[descriptor] == "stdout" and renamed is not None:
                data, rest = _renamed(rest + data, renamed, last=not data)
            if data:
                _send(tie, {"stream": streams[descriptor], "data": data.decode("latin-1")})
            elif not rest or streams[descriptor] != "stdout":
                del streams[descriptor]
        if tie in ready:
            news = tie.recv(CHUNK)
            if not news:  # who started us is gone, and nobody is left to hear of it
                child.kill()
                return
            heard += news
            for message in _messages(heard):
                _signal(child, signal.SIGTERM if message["end"] > 0 else signal.SIGKILL)
                kill_at = min(kill_at, time.monotonic() + message["end"])
            heard = _unread(heard)
        now = time.monotonic()
        if now >= kill_at and child.poll() is None:
            _signal(child, signal.SIGKILL)
        if child.poll() is not None:
            gone_at = min(gone_at, now)
            if now > gone_at + LINGER:
                break
    child.stdout.close()
    child.stderr.close()
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        child.send_signal(number)


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


def main() -> int:
    """The child: it ends at once when the task's process does, however that happens, and nothing goes on unheld."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return 1  # it died before it could be tied to
    # Ray blocks SIGINT in all of its processes.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from stoker.worker import boot

    return boot.main(sys.argv[1:2])


if __name__ == "__main__":
    sys.exit(main())
