"""cgroups, as far as this machine lets this user make them: what is in one cannot leave it, and is ended whole."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from stoker.devices import processtree
from stoker.worker.containment import ORDER, Containment

ESCAPES = """
import os, sys, time
for _ in range(2):  # twice a process in a session of its own, whose parent ends at once
    if os.fork():
        os._exit(0)
    os.setsid()
held = bytearray(os.urandom(1 << 20) * 64)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
while True:
    time.sleep(60)
"""


@pytest.fixture(params=ORDER, ids=["v2", "v1-freezer", "v1-pids"])
def group(request: pytest.FixtureRequest) -> Iterator[Containment]:
    opened = Containment.open(f"test-{os.getpid()}-{time.monotonic_ns()}", order=[request.param])
    if opened is None:
        pytest.skip("this user may not make a cgroup in this hierarchy")
    yield opened
    opened.end(10.0)
    opened.close()


def wait_for(path: str) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with open(path) as file:
                if text := file.read():
                    return int(text)
        except FileNotFoundError:
            time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def test_what_escapes_its_parent_does_not_escape_its_group(group: Containment, tmp_path: os.PathLike[str]) -> None:
    inner = Containment.open("inner", below=group)
    assert inner is not None
    told = os.path.join(tmp_path, "pid")
    subprocess.run(
        [sys.executable, "-c", ESCAPES, told], env={}, check=True, preexec_fn=lambda: inner.add(0), timeout=60
    )
    escaped = wait_for(told)
    assert group.processes() == inner.processes() == [escaped]
    assert group.end(30.0) == []
    assert not processtree.alive(escaped)
    group.close()
    assert not os.path.exists(group.folder) and not os.path.exists(inner.folder)
    inner.close()
    assert not inner.memory or not os.path.exists(inner.memory)


def test_without_the_right_to_make_one_there_is_none() -> None:
    assert Containment.open("test", order=()) is None


def test_a_process_of_an_outer_namespace_is_none_that_can_be_killed(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "cgroup.procs"), "w") as file:
        file.write("0\n4194999\n")  # the kernel lists a process as 0 that this namespace has no pid for
    assert Containment(os.fspath(tmp_path)).processes() == [4194999]
