"""What vendors' tools print, over the whole of its grammar; and lists of devices that people write into variables.

A number stands alone or with its unit, or is an object of both: https://rocm.docs.amd.com/projects/amdsmi (`--json`),
https://github.com/intel/xpumanager/blob/master/doc/smi_user_guide.md, hl-smi's guide.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stoker.core.devices import Device
from stoker.core.errors import SettingsError
from stoker.devices.probe import visible
from stoker.vendors import amd, neuron
from stoker.vendors.base import numbers_in
from stoker.vendors.tools import MEMORY, measured, number

POWERS = {"B": 0, "KB": 1, "KiB": 1, "MB": 2, "MiB": 2, "GB": 3, "GiB": 3, "TB": 4, "TiB": 4, "": 2}
NUMBERS = st.integers(0, 2**40).map(str) | st.tuples(st.integers(0, 2**20), st.integers(0, 99)).map(
    lambda parts: f"{parts[0]}.{parts[1]:02}"
)
UNKNOWN = ("N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "ERR!", "NA", "-", "", "none", "4+")
"""What nvidia-smi, amd-smi, xpu-smi and hl-smi print where they do not know a value."""


@given(NUMBERS, st.sampled_from(list(POWERS)), st.sampled_from(["", " ", "  "]))
@example("98304", "MiB", " ")
@example("131072.00", "", "")
def test_every_size_has_its_bytes(text: str, unit: str, blank: str) -> None:
    expected = float(Fraction(text) * 1024 ** POWERS[unit])
    for written in (f"{text}{blank if unit else ''}{unit}", {"value": json.loads(text), "unit": unit}, {"value": text}):
        if written != {"value": text} or not unit:
            assert number(written, MEMORY) == pytest.approx(expected)


@given(st.sampled_from(["u", "w", "c", "f", "j", "errors"]), NUMBERS)
def test_a_measure_is_in_its_own_unit(key: str, text: str) -> None:
    unit = {"u": "%", "w": "W", "c": "C", "f": "MHz", "j": "J", "errors": ""}[key]
    assert measured({key: f"{text} {unit}"}) == measured({key: text}) == {key: pytest.approx(float(text))}
    other = "C" if key != "c" else "F"
    assert measured({key: f"{text} {other}"}) == measured({key: {"value": 1, "unit": other}}) == {}


@pytest.mark.parametrize(
    "text", [*UNKNOWN, "4 MB MB", "4XB", "4 parsecs", "1.2.3", "1e3", "٣", "0x10", None, True, [], {}]
)
def test_what_a_tool_does_not_know_is_unknown(text: Any) -> None:
    assert number(text, MEMORY) is None
    assert number({"value": text, "unit": "MB"}, MEMORY) is None
    assert measured({"u": text, "m": text, "w": text}) == {}


def test_an_unknown_unit_of_amd_smi_is_no_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(*vram: Any) -> list[int]:
        rows = [{"gpu": index, "asic": {"a": 1}, "vram": {"size": one}} for index, one in enumerate(vram)]
        monkeypatch.setattr(amd, "output", lambda argv, environment: json.dumps(rows))
        return [memory for _, memory in amd.listed_asics("amd-smi", {})]

    known, unknown = {"value": 196592, "unit": "MB"}, {"value": 192, "unit": "stacks"}
    assert sizes(known, 196592, unknown, "N/A") == [196592 * 2**20, 196592 * 2**20, 0, 0], "0 is not told"


NUMBER = st.integers(0, 300)


@given(st.lists(NUMBER | st.tuples(NUMBER, st.integers(0, 9)), min_size=1, max_size=6), st.sampled_from(["", " "]))
def test_a_list_of_devices(items: list[Any], blank: str) -> None:
    texts, expected = [], set()
    for item in items:
        first, more = item if isinstance(item, tuple) else (item, 0)
        texts.append(f"{first}-{first + more}" if isinstance(item, tuple) else f"{first}")
        expected.update(range(first, first + more + 1))
    assert numbers_in(f",{blank}".join(texts)) == expected


@pytest.mark.parametrize(
    ("kind", "variable"),
    [("gaudi", "HABANA_VISIBLE_MODULES"), ("neuron", "NEURON_RT_VISIBLE_CORES"), ("intel", "ZE_AFFINITY_MASK")],
)
@pytest.mark.parametrize("value", ["all", "0;1", "0,x", "0-", "-1", "0..3", "٣", "99999"])
def test_a_variable_that_is_not_understood_is_an_error(kind: str, variable: str, value: str) -> None:
    with pytest.raises(SettingsError):
        numbers_in(value)
    uuid = f"{neuron.CORES}0-1" if kind == "neuron" else "a"
    devices, (finding,) = visible([Device(kind=kind, index=0, uuid=uuid)], {variable: value})
    assert devices == () and finding.level == "error" and finding.code == "STK129"
    assert f"{variable}={value} is not understood" in finding.what and f"unset {variable}" in finding.fix


def test_a_part_that_neuron_monitor_cannot_tell_is_unknown() -> None:
    def runtime(**changes: Any) -> dict[str, Any]:
        report = {
            "neuroncore_counters": {"error": "", "neuroncores_in_use": {"0": {"neuroncore_utilization": 50.0}}},
            "memory_used": {
                "error": "",
                "neuron_runtime_used_bytes": {"usage_breakdown": {"neuroncore_memory_usage": {"0": {"tensors": 7}}}},
            },
        }
        return {"pid": 1, "error": "", "report": {**report, **changes}}

    whole, cores = runtime(), range(2)
    assert neuron._row({"neuron_runtime_data": [whole]}, cores, frozenset({1})) == {"u": 25.0, "m": 7, "o": 7, "n": 1}
    assert neuron._row({"neuron_runtime_data": []}, cores, frozenset()) == {"u": 0.0, "m": 0, "o": 0, "n": 0}
    silent = runtime(memory_used={"error": "", "neuron_runtime_used_bytes": {"usage_breakdown": {}}})
    assert neuron._row({"neuron_runtime_data": [whole, silent, whole]}, cores, frozenset({1})) == {"u": 75.0}
    failed = runtime(neuroncore_counters={"error": "no counters", "neuroncores_in_use": {}})
    with pytest.raises(ValueError, match="no counters"):
        neuron._row({"neuron_runtime_data": [failed]}, cores, frozenset())


HL_SMI = """#!/bin/sh
cat <<'END'
0, card-0, HL-225, 98304 MiB
1, card-1, HL-225, [Not Supported]
2, card-2, HL-225, 96 stacks
END
"""


def test_a_size_that_is_not_known_is_shown_as_such(project: Any, tmp_path: Path) -> None:
    (tmp_path / "hl-smi").write_text(HL_SMI)
    (tmp_path / "hl-smi").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HABANA_VISIBLE_MODULES": "0-2"}
    shown = json.loads(project.stoker("devices", "--json", env=environment).stdout)
    assert [device["memory"] for device in shown["devices"]] == [96 * 2**30, 0, 0]
    refused = json.loads(
        project.stoker("devices", "--json", env={**environment, "HABANA_VISIBLE_MODULES": "all"}, code=None).stdout
    )
    assert refused["devices"] == [] and [finding["level"] for finding in refused["findings"]] == ["error"]
