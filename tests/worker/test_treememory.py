"""The memory of trees of known sizes, as runs report it: by samples here, by cgroups where one may be made."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.distributed.conftest import HEAD, SPAWN
from tests.engine.conftest import Lab

from stoker.core.words import memory_text
from stoker.worker.containment import remove_empty, siblings
from stoker.worker.treememory import MemoryGroup

MB = 1_000_000
SCRIPT = (
    HEAD
    + """
import mmap
import subprocess

MB = 1_000_000
LAST = float(os.environ.get("LAST", 4))  # seconds: two intervals of 0.25 s, and time for a busy machine

def hold(size):
    data = bytearray(size)
    data[::4096] = b"x" * len(data[::4096])
    return data

CHILD = '''
import subprocess, sys, time
size, rest = int(sys.argv[2]), sys.argv[3:]
data = bytearray(size); data[::4096] = b"x" * len(data[::4096])
if rest: subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[1], *rest], check=True)
time.sleep(%s)
''' % LAST

def child(*sizes):
    subprocess.run([sys.executable, "-c", CHILD, CHILD, *map(str, sizes)], check=True)

def in_forks(*works):
    '''Forks that all hold what they made at one time, which lasts.'''
    there, ready = os.pipe()
    over, end = os.pipe()
    pids = []
    for work in works:
        if (pid := os.fork()) == 0:
            os.close(end)
            data = work()
            os.write(ready, b"x")
            os.read(over, 1)
            os._exit(0)
        pids.append(pid)
    for _ in works:
        os.read(there, 1)
    time.sleep(LAST)
    os.close(end)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)

@step(cache=False)
def itself(unit: int) -> None:
    hold(300 * unit)

@step(cache=False)
def child_alone(unit: int) -> None:
    child(300 * unit)

@step(cache=False)
def grandchildren(unit: int) -> None:
    data = hold(100 * unit)
    child(200 * unit, 300 * unit)

@step(cache=False)
def forks_that_share(unit: int) -> None:
    '''One copy of 300 MB for four processes, and 100 MB of each fork's own.'''
    data = hold(300 * unit)
    in_forks(*[lambda: hold(100 * unit)] * 3)

@step(cache=False)
def shared_memory(unit: int) -> None:
    '''What the workers of a loader write into memory that they share with the step: two pages of 200 MB.'''
    pages = [mmap.mmap(-1, 200 * unit + 4096) for _ in range(2)]
    def fill(page):
        for at in range(0, len(page), 4096):
            page[at] = 1
    in_forks(*[lambda page=page: fill(page) for page in pages])

@step(cache=False, launch=plain(2))
def two_ranks(unit: int) -> None:
    data = hold((300 + 100 * context.rank) * unit)
    meet("there")
    time.sleep(LAST)

@step(cache=False)
def small_after_large() -> None:
    '''In a worker that has held much before.'''

@step(cache=False)
def killed(unit: int) -> None:
    whole, held = os.pipe()
    if os.fork() == 0:
        data = hold(300 * unit)
        os.write(held, b"1")
        time.sleep(60)
    os.read(whole, 1)
    time.sleep(LAST)
    os.kill(os.getpid(), 9)

@step(cache=False)
def full() -> None:
    data = hold(200 * MB)
    raise MemoryError

@pipeline(failure_mode="continue", max_parallel=4)
def trees():
    for tree in (itself, child_alone, grandchildren, forks_that_share, shared_memory, two_ranks, killed):
        tree.map([0, MB])
    full()

@pipeline(max_parallel=1)
def one_worker():
    itself(MB)
    small_after_large()

if __name__ == "__main__":
    one_worker()
    trees()
"""
)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.write("spawn.py", SPAWN).write("trees.py", SCRIPT)
    lab.run("trees.py", code=1)
    yield lab
    lab.close()


@pytest.mark.parametrize(
    ("key", "megabytes"),
    [
        ("itself", 300),
        ("child_alone", 300),
        ("grandchildren", 600),
        ("forks_that_share", 600),
        ("shared_memory", 400),
        ("two_ranks", 700),
        ("killed", 300),
    ],
)
def test_what_a_known_tree_holds_is_counted_once_and_whole(trees: Lab, key: str, megabytes: int) -> None:
    """Within 5 percent, beside the same tree without data: that is what bare Python takes for its processes."""
    bare, full = (element.usage.peak_memory for element in trees["trees"].steps[key])
    assert full - bare == pytest.approx(megabytes * MB, rel=0.05)


def test_each_rank_has_a_peak_of_its_own(trees: Lab) -> None:
    bare, full = (element.usage.rank_peaks for element in trees["trees"].steps["two_ranks"])
    assert [full[rank] - bare[rank] for rank in (0, 1)] == pytest.approx([300 * MB, 400 * MB], rel=0.05)


def test_the_advice_after_a_full_memory_says_how_much_the_attempt_held(trees: Lab) -> None:
    step = trees["trees"].steps["full"]
    assert step.failure.cause == "host-oom"
    assert step.failure.advice.endswith(f"; this attempt held {memory_text(step.usage.peak_memory)} at most")


def test_a_step_does_not_inherit_the_peak_of_the_one_before_it(trees: Lab) -> None:
    steps = trees["one_worker"].steps
    assert steps["itself"].usage.peak_memory > 300 * MB > 3 * steps["small_after_large"].usage.peak_memory


GROUPED = """
import json, os, sys
from trees import MB, child_alone, forks_that_share, grandchildren, itself, shared_memory
from stoker.worker.containment import Containment
from stoker.worker.treememory import AttemptMemory, MemoryGroup, SharedPeak

if pid := os.fork():  # a worker is forked: a process that was started counts what its parent held
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
group = Containment.open("worker-" + sys.argv[1])
if group is None or not group.memory:
    raise SystemExit(77)
group.add(0)
assert MemoryGroup.of(os.getpid()) is not None
attempt, peaks = AttemptMemory(SharedPeak()), {}
for tree in (itself, child_alone, grandchildren, forks_that_share, shared_memory):
    for unit in (0, MB):
        attempt.begin()
        tree.function(unit)
        peaks.setdefault(tree.name, []).append(attempt.peak())
attempt.begin()
with open("cached", "wb") as file:
    file.write(os.urandom(300 * MB))
peaks["cached"] = attempt.peak()
print("PEAKS" + json.dumps(peaks))
"""


def test_a_cgroup_knows_the_peak_without_a_sample_and_without_the_page_cache(trees: Lab) -> None:
    """The trees once more, in a cgroup that nobody samples: their peaks may be as short as they like."""
    trees.write("grouped.py", GROUPED)
    name = f"test-{os.getpid()}"
    driver = trees.start("grouped.py", name, env={"LAST": "0.02"})
    words = driver.wait(None)
    for folder in siblings():
        if folder.endswith(name):
            remove_empty(folder)
    if driver.process.returncode == 77:
        pytest.skip("no cgroup of the memory controller can be made here")
    peaks = json.loads(words.partition("PEAKS")[2])
    cached = peaks.pop("cached")
    sizes = {"itself": 300, "child_alone": 300, "grandchildren": 600, "forks_that_share": 600, "shared_memory": 400}
    found = {key: full - bare for key, (bare, full) in peaks.items()}
    assert found == {key: pytest.approx(size * MB, rel=0.05) for key, size in sizes.items()}
    assert cached < 350 * MB, "the file's pages are the page cache's; its bytes were the process's once"


@pytest.mark.parametrize("stat", ["", "file 3\n", "anon max\n", "anon\n", "anon 1e3\n"])
def test_a_group_that_does_not_tell_its_memory_is_unknown(stat: str, tmp_path: Path) -> None:
    """https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files"""
    group = MemoryGroup(str(tmp_path))
    assert group.peak() is group.sizes() is None
    (tmp_path / "memory.peak").write_text("max\n")
    (tmp_path / "memory.stat").write_text(stat)
    assert group.peak() is group.sizes() is None
    (tmp_path / "memory.peak").write_text("4096\n")
    (tmp_path / "memory.stat").write_text("anon 10\nshmem 5\nactive_file 7\nslab_reclaimable 1\n")
    assert (group.peak(), group.sizes()) == (4096, (15, 8))
