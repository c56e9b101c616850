"""Failures as they happen: real processes, real frameworks, and a real control group where one can be made."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from stoker.worker.kernel import candidates, kills_in, text_of


def torch_is_for_cpus() -> bool:
    """Asked of the package's data: importing torch here would cost every later test's processes its memory."""
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


STEPS = """
import ctypes, os, resource, signal, socket, subprocess, sys, time
from datetime import timedelta

import torch
from torch.utils.data import DataLoader

from stoker import pipeline, step
from stoker.config import Retry

OOM = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.78 GiB of which 1 GiB is free."

@step
def gpu_oom() -> int:
    raise torch.cuda.OutOfMemoryError(OOM)

@step
def wrapped_gpu_oom() -> int:
    try:
        raise torch.OutOfMemoryError(OOM)
    except RuntimeError as error:
        raise ValueError("training failed") from error

@step
def no_gpu_build() -> int:
    return torch.zeros(1).cuda()

@step(isolation="fresh")
def memory_error() -> int:
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, -1))
    return len(bytearray(500_000_000))

@step
def torch_cpu() -> int:
    return torch.empty(10**15)

class Deadly(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.kill(os.getpid(), 9)

@step
def loader() -> int:
    return len(list(DataLoader(Deadly(), num_workers=1)))

@step
def loader_unseen() -> int:
    "As `loader`, where torch looks for its worker before it hears of the worker's end, as on a busy machine."
    batches = iter(DataLoader(Deadly(), num_workers=1))
    type(batches)._try_get_data.__defaults__ = (0.1,)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        return len(list(batches))
    finally:
        signal.signal(signal.SIGCHLD, handler)

@step
def loader_reset() -> int:
    "As `loader`, where the socket of a worker that is killed is seen to close before the worker ends."
    class Dying(Deadly):
        def __getitem__(self, index):
            open("dying", "w").close()
            time.sleep(0.2)
            super().__getitem__(index)
    batches = iter(DataLoader(Dying(), num_workers=1))
    def reset(timeout):
        while not os.path.exists("dying"):
            time.sleep(0.01)
        raise ConnectionResetError(104, "Connection reset by peer")
    batches._data_queue.get = reset
    return len(list(batches))

@step
def disk_full() -> int:
    with open("/dev/full", "w") as file:
        file.write("x")

@step
def module_missing() -> int:
    import a_module_that_nobody_has_installed

@step
def library_missing() -> int:
    ctypes.CDLL("libnobodyhasthis.so.7")

@step
def too_few_ranks() -> int:
    torch.distributed.TCPStore("127.0.0.1", 0, 2, True, timeout=timedelta(seconds=1))

@step
def port_in_use() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        torch.distributed.TCPStore("127.0.0.1", holder.getsockname()[1], 1, True, timeout=timedelta(seconds=1))

@step
def printed_and_left() -> int:
    print("Traceback (most recent call last):\\n  …\\ntorch.OutOfMemoryError: " + OOM, file=sys.stderr)
    sys.exit(1)

@step
def below_the_step() -> int:
    program = "raise MemoryError('no room for the index')"
    subprocess.run([sys.executable, "-c", program], check=True)

@step
def watchdog() -> int:
    print("[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation timeout: "
          "WorkNCCL(SeqNum=1, OpType=BROADCAST, Timeout(ms)=600000) ran for 600081 milliseconds before timing out.",
          flush=True)
    os.abort()

@step
def terminated() -> int:
    subprocess.run(["kill", "-TERM", str(os.getpid())])
    time.sleep(60)

@step
def killed() -> int:
    subprocess.run(["kill", "-KILL", str(os.getpid())])
    time.sleep(60)

@step(retry=2)
def not_again() -> int:
    import a_module_that_nobody_has_installed

@step(retry=Retry(1, on="import-error"))
def again_by_name() -> int:
    import a_module_that_nobody_has_installed

@step(retry=Retry(1, on=["gpu-oom"]))
def again_after_gpu_oom() -> int:
    raise torch.OutOfMemoryError(OOM)

@step
def own() -> int:
    raise ValueError("no room for doubt")

@pipeline(failure_mode="continue")
def failures():
    for one in (gpu_oom, wrapped_gpu_oom, no_gpu_build, memory_error, torch_cpu, loader, loader_unseen, loader_reset,
                disk_full, module_missing, library_missing, too_few_ranks, port_in_use, printed_and_left,
                below_the_step, watchdog, terminated, killed, not_again, again_by_name, again_after_gpu_oom, own):
        one()

if __name__ == "__main__":
    failures()
"""

CAUSES = {
    "gpu_oom": "gpu-oom",
    "wrapped_gpu_oom": "gpu-oom",
    "no_gpu_build": "no-gpu-build",
    "memory_error": "host-oom",
    "torch_cpu": "host-oom",
    "loader": "killed",
    "loader_unseen": "killed",
    "loader_reset": "killed",
    "disk_full": "disk-full",
    "module_missing": "import-error",
    "library_missing": "import-error",
    "too_few_ranks": "rendezvous",
    "port_in_use": "port-in-use",
    "printed_and_left": "gpu-oom",
    "below_the_step": "host-oom",
    "watchdog": "nccl-timeout",
    "terminated": "killed",
    "killed": "killed",
    "not_again": "import-error",
    "again_by_name": "import-error",
    "again_after_gpu_oom": "gpu-oom",
    "own": "user-error",
}


class Live:
    """The run, what it said, and what `stoker show` says of it."""

    def __init__(self, run: Any, said: str, shown: str) -> None:
        self.run = run
        self.said = said
        self.shown = shown

    def failure(self, key: str) -> Any:
        return self.run.steps[key].attempts[-1].failure


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Every failure above, in one run."""
    import stoker

    if not torch_is_for_cpus():
        pytest.skip("no torch, or one that was built for GPUs and fails in other words here")
    folder = tmp_path_factory.mktemp("live")
    (folder / "steps.py").write_text(STEPS)
    env = {**os.environ, "STOKER_HOME": str(folder / "home"), "PYTHONPATH": str(folder)}
    said = subprocess.run(
        [sys.executable, "steps.py"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert said.returncode == 1, said.stderr
    program = str(Path(sys.executable).with_name("stoker"))
    shown = subprocess.run(
        [program, "show", "latest"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOKER_HOME", str(folder / "home"))
        client = stoker.Client()
        run = client.runs()[0]
        run.steps["own"].attempts  # noqa: B018 opened here, while the variable is set
    yield Live(run, said.stderr, shown.stdout + shown.stderr)
    client.close()


@pytest.mark.parametrize("key", CAUSES)
def test_a_real_failure_has_its_cause(live: Live, key: str) -> None:
    failure = live.failure(key)
    assert failure.cause == live.run.steps[key].cause == CAUSES[key], failure


def test_the_advice_is_kept_shown_and_below_the_traceback(live: Live) -> None:
    failure = live.failure("gpu_oom")
    assert "smaller batch" in failure.advice and failure.retryable == "elsewhere"
    assert failure.why == "the GPU had less memory left than the step asked for"
    for text in (live.said, live.shown):
        assert failure.traceback.rstrip() + f"\n  why: {failure.why}\n  fix: {failure.advice}\n" in text


def test_a_processs_end_is_explained_by_what_it_printed(live: Live) -> None:
    failure = live.failure("watchdog")
    assert failure.exit_code == -6 and "gave up waiting" in failure.message
    assert "Watchdog caught" in failure.evidence and f"  seen: {failure.evidence}\n" in live.said
    assert "sys.exit(1)" in live.failure("printed_and_left").message


def test_sigterm_and_sigkill_from_outside_are_told_apart_from_the_oom_killer(live: Live) -> None:
    assert "SIGTERM from outside" in live.failure("terminated").message
    assert "SIGKILL" in live.failure("killed").message and live.failure("killed").exit_code == -9
    assert "killed by SIGKILL" in live.failure("loader").why
    assert "killed by SIGKILL" in live.failure("loader_unseen").why


def test_an_error_of_the_steps_own_needs_no_words(live: Live) -> None:
    failure = live.failure("own")
    assert (failure.why, failure.advice, failure.retryable) == ("", "", "here")
    assert failure.as_dict()["retryable"] == "here"
    assert live.said.count("ValueError: no room for doubt\n\n") == 1


def test_what_another_attempt_cannot_cure_is_tried_again_only_by_name(live: Live) -> None:
    tried = {key: live.run.steps[key].attempt_count for key in ("not_again", "again_by_name", "again_after_gpu_oom")}
    assert tried == {"not_again": 1, "again_by_name": 2, "again_after_gpu_oom": 2}


# The OOM killer, in a control group of its own

GREEDY = """
import os, time
from pathlib import Path
from stoker import pipeline, step
from stoker.config import ResourceSettings

SMALL = ResourceSettings(cpu_count=0.1)
VICTIM = Path("victim")

@step(isolation="fresh", resources=SMALL)
def greedy() -> int:
    while not VICTIM.exists() or os.path.isdir("/proc/" + VICTIM.read_text()):
        time.sleep(0.01)
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * 10_000_000))

@step(isolation="fresh", resources=SMALL)
def by_hand() -> int:
    Path("making").write_text(str(os.getpid()))
    os.rename("making", VICTIM)
    os.kill(os.getpid(), 9)

@pipeline(failure_mode="continue")
def squeezed():
    greedy()
    by_hand()

if __name__ == "__main__":
    squeezed()
"""
LIMIT = 250_000_000


@pytest.fixture
def group() -> Iterator[Callable[[], None]]:
    """Puts the process that calls it into a control group that may hold 250 MB."""
    nearest = next(candidates(text_of("/proc/self/cgroup"), text_of("/proc/self/mountinfo")), None)
    if nearest is None:
        pytest.skip("no control group for memory")
    folder = Path(nearest).parent / f"stoker-test-{os.getpid()}"
    try:
        folder.mkdir()
        if nearest.endswith("memory.events"):
            (folder / "memory.max").write_text(str(LIMIT))
            (folder / "memory.swap.max").write_text("0")
        else:
            (folder / "memory.limit_in_bytes").write_text(str(LIMIT))
            if (folder / "memory.memsw.limit_in_bytes").exists():
                (folder / "memory.memsw.limit_in_bytes").write_text(str(LIMIT))
        if kills_in((folder / Path(nearest).name).read_text()) is None:
            pytest.skip("this kernel counts no kills")
    except OSError as error:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no control group can be made here: {error}")

    def enter() -> None:
        (folder / "cgroup.procs").write_text(str(os.getpid()))

    yield enter
    folder.rmdir()


def test_the_kernels_oom_killer_is_recognised(project: Any, group: Callable[[], None]) -> None:
    project.write({"squeezed.py": GREEDY})
    env = {**os.environ, "STOKER_HOME": str(project.home)}
    said = subprocess.run(
        [sys.executable, "squeezed.py"],
        cwd=project.folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=group,
    )
    run = project.client().runs()[0]
    failure = run.steps["greedy"].attempts[-1].failure
    assert (failure.cause, failure.exit_code, failure.retryable) == ("host-oom", -9, "elsewhere"), said.stderr
    assert "oom_kill counter in" in failure.evidence and "resources.memory" in failure.advice
    assert failure.evidence in said.stderr
    assert run.steps["by_hand"].cause == "killed"


GREEDY_RANK = """
import os, sys, time
from stoker import context, pipeline, step
from stoker.config import Command

STARTS = (
    "import os, subprocess, sys; "
    "ranks = [subprocess.Popen(sys.argv[1:], env={**os.environ, 'RANK': str(rank), 'WORLD_SIZE': '2', "
    "'LOCAL_RANK': str(rank), 'LOCAL_WORLD_SIZE': '2', 'GROUP_RANK': '0'}) for rank in range(2)]; "
    "[rank.wait() for rank in ranks]"
)

@step(launch=Command([sys.executable, "-c", STARTS], num_processes=2))
def ranks() -> None:
    held = []
    while context.rank == 1:
        held.append(bytearray(os.urandom(1) * 10_000_000))
    time.sleep(60)

@pipeline
def squeezed():
    ranks()

if __name__ == "__main__":
    squeezed()
"""


def test_a_rank_that_the_kernel_kills_for_its_memory_is_named(project: Any, group: Callable[[], None]) -> None:
    project.write({"squeezed.py": GREEDY_RANK})
    env = {**os.environ, "STOKER_HOME": str(project.home)}
    subprocess.run([sys.executable, "squeezed.py"], cwd=project.folder, env=env, check=False, preexec_fn=group)
    failure = project.client().runs()[0].steps["ranks"].failure
    assert (failure.cause, failure.rank, failure.retryable) == ("host-oom", 1, "elsewhere"), failure.message
    assert "oom_kill counter in" in failure.evidence and "resources.memory" in failure.advice


def test_a_full_disk_is_recognised(project: Any, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        project.write(
            {
                "fill.py": f"""
                from pathlib import Path
                from stoker import pipeline, step

                @step
                def fill() -> int:
                    return Path({str(disk)!r}, "model.pt").write_bytes(bytes(4_000_000))

                @pipeline
                def filling():
                    fill()

                if __name__ == "__main__":
                    filling()
                """
            }
        )
        said = project.run("fill.py", code=1).stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert "fill failed: disk-full" in said and "resources.disk" in said
