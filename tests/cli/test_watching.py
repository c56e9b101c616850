"""`stoker top` and `stoker watch`: on a screen, in a pipe and as JSON, to the end of a run or to Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.cli.test_devices import TWO, library, nvml  # noqa: F401  # fixtures
from tests.report.screen import Terminal
from tests.report.test_live import PROGRAM

from stoker.backends.base.backend import NodeDevices, PlatformNode
from stoker.core.devices import Device, Inventory
from stoker.report.machine import DeviceUse, HostUse, MachineUse, StackNodes, StepUse, draw

STOKER = str(Path(sys.executable).with_name("stoker"))


@pytest.fixture
def environment(project: Any, tmp_path: Path) -> dict[str, str]:
    project.write({"train.py": PROGRAM})
    leases = str(tmp_path / "leases")
    return {**os.environ, "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "2xH100,1xA10", "STOKER_LEASES": leases}


@pytest.fixture
def running(project: Any, environment: dict[str, str]) -> Iterator[str]:
    """A run whose steps wait for files: one holds two devices, elements of another hold none."""
    run = project.run("train.py", "--detach", env=environment).stdout.strip()
    yield run
    project.stoker("cancel", run, "--now", env=environment, code=None)


def test_a_running_step_is_seen_with_its_devices_and_what_it_uses(
    project: Any, environment: dict[str, str], running: str
) -> None:
    with Terminal([STOKER, "top", "--interval", "0.2"], folder=project.folder, env=environment) as terminal:
        step = re.compile(
            rf"^{running} +training train +[\d.ms ]+ +[\d.]+ +[\d.]+ [kMG]B +\d+ +H100 0, H100 1", re.MULTILINE
        )
        element = re.compile(
            rf"^{running} +training score\[2\d\] +[\d.ms ]+ +[\d.]+ +[\d.]+ [kMG]B +\d+ ", re.MULTILINE
        )
        text = terminal.wait_for(lambda text: step.search(text) and element.search(text))
        assert re.search(rf"^ +1 +H100 .*{running} train #1$", text, re.MULTILINE), text
        assert re.search(r"^ +0 +A10 .* free$|^ +2 +A10 .* free$", text, re.MULTILINE), text
        assert re.match(r"cpu \d+ % of \d+ cores?  memory .*  3 devices \(simulated\)", text), text
        terminal.send("q")
        assert terminal.end() == 0
    found = json.loads(project.stoker("top", "--json", env=environment).stdout)
    rows = {row["key"]: row for row in found["steps"]}
    assert rows["train"]["processes"] >= 1 and rows["train"]["memory"] > 1e6
    assert len(rows["train"]["devices"]) == 2 and any(key.startswith("score[") for key in rows)
    assert [len(device["leases"]) for device in found["devices"]] == [1, 1, 0]
    piped = project.stoker("top", env=environment).stdout
    assert re.search(rf"^{running} +training train ", piped, re.MULTILINE)
    assert "\x1b" not in piped and "q leaves" not in piped


def test_ctrl_c_leaves_and_the_terminal_is_as_before(project: Any, environment: dict[str, str]) -> None:
    words = ["sh", "-c", f"stty -a > before; {STOKER} top; code=$?; stty -a > after; exit $code"]
    with Terminal(words, folder=project.folder, env=environment) as terminal:
        terminal.wait_for(lambda text: "q leaves" in text)
        terminal.send("\x03")
        terminal.end()
    before, after = (project.folder / name for name in ("before", "after"))
    assert not after.exists() or before.read_text() == after.read_text()


def test_a_device_without_a_monitor_is_measured(stoker: Any, nvml: Callable[[str], Mapping[str, str]]) -> None:  # noqa: F811
    found = stoker.json(
        "top",
        env=nvml(TWO.replace("    nvlink = 1\n", "    nvlink = 1\n    utilisation = 40\n    used = 2000000000\n")),
    )
    first = found["devices"][0]
    assert (first["model"], first["pids"]) == ("A100-80GB", [4242, 4243])
    assert (first["utilization"], first["memory_used"]) == (40, 2_000_000_000)


def machine(steps: int) -> MachineUse:
    device = Device(kind="nvidia", index=0, uuid="GPU-1", model="H100", memory=80_000_000_000)
    return MachineUse(
        host=HostUse(cpus=8, busy=37.4, load=3.25, memory=64_000_000_000, memory_used=12_000_000_000),
        inventory=Inventory(devices=(device,)),
        devices=(
            DeviceUse(device=device, utilization=55, memory=40_000_000_000, power=300, temperature=61, users=(7,)),
        ),
        steps=tuple(
            StepUse(run="1q", pipeline="p", key=f"s[{number}]", attempt=2, seconds=61, cpus=1.5, memory=10**9)
            for number in range(steps)
        ),
        waiting=(("1q other #1", "2 H100 are leased"),),
        nodes=(
            StackNodes(
                part="Slurm",
                nodes=(
                    PlatformNode(
                        name="gpu[1-4]",
                        count=4,
                        state="idle",
                        group="gpu",
                        cpus=96,
                        memory=2**40,
                        devices=(NodeDevices(model="h100", count=8, free=8),),
                    ),
                ),
            ),
            StackNodes(part="Ray", problem="the dashboard does not answer"),
        ),
    )


def test_what_is_drawn() -> None:
    lines = draw(machine(1), paint=lambda text, colour: text)
    assert lines == [
        "cpu 37 % of 8 cores  memory 12 GB of 64 GB  load 3.2  1 device  1 step running",
        "",
        "index  device  util                      memory  power   temp  leased to",
        "    0  H100    55 %  ━━━━━━────  40 GB of 80 GB  300 W  61 °C  no lease: pid 7",
        "",
        "run  step           time  cpus  memory  processes  on",
        "1q   p s[0] #2  1 m 01 s  1.50    1 GB          -  this machine",
        "",
        "node                state  cpus  memory  accelerators    in   of",
        "gpu[1-4] (4 nodes)  idle     96  1.1 TB  8 h100, 8 free  gpu  Slurm",
        "1q other #1 waits: 2 H100 are leased",
        "Ray: the dashboard does not answer",
    ]


def test_a_low_and_narrow_terminal_shows_the_beginning_and_counts_the_rest() -> None:
    lines = draw(machine(500), paint=lambda text, colour: text, width=60, height=24)
    assert len(lines) <= 24 and all(len(line) <= 60 for line in lines)
    counted = next(int(re.sub(r"\D", "", line)) for line in lines if line.startswith("… and "))
    assert counted + sum(line.startswith("1q   p s[") for line in lines) == 500
    assert any(line.startswith("gpu[1-4]") for line in lines), "the short sections stay"
    one = machine(1)
    named = attrs.evolve(one, steps=[attrs.evolve(one.steps[0], key="a_name_that_leaves_no_room_for_any_figure[0]")])
    (line,) = (line for line in draw(named, paint=lambda text, colour: text, width=80) if line.startswith("1q   p a_"))
    assert line.split()[2].endswith("…") and line.endswith("this machine")  # the name gives way, and not the figures


@pytest.fixture
def two_devices(project: Any) -> dict[str, str]:
    project.write({"train.py": PROGRAM})
    return {**os.environ, "STOKER_HOME": str(project.home), "STOKER_SIMULATE": "2xH100"}


@pytest.fixture
def detached(project: Any, two_devices: dict[str, str]) -> Iterator[str]:
    """A run without a terminal, whose steps wait for files."""
    run = project.run("train.py", "--detach", env=two_devices).stdout.strip()
    yield run
    project.stoker("cancel", run, "--now", code=None)


def test_a_detached_run_is_seen_to_its_end(project: Any, two_devices: dict[str, str], detached: str) -> None:
    with Terminal([STOKER, "watch", detached], folder=project.folder, env=two_devices) as terminal:
        text = terminal.wait_for(
            lambda text: all(word in text for word in ("21/30", "0.125", "train runs", " running"))
        )
        assert re.search(r"^▸ train +[\d.ms ]+  on H100 0, 1  loss █▇▆▅▄▃▂▁ 0.125$", text, re.MULTILINE), text
        assert re.search(r"^· other +waits for 2 accelerators: train runs$", text, re.MULTILINE), text
        assert re.search(r"^✓ load +succeeded", text, re.MULTILINE), text
        assert re.search(r"^▸ score ×30 +━{14}─{6} 21/30  [1-9]\d* running$", text, re.MULTILINE), text
        for name in ("train", "score", "other"):
            (project.folder / name).touch()
        assert terminal.end() == 0
        assert "✓ training succeeded" in terminal.screen.text
        assert re.search(r"^  ✓ score ×30 +succeeded", terminal.screen.text, re.MULTILINE)
    after = project.stoker("watch", detached, env=two_devices)
    assert "training  succeeded" in after.stdout, "of a run that is over it is what `stoker show` says"


def test_ctrl_c_leaves_the_run_alone(project: Any, two_devices: dict[str, str], detached: str) -> None:
    with Terminal([STOKER, "watch", detached], folder=project.folder, env=two_devices) as terminal:
        terminal.wait_for(lambda text: "21/30" in text)
        terminal.send("\x03")
        assert terminal.end() == 130
        assert f"run {detached} goes on" in terminal.screen.text
    assert project.client().run(detached).status == "running"


def test_in_a_pipe_changes_are_lines_and_the_code_is_that_of_the_run(
    project: Any, two_devices: dict[str, str], detached: str
) -> None:
    words = [STOKER, "watch", detached]
    with subprocess.Popen(words, cwd=project.folder, env=two_devices, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert re.match(rf"\d\d:\d\d:\d\d training {detached}: \d/\d steps, ", watching.stdout.readline())
            (project.folder / "train").touch()
            lines = [next(line for line in watching.stdout if "train succeeded" in line)]
            project.stoker("cancel", detached, "--now", env=two_devices)
            lines += list(watching.stdout)
        except BaseException:
            watching.kill()  # it would be waited for
            raise
    assert re.match(r"\d\d:\d\d:\d\d ✓ train succeeded  [\d.]+ m?s", lines[0]), lines
    assert any(line.startswith("■ training cancelled in ") for line in lines), lines
    assert watching.returncode == 130


def test_a_failure_is_shown_with_its_traceback(project: Any) -> None:
    project.write(
        {
            "odd.py": """
        import time
        from pathlib import Path
        from stoker import pipeline, step

        @step(cache=False)
        def fails(value: int) -> int:
            while not Path("go").exists():
                time.sleep(0.05)
            raise ValueError(f"element {value} is odd")

        @pipeline
        def odd():
            fails.map([1])

        if __name__ == "__main__":
            odd()
        """
        }
    )
    two_devices = {**os.environ, "STOKER_HOME": str(project.home)}
    run = project.run("odd.py", "--detach", env=two_devices).stdout.strip()
    with Terminal([STOKER, "watch", run], folder=project.folder, env=two_devices) as terminal:
        terminal.wait_for(lambda text: "0/1" in text)
        (project.folder / "go").touch()
        assert terminal.end() == 1
        text = "\n".join([*terminal.screen.scrolled, *terminal.screen.lines])
        assert "ValueError: element 1 is odd" in text and "✗ odd failed" in text


def test_a_run_that_is_not_there_is_named(project: Any) -> None:
    assert "no run" in project.stoker("watch", "1zzzzzzz", code=2).stderr
