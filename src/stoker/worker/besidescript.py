"""What runs beside a step, in its place: looks the step's process up, and acts there.

Its text is given to the Python of the step (`python -c`), so that it needs no Stoker there, and no more than the
standard library of Python 3.8. Arguments: a JSON document with `op`, and the process found for the name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

PATIENCE = 5.0
"""Seconds that a process gets to write its stacks."""


def main(document: str, pid: int) -> int:
    """Do what the document asks for."""
    order = json.loads(document)
    if order["op"] == "exec":
        return execute(order, pid)
    if order["op"] == "relay":
        return relay(int(order["port"]))
    if order["op"] == "knock":
        return knock(int(order["port"]))
    return dump(order)


def execute(order: Any, pid: int) -> int:
    """Become a command in the environment and the folder of the process."""
    environment = environment_of(pid)
    environment.update(order["environment"])
    for name in order["gone"]:
        environment.pop(name, None)
    python = words_of(pid)[:1]
    if python and os.path.isabs(python[0]):
        folder = os.path.dirname(python[0])
        environment["PATH"] = folder + os.pathsep + environment.get("PATH", os.defpath)
    os.chdir(f"/proc/{pid}/cwd")
    argv = order["argv"]
    if not argv:
        shells = (environment.get("SHELL", ""), "/bin/bash", "/bin/sh")
        argv = [next(shell for shell in shells if shell and os.path.exists(shell))]
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def dump(order: Any) -> int:
    """Print the stacks of all processes of the job that are here."""
    found = processes(order["name"])
    for name, pid in found:
        rank = name.partition("-")[2]
        head = f"rank {rank}, pid {pid}" if rank else f"pid {pid}"
        sys.stdout.write(f"{head}\n{stacks(pid, order['signal']).rstrip()}\n\n")
    return 0 if found else 3


def processes(name: str) -> Any:
    """(name, pid) of a job's processes: of its ranks, or of the one that it is; of several with one name the oldest."""
    found: Any = {}
    for entry in sorted((entry for entry in os.listdir("/proc") if entry.isdecimal()), key=int):
        try:
            with open(f"/proc/{entry}/comm") as file:
                comm = file.read().rstrip("\n")
        except OSError:
            continue
        if comm.partition("-")[0] == name and words_of(int(entry)):
            found.setdefault(comm, int(entry))
    ranks = [(comm, pid) for comm, pid in found.items() if "-" in comm]
    return sorted(ranks, key=lambda one: int(one[0].partition("-")[2])) or list(found.items())


def stacks(pid: int, number: int) -> str:
    """A process's stacks, by py-spy where it is installed and permitted, else by the process's own faulthandler."""
    python = words_of(pid)[:1]
    beside = os.path.join(os.path.dirname(python[0]), "py-spy") if python else ""
    spy = shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else "")
    if spy:
        try:
            words = [spy, "dump", "--pid", str(pid)]
            done = subprocess.run(words, check=False, capture_output=True, timeout=20)
            if done.returncode == 0:
                return done.stdout.decode("utf-8", "replace")
        except (OSError, subprocess.TimeoutExpired):
            pass  # the process's own handler is asked
    path = stacks_file(pid)
    if not path or not catches(pid, number):
        return "it cannot be asked: py-spy is not installed or not permitted, and its own handler is gone"
    begin = os.stat(path).st_size
    os.kill(pid, number)
    until, text = time.monotonic() + PATIENCE, ""
    while time.monotonic() < until:
        time.sleep(0.1)
        with open(path, "rb") as file:
            file.seek(begin)
            after = file.read().decode("utf-8", "replace")
        if "File " in after and after == text:  # nothing was added since the last look
            return after
        text = after
    return text or "it did not answer: it is stopped, or stands in the kernel (state D in `ps`)"


def stacks_file(pid: int) -> str:
    """The file to which the process's handler writes."""
    folder = f"/proc/{pid}/fd"
    for number in sorted(os.listdir(folder), key=int):
        try:
            target = os.readlink(f"{folder}/{number}")
        except OSError:
            continue
        if target.startswith("/memfd:stoker-stacks") or target.endswith(".stacks"):
            return f"{folder}/{number}"
    return ""


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of a signal: another one would be ended by it."""
    with open(f"/proc/{pid}/status") as file:
        masks = [line.split()[1] for line in file if line.startswith("SigCgt:")]
    return bool(masks) and bool(int(masks[0], 16) >> (number - 1) & 1)


def knock(port: int) -> int:
    """Whether something listens at a port of this place."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 4
    return 0


def relay(port: int) -> int:
    """Carry bytes between a port of this place and stdin and stdout."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 4
    connection.settimeout(None)

    def send() -> None:
        while True:
            data = os.read(0, 65536)
            if not data:
                break
            connection.sendall(data)
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side has closed

    threading.Thread(target=send, daemon=True).start()
    while True:
        data = connection.recv(65536)
        if not data:
            return 0
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]


def environment_of(pid: int) -> Any:
    """The environment with which a process was started."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = [os.fsdecode(pair).partition("=") for pair in file.read().split(b"\0") if pair]
    return {name: value for name, _, value in pairs if name}


def words_of(pid: int) -> Any:
    """The command line of a process; empty for one that has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
