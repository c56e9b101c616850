"""A process that SIGKILL does not end keeps its devices, and whoever asks is told by whom and how to get them back.

The kernel does not deliver SIGKILL to a process in a frozen cgroup of v1 before it is thawed: a stand-in for one that
a broken driver holds in state D.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.conftest import Lab

from stoker.devices import processtree
from stoker.worker import processes
from stoker.worker.containment import own_cgroups

SCRIPT = """
    import os, subprocess, sys, time

    from stoker import pipeline, step


    @step(resources={"gpu_count": 2}, cache=False)
    def hold() -> None:
        stuck = subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
        with open("stuck.new", "w") as file:
            file.write(str(stuck.pid))
        os.replace("stuck.new", "stuck")
        while not os.path.exists("frozen"):
            time.sleep(0.01)
        if sys.argv[1] == "wait":
            time.sleep(1000)


    @step(resources={"gpu_count": 2}, cache=False)
    def use(after: None = None) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


    @step
    def elsewhere() -> int:
        return 7


    @pipeline
    def holding():
        hold()


    @pipeline
    def using():
        elsewhere()
        use()


    @pipeline
    def both():
        elsewhere()
        hold()
        use()


    if __name__ == "__main__":
        {"wait": holding, "use": using, "both": both}[sys.argv[1]]()
"""
TWO = "2xH100-80GB"
SIMULATED = {"STOKER_SIMULATE": TWO}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.write("script.py", SCRIPT)
    yield made
    made.close()


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup of v1's freezer, thawed at the end."""
    parent = own_cgroups().get("freezer")
    if parent is None or not os.access(parent, os.W_OK):
        pytest.skip("needs the right to freeze a process by a cgroup of v1")
    folder = Path(parent, f"test-quarantine-{os.getpid()}")
    folder.mkdir()
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    for line in (folder / "cgroup.procs").read_text().splitlines():
        os.kill(int(line), signal.SIGKILL)
    while (folder / "cgroup.procs").read_text():
        continue
    folder.rmdir()


def freeze(lab: Lab, freezer: Path) -> int:
    """Freeze the step's child; its pid."""
    pid = int((lab.folder / "stuck").read_text())
    (freezer / "cgroup.procs").write_text(str(pid))
    (freezer / "freezer.state").write_text("FROZEN")
    (lab.folder / "frozen").touch()
    return pid


def leases(lab: Lab) -> list[dict[str, object]]:
    text = lab.look("devices", "--simulate", TWO, "--json")
    return list(json.loads(text)["leases"])


@pytest.mark.parametrize("driver", ["killed", pytest.param("alive", marks=pytest.mark.long)])
def test_what_does_not_end_keeps_its_devices(lab: Lab, freezer: Path, driver: str) -> None:
    first = lab.start("script.py", "wait" if driver == "killed" else "both", env=SIMULATED)
    first.until(lambda: (lab.folder / "stuck").exists())
    pid = freeze(lab, freezer)
    if driver == "killed":
        first.signal(signal.SIGKILL)
        first.wait(-signal.SIGKILL)
        waiting = lab.start("script.py", "use", env=SIMULATED)
    else:
        waiting = first
    waiting.until(lambda: any("in quarantine: pid" in line and str(pid) in line for line in waiting.lines))
    waiting.until_written("✓ elsewhere succeeded")  # everything else goes on
    # Until then the supervisor, which tries for some seconds, is among those that have not ended.
    waiting.until(lambda: [lease["quarantined_by"] for lease in leases(lab)] == [[pid]])
    (lease,) = leases(lab)
    shown = lab.look("devices", "--simulate", TWO)
    assert f"pid {pid} (" in shown and "while True: pass, state D)" in shown
    for uuid in lease["devices"]:  # type: ignore[attr-defined]
        assert f"stoker devices --release {uuid}" in shown
    assert processes.runs(pid)
    if driver == "killed":
        for uuid in lease["devices"]:  # type: ignore[attr-defined]
            assert f"pid {pid}" in lab.look("devices", "--simulate", TWO, "--release", uuid)
        assert "is not in quarantine" in lab.look("devices", "--simulate", TWO, "--release", uuid, code=2)
    else:
        (freezer / "freezer.state").write_text("THAWED")  # its SIGKILL arrives
    waiting.wait(0)
    assert lab[("using" if driver == "killed" else "both")].steps["use"].status == "succeeded"
    assert processtree.alive(pid) == (driver == "killed")
    assert leases(lab) == []
