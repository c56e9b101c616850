"""The local backend with real processes: what becomes of steps that end well, badly, or not at all."""

from __future__ import annotations

import os
import select
import signal
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Iterator

import psutil
import pytest

from stoker.backends.local.backend import LocalBackend
from stoker.core.graph import StepOutput
from stoker.core.plan import Job, JobStatus, LogLine, Site, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.settings import StepSettings
from stoker.store import artifacts
from stoker.store.blobs import Blobs
from stoker.worker.forked import ServerHandle

STEPS = """
import ctypes, logging, os, signal, subprocess, sys, time

def one(): return 1
def cycle(size):
    class Node: pass
    node = Node()
    node.me, node.data = node, bytearray(size)
    node.data[::4096] = bytes(len(node.data[::4096]))
def big(): return len(bytearray(300_000_000))
def plus(x): return x + 1
def pid(): return os.getpid()
def where(): return os.getcwd()
def move(): os.chdir("/")
def setting(name): return os.environ.get(name)
def set_it(name):
    os.environ[name] = "set by a step"
def talk():
    print("from python")
    os.system("echo from a child")
    ctypes.CDLL(None).puts(b"from C")
    sys.stderr.write("an error, no newline")
    logging.getLogger("mine").info("a record")
def name_of(x):
    print("element", x)
    return x
def leave(): os._exit(3)
def polite(): sys.exit(4)
def interrupted(): raise KeyboardInterrupt
def closes(descriptor):
    print("before")
    sys.stdout.flush()
    if descriptor:
        os.close(descriptor)
    else:
        sys.stdout.close()
def redirects(path):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 1)
    print("kept by the step", flush=True)
def replaces(path):
    print("half a line", end="")
    sys.stdout = open(path, "w")
    print("kept by the step")
def detaches(): sys.stdout.detach()
def fall(): ctypes.string_at(0)
def killed():
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
def raises(): return 1 / 0
def lock():
    import threading
    return threading.Lock()
def offspring():
    child = subprocess.Popen(["sleep", "300"])
    stray = subprocess.Popen(["sleep", "300"], start_new_session=True)
    return [child.pid, stray.pid]
def long():
    try:
        print("begun", flush=True)
        time.sleep(300)
    finally:
        print("cleaned up")
def stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    print(child.pid, flush=True)
    while True:
        time.sleep(1)
def slow(x):
    time.sleep(0.3 if x == 0 else 0)
    return x
def loud(lines):
    for number in range(lines):
        print(number, "x" * 90)
def random_number():
    import random
    return random.random()
def dies_at_first(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os._exit(9)
    return "alive"
"""


class Place:
    """A backend and short words for using it."""

    def __init__(self, folder: Path) -> None:
        (folder / "worksteps.py").write_text(textwrap.dedent(STEPS))
        self.folder = folder
        self.blobs = Blobs(str(folder / "artifacts"))
        self.source = FunctionSource(kind="module", module="worksteps", qualname="one", root=str(folder))
        site = Site(
            artifacts=self.blobs.uri,
            scratch=str(folder / "scratch"),
            path=tuple(sys.path),
            folder=str(folder),
            sources=(self.source,),
        )
        self.backend = LocalBackend(site, {"cpus": 2})
        self.lines: dict[str, list[LogLine]] = {}
        self.count = 0

    def submit(self, name: str, /, *, marked: bool = False, behind: bool = False, **inputs: Any) -> str:
        return self.submit_with(StepSettings(), name, marked=marked, behind=behind, **inputs)

    def submit_with(
        self, settings: StepSettings, name: str, /, *, marked: bool = False, behind: bool = False, **inputs: Any
    ) -> str:
        self.count += 1
        source = FunctionSource(kind="module", module="worksteps", qualname=name, root=str(self.folder))
        silent = ("cycle", "move", "set_it", "talk", "loud", "closes", "redirects", "replaces", "detaches")
        outputs = () if name in silent else (StepOutput(name="output"),)
        step = StepPlan(
            key=f"{name}-{settings.isolation}",
            name=name,
            source=source,
            outputs=outputs,
            unpack=False,
            inputs={},
            settings=settings,
            backend="orchestrator",
            code="",
        )
        trees = {key: {"value": artifacts.save(value, self.blobs).wire()} for key, value in inputs.items()}
        job = Job(
            name=f"run/{name}/{self.count}",
            run="run",
            key=name,
            attempt=1,
            step=step,
            inputs=trees,
            marked=marked,
            behind=behind,
        )
        return self.backend.submit(job)

    def poll(self) -> dict[str, JobStatus]:
        select.select(list(self.backend.wakeups()), [], [], 30)
        news = dict(self.backend.poll(()))
        for job, status in news.items():
            self.lines.setdefault(job, []).extend(status.lines)
        return {job: status for job, status in news.items() if status.state != "running"}

    def ended(self, *jobs: str) -> list[JobStatus]:
        over: dict[str, JobStatus] = {}
        deadline = time.monotonic() + 60
        while set(jobs) - set(over):
            assert time.monotonic() < deadline, f"never ended: {set(jobs) - set(over)}"
            over.update(self.poll())
        return [over[job] for job in jobs]

    def begun(self, job: str) -> None:
        """Wait until a job has written something."""
        deadline = time.monotonic() + 60
        while not self.lines.get(job):
            assert time.monotonic() < deadline, f"{job} never began"
            self.poll()

    def result(self, name: str, /, **inputs: Any) -> JobStatus:
        return self.ended(self.submit(name, **inputs))[0]

    def value(self, status: JobStatus) -> Any:
        assert status.result is not None
        assert status.result.ok, status.result
        from stoker.core.artifact import from_wire

        return artifacts.load(from_wire(status.result.outputs["output"]), self.blobs)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One backend, whose fork server has imported the steps once, for all tests that leave it as it is."""
    made = Place(tmp_path_factory.mktemp("place"))
    yield made
    made.backend.close()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Place]:
    """A backend for a test that ends its processes or counts them."""
    made = Place(tmp_path)
    yield made
    made.backend.close()


def gone(pid: int) -> bool:
    """Whether a process is no more; a zombie that init has yet to reap counts as gone."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.01)
    return False


def test_steps_share_a_warm_worker_that_is_not_the_driver(place: Place) -> None:
    first, second = place.value(place.result("pid")), place.value(place.result("pid"))
    assert first == second != os.getpid()


def test_a_fresh_step_has_a_process_of_its_own(place: Place) -> None:
    settings = StepSettings(isolation="fresh")
    pids = [place.value(place.ended(place.submit_with(settings, "pid"))[0]) for _ in range(2)]
    assert pids[0] != pids[1]
    assert all(gone(pid) for pid in pids)


def test_two_jobs_at_once_get_two_workers(place: Place) -> None:
    both = place.ended(place.submit("pid"), place.submit("pid"))
    assert place.value(both[0]) != place.value(both[1])


def test_submitting_the_same_name_twice_starts_it_once(place: Place) -> None:
    job = place.submit("long")
    place.count -= 1
    assert place.submit("long") == job
    place.backend.cancel(job, grace=0)
    assert len(place.ended(job)) == 1


def test_output_of_python_children_and_c_is_taken_line_by_line_with_time(place: Place) -> None:
    before = time.time()
    job = place.submit("talk")
    place.ended(job)
    lines = place.lines[job]
    assert sorted((line.stream, line.text) for line in lines) == [
        ("stderr", "an error, no newlineINFO mine: a record"),
        ("stdout", "from C"),
        ("stdout", "from a child"),
        ("stdout", "from python"),
    ]
    assert all(before <= line.time <= time.time() for line in lines)


def test_lines_belong_to_the_element_that_wrote_them(place: Place) -> None:
    jobs = [place.submit("name_of", marked=True, behind=number > 0, x=number) for number in range(40)]
    place.ended(*jobs)
    for number, job in enumerate(jobs):
        assert [line.text for line in place.lines[job]] == [f"element {number}"]


def test_a_hundred_thousand_lines_arrive_whole_and_in_order(place: Place) -> None:
    job = place.submit("loud", lines=100_000)
    place.ended(job)
    assert [int(line.text.split()[0]) for line in place.lines[job]] == list(range(100_000))


def test_a_step_cannot_bend_the_next_one(place: Place) -> None:
    place.result("move")
    assert place.value(place.result("where")) == str(place.folder)
    place.result("set_it", name="STOKER_TEST_BENT")
    assert place.value(place.result("setting", name="STOKER_TEST_BENT")) is None


@pytest.mark.parametrize(
    ("name", "inputs", "marked"),
    [
        ("closes", {"descriptor": 0}, False),
        ("closes", {"descriptor": 1}, True),
        ("closes", {"descriptor": 2}, False),
        ("redirects", {"path": "kept.txt"}, True),
        ("redirects", {"path": "kept.txt"}, False),
        ("replaces", {"path": "kept.txt"}, True),
        ("detaches", {}, False),
    ],
)
def test_a_step_that_closes_or_redirects_its_output_keeps_it_from_no_other(
    place: Place, name: str, inputs: dict[str, Any], marked: bool
) -> None:
    first = place.submit(name, marked=marked, **inputs)
    others = [place.submit("talk", marked=marked, behind=True) for _ in range(2)]
    place.ended(first, *others)
    for other in others:
        texts = {line.text for line in place.lines[other]}
        assert texts == {"an error, no newlineINFO mine: a record", "from C", "from a child", "from python"}
    if "path" in inputs:
        assert Path(place.folder, inputs["path"]).read_text() == "kept by the step\n"
    if name in ("closes", "replaces"):
        assert [line.text for line in place.lines[first]] == ["before" if name == "closes" else "half a line"]


def test_what_a_step_leaves_in_cycles_is_not_the_next_ones_memory(fresh: Place) -> None:
    peaks = []
    for name, inputs in (("one", {}), ("cycle", {"size": 200_000_000}), ("one", {})):
        status = fresh.result(name, **inputs)
        assert status.usage.peak is not None
        peaks.append(status.usage.peak)
    assert peaks[1] > 200_000_000 and peaks[2] < peaks[0] + 50_000_000


def test_the_environment_asked_for_is_the_steps_alone(place: Place) -> None:
    settings = StepSettings(environment={"STOKER_TEST_ASKED": "yes"})
    job = place.submit_with(settings, "setting", name="STOKER_TEST_ASKED")
    assert place.value(place.ended(job)[0]) == "yes"
    assert place.value(place.result("pid")) and "STOKER_TEST_ASKED" not in os.environ


def test_workers_do_not_draw_the_same_random_numbers(place: Place) -> None:
    both = place.ended(place.submit("random_number"), place.submit("random_number"))
    assert place.value(both[0]) != place.value(both[1])


@pytest.mark.parametrize(("name", "code"), [("leave", 3), ("fall", -signal.SIGSEGV), ("killed", -signal.SIGKILL)])
def test_a_process_that_dies_is_a_failed_job_and_the_next_one_runs(place: Place, name: str, code: int) -> None:
    job = place.submit(name)
    (status,) = place.ended(job)
    assert (status.state, status.exit_code, status.result) == ("failed", code, None)
    if name == "killed":
        assert [line.text for line in place.lines[job]] == ["last words"]
    assert place.value(place.result("one")) == 1


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("raises", "user-error", "division by zero"),
        ("polite", "exited", "sys.exit(4)"),
        ("interrupted", "exited", "KeyboardInterrupt"),
        ("lock", "unserializable", "lock"),
        ("absent", "import-error", "absent"),
    ],
)
def test_what_goes_wrong_inside_is_named(place: Place, name: str, cause: str, words: str) -> None:
    status = place.result(name)
    assert status.result is not None
    assert (status.state, status.cause) == ("failed", cause)
    assert words in status.result.error.message
    if name == "raises":
        text = status.result.error.traceback
        assert "return 1 / 0" in text and "worker/worker.py" not in text, "the user's lines alone"


def test_children_that_outlive_the_step_are_ended_with_it(place: Place) -> None:
    status = place.result("offspring")
    pids = place.value(status)
    assert status.result is not None and status.result.left == 2
    assert all(gone(pid) for pid in pids)
    assert place.value(place.result("one")) == 1


def test_cancel_lets_the_step_clean_up(place: Place) -> None:
    job = place.submit("long")
    place.begun(job)
    place.backend.cancel(job, grace=20)
    assert place.ended(job)[0].state == "failed"
    assert [line.text for line in place.lines[job]] == ["begun", "cleaned up"]


def test_cancel_ends_what_does_not_listen_with_all_its_children(place: Place) -> None:
    job = place.submit("stubborn")
    place.begun(job)
    child = int(place.lines[job][0].text)
    place.backend.cancel(job, grace=0.2)
    status = place.ended(job)[0]
    assert status.exit_code == -signal.SIGKILL
    assert gone(child)


def test_cancelling_twice_or_too_late_is_fine(place: Place) -> None:
    job = place.submit("one")
    place.ended(job)
    place.backend.cancel(job, grace=0)
    place.backend.cancel("run/never/1", grace=0)
    assert place.value(place.result("one")) == 1


def test_short_jobs_stand_in_line_and_idle_workers_take_over(fresh: Place) -> None:
    jobs = [fresh.submit("slow", marked=True, x=0), fresh.submit("slow", marked=True, x=1)]
    jobs += [fresh.submit("slow", marked=True, behind=True, x=number) for number in range(2, 30)]
    results = fresh.ended(*jobs)
    assert [fresh.value(status) for status in results] == list(range(30))
    assert len(fresh.backend._workers) == 2


def test_jobs_in_line_behind_one_that_dies_are_lost_not_failed(place: Place) -> None:
    marker = str(place.folder / "marker")
    first = place.submit("dies_at_first", marked=True, path=marker)
    others = [place.submit("plus", marked=True, behind=True, x=number) for number in range(5)]
    statuses = place.ended(first, *others)
    assert statuses[0].exit_code == 9
    assert all(status.lost or status.state == "succeeded" for status in statuses[1:])


def test_a_job_in_line_can_be_cancelled_alone(place: Place) -> None:
    first = place.submit("slow", marked=True, x=0)
    second = place.submit("slow", marked=True, behind=True, x=2)
    third = place.submit("slow", marked=True, behind=True, x=3)
    place.backend.cancel(second, grace=5)
    statuses = place.ended(first, second, third)
    assert [status.state for status in statuses] == ["succeeded", "failed", "succeeded"]
    assert statuses[1].cause == "cancelled"


def test_a_job_too_big_for_a_message_goes_through_a_file(place: Place) -> None:
    inputs = {f"x{number}": "y" * 4000 for number in range(100)}
    status = place.result("many", **inputs)
    assert status.cause == "import-error", "it arrived whole: only the function is missing"
    assert not list((place.folder / "scratch").glob("message-*"))


def forks(server: ServerHandle) -> int:
    """The pid of the fork server; the handle's own is that of the supervisor above it."""
    (child,) = psutil.Process(server.pid).children()
    return int(child.pid)


@pytest.mark.parametrize("victim", ["supervisor", "fork server"])
def test_losing_the_fork_server_loses_what_ran_and_nothing_else(fresh: Place, victim: str) -> None:
    job = fresh.submit("long")
    fresh.begun(job)
    server = fresh.backend._servers.get("", None, clean=False)
    assert server is not None
    os.kill(server.pid if victim == "supervisor" else forks(server), signal.SIGKILL)
    status = fresh.ended(job)[0]
    assert status.cause == "worker-lost"
    assert fresh.value(fresh.result("one")) == 1


def test_a_fork_server_that_went_away_unseen_is_replaced(fresh: Place) -> None:
    fresh.result("one")
    server = fresh.backend._servers.get("", None, clean=False)
    assert server is not None
    for line in list(fresh.backend._workers.values()):
        fresh.backend._idle.remove(line)  # so that the next job needs another worker
    pid = forks(server)
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)
    assert fresh.value(fresh.result("plus", x=1)) == 2
    assert fresh.backend._servers.get("", None, clean=False) is not server


def test_closing_ends_every_process(fresh: Place) -> None:
    fresh.submit("stubborn")
    job = fresh.submit("pid")
    pid = fresh.value(fresh.ended(job)[0])
    server = fresh.backend._servers.get("", None, clean=False)
    assert server is not None
    children = psutil.Process(server.pid).children(recursive=True)
    fresh.backend.close()
    assert children and all(gone(child.pid) for child in children)
    assert gone(pid)
    fresh.backend = LocalBackend(fresh.backend._site, {})


def test_peak_memory_is_the_steps_own(fresh: Place) -> None:
    big, small = fresh.result("big"), fresh.result("one")
    assert big.usage.peak > 300_000_000 > small.usage.peak > 1_000_000
