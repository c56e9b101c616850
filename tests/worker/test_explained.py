"""How an attempt's end becomes an explanation, and what the kernel's counters and log add to it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from stoker.core.protocol import StepError
from stoker.worker import kernel
from stoker.worker.failure import Ending, describe_exception, explain_failure, explanation_lines
from stoker.worker.kernel import KernelLog, OomKills, candidates, evidence, kills_in, telling

OOM = "the kernel's oom_kill counter in /sys/fs/cgroup/memory.events rose from 0 to 1 while the step ran"


def error(text: str, *because: str) -> StepError:
    kind, _, message = text.partition(": ")
    return StepError(type=kind, message=message, because=because)


NATIVE = {
    # Python before 3.14: glibc's words, before faulthandler's.
    "libc.so.6 (abort+0xd3), called by libtorch_cpu.so (_ZN3c106detail14torchCheckFailEPKc+0x5b)": [
        "/usr/lib/libc.so.6(+0x8aeec)[0x7f3233ca8eec]",
        "/usr/lib/libc.so.6(gsignal+0x12)[0x7f3233c59fb2]",
        "/usr/lib/libc.so.6(abort+0xd3)[0x7f3233c44472]",
        "/usr/lib/libstdc++.so.6(+0xae20c)[0x7f3233efa82d]",
        "/v/site-packages/torch/lib/libtorch_cpu.so(_ZN3c106detail14torchCheckFailEPKc+0x5b)[0x7f3233fa75a2]",
        "Fatal Python error: Aborted",
    ],
    # From 3.14 on: faulthandler's own, after the frames of Python.
    "lookup.so (+0x11a9)": [
        "Fatal Python error: Segmentation fault",
        "Current thread's C stack trace (most recent call first):",
        '  Binary file "/usr/bin/python3.14", at _Py_DumpStack+0x42 [0x64da2f]',
        '  Binary file "/usr/bin/python3.14", at +0x1c5a4d [0x6a1b40]',
        '  Binary file "/usr/lib/libc.so.6", at +0x3c050 [0x7f1c3a]',
        '  Binary file "/v/lookup.so", at +0x11a9 [0x7f1c40]',
        "  <truncated rest of calls>",
    ],
}


@pytest.mark.parametrize("native", NATIVE)
def test_the_library_that_failed_is_named(native: str) -> None:
    deep = [f'  File "/v/site-packages/torch/nn/module.py", line {number} in forward' for number in range(90)]
    found = explain_failure(StepError(), [*NATIVE[native], *deep], Ending(signal=signal.SIGSEGV))
    assert found.evidence.endswith(f"; native: {native}")


def test_what_is_unknown_stays_the_steps_own() -> None:
    found = explain_failure(
        error("ValueError: no"), ["CUDA out of memory. Tried to allocate 1 GiB"], Ending(cause="user-error")
    )
    assert (found.cause, found.advice, found.evidence, found.retryable) == ("user-error", "", "", "here")


@pytest.mark.parametrize(
    ("ending", "cause", "words"),
    [
        (Ending(signal=signal.SIGSEGV), "crashed", "SIGSEGV"),
        (Ending(code=128 + signal.SIGABRT), "crashed", "SIGABRT"),
        (Ending(signal=signal.SIGKILL), "killed", "SIGKILL"),
        (Ending(code=137), "killed", "SIGKILL"),
        (Ending(code=143), "killed", "SIGTERM"),
        (Ending(code=3), "exited", "exit code 3"),
        (Ending(code=130), "exited", "exit code 130"),
        (Ending(code=0), "exited", "exit code 0"),
    ],
)
def test_how_a_process_ended(ending: Ending, cause: str, words: str) -> None:
    found = explain_failure(StepError(), [], ending)
    assert found.cause == cause and words in found.sentence and found.advice


@pytest.mark.parametrize(
    "cause", ["cancelled", "timed-out", "refused", "host-oom", "preempted", "input-error", "worker-lost"]
)
def test_a_cause_that_says_all_is_kept(cause: str) -> None:
    lines = ["nothing"] if cause in ("input-error", "worker-lost") else ["MemoryError"]
    found = explain_failure(StepError(), lines, Ending(cause=cause, message="as the platform says"))
    assert (found.cause, found.sentence) == (cause, "as the platform says")


def test_an_error_of_ours_brings_its_own_advice() -> None:
    ours = error("SerializationError: a lock cannot be kept\n  fix: return data")
    found = explain_failure(ours, [], Ending(cause="unserializable"))
    assert (found.cause, found.advice, found.retryable) == ("unserializable", "", "never")


def test_the_oom_killer_is_told_from_another_kill() -> None:
    assert explain_failure(StepError(), [], Ending(signal=signal.SIGKILL)).cause == "killed"
    kernel = ("Memory cgroup out of memory: Killed process 4242 (python3) total-vm:623712kB, anon-rss:506500kB",)
    found = explain_failure(StepError(), [], Ending(signal=signal.SIGKILL, oom=OOM, kernel=kernel))
    assert (found.cause, found.retryable) == ("host-oom", "elsewhere")
    assert found.evidence == f"{OOM}; {kernel[0]}" and "resources.memory" in found.advice
    assert explain_failure(StepError(), [], Ending(signal=signal.SIGTERM, oom=OOM)).cause == "killed"
    assert explain_failure(StepError(), [], Ending(signal=signal.SIGSEGV, oom=OOM)).cause == "crashed"
    assert "dmesg" not in explain_failure(StepError(), [], Ending(signal=signal.SIGTERM)).advice


def test_a_child_that_the_oom_killer_ended_is_out_of_memory() -> None:
    text = error(
        "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
    )
    assert explain_failure(text, [], Ending(cause="user-error")).cause == "killed"
    assert explain_failure(text, [], Ending(cause="user-error", oom=OOM)).cause == "host-oom"


def test_what_an_exception_was_raised_from_counts() -> None:
    try:
        try:
            raise OSError(28, "No space left on device", "model.pt")
        except OSError as full:
            raise RuntimeError("saving failed") from full
    except RuntimeError as caught:
        document = describe_exception(caught)
    assert document.because == ("OSError: [Errno 28] No space left on device: 'model.pt'",)
    assert explain_failure(document, [], Ending(cause="user-error")).cause == "disk-full"


def test_an_exception_without_words_is_its_own_evidence() -> None:
    document = describe_exception(MemoryError())
    found = explain_failure(document, [], Ending(cause="user-error"))
    assert (found.cause, found.evidence) == ("host-oom", "MemoryError")


def test_what_was_only_handled_before_does_not() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise ValueError("a bug in the clean-up")  # noqa: B904
    except ValueError as caught:
        document = describe_exception(caught)
    assert not document.because
    assert explain_failure(document, [], Ending(cause="user-error")).cause == "user-error"


def test_a_chain_without_end_is_cut() -> None:
    first = error_ = ValueError("0")
    for number in range(1, 50):
        error_.__cause__ = ValueError(str(number))
        error_ = error_.__cause__  # type: ignore[assignment]
    error_.__cause__ = first
    assert len(describe_exception(first).because) == 8


def test_of_a_process_below_the_step_the_log_tells() -> None:
    text = error("subprocess.CalledProcessError: Command 'torchrun train.py' returned non-zero exit status 1.")
    lines = ["[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    assert explain_failure(text, lines, Ending(cause="user-error")).cause == "gpu-oom"


def test_a_hardware_fault_outweighs_what_it_looks_like() -> None:
    text = error("RuntimeError: CUDA error: unspecified launch failure")
    xid = "NVRM: Xid (PCI:0000:05:00): 79, pid=77, name=python, GPU has fallen off the bus."
    assert explain_failure(text, [], Ending(cause="user-error")).cause == "illegal-memory-access"
    found = explain_failure(text, [], Ending(cause="user-error", kernel=(xid,)))
    assert (found.cause, found.retryable, found.evidence) == ("gpu-hardware", "elsewhere", xid)
    assert explain_failure(error("ValueError: no"), [], Ending(cause="user-error", kernel=(xid,))).cause == "user-error"


def test_what_is_shown_is_not_said_twice() -> None:
    assert explanation_lines(why="a", advice="b", evidence="c", body="x c x") == "  why: a\n  fix: b\n"
    assert explanation_lines(why="", advice="", evidence="") == ""


# The kernel's counters

V1 = """\
36 35 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 35 0:33 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
38 35 0:34 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
"""
V2 = "30 24 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
DOCKER_V1 = "36 35 0:32 /docker/12ab /sys/fs/cgroup/memory ro,relatime master:15 - cgroup cgroup rw,memory\n"


@pytest.mark.parametrize(
    ("membership", "mounts", "first"),
    [
        ("0::/user.slice/session-1.scope\n", V2, "/sys/fs/cgroup/user.slice/session-1.scope/memory.events"),
        ("0::/\n", V2, "/sys/fs/cgroup/memory.events"),
        ("4:memory:/jobs/7\n3:cpu,cpuacct:/\n0::/\n", V1, "/sys/fs/cgroup/memory/jobs/7/memory.oom_control"),
        ("4:memory:/docker/12ab\n", DOCKER_V1, "/sys/fs/cgroup/memory/memory.oom_control"),
        ("4:memory:/docker/12ab/worker\n", DOCKER_V1, "/sys/fs/cgroup/memory/worker/memory.oom_control"),
        ("", "", None),
        ("garbage\n\n", "also - garbage\n", None),
    ],
)
def test_where_the_counter_is(membership: str, mounts: str, first: str | None) -> None:
    assert next(iter(candidates(membership, mounts)), None) == first


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 0\n", 3),
        ("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", 2),
        ("nr_free_pages 12\noom_kill 7\n", 7),
        ("oom_kill_disable 0\nunder_oom 0\n", None),  # before Linux 4.13
        ("", None),
    ],
)
def test_what_the_counter_says(text: str, count: int | None) -> None:
    assert kills_in(text) == count


def test_evidence_names_its_source() -> None:
    assert evidence("/c/memory.events", 1, 1) == ""
    assert "in /c/memory.events rose from 1 to 3" in evidence("/c/memory.events", 1, 3)
    assert "any process" in evidence("/proc/vmstat", 0, 1)


def test_a_kill_explains_one_end_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "memory.events"
    file.write_text("oom_kill 5\n")
    monkeypatch.setattr(kernel, "FRESH", 0.0)
    kills = OomKills(str(file))
    before = kills.now()
    assert before == 5 and kills.since(before) == ""
    file.write_text("oom_kill 7\n")
    assert "from 5 to 7" in kills.since(before)
    assert "from 6 to 7" in kills.since(before)
    assert kills.since(before) == ""
    file.write_text("oom_kill 8\n")
    assert kills.since(kills.now()) == "" and kills.since(7)


def test_without_counters_nothing_is_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "text_of", lambda path: "")
    kills = OomKills()
    assert kills.now() is None and kills.since(kills.now()) == "" and kills.since(0) == ""


# The kernel's log

RECORDS = [
    "6,1,1000000,-;NVRM: Xid (PCI:0000:05:00): 13, pid=1\n",
    "6,2,5000000,-;Memory cgroup out of memory: Killed process 7 (python)\n SUBSYSTEM=x\n",
    "6,3,6000000,-;usb 1-1: new device\n",
    "nonsense",
]


def test_the_telling_lines_of_the_kernels_log() -> None:
    assert telling(RECORDS, 0.5) == [
        "NVRM: Xid (PCI:0000:05:00): 13, pid=1",
        "Memory cgroup out of memory: Killed process 7 (python)",
    ]
    assert telling(RECORDS, 2.0) == ["Memory cgroup out of memory: Killed process 7 (python)"]


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    now = time.time()
    for log in (KernelLog(str(tmp_path / "missing")), KernelLog(str(tmp_path))):
        log.look(now)
        assert log.since(now) == [] and log.since(now - 10.0) == []


@pytest.mark.parametrize("skew", [-100.0, 0.0, 100.0])
def test_a_line_of_the_log_belongs_to_the_attempts_that_had_begun(tmp_path: Path, skew: float) -> None:
    """Whatever the kernel's clock says: the XID of an attempt does not explain the end of the next one."""
    path = tmp_path / "kmsg"
    number = 0

    def logged(text: str) -> None:
        nonlocal number
        number += 1
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"6,{number},{max(0, int((time.monotonic() + skew) * 1e6))},-;{text}\n")

    logged("NVRM: Xid (PCI:0000:05:00): 79, pid=1")
    log = KernelLog(str(path))
    first = time.time()
    log.look(first)
    assert log.since(first) == []
    logged("NVRM: Xid (PCI:0000:05:00): 13, pid=2")
    assert log.since(first) == ["NVRM: Xid (PCI:0000:05:00): 13, pid=2"]
    logged("NVRM: Xid (PCI:0000:05:00): 31, pid=2")
    second = time.time()
    log.look(second)
    assert log.since(second) == []
    logged("NVRM: Xid (PCI:0000:05:00): 43, pid=3")
    assert log.since(second) == ["NVRM: Xid (PCI:0000:05:00): 43, pid=3"]
    assert [line[28:30] for line in log.since(first)] == ["13", "31", "43"]


def test_the_lines_of_an_attempt_of_an_earlier_driver(tmp_path: Path) -> None:
    """They were logged before this driver could read: the kernel's own times are all there is."""
    path = tmp_path / "kmsg"
    path.write_text(f"6,1,{int(time.monotonic() * 1e6)},-;NVRM: Xid (PCI:0000:05:00): 79, pid=1\n")
    log = KernelLog(str(path))
    assert log.since(time.time() - 5.0) == ["NVRM: Xid (PCI:0000:05:00): 79, pid=1"]
