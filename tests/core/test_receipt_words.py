"""Receipts in words: figures with units, several taken together, and nothing where nothing was measured."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core import receipt as words
from stoker.core.receipt import Receipt, Use

USE = Use(uuid="a", kind="nvidia", index=0, model="H100-80GB", memory=80_000_000_000)
BUSY = attrs.evolve(
    USE, utilization_mean=90.0, utilization_peak=95.0, memory_peak=40_000_000_000, energy=3600.0, first_use=5.0
)
SLOW = attrs.evolve(BUSY, uuid="b", utilization_mean=60.0, utilization_peak=99.0, first_use=2.0, longest_idle=7.0)
USED = Receipt(verdict="used", seconds=10.0, devices=(BUSY, SLOW))


def test_totals_of_one_receipt() -> None:
    found = words.totals([USED])
    assert (found.utilization_mean, found.utilization_peak) == (75.0, 99.0)
    assert (found.memory_peak, found.memory) == (40_000_000_000, 80_000_000_000)
    assert (found.energy, found.first_use, found.longest_idle, found.seconds) == (7200.0, 2.0, 7.0, 10.0)
    # The receipt's own figure goes before the sum of its devices'.
    assert words.totals([attrs.evolve(USED, energy=1.0)]).energy == 1.0


def test_totals_weigh_receipts_by_their_time() -> None:
    short = Receipt(verdict="idle", seconds=10.0, devices=(attrs.evolve(BUSY, utilization_mean=0.0),))
    long = Receipt(verdict="used", seconds=90.0, devices=(attrs.evolve(BUSY, utilization_mean=100.0),))
    found = words.totals([short, long])
    assert found.utilization_mean == pytest.approx(90.0) and found.seconds == 100.0 and found.energy == 7200.0


def test_what_was_not_measured_is_no_number() -> None:
    nothing = words.totals([Receipt(verdict="unknown", devices=(USE, USE))])
    assert nothing == words.Totals()
    # One device that does not tell its energy makes the sum unknown, not smaller.
    silent = attrs.evolve(SLOW, energy=None)
    assert words.totals([attrs.evolve(USED, devices=(BUSY, silent))]).energy is None
    assert words.totals([]) == words.Totals()


def test_the_fullest_device_is_told_not_the_largest() -> None:
    small = attrs.evolve(USE, uuid="s", memory=20_000_000_000, memory_peak=19_000_000_000)
    found = words.totals([attrs.evolve(USED, devices=(BUSY, small))])
    assert words.memory_of_text(found.memory_peak, found.memory) == "19 GB of 20 GB"


@pytest.mark.parametrize(
    ("receipt", "told"),
    [
        (USED, "used 2 × H100-80GB, 75 %"),
        (attrs.evolve(USED, verdict="idle"), "idle: 2 × H100-80GB, 75 %"),
        (attrs.evolve(USED, verdict="wrong-device", devices=(USE,)), "wrong-device: 1 × H100-80GB"),
        (Receipt(verdict="cpu-fallback", asked="2 GPUs"), "cpu-fallback: asked for 2 GPUs"),
        (Receipt(verdict="cpu-fallback"), "cpu-fallback"),
        (Receipt(verdict="unknown"), "unknown"),
    ],
)
def test_a_receipt_in_a_table(receipt: Receipt, told: str) -> None:
    assert words.summary(receipt) == words.summary_of([receipt]) == told


def test_many_receipts_in_a_table() -> None:
    assert words.summary_of([USED, USED, attrs.evolve(USED, verdict="idle")]) == "2 used, 1 idle, 75 %"


def test_devices() -> None:
    other = attrs.evolve(USE, uuid="c", model="L4")
    assert words.devices_text([BUSY, SLOW, BUSY, other]) == "2 × H100-80GB, 1 × L4"
    assert words.devices_text([attrs.evolve(USE, simulated=True)]) == "1 × H100-80GB (simulated)"
    assert words.devices_text([]) == ""
    assert [words.device_name(attrs.evolve(USE, kind=kind)) for kind in ("amd", "tpu", "neuron", "x")] == [
        "GPU 0",
        "TPU 0",
        "Neuron 0",
        "x 0",
    ]


@pytest.mark.parametrize(
    ("joules", "told"),
    [(None, ""), (0.0, "0 J"), (412.3, "412 J"), (3600.0, "1 Wh"), (41_400.0, "11.5 Wh"), (4.46e6, "1.24 kWh")],
)
def test_energy(joules: float | None, told: str) -> None:
    assert words.energy_text(joules) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, ""), (0.0, "0 %"), (0.01, "0 %"), (0.4, "0.4 %"), (0.96, "1 %"), (87.4, "87 %"), (100.0, "100 %")],
)
def test_percent(value: float | None, told: str) -> None:
    assert words.percent_text(value) == told


def test_why_a_device_was_held_back() -> None:
    use = attrs.evolve(USE, throttled={"thermal": 0.02, "power cap": 0.25, "sync boost": 0.0})
    assert words.throttled_text(use) == "power cap 25 %, thermal 2 %"


def test_nothing_has_no_words() -> None:
    assert words.power_text(None) == words.rate_text(None) == words.memory_of_text(None, 5) == ""
    assert words.text_or_empty(None, str) == "" and words.text_or_empty(0.0, str) == "0.0"
    assert (words.power_text(312.4), words.rate_text(1.2e9)) == ("312 W", "1.2 GB/s")


uses = st.builds(
    Use,
    uuid=st.sampled_from("abc"),
    kind=st.just("nvidia"),
    index=st.integers(0, 9),
    model=st.sampled_from(["L4", "T4"]),
    memory=st.integers(0, 10**12),
    utilization_mean=st.none() | st.floats(0, 100),
    utilization_peak=st.none() | st.floats(0, 100),
    memory_peak=st.none() | st.integers(0, 10**12),
    energy=st.none() | st.floats(0, 1e9),
    first_use=st.none() | st.floats(0, 1e6),
)
receipts = st.builds(
    Receipt,
    verdict=st.sampled_from(["used", "idle", "wrong-device", "cpu-fallback", "unknown"]),
    seconds=st.floats(0, 1e6),
    devices=st.lists(uses, max_size=4).map(tuple),
)


@given(st.lists(receipts, max_size=5))
def test_totals_lie_between_what_they_are_of(found: list[Receipt]) -> None:
    known = words.totals(found)
    means = [use.utilization_mean for one in found for use in one.devices if use.utilization_mean is not None]
    assert (known.utilization_mean is None) == (not means)
    if known.utilization_mean is not None:
        assert min(means) - 1e-6 <= known.utilization_mean <= max(means) + 1e-6
    assert "None" not in words.summary_of(found)


@pytest.mark.parametrize(
    ("predicted", "found", "text"),
    [
        ("proved", "fits", "used 2 × H100-80GB, 75 %, proved, found to fit"),
        ("not-proved", "fits", "used 2 × H100-80GB, 75 %, not proved, found to fit"),
        ("proved", "unfit", "used 2 × H100-80GB, 75 %, proved, found unfit"),
        ("not-proved", None, "used 2 × H100-80GB, 75 %, not proved, not looked at"),
        ("not-proved", "simulated", "used 2 × H100-80GB, 75 %"),
        (None, "fits", "used 2 × H100-80GB, 75 %"),
    ],
)
def test_what_was_predicted_stands_beside_what_was_found(predicted: Any, found: Any, text: str) -> None:
    assert words.summary(attrs.evolve(USED, predicted=predicted, found=found)) == text
