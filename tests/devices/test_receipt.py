"""Receipts from samples: what was told, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.resources import ResourceSettings
from stoker.devices.receipt import SIMULATED, Samples, read, receipt_of, tracks

H100 = {"kind": "nvidia", "index": 0, "uuid": "GPU-0", "name": "NVIDIA H100", "model": "H100", "memory": 85_520_809_984}
OTHER = {**H100, "uuid": "GPU-1", "index": 1}


def samples(
    *rows: dict[str, Any] | None, devices: Any = (H100,), step: float = 1.0, cpus: float = 1.0, **more: Any
) -> Samples:
    """A step whose first device had these rows, one each `step` seconds; None where it did not answer."""
    moments = tuple(
        {
            "t": number * step,
            "cpu": number * step * cpus,
            "rss": 10**9,
            "procs": 1,
            "devices": {} if row is None else {"GPU-0": row},
        }
        for number, row in enumerate(rows)
    )
    header = {"header": 1, "started": 1000.0, "interval": step, "idle_below": 5.0, "idle_for": 600.0, "cpus": 8}
    document = {**header, "devices": list(devices), **more.pop("header", {})}
    return Samples(header=document, moments=moments, end={"end": (len(rows) - 1) * step, "why": "gone"}, **more)


def utilised(*values: float, **more: Any) -> list[dict[str, Any]]:
    return [{"u": value, "m": 10**9, **more} for value in values]


def test_a_device_that_computed_was_used() -> None:
    receipt = receipt_of(samples(*utilised(0, 0, 60, 100, 0, 0, 0)), asked="1 GPU", proved={"torch": "2.13.0"})
    (use,) = receipt.devices
    assert receipt.verdict == "used" and receipt.evidence == ("H100 0: utilisation 100 % at most, 27 % on average",)
    assert use.utilization_mean == pytest.approx(160 / 6) and use.utilization_peak == 100
    assert use.idle == pytest.approx(4 / 6) and use.first_use == 2 and use.longest_idle == 2
    assert (receipt.asked, receipt.started, receipt.seconds, receipt.whole) == ("1 GPU", 1000.0, 6.0, True)
    assert receipt.proved == {"torch": "2.13.0"} and not receipt.left_idle


def test_what_the_first_sample_tells_is_of_the_time_before_the_step() -> None:
    receipt = receipt_of(samples(*utilised(100, 0, 0, 0)))
    assert receipt.verdict == "idle" and receipt.devices[0].utilization_peak == 0


def test_a_device_that_did_nothing_is_idle_also_beside_one_that_worked() -> None:
    found = samples(*utilised(0, 90, 90), devices=(H100, OTHER))
    for moment in found.moments:
        moment["devices"]["GPU-1"] = {"u": 4}
    receipt = receipt_of(found)
    assert receipt.verdict == "idle"
    assert receipt.evidence[1] == "H100 1: utilisation 4 % at most, never 5 % or more, in 3 samples"


def test_work_of_others_is_not_the_steps() -> None:
    assert receipt_of(samples(*utilised(0, 90, 90, 90, n=0))).verdict == "idle"
    assert "by others" in receipt_of(samples(*utilised(0, 90, 90, 90, n=0))).evidence[0]
    # Processes are looked for once a second, however often the device is sampled.
    rows = [row if number in (0, 3) else {**row, "n": None} for number, row in enumerate(utilised(0, 90, 90, 90, n=0))]
    receipt = receipt_of(samples(*rows))
    assert receipt.verdict == "unknown" and receipt.evidence[0].endswith("was seen there in 2 looks")
    assert receipt_of(samples(*utilised(0, 90, n=0))).verdict == "unknown"  # too few to have seen a short process
    assert receipt_of(samples(*utilised(0, 90, 90, 90, n=1))).verdict == "used"


def test_a_step_shorter_than_the_drivers_window_is_unknown_unless_something_was_seen() -> None:
    assert receipt_of(samples(*utilised(0, 0, 0), step=0.1)).verdict == "unknown"
    assert receipt_of(samples(*utilised(0, 50, 0), step=0.1)).verdict == "used"


def test_a_driver_that_does_not_tell_leaves_the_verdict_open() -> None:
    receipt = receipt_of(samples({"m": 5, "n": 1, "o": 3 * 10**9}, {"m": 5, "n": 1, "o": 2 * 10**9}))
    assert receipt.verdict == "unknown"
    (text,) = receipt.evidence
    assert text.startswith("H100 0: the driver does not tell its utilisation; the step's processes had a context there")
    assert text.endswith("with 3.0 GB of its memory")
    use = receipt.devices[0]
    assert use.utilization_mean is use.utilization_peak is use.idle is use.longest_idle is use.first_use is None
    assert use.energy is use.power_mean is use.temperature_peak is use.clock_mean is None and not use.throttled


def test_devices_that_are_simulated_and_steps_without_any() -> None:
    simulated = receipt_of(samples({}, {}, devices=[{**H100, "simulated": True}], header={"simulated": True}))
    assert simulated.verdict == "unknown" and simulated.evidence == (SIMULATED,) and simulated.simulated
    assert simulated.devices[0].simulated and simulated.devices[0].memory_peak is None
    fallen = receipt_of(samples({}, {}, devices=[]), fallback="this machine has no GPU")
    assert fallen.verdict == "cpu-fallback" and fallen.fallback == "this machine has no GPU"
    assert fallen.evidence == ("it ran without an accelerator: this machine has no GPU",)
    assert receipt_of(samples({}, {}, devices=[])).evidence == ("the step held no device",)


def test_a_step_on_a_device_that_it_does_not_hold() -> None:
    events = ({"t": 1.0, "strays": ["GPU-7"]}, {"t": 2.0, "strays": ["GPU-7"]})
    receipt = receipt_of(samples(*utilised(0, 0, 0), events=events))
    assert receipt.verdict == "wrong-device"
    assert receipt.evidence[0] == "its processes computed on GPU-7, which it does not hold (it holds H100 0)"
    assert len(receipt.evidence) == 2


def test_no_samples_at_all() -> None:
    receipt = receipt_of(Samples(), seconds=3.5)
    assert receipt.verdict == "unknown" and receipt.evidence == ("there are no samples of the step",)
    assert receipt.seconds == 3.5 and not receipt.whole
    assert (
        receipt.cpus_mean is receipt.cpus_peak is receipt.memory_mean is receipt.memory_peak is receipt.energy is None
    )


def test_energy_is_the_counters_difference_or_the_integral_of_power() -> None:
    def energy(*rows: Any) -> float | None:
        return receipt_of(samples(*rows)).energy

    assert energy({"j": 100.0, "w": 1}, {"w": 1}, {"j": 350.5, "w": 1}) == 250.5
    # The monitor reads the counter less often than the power, and a step that is killed takes its last reading along.
    assert energy({"w": 20}, {"j": 100.0, "w": 40}, {"w": 1}, {"j": 350.5, "w": 10}, {"w": 30}) == 30 + 250.5 + 20
    assert energy({"j": 100.0, "w": 10}, {"j": 5.0, "w": 30}, {"j": 6.0, "w": 30}) == 50  # the counter began anew
    assert energy({"w": 10}, {"w": 30}, {"w": 30}) == 50
    assert energy({"w": 10}, {"w": 30}, None, None, {"w": 30}) is None  # half of the time is not told
    assert energy({"u": 1}, {"u": 1}) is None
    assert receipt_of(samples({"j": 1.0}, {"j": 2.0}, devices=[H100, OTHER])).energy is None  # one of two tells


def test_values_that_are_told_seldom_weigh_for_the_time_since_the_last() -> None:
    rows: list[dict[str, Any]] = [{"f": 1000}, {}, {}, {"f": 2000}, {"f": 1000}]
    assert receipt_of(samples(*rows)).devices[0].clock_mean == pytest.approx(1750)


def test_cpus_are_measured_over_a_second_and_more() -> None:
    found = samples(*[{}] * 41, step=0.05, cpus=2.0)
    jumpy = [{**moment, "cpu": round(moment["cpu"] * 5) / 5} for moment in found.moments]
    receipt = receipt_of(Samples(header=found.header, moments=tuple(jumpy), end=found.end))
    assert receipt.cpus_mean == pytest.approx(2.0, abs=0.1)
    assert receipt.cpus_peak is not None and 2.0 <= receipt.cpus_peak < 2.4
    assert receipt_of(samples({}, {}, step=0.04)).cpus_mean is None


def test_what_happened_is_evidence_once() -> None:
    events = (
        {"t": 5.0, "failed": "GPU-0", "why": "GPU is lost"},
        {"t": 35.0, "failed": "GPU-0", "why": "GPU is lost"},
        {"t": 6.0, "xid": 79, "uuid": "GPU-0"},
        {"t": 7.0, "ecc": "GPU-0"},
        {"t": 8.0, "stop": "its device has not worked"},
    )
    receipt = receipt_of(samples(*utilised(0, 90, 90), events=events))
    assert receipt.evidence[1:] == (
        "H100 0: the driver failed: GPU is lost (after 5.0 s)",
        "H100 0: the driver reported Xid 79 (after 6.0 s)",
        "H100 0: the driver reported an uncorrectable memory error (after 7.0 s)",
    )
    assert receipt.stopped == "its device has not worked"


def test_devices_left_idle_are_told_of_together() -> None:
    header = {"idle_for": 3.0}
    assert receipt_of(samples(*utilised(0, 0, 90, 0, 0, 0), header=header)).left_idle == ""
    told = receipt_of(samples(*utilised(0, 0, 90, 0, 0, 0, 0), header=header)).left_idle
    assert told == "its device has not worked (utilisation below 5 %) for 3.0 s"
    unknown: list[Any] = [{"u": 0}, {"u": 0}, {}, {"u": 0}, {"u": 0}, {"u": 0}]
    assert receipt_of(samples(*unknown, header=header)).left_idle == ""
    both = samples(*utilised(0, 0, 0, 0, 0), devices=(H100, OTHER), header=header)
    assert receipt_of(both).left_idle == ""  # of the other nothing is known
    for moment in both.moments:
        moment["devices"]["GPU-1"] = {"u": 1}
    assert receipt_of(both).left_idle.startswith("none of its 2 devices has worked")


LONG = utilised(*[50.0] * 21)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"cpu_count": 8}, ["asked for 8 CPUs, used 1.2 on average, 1.2 at most"]),
        ({"cpu_count": 2}, []),
        ({"memory": "16GB"}, ["asked for 16 GB of memory, peak 1.0 GB"]),
        ({"memory": "1.8GB"}, []),
        ({}, []),
    ],
)
def test_advice_compares_what_was_asked_with_what_was_used(asked: dict[str, Any], said: list[str]) -> None:
    found = samples(*LONG, cpus=1.2)
    gpu = "asked for an 80 GB GPU (H100 0), peak 1.0 GB"
    assert list(receipt_of(found, resources=ResourceSettings(**asked)).advice) == [*said, gpu]
    assert receipt_of(found, resources=ResourceSettings(**asked), status="failed").advice == ()
    brief = samples(*LONG[:9], cpus=1.2)
    assert receipt_of(brief, resources=ResourceSettings(**asked)).advice == ()


def test_advice_on_a_part_of_a_gpu() -> None:
    resources = ResourceSettings(gpu_memory="10GB", share=True)
    found = samples(*utilised(*[50.0] * 21, o=2 * 10**9, n=1))
    assert receipt_of(found, resources=resources).advice == ("asked for 10 GB of H100 0, peak 2.0 GB",)
    assert receipt_of(samples(*LONG), resources=resources).advice == ()  # what others hold says nothing of its part


def test_advice_on_devices_that_wait_for_data() -> None:
    waits = utilised(*[0, 0, 0, 90] * 6)
    (found,) = receipt_of(samples(*waits, cpus=3.9), resources=ResourceSettings(cpu_count=4)).advice[-1:]
    assert found.startswith("H100 0 was idle 74% of the time while 3.9 of 4 CPUs worked: it seems to wait for data")
    assert "wait for data" not in " ".join(receipt_of(samples(*waits, cpus=1.0)).advice)
    assert "3.9 of 4 CPUs" in receipt_of(samples(*waits, cpus=3.9, header={"cpus": 4})).advice[-1]


def test_advice_on_heat() -> None:
    hot = [
        {"u": 90, "m": 80 * 10**9, "r": ["thermal"] if number > 10 else ["power cap"], "c": 87} for number in range(21)
    ]
    receipt = receipt_of(samples(*hot))
    assert receipt.advice == ("H100 0 was slowed down by heat in 48% of the samples, at up to 87 °C",)
    assert receipt.devices[0].throttled == {"power cap": pytest.approx(11 / 21), "thermal": pytest.approx(10 / 21)}


def test_tracks_are_thinned_and_keep_their_peak() -> None:
    rows = [{"u": number % 100, "m": 5, "w": 100.0} if number != 500 else None for number in range(1001)]
    found = {(track.uuid, track.name): track for track in tracks(samples(*rows, cpus=2.0), points=100)}
    use = found["GPU-0", "utilization"]
    assert len(use.times) == len(use.values) <= 100 and use.peak == 99 and max(filter(None, use.values)) < 99
    assert ("GPU-0", "temperature") not in found
    assert found["", "cpus"].values[3] == pytest.approx(2.0) and found["", "memory"].peak == 10**9
    whole = {track.name: track for track in tracks(samples(*rows), points=2000) if track.uuid}
    assert whole["power"].values[500] is None and whole["power"].values[499] == 100
    assert tracks(Samples()) == ()


def test_files_that_are_cut_damaged_or_missing(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert read(path) == Samples()
    lines = [
        {"header": 1, "devices": [H100], "started": 5.0, "new": "of a later version"},
        {"t": 0.0, "cpu": 0.0, "rss": 1, "procs": 1, "devices": {"GPU-0": {"u": 3}}},
        {"t": 1.0, "failed": "GPU-0", "why": "x"},
        {"t": 1.0, "cpu": 0.5, "rss": 2, "procs": 1, "devices": {}},
        {"end": 2.0, "why": "gone"},
    ]
    text = "\n".join(map(json.dumps, lines))
    path.write_text(text + "\n")
    found = read(path)
    assert (len(found.moments), len(found.events), found.end) == (2, 1, lines[-1]) and found.seconds == 2.0
    path.write_text(text[:-3])
    found = read(path)
    assert (len(found.moments), len(found.events), found.end) == (2, 1, None) and found.seconds == 1.0
    path.write_bytes(b"\xff\x00\n[1]\n7\n{}\n" + text.encode())
    assert len(read(path).moments) == 2
    path.write_text("")
    assert read(path) == Samples()
