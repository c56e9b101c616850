"""Two steps on one instance never share a Neuron device: the program of their containers, over a scripted runtime.

The instance is a folder. Its runtime is scripted after Neuron's own rules: a process reserves the cores of
NEURON_RT_VISIBLE_CORES, and a core that another process holds cannot be reserved; neuron-ls prints what the machine
has. https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/guides/configuration-guide.html
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from tests.waiting import until

from stoker.backends.aws.instances import table
from stoker.backends.aws_batch import definitions, neuron
from stoker.backends.aws_batch.definitions import BatchRequest, job_definition
from stoker.backends.aws_batch.settings import BatchSettings
from stoker.core.resources import ResourceSettings
from stoker.devices.probe import visible
from stoker.vendors import neuron as vendor

RUNTIME = """
import fcntl, os, sys, time
folder, go = sys.argv[1:]
for part in os.environ["NEURON_RT_VISIBLE_CORES"].split(","):
    first, _, last = part.partition("-")
    for core in range(int(first), int(last or first) + 1):
        # Reserved until the process ends, as the driver does it; taken by another: the runtime does not start.
        fcntl.flock(os.open(f"{folder}/core{core}", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
with open(f"{folder}/used-{os.getpid()}", "w") as file:
    file.write(os.environ["NEURON_RT_VISIBLE_CORES"])
while not os.path.exists(go):
    time.sleep(0.01)
"""
"""A step that uses its cores until it is told to end; fails where one of them is used already."""
LS = """#!{python}
import json
print(json.dumps([{{"neuron_device": number, "nc_count": {cores}, "memory_size": 34359738368, "neuron_processes": [],
                    "instance_type": "{name}"}} for number in range({count})]))
"""


@attrs.frozen
class Container:
    """A running container, its lines in a file."""

    process: subprocess.Popen[bytes]
    lines: Path
    seen: Path

    def text(self) -> str:
        return self.lines.read_text()


@attrs.frozen
class Instance:
    """One machine with Neuron devices, on which containers start."""

    folder: Path
    name: str
    started: list[Container] = attrs.field(factory=list)

    def container(self, count: int, go: Path) -> Container:
        """Start what the job definition of a step with so many devices starts."""
        command = self.command(count, [sys.executable, "-c", RUNTIME, str(self.folder), str(go)])
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        lines = self.folder / f"lines-{len(self.started)}"
        with lines.open("wb") as file:
            process = subprocess.Popen(command, env={**os.environ, "PATH": path}, stderr=file)
        self.started.append(Container(process, lines, self.folder / f"used-{process.pid}"))
        return self.started[-1]

    def command(self, count: int, command: list[str]) -> list[str]:
        """The container's command, in its own view of the instance's folder of leases."""
        request = BatchRequest(
            resources=ResourceSettings(gpu_count=count),
            settings=BatchSettings(executable=sys.executable),
            image="train:1",
            command=tuple(command),
            types=(table()[self.name],),
        )
        words: list[str] = job_definition(request)["containerProperties"]["command"]
        return [str(self.folder / "leases") if word == definitions.NEURON_LEASES else word for word in words]

    def used(self) -> list[str]:
        """What each step of now or earlier saw."""
        return sorted(file.read_text() for file in self.folder.glob("used-*"))


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    """A trn1.32xlarge: 16 devices with 2 cores each."""
    kind = table()["trn1.32xlarge"]
    tools = tmp_path / "bin"
    tools.mkdir()
    text = LS.format(python=sys.executable, cores=2, name=kind.name, count=kind.count)
    (tools / "neuron-ls").write_text(text)
    (tools / "neuron-ls").chmod(0o755)
    instance = Instance(tmp_path, kind.name)
    yield instance
    for each in instance.started:
        each.process.kill()
        each.process.wait(30)


def test_two_steps_on_one_instance_are_apart(instance: Instance, tmp_path: Path) -> None:
    go = tmp_path / "go"
    steps = [instance.container(8, go), instance.container(8, go)]
    until(lambda: len(instance.used()) == 2)
    halves = [",".join(f"{2 * device}-{2 * device + 1}" for device in part) for part in (range(8), range(8, 16))]
    assert instance.used() == sorted(halves)

    third = instance.container(1, go)  # there is nothing left for it
    until(lambda: third.text() == "stoker: waits for 1 Neuron devices; 0 of 16 are free\n")
    assert not third.seen.exists()
    steps[0].process.kill()  # the kernel lets go of what a dead container held
    until(third.seen.exists)
    first = steps[0].seen.read_text().partition(",")[0]
    assert third.seen.read_text() == first
    go.touch()
    assert third.process.wait(60) == 0 and steps[1].process.wait(60) == 0


def test_a_step_sees_what_it_holds_and_nothing_else(instance: Instance, tmp_path: Path) -> None:
    """What the program leaves is what Stoker's own probe, gate and receipt read."""
    go = tmp_path / "go"
    holder = instance.container(4, go)
    until(holder.seen.exists)
    show = "import os, sys; print(os.environ['NEURON_RT_VISIBLE_CORES'], os.environ.get('NEURON_RT_NUM_CORES'))"
    line = instance.command(4, [sys.executable, "-c", show])
    environment = {"PATH": f"{instance.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "NEURON_RT_NUM_CORES": "32"}
    shown = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert shown.stdout == "8-9,10-11,12-13,14-15 None\n"
    go.touch()
    assert holder.process.wait(60) == 0

    inventory = vendor.probe(environment)
    assert len(inventory.devices) == 16
    cores, _, _ = shown.stdout.partition(" ")
    mine, findings = visible(inventory.devices, {"NEURON_RT_VISIBLE_CORES": cores})
    assert [device.index for device in mine] == [4, 5, 6, 7] and "leaves 4 of 16" in findings[0].what
    assert vendor.visibility(mine) == {"NEURON_RT_VISIBLE_CORES": cores}
    assert vendor.container(mine).files == tuple(f"/dev/neuron{number}" for number in (4, 5, 6, 7))


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_at_random(instance: Instance, tmp_path: Path, seed: int) -> None:
    """Steps of any size come, go and are killed at any moment: no core is ever in two processes, and none is lost."""
    chance = random.Random(seed)
    ends: list[Path] = []
    killed = []
    for number in range(12):
        ends.append(tmp_path / f"go{number}")
        instance.container(chance.choice((1, 1, 2, 4, 8, 16)), ends[-1])
        victim = chance.randrange(number + 1)
        if chance.random() < 0.3:
            killed.append(instance.started[victim])
            instance.started[victim].process.kill()
        else:
            ends[victim].touch()
    for end in ends:
        end.touch()
    for each in instance.started:
        code = each.process.wait(60)
        assert code == 0 or (code == -signal.SIGKILL and each in killed), each.text()
    everything = instance.container(16, ends[0])
    assert everything.process.wait(60) == 0


def test_neighbours_first() -> None:
    assert neuron.choose([0, 1, 2, 3], 2) == [0, 1]
    assert neuron.choose([1, 2, 3, 4, 5], 2) == [2, 3], "at a multiple of their number"
    assert neuron.choose([1, 2, 5], 2) == [1, 2] and neuron.choose([1, 3, 5], 2) == [1, 3]
    assert neuron.choose([3], 2) == []


def test_cores_without_neuron_ls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert neuron.core_numbers(4)(2) == "8-11" and neuron.core_numbers(1)(2) == "2"
    tool = tmp_path / "neuron-ls"
    entries = [{"neuron_device": 2, "nc_count": 4, "neuroncore_ids": [20, 21, 22, 23]}]
    tool.write_text(f"#!{sys.executable}\nprint('''{json.dumps(entries)}''')\n")
    tool.chmod(0o755)
    assert neuron.core_numbers(8)(2) == "20-23", "logical cores are as the tool numbers them"
    tool.write_text(f"#!{sys.executable}\nraise SystemExit(1)\n")
    assert neuron.core_numbers(8)(2) == "16-23"
