"""What Stoker says when something breaks, on a real Slurm cluster and a real Ray: the table of `docs/dev/faults.md`.

    python -m tests.reliability.faults [--write] [--only TEXT] [--engine slurm|ray]

Each fault is brought about beside a run, and the lines that its driver then writes are looked for. It holds if the
line of the fault is there and the driver ends as it should. With `--write` the lines become the table, with the parts
that differ from run to run (times, ids, paths) replaced. It needs root, iptables, btrfs-progs for the quota, and
redis-server for a head that is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import attrs
from tests.conftest import Project
from tests.servers import raycluster, slurm
from tests.servers.drivers import Driver
from tests.servers.slurm import Cluster
from tests.waiting import until

PAGE: Final = Path(__file__).parents[2] / "docs" / "dev" / "faults.md"
BEGIN: Final = "<!-- made by make faults -->\n"
SLURM_STACK: Final = """
stack = "cluster"
[stacks.cluster]
orchestrator = {{flavor = "slurm", poll = 0.2, {more}}}
"""
RAY_STACK: Final = """
stack = "ray"
[stacks.ray]
orchestrator = {{flavor = "ray", address = "{address}", token = "env:TOKEN_OF_RAY"{more}}}
"""
PROGRAM: Final = """
import os, time
from stoker import pipeline, step
from stoker.config import ResourceSettings

@step(cache=False, resources=ResourceSettings(cpu_count=1))
def train(flag: str) -> bytes:
    print("training", flush=True)
    while not os.path.exists(flag):
        time.sleep(0.05)
    return b"x"

@pipeline
def faulty(flag: str):
    train(flag)

if __name__ == "__main__":
    import sys
    faulty(sys.argv[1])
"""


@attrs.frozen(kw_only=True)
class Outcome:
    """What came of one fault."""

    what: str
    """What was done, in words."""
    line: str
    """The line that says it."""
    further: str = ""
    """What Stoker says when it is over; empty where the first line is all."""
    end: str
    """How the run ended: "it succeeded", or the step's cause and the exit code."""


@attrs.define(kw_only=True)
class Scene:
    """A project, and a run of it on an engine."""

    project: Project
    flag: Path
    more: Callable[[str], None]
    """Writes the stack with further settings of the orchestrator."""

    def begin(self) -> Driver:
        """A driver whose step runs."""
        driver = self.start()
        driver.says("training")
        return driver

    def start(self) -> Driver:
        """A driver, whatever becomes of its step."""
        return Driver(self.project, "train.py", str(self.flag))

    def finish(self, driver: Driver) -> str:
        """Let the step return; how the run ended."""
        self.flag.touch()
        return self.end(driver)

    def end(self, driver: Driver) -> str:
        """How the run of a driver ended that ends by itself."""
        code = driver.end()
        if code == 0:
            return "the run succeeds"
        runs = self.project.client().runs()
        steps = next(iter(runs)).steps if runs else {}
        cause = steps["train"].cause if "train" in steps else ""
        return f"`{cause}`, exit code {code}" if cause else f"exit code {code}"


# Slurm


def controller_hangs(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    with cluster.silent_controller():
        line = driver.says("has not answered since")
    further = driver.says("answers again")
    return Outcome(what="the controller hangs (SIGSTOP)", line=line, further=further, end=scene.finish(driver))


def controller_cut_off(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    with _dropped(cluster.controller_port):
        line = driver.says("has not answered since")
    further = driver.says("answers again")
    what = "the network to the controller is cut (iptables)"
    return Outcome(what=what, line=line, further=further, end=scene.finish(driver))


def controller_killed(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    cluster.stop_controller()
    line = driver.says("has not answered since")
    cluster.start_controller()
    further = driver.says("answers again")
    return Outcome(what="the controller is killed", line=line, further=further, end=scene.finish(driver))


def node_killed(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    cluster.kill_node("n1")
    end = scene.end(driver)
    line = driver.says("train failed: ")
    cluster.node_returns("n1")
    return Outcome(what="a node loses power under a step", line=_after(driver, line), end=end)


def daemon_killed(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    cluster.kill_daemon("n1")
    until(lambda: cluster.states()["n1"].startswith("down"))
    end = scene.end(driver)
    line = driver.says("train failed: ")
    cluster.node_returns("n1")
    return Outcome(what="slurmd is killed under a step, which goes on", line=_after(driver, line), end=end)


def node_drained(scene: Scene, cluster: Cluster) -> Outcome:
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=fan")
    driver = scene.start()
    line = driver.says("train: ", "(")
    cluster.run("scontrol", "update", "nodename=n1", "state=resume")
    return Outcome(what="the only node is drained", line=line, end=scene.finish(driver))


def job_cancelled(scene: Scene, cluster: Cluster) -> Outcome:
    driver = scene.begin()
    cluster.run("scancel", "--state=RUNNING", cluster.jobs()[-1]["id"])
    end = scene.end(driver)
    return Outcome(what="somebody else cancels the job", line=_after(driver, driver.says("train failed: ")), end=end)


def driver_warned(scene: Scene, cluster: Cluster) -> Outcome:
    scene.project.write({"train.py": PROGRAM.partition("if __name__")[0]})
    done = scene.project.stoker("run", "train.py:faulty", "--detach", "--flag", str(scene.flag))
    run = scene.project.client().run(done.stdout.strip())
    job = done.stderr.partition("Slurm job ")[2].split(",")[0]
    until(lambda: any(line.text == "training" for _, line in run.refresh().logs()))
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    output = scene.project.home / "logs" / run.id / "driver.out"
    until(lambda: "this driver leaves" in output.read_text())
    line = next(line for line in output.read_text().splitlines() if "this driver leaves" in line)
    scene.flag.touch()
    end = "the run succeeds" if run.wait(180).status == "succeeded" else f"it is {run.status}"
    return Outcome(what="the time limit of a detached driver is near", line=line, end=end)


def wrong_python(scene: Scene, cluster: Cluster) -> Outcome:
    scene.more('python = "/opt/none/bin/python3"')
    driver = scene.start()
    end = scene.end(driver)
    return Outcome(what="the node has no such Python", line=_after(driver, driver.says("train failed: ")), end=end)


def failing_setup(scene: Scene, cluster: Cluster) -> Outcome:
    scene.more('setup = ["conda activate nothing"]')
    driver = scene.start()
    end = scene.end(driver)
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="a line of `setup` fails", line=line, end=end)


def full_disk(scene: Scene, cluster: Cluster) -> Outcome:
    small = scene.project.folder.parents[1] / "small"
    scene.more(f'folder = "{small}/jobs", reuse = false')
    driver = scene.begin()
    with contextlib.suppress(OSError), (small / "ballast").open("wb") as file:
        while file.write(bytes(4096)):
            file.flush()
    end = scene.finish(driver)
    (small / "ballast").unlink()
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="the shared folder is full", line=line, end=end)


def quota_used_up(scene: Scene, cluster: Cluster) -> Outcome:
    limited = scene.project.folder.parents[1] / "limited" / "team"
    scene.more(f'folder = "{limited}/jobs", reuse = false')
    driver = scene.begin()
    try:
        with (limited / "ballast").open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                os.fsync(file.fileno())
    except OSError as error:
        assert error.errno == errno.EDQUOT, error
    end = scene.finish(driver)
    (limited / "ballast").unlink()
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="a quota on the shared folder is used up", line=line, end=end)


def folder_not_shared(scene: Scene, cluster: Cluster) -> Outcome:
    with _disk(scene.project.folder.parent / "own", "8m") as folder:  # the nodes do not see what is mounted later
        scene.more(f'folder = "{folder}/jobs", reuse = false')
        driver = scene.start()
        end = scene.end(driver)
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="the nodes do not see the shared folder", line=line, end=end)


@contextlib.contextmanager
def _disk(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own, in memory."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def _quota(folder: Path) -> Iterator[None]:
    """A disk of its own with the folder "team", which a quota of 3 MiB limits, also for root: a subvolume of btrfs."""
    image = folder.with_suffix(".image")
    with image.open("wb") as file:
        file.truncate(128 << 20)
    folder.mkdir()
    subprocess.run(["mkfs.btrfs", "--quiet", "--mixed", str(image)], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        for words in (("quota", "enable"), ("subvolume", "create"), ("qgroup", "limit", "3M")):
            place = folder if words[0] == "quota" else folder / "team"
            subprocess.run(["btrfs", *words, str(place)], check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def _dropped(port: int) -> Iterator[None]:
    """Within the block no packet comes to a port of loopback, and nothing says so."""
    rule = ["INPUT", "--in-interface", "lo", "--protocol", "tcp", "--dport", str(port), "--jump", "DROP"]
    subprocess.run(["iptables", "--wait", "--insert", *rule], check=True)
    try:
        yield
    finally:
        subprocess.run(["iptables", "--wait", "--delete", *rule], check=True)


def garbled_squeue(scene: Scene, cluster: Cluster) -> Outcome:
    return _shimmed(scene, "squeue", "echo '<<<%%% \\033[31m'; exit 1", "`squeue` prints nonsense and fails")


def slow_squeue(scene: Scene, cluster: Cluster) -> Outcome:
    return _shimmed(scene, "squeue", 'sleep 7; exec {real} "$@"', "`squeue` takes seven seconds")


def garbled_sbatch(scene: Scene, cluster: Cluster) -> Outcome:
    with _shim(scene, "sbatch", "case \" $* \" in *--test-only*) exit 0;; esac; echo 'Job created, maybe'"):
        driver = scene.start()
        end = scene.end(driver)
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="`sbatch` submits nothing and prints nonsense", line=line, end=end)


def _shimmed(scene: Scene, name: str, body: str, what: str) -> Outcome:
    with _shim(scene, name, body) as remove:
        driver = scene.begin()
        line = driver.says("has not answered since")
        remove()
        further = driver.says("answers again")
        return Outcome(what=what, line=line, further=further, end=scene.finish(driver))


@contextlib.contextmanager
def _shim(scene: Scene, name: str, body: str) -> Iterator[Callable[[], None]]:
    """A program that stands before another one on PATH; what is yielded takes it away."""
    folder = scene.project.folder.parent / "bin"
    folder.mkdir()
    shim = folder / name
    shim.write_text("#!/bin/sh\n" + body.replace("{real}", str(shutil.which(name))) + "\n")
    shim.chmod(0o755)
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{folder}:{before}"
    try:
        yield shim.unlink
    finally:
        os.environ["PATH"] = before


# Ray


def dashboard_hangs(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    driver = scene.begin()
    with cluster.silent_dashboard():
        line = driver.says("has not answered since")
    further = driver.says("answers again")
    return Outcome(what="the head hangs (SIGSTOP)", line=line, further=further, end=scene.finish(driver))


def head_cut_off(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    driver = scene.begin()
    with _dropped(int(cluster.dashboard.rpartition(":")[2])):
        line = driver.says("has not answered since")
    further = driver.says("answers again")
    what = "the network to the head is cut (iptables)"
    return Outcome(what=what, line=line, further=further, end=scene.finish(driver))


def wrong_token(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    os.environ["TOKEN_OF_RAY"] = "another-token"
    try:
        driver = scene.start()
        end = scene.end(driver)
        line = _with_fix(driver, driver.says("token"))
    finally:
        os.environ["TOKEN_OF_RAY"] = raycluster.TOKEN
    return Outcome(what="the token is wrong", line=line, end=end)


def wrong_address(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    (port,) = slurm.free_ports(1)
    scene.more(f"http://127.0.0.1:{port}")
    driver = scene.start()
    end = scene.end(driver)
    return Outcome(what="nothing listens at the address", line=_with_fix(driver, driver.says(str(port))), end=end)


def wrong_python_of_ray(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    minors = [f"python3.{minor}" for minor in range(11, 20) if f"python3.{minor}" != ours]
    other = next((path for name in minors for path in _interpreters(name) if _runs(path)), None)
    assert other is not None, "this machine has no other Python"
    # What the driver imports is pure Python: the cluster's packages do.
    packages = [path for path in sys.path if path.endswith(("site-packages", "/src"))]
    driver = Driver(scene.project, "train.py", str(scene.flag), python=other, path=os.pathsep.join(packages))
    end = scene.end(driver)
    return Outcome(what="the driver's Python is another one", line=_with_fix(driver, driver.says("STK187")), end=end)


def _interpreters(name: str) -> list[str]:
    """Interpreters of a name: on PATH, and pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [*filter(None, [shutil.which(name)]), *map(str, sorted(pyenv.glob(f"*/bin/{name}")))]


def _runs(interpreter: str) -> bool:
    """Whether an interpreter starts: pyenv has names on PATH for versions that are not chosen."""
    return subprocess.run([interpreter, "-c", "import sqlite3"], capture_output=True, check=False).returncode == 0


def raylet_stopped(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    cluster.add(num_cpus=1, resources={"cut": 1})
    scene.project.write({"train.py": PROGRAM.replace("cpu_count=1)", 'cpu_count=1, extended={"cut": 1})')})
    driver = scene.begin()
    raylets = [one for one in cluster.family() if one.name() == "raylet" and "cut" in " ".join(one.cmdline())]
    assert raylets, "the node's raylet is not there"
    for raylet in raylets:
        raylet.suspend()
    end = scene.end(driver)
    for raylet in raylets:
        raylet.kill()
    line = _after(driver, driver.says("train failed: "))
    return Outcome(what="a node's raylet hangs (SIGSTOP), as where its network is cut", line=line, end=end)


def ray_node_killed(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    node = cluster.add(num_cpus=1, resources={"lonely": 1})
    scene.project.write({"train.py": PROGRAM.replace("cpu_count=1)", 'cpu_count=1, extended={"lonely": 1})')})
    driver = scene.begin()
    cluster.kill(node)
    end = scene.end(driver)
    return Outcome(what="a node loses power under a step", line=_after(driver, driver.says("train failed: ")), end=end)


def head_restarted(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    cluster.add(num_cpus=1, resources={"lasting": 1})
    scene.project.write({"train.py": PROGRAM.replace("cpu_count=1)", 'cpu_count=1, extended={"lasting": 1})')})
    driver = scene.begin()
    cluster.restart_head()
    end = scene.end(driver)
    line = driver.says("answers again")
    what = "the head is killed and started again, with fault tolerance by Redis"
    return Outcome(what=what, line=line, further=_after(driver, driver.says("train failed: ")), end=end)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """The address of a Redis that lives as long as the block."""
    (port,) = slurm.free_ports(1)
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: slurm.listens(port))
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()


def head_killed(scene: Scene, cluster: raycluster.RayCluster) -> Outcome:
    driver = scene.begin()
    cluster.helper.kill()
    for process in cluster.family():
        with contextlib.suppress(Exception):  # it may be gone with the helper
            process.kill()
    line = driver.says("has not answered since")
    driver.interrupt()
    further = driver.says("asked to end as soon as it answers")
    driver.interrupt()
    code = driver.end()
    return Outcome(what="the head is killed; then Ctrl-C, twice", line=line, further=further, end=f"exit code {code}")


SLURM: Final = (
    controller_hangs,
    controller_cut_off,
    controller_killed,
    slow_squeue,
    garbled_squeue,
    garbled_sbatch,
    node_drained,
    node_killed,
    daemon_killed,
    job_cancelled,
    driver_warned,
    failing_setup,
    wrong_python,
    folder_not_shared,
    full_disk,
    quota_used_up,
)
RAY: Final = (
    dashboard_hangs,
    head_cut_off,
    wrong_token,
    wrong_address,
    wrong_python_of_ray,
    ray_node_killed,
    raylet_stopped,
    head_killed,
)
"""The last one ends the cluster."""
RAY_WITH_REDIS: Final = (head_restarted,)


def _after(driver: Driver, line: str) -> str:
    """The sentence of a failed step: the line behind its heading, with its fix."""
    return _with_fix(driver, next(text for text in driver.lines[driver.lines.index(line) + 1 :] if text.strip()))


def _with_fix(driver: Driver, line: str) -> str:
    """A line, with the fix that stands in one of the next ones."""
    following = driver.lines[driver.lines.index(line) + 1 :][:4]
    fix = next((text.strip() for text in following if text.strip().startswith("fix:")), "")
    return f"{line.strip()}; {fix}" if fix else line.strip()


# The table

_SAME: Final[tuple[tuple[str, str], ...]] = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"^\d\d:\d\d:\d\d ", ""),
    (r"\d\d:\d\d:\d\d", "14:05:12"),
    (r"answers again, after [\d.]+ ?\w+( \d+ ?\w+)?", "answers again, after 42s"),
    (r"\bjob \d+(_\d+)?", "job 12"),
    (r"JobId=\d+", "JobId=12"),
    (r"asked (once|\d+ times)", "asked 2 times"),
    (r"\b([0-9a-f]{16}|[0-9a-f]{40,})\b", "…"),
    (r"/\S*/(?=slurm_script|stoker)", "/…/"),
    (r"http://127\.0\.0\.1:\d+", "http://head:8265"),
    (r"127\.0\.0\.1:\d+|port=\d+", "head:8265"),
    (r"/\S*/(small/jobs|team/jobs|stoker-home/scratch/slurm|slurm)/\S*?(?=[\s,:;)`']|$)", "/shared/jobs/…"),
    (r"stoker-[0-9a-z]{12}-…", "stoker-RUN"),
    (r"stoker-run-[0-9a-z-]+|\d{8}-\d{6}-[0-9a-z]+", "RUN"),
    (r"\.0\.\d+ s", ""),
)


def plain(text: str) -> str:
    """A line with what differs from run to run replaced, as a cell of the table."""
    for pattern, replacement in _SAME:
        text = re.sub(pattern, replacement, text)
    return text.strip().replace("|", "\\|").replace("`", "'")


def table(outcomes: Mapping[str, list[Outcome]]) -> str:
    """The table in Markdown."""
    rows = ["| on | what happens | what Stoker says | how the run ends |", "|---|---|---|---|"]
    for engine, several in outcomes.items():
        for one in several:
            further = f"; then `{plain(one.further)}`" if one.further else ""
            rows.append(f"| {engine} | {one.what} | `{plain(one.line)}`{further} | {one.end} |")
    return "\n".join(rows) + "\n"


@contextlib.contextmanager
def scene_in(folder: Path, stack: Callable[[str], str]) -> Iterator[Scene]:
    """A scene of its own folder and home."""
    folder.mkdir(parents=True)
    os.environ.update(STOKER_HOME=str(folder / "stoker-home"), STOKER_LEASES=str(folder / "leases"))
    project = Project(folder / "project", folder / "stoker-home")
    project.write({"stoker.toml": stack(""), "train.py": PROGRAM})

    def more(text: str) -> None:
        project.write({"stoker.toml": stack(text)})

    before = os.getcwd()
    os.chdir(project.folder)
    try:
        yield Scene(project=project, flag=folder / "flag", more=more)
    finally:
        os.chdir(before)


def _tried(name: str, fault: Callable[..., Outcome], scene: Scene, cluster: object) -> Outcome | None:
    began = time.monotonic()
    try:
        outcome = fault(scene, cluster)
    except AssertionError as error:
        print(f"✗ {name}: {error}", flush=True)
        return None
    print(f"✓ {name} ({time.monotonic() - began:.0f} s): {plain(outcome.line)}", flush=True)
    return outcome


def main() -> int:
    """Try the faults; the exit code is 1 where one is not said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--engine", choices=("slurm", "ray"), help="faults of one engine")
    arguments = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {}
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="stoker-faults-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        if arguments.engine != "ray":
            with _disk(folder / "small", "4m"), _quota(folder / "limited"), slurm.running() as cluster:
                os.environ.update(cluster.environment)

                def slurm_stack(more: str) -> str:
                    return SLURM_STACK.format(more=f'nodelist = "n1", {more}'.rstrip(", "))

                for fault in (one for one in SLURM if arguments.only in one.__name__):
                    with scene_in(folder / fault.__name__, slurm_stack) as scene:
                        outcome = _tried(fault.__name__, fault, scene, cluster)
                    cluster.end_jobs()
                    wrong += outcome is None
                    outcomes.setdefault("Slurm", []).extend([outcome] if outcome else [])
        if arguments.engine != "slurm":
            os.environ["TOKEN_OF_RAY"] = raycluster.TOKEN
            with _redis(folder) as redis:
                for faults, address_of_redis in ((RAY, ""), (RAY_WITH_REDIS, redis)):
                    chosen = [one for one in faults if arguments.only in one.__name__]
                    if not chosen:
                        continue
                    with raycluster.running(redis=address_of_redis) as ray:

                        def ray_stack(address: str, ours: str = ray.dashboard) -> str:
                            return RAY_STACK.format(address=address or ours, more="")

                        for ray_fault in chosen:
                            with scene_in(folder / ray_fault.__name__, ray_stack) as scene:
                                outcome = _tried(ray_fault.__name__, ray_fault, scene, ray)
                            wrong += outcome is None
                            outcomes.setdefault("Ray", []).extend([outcome] if outcome else [])
    if arguments.write and not wrong:
        head, mark, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        PAGE.write_text(f"{head}{mark}{table(outcomes)}", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
