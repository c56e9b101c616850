"""Both forms of `stoker.system`: the same names and answers, whole messages, and runs that never open /proc."""

from __future__ import annotations

import inspect
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stoker.system import linux, portable

FORMS = pytest.mark.parametrize("form", [linux, portable], ids=["linux", "portable"])


def public(module: ModuleType) -> dict[str, Any]:
    """Each public function's signature, and the public numbers by name."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    functions = {name: str(inspect.signature(value)) for name, value in named.items() if _is_own(value)}
    return {**functions, **{name: "a number" for name, value in named.items() if isinstance(value, int)}}


def _is_own(value: Any) -> bool:
    return inspect.isfunction(value) and value.__module__.startswith("stoker.")


def test_both_have_the_same_names_and_signatures() -> None:
    names = public(portable)
    assert len(names) > 20
    assert names == public(linux)


def test_both_see_the_same_of_a_process() -> None:
    command = [sys.executable, "-c", "input()", "an argument"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, env={**os.environ, "MARKED": "yes"}, start_new_session=True) as child:
        seen = []
        for form in (linux, portable):
            stat = form.stat_of(child.pid)
            assert stat is not None and stat.state in "RS"
            assert b"\0MARKED=yes\0" in b"\0" + form.environment_of(child.pid)
            assert {child.pid, os.getpid()} <= form.pids() and child.pid in form.children_of(os.getpid())
            memory = form.memory_of(child.pid)
            assert memory is not None and memory[0] > 1 << 20
            names = form.command_of(child.pid), form.name_of(child.pid), len(form.threads_of(child.pid))
            seen.append((stat.parent, stat.session, *names, round(form.started_at(child.pid), 1)))
        assert seen[0] == seen[1]
        assert seen[0][:3] == (os.getpid(), child.pid, " ".join(command))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert [form.stat_of(child.pid).state for form in (linux, portable)] == ["Z", "Z"]  # type: ignore[union-attr]
    for form in (linux, portable):
        assert form.stat_of(child.pid) is None and not form.children_of(child.pid) and not form.name_of(child.pid)
        with pytest.raises(ProcessLookupError):
            form.started_at(child.pid)


@FORMS
def test_messages_arrive_whole_with_descriptors_and_the_end(form: Any, tmp_path: Path) -> None:
    here, there = form.packet_pair()
    other = form.packets(os.dup(there.fileno()))
    there.close()
    sizes = [1, 4091, 4092, 4093, 8188, 8189, 96 * 1024]
    with here, open(tmp_path / "given", "w+b") as file:
        sender = threading.Thread(target=lambda: [here.send(bytes([size % 251]) * size) for size in sizes])
        sender.start()
        assert [other.recv(96 * 1024) for _ in sizes] == [bytes([size % 251]) * size for size in sizes]
        sender.join()
        socket.send_fds(here, [b"x" * 5000], [file.fileno()])
        data, descriptors, _, _ = socket.recv_fds(other, 96 * 1024, 8)
        assert data == b"x" * 5000
        with open(descriptors[0], "wb") as given:
            given.write(b"through it")
        file.seek(0)  # the descriptors share it
        assert file.read() == b"through it"
        with pytest.raises(BlockingIOError):
            other.recv(96 * 1024, socket.MSG_DONTWAIT)
    assert other.recv(96 * 1024) == b"", "the other end is gone"
    other.close()


@FORMS
def test_each_message_goes_to_one_of_two_readers(form: Any) -> None:
    """A worker reads its jobs while the driver takes back what it has not read."""
    here, there = form.packet_pair()
    other = form.packets(os.dup(there.fileno()))
    drawn = random.Random(5)
    sent = [f"{number} ".encode() + b"." * drawn.randrange(form.MESSAGE_LIMIT // 2) for number in range(1500)]
    received: list[bytes] = []

    def read(end: socket.socket) -> None:
        while data := end.recv(96 * 1024):
            received.append(data)

    readers = [threading.Thread(target=read, args=(end,)) for end in (there, other)]
    for reader in readers:
        reader.start()
    for data in sent:
        here.send(data)
    here.close()
    for reader in readers:
        reader.join()
        assert not reader.is_alive()
    there.close()
    other.close()
    assert sorted(received) == sorted(sent)


WATCHED = """
import os
import sys

def watch(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if path.startswith(("/proc", "/sys/fs/cgroup")) and not path.startswith("/proc/driver/"):
            frame, files = sys._getframe(1), []
            while frame is not None:
                files.append(frame.f_code.co_filename)
                frame = frame.f_back
            stoker = next((file for file in files if "/stoker/" in file or "/psutil/" in file), "")
            if "/stoker/" in stoker:
                with open(os.environ["OPENED"], "a") as file:
                    file.write(f"{path} by {stoker}\\n")

sys.addaudithook(watch)
"""
"""A `sitecustomize`: notes what Stoker opens of /proc; psutil may, and who asks for drivers."""
PROGRAM = """
import subprocess
import sys

from stoker import context, log_metrics, pipeline, step

@step(retry=1)
def shaky(count: int) -> list:
    log_metrics({"loss": 0.5})
    print("attempt", context.attempt)
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
    if context.attempt == 1:
        raise ValueError("not yet")
    return list(range(count))

@step
def double(value: int) -> int:
    return 2 * value

@step
def total(values: list) -> int:
    return sum(values)

@pipeline
def chain(count: int = 4):
    total(double.map(shaky(count)))

if __name__ == "__main__":
    run = chain()
    print(run.status, run.steps["total"].outputs["output"].load())
"""


@pytest.mark.parametrize("form", ["linux", "portable"])
def test_a_run_opens_nothing_that_only_linux_has(form: str, project: Any) -> None:
    project.write({"watched/sitecustomize.py": WATCHED, "chain.py": PROGRAM})
    opened = project.folder / "opened"
    path = os.pathsep.join(filter(None, [str(project.folder / "watched"), os.environ.get("PYTHONPATH", "")]))
    env = {"STOKER_SYSTEM": form, "OPENED": str(opened), "PYTHONPATH": path}
    finished = project.run("chain.py", env=env)
    assert "succeeded 12" in finished.stdout
    logs = project.stoker("logs", "last", "shaky", env=env).stdout
    assert "attempt 2" in logs and "child" in logs
    for command in (["runs"], ["show", "last"], ["plan", "chain.py"], ["doctor"], ["devices"], ["top", "--json"]):
        project.stoker(*command, env=env, code=None)
    assert opened.exists() == (form == "linux"), opened.read_text()
