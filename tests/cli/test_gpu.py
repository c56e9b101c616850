"""`stoker gpu`: receipts that the store has, as tables and in full; of steps that run; and where there is none."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from stoker.core.devices import Device
from stoker.core.plan import Plan, StepPlan
from stoker.core.protocol import FunctionSource
from stoker.core.receipt import Receipt, Track, Use
from stoker.core.resources import ResourceSettings
from stoker.core.settings import StepSettings
from stoker.plan import plandoc
from stoker.store.batch import RowBatch
from stoker.store.receipts import ReceiptRow
from stoker.store.rows import AttemptRow, EventRow, RunRow, StepRow
from stoker.store.store import Store, open_store

RUN = "1run0000"
USE = Use(
    uuid="GPU-aaaaaaaa-1111-2222",
    kind="nvidia",
    index=0,
    model="H100-80GB",
    memory=85_899_345_920,
    samples=40,
    utilization_mean=87.5,
    utilization_peak=100.0,
    idle=0.1,
    first_use=3.0,
    longest_idle=4.0,
    memory_mean=5e10,
    memory_peak=70_000_000_000,
    own_memory_peak=69_000_000_000,
    power_mean=512.0,
    power_peak=690.0,
    energy=20_480.0,
    temperature_peak=71.0,
    clock_mean=1830.0,
    pcie_received=1.2e9,
    pcie_sent=3e8,
    throttled={"thermal": 0.01, "power cap": 0.25},
)
OTHER = attrs.evolve(
    USE,
    uuid="GPU-bbbbbbbb",
    index=1,
    power_mean=None,
    power_peak=None,
    energy=None,
    throttled={},
    utilization_mean=80.0,
)
RECEIPT = Receipt(
    verdict="used",
    evidence=("GPU 0: utilisation 100 % at most, 88 % on average", "GPU 1: utilisation 100 % at most, 80 % on average"),
    asked="2 × H100-80GB",
    started=1_700_000_000.0,
    seconds=40.0,
    interval=1.0,
    devices=(USE, OTHER),
    cpus_mean=3.5,
    cpus_peak=7.9,
    memory_mean=1.1e9,
    memory_peak=2_000_000_000,
    advice=("the data came late: load it in more than one process, such as DataLoader(num_workers=8)",),
    proved={"driver": "535.104.05", "torch": "2.4.0+cu121"},
)
TIMES = tuple(number + 0.5 for number in range(40))
TRACKS = (
    Track(
        name="utilization",
        uuid=USE.uuid,
        times=TIMES,
        values=tuple(None if time < 3 else min(100.0, 5 * time) for time in TIMES),
        peak=100.0,
    ),
    Track(name="memory", uuid=USE.uuid, times=TIMES, values=(70e9,) * 40, peak=70e9),
    Track(name="power", uuid=OTHER.uuid, times=TIMES, values=(None,) * 40),
    Track(name="cpus", times=TIMES, values=(2.0,) * 20 + (4.0,) * 20, peak=7.9),
)


class Told:
    """A store with a run, written as a driver would, and the command line on it."""

    def __init__(self, store: Store, stoker: Any) -> None:
        self.store = store
        self.stoker = stoker
        self._place = 0

    def run(self, *, running: bool = False, **steps: ResourceSettings | None) -> None:
        """A run with a plan of steps and what each asked for; this process drives one that is running."""
        plans = tuple(
            StepPlan(
                key=key,
                name=key,
                source=FunctionSource(kind="module", module="m", qualname=key),
                outputs=(),
                unpack=False,
                inputs={},
                settings=StepSettings(resources=resources or ResourceSettings()),
                backend="orchestrator",
                code="",
            )
            for key, resources in steps.items()
        )
        plan = Plan(pipeline="training", steps=plans, parameters={}, failure_mode="fail_fast", stack="local")
        row = RunRow(id=RUN, pipeline="training", status="succeeded", created=1.0, started=1.0, ended=9.0)
        if running:
            me = {"host": socket.gethostname(), "pid": os.getpid(), "started": psutil.Process().create_time()}
            row = attrs.evolve(row, status="running", ended=None, driver=me, heartbeat=time.time())
        self.store.records.create_run(row, plan=plandoc.dump(plan))

    def step(self, key: str, *receipts: Receipt | None, status: Any = "succeeded", **fields: Any) -> None:
        """A step with attempts, each with its receipt or without."""
        self._place += 1
        batch = RowBatch()
        known = {"name": key, "position": self._place, "attempts": len(receipts), "status": status}
        batch.step(StepRow(run_id=RUN, key=key, **{**known, **fields}))
        for number, receipt in enumerate(receipts, start=1):
            batch.attempt(
                AttemptRow(run_id=RUN, key=key, number=number, status="succeeded", started=1.0, ended=41.0 + number)
            )
            if receipt is not None:
                batch.receipt(ReceiptRow(run_id=RUN, key=key, number=number, receipt=receipt, tracks=TRACKS))
        assert self.store.records.write(batch)

    def leased(self, key: str, at: float, **data: Any) -> None:
        """The event of a step that got its devices."""
        batch = RowBatch()
        seq = self.store.records.next_seq(RUN)
        batch.event(
            EventRow(
                run_id=RUN, seq=seq, time=at, kind="leased", key=key, data={"attempt": 1, "asked": "1 GPU", **data}
            )
        )
        assert self.store.records.write(batch)

    def __call__(self, *words: str, code: int = 0, **env: str) -> str:
        """What `stoker gpu RUN words…` prints."""
        printed: str = self.stoker("gpu", RUN[:4], *words, code=code, env={"COLUMNS": "100", **env}).stdout
        return printed

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def told(stoker: Any, stoker_home: Path) -> Iterator[Told]:
    store = open_store(home=str(stoker_home))
    yield Told(store, stoker)
    store.close()


@pytest.fixture
def three(told: Told) -> Told:
    """A run of three steps: one asked for nothing, one used two GPUs, one left its GPU idle."""
    told.run(load=None, train=ResourceSettings(accelerators="H100-80GB:2"), check=ResourceSettings(gpu_count=1))
    idle = attrs.evolve(USE, utilization_mean=0.0, utilization_peak=1.0, first_use=None, longest_idle=9.0, energy=900.0)
    told.step("load", None)
    told.step("train", None, RECEIPT)
    left = Receipt(verdict="idle", evidence=("GPU 0: never 5 % or more",), seconds=9.0, devices=(idle,))
    told.step("check", left)
    return told


def expected(name: str) -> str:
    """The text that a command printed when a person last read it."""
    return (Path(__file__).parent / "expected" / name).read_text(encoding="utf-8")


def test_all_steps(three: Told) -> None:
    assert three() == expected("gpu_steps.txt")


def test_a_receipt_in_full(three: Told) -> None:
    assert three("train") == expected("gpu_wide.txt")
    # A terminal that is wider makes it no wider.
    assert three("train", COLUMNS="300") == expected("gpu_wide.txt")


def test_a_receipt_where_there_is_little_room_and_only_ascii(three: Told) -> None:
    text = three("train", COLUMNS="48", PYTHONIOENCODING="ascii")
    assert text == expected("gpu_narrow.txt")
    assert text.isascii() and max(map(len, text.splitlines())) <= 48


def test_receipts_as_json(three: Told) -> None:
    found = three.json()
    assert found["run"] == RUN
    assert [(one["step"], one["attempt"], one["running"]) for one in found["steps"]] == [
        ("train", 2, False),
        ("check", 1, False),
    ]
    assert found["steps"][0]["receipt"]["devices"][1]["energy"] is None
    one = three.json("train")
    assert (one["step"], one["attempt"], one["running"], one["why"]) == ("train", 2, False, "")
    assert one["receipt"]["verdict"] == "used" and one["receipt"]["proved"] == RECEIPT.proved
    assert [track["name"] for track in one["tracks"]] == ["utilization", "memory", "power", "cpus"]
    assert one["tracks"][0]["values"][:4] == [None, None, None, 17.5]


def test_a_step_without_a_receipt_says_why(three: Told) -> None:
    assert three("load") == "step 'load' asked for no accelerators\n"
    none = three.json("load")
    assert none["receipt"] is None and none["why"] == "step 'load' asked for no accelerators" and none["tracks"] == []
    assert three("train", "--attempt", "1") == (
        "attempt 1 of step 'train' left no receipt: it asked for H100:2; attempt 2 left one: --attempt 2\n"
    )
    three.step("copied", status="cached", cached_from="1abc/train")
    assert three("copied") == ("step 'copied' did not run: its result is from 1abc/train; `stoker gpu 1abc train`\n")


def test_steps_that_have_not_run(told: Told) -> None:
    asked = ResourceSettings(gpu_count=2, gpu_memory="40GB", cpu_count=8)
    told.run(waiting=asked, skipped=asked)
    told.step("waiting", status="pending")
    told.step("skipped", status="skipped")
    told.step("grown", status="failed")
    assert told("waiting") == (
        "step 'waiting' is pending and holds no accelerators yet: it asked for 2 GPUs (40GB or more each)\n"
    )
    assert told("skipped") == "step 'skipped' is skipped and has not run: it asked for 2 GPUs (40GB or more each)\n"
    # A step that only a dynamic pipeline's body made is not in the plan.
    assert told("grown") == "step 'grown' is failed and has not run\n"
    told.step("grown", None)
    told.step("cut", status="running")
    assert told("cut") == "step 'cut' is interrupted and has not run\n"
    assert told("grown") == "attempt 1 of step 'grown' left no receipt: it held no accelerators\n"
    assert told() == f"no step held accelerators in run {RUN}\n"
    assert told.json() == {"run": RUN, "steps": []}


def test_a_step_that_ran_without_its_devices(told: Told) -> None:
    told.run(train=ResourceSettings(gpu_count=1))
    why = "it ran without an accelerator: this machine has no GPU"
    told.step("train", Receipt(verdict="cpu-fallback", evidence=(why,), asked="1 GPU", seconds=2.0, cpus_peak=1.0))
    assert told() == (
        "step   verdict       devices   took\n"
        "train  cpu-fallback  none     2.0 s\n"
        "train: cpu-fallback: it ran without an accelerator: this machine has no GPU\n"
    )
    text = told("train")
    assert "  held       nothing\n" in text and "  cores      peak 1\n" in text


def test_elements(told: Told) -> None:
    told.run(train=ResourceSettings(gpu_count=1))
    told.step("train", count=12)
    single = attrs.evolve(RECEIPT, devices=(USE,))
    for index in range(12):
        one = single if index != 10 else attrs.evolve(single, verdict="idle", evidence=(), stopped="nothing worked")
        told.step(f"train[{index}]", one, parent="train", idx=index)
    lines = told().splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("train ×12  11 used, 1 idle  1 × H100-80GB") and lines[1].endswith("8 m 00 s")
    assert lines[2] == "together: 8 m 00 s of accelerator time, 68.3 Wh"
    assert lines[3] == "train[10]: idle: nothing worked"
    keys = [line.split()[0] for line in told("--elements").splitlines()[1:13]]
    assert keys == [f"train[{index}]" for index in range(12)]
    assert told("train") == told("--elements")
    assert told("train[10]").startswith("train[10]  run 1run0000  attempt 1\n  verdict      idle\n")
    assert "its elements have attempts" in told.stoker("gpu", RUN, "train", "--attempt", "1", code=2).stderr


def test_reasons_are_told_once(told: Told) -> None:
    told.run(train=ResourceSettings(gpu_count=1))
    for place in range(21):
        idle = attrs.evolve(RECEIPT, verdict="idle", evidence=("nothing",) if place < 9 else (f"reason {place}",))
        told.step(f"train_{place:02}", idle)
    lines = told().splitlines()[23:]
    assert lines[0] == "train_00, train_01, train_02, train_03, train_04, … 4 more: idle: nothing"
    assert lines[1] == "train_09: idle: reason 9" and len(lines) == 11
    assert lines[-1] == "… and 3 more that did not use theirs"


def test_a_receipt_without_its_end(told: Told) -> None:
    told.run(train=ResourceSettings(gpu_count=1))
    told.step("train", attrs.evolve(RECEIPT, whole=False, left_idle="idle for 12 min", cpus_mean=0.031, cpus_peak=12.4))
    lines = told("train").splitlines()
    assert "  took         40.0 s, 40 samples every 1.0 s, its end was not seen: the sampler was killed, too" in lines
    assert "  left idle    idle for 12 min" in lines
    assert "  cores        mean 0.031, peak 12" in lines


def test_mistakes(three: Told) -> None:
    assert "did you mean 'train'" in three.stoker("gpu", RUN, "trian", code=2).stderr
    assert "has no attempt 9: its last one is 2" in three.stoker("gpu", RUN, "train", "--attempt", "9", code=2).stderr
    assert "one of a step" in three.stoker("gpu", RUN, "--attempt", "1", code=2).stderr
    assert "there is no run" in three.stoker("gpu", "nothing", code=2).stderr


def test_the_newest_run(three: Told) -> None:
    assert three.stoker("gpu", "latest", env={"COLUMNS": "100"}).stdout == three()


DEVICE = Device(
    kind="nvidia",
    index=0,
    uuid="GPU-1",
    name="NVIDIA H100",
    model="H100-80GB",
    memory=80_000_000_000,
    capability=(9, 0),
    slice="1g.10gb",
)


def samples(path: Path, *, ended: bool = False) -> str:
    """A sampler's file of a step that runs."""
    device = {**attrs.asdict(DEVICE), "slice": ""}
    lines: list[Any] = [{"header": 1, "started": 1000.0, "interval": 1.0, "devices": [device]}]
    for t in range(20):
        row = {"u": 90.0, "m": 40_000_000_000 + t, "w": 300.0, "pids": {"7": 1000}}
        lines.append({"t": float(t), "cpu": t * 2.0, "rss": 5_000_000, "procs": 1, "devices": {"GPU-1": row}})
    lines += [{"end": 20.0, "why": "gone"}] if ended else []
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 20.0, "cp', encoding="utf-8")
    return str(path)


def test_a_step_that_runs_is_shown_as_far_as_it_has_come(told: Told, tmp_path: Path) -> None:
    told.run(running=True, train=ResourceSettings(gpu_count=1))
    told.step("train", status="running")
    assert "is running and holds no accelerators yet: it asked for 1 GPU" in told("train")
    path = samples(tmp_path / "samples.jsonl")
    told.leased("train", 1000.0, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    line = told().splitlines()[1].split()
    assert line[:3] == ["train", "used", "so"] and "90" in line
    text = told("train")
    assert text.startswith("train  run 1run0000  attempt 1  so far\n") and "asked for    1 GPU" in text
    assert "killed" not in text and "utilisation of GPU 0, peak 90 %" in text and "power of GPU 0" in text
    found = told.json("train")
    assert found["running"] and found["attempt"] == 1 and not found["receipt"]["whole"]
    assert len(found["tracks"][0]["values"]) == 20
    assert told("train", "--attempt", "1") == text


def test_a_step_that_runs_on_another_machine(told: Told, tmp_path: Path) -> None:
    told.run(running=True, train=ResourceSettings(gpu_count=1))
    told.step("train", status="running")
    gone = str(tmp_path / "elsewhere.jsonl")
    told.leased("train", time.time() - 60, devices=[attrs.asdict(DEVICE)], samples=gone, memory=0, fallback="")
    (one,) = told.json()["steps"]
    (device,) = one["receipt"]["devices"]
    assert (one["receipt"]["verdict"], device["model"], device["slice"]) == ("unknown", "H100-80GB", "1g.10gb")
    assert one["receipt"]["seconds"] >= 60 and one["running"]
    assert "its samples are not on this machine" in told()
    Path(gone).touch()
    assert "there are no samples yet" in told()


def test_a_step_that_runs_on_the_cpu_instead(told: Told) -> None:
    told.run(running=True, train=ResourceSettings(gpu_count=1))
    told.step("train", status="running")
    told.leased("train", time.time(), devices=[], samples="", memory=0, fallback="this machine has no GPU")
    assert "train: cpu-fallback: this machine has no GPU" in told()
    assert "  no devices  this machine has no GPU\n" in told("train")


def test_an_attempt_that_is_over_runs_no_more(told: Told, tmp_path: Path) -> None:
    told.run(running=True, train=ResourceSettings(gpu_count=1))
    path = samples(tmp_path / "samples.jsonl")
    told.leased("train", 30.0, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    idle = attrs.evolve(RECEIPT, verdict="idle")
    told.step("train", idle, status="running")  # its first attempt ended at 42, the second has no devices yet
    (one,) = told.json()["steps"]
    assert (one["attempt"], one["running"], one["receipt"]["verdict"]) == (1, False, "idle")
    told.leased("train", 50.0, attempt=2, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    (one,) = told.json()["steps"]
    assert (one["attempt"], one["running"], one["receipt"]["verdict"]) == (2, True, "used")
    assert told.json("train")["attempt"] == 2
    assert told.json("train", "--attempt", "1")["receipt"]["verdict"] == "idle"
    told.step("train", idle, RECEIPT)
    (one,) = told.json()["steps"]
    assert (one["attempt"], one["running"]) == (2, False)


def test_what_a_dead_driver_left_is_still_shown(told: Told, tmp_path: Path) -> None:
    told.run(train=ResourceSettings(gpu_count=1))
    told.step("train", status="running")  # and nobody runs it
    path = samples(tmp_path / "samples.jsonl")
    told.leased("train", 1000.0, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    assert "train  used so far" in told() and "utilisation of GPU 0" in told("train")


def test_elements_that_run_have_no_row_yet(told: Told, tmp_path: Path) -> None:
    told.run(running=True, train=ResourceSettings(gpu_count=1))
    told.step("train", count=3, status="running")
    told.step("train[0]", RECEIPT, parent="train", idx=0)
    path = samples(tmp_path / "samples.jsonl")
    told.leased("train[0]", 1.0, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    told.leased("train[1]", 1.0, devices=[attrs.asdict(DEVICE)], samples=path, memory=0, fallback="")
    assert [(one["step"], one["running"]) for one in told.json()["steps"]] == [("train[0]", False), ("train[1]", True)]
    assert "2 used (1 so far)" in told()
    assert "attempt 1  so far" in told("train[1]")


def test_colours_only_on_a_terminal(three: Told) -> None:
    assert "\x1b" not in three() + three("train")
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    env = {**os.environ, "STOKER_HOME": str(three.stoker.project.home), "TERM": "xterm", "COLUMNS": "100"}
    env.pop("NO_COLOR", None)
    program = "from stoker.cli.main import main; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", program, "gpu", RUN, "train"], stdout=follower, env=env, cwd=three.stoker.project.folder
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # Linux says so when the last writer is gone
            break
        if not more:
            break
        printed += more
    os.close(leader)
    assert child.wait(60) == 0
    assert b"\x1b[32mused" in printed


def test_a_run_that_is_shown_has_the_verdicts(three: Told) -> None:
    three.step("many", count=2)
    for index in range(2):
        three.step(f"many[{index}]", RECEIPT, parent="many", idx=index)
    lines = {line.split()[0]: line for line in three.stoker("show", RUN).stdout.splitlines() if line.strip()}
    assert lines["train"].endswith("used 2 × H100-80GB, 84 %")
    assert lines["many"].endswith("2 used, 84 %")
    assert lines["check"].endswith("idle: 1 × H100-80GB, 0 %")
    assert "H100" not in lines["load"]
    steps = {step["key"]: step for step in three.stoker.json("show", RUN)["steps"]}
    assert steps["check"]["attempts"][0]["receipt"]["verdict"] == "idle"
