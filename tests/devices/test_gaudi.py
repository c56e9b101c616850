"""Intel's Gaudi by an hl-smi of the tests' own, which answers as its guide says: found, shown, proved, measured."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devices.test_othermeters import sampled, step  # noqa: F401  # a fixture

from stoker.core import status
from stoker.core.devices import Device
from stoker.devices.receipt import receipt_of
from stoker.vendors import gaudi
from stoker.vendors.base import GateRequest
from stoker.vendors.registry import environment_of

LISTED = """\
1, 01P4-HL2080A0-15-TNPS34-03-07-07, HL-225, 98304
0, 01P4-HL2080A0-15-TNPS34-03-07-06, HL-225, 98304 MiB
2, 01P4-HL2080A0-15-TNPS34-03-07-08, HL-999, N/A
"""
CARD = {"kind": "gaudi", "index": 1, "uuid": "card-1", "model": "Gaudi2", "memory": 96 * 2**30}


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tools"
    folder.mkdir()
    return folder


def hl_smi(folder: Path, script: str) -> dict[str, str]:
    """A command of this name; the environment that finds it."""
    path = folder / "hl-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def answering(text: str, wanted: str) -> str:
    return f'test "$*" = "-Q {wanted} -f csv,noheader,nounits" || exit 9\ncat <<\'END\'\n{text}END'


def test_cards_are_found_by_their_modules(tools: Path, tmp_path: Path) -> None:
    inventory = gaudi.probe(hl_smi(tools, answering(LISTED, "module_id,uuid,name,memory.total")), tmp_path)
    first, second, third = inventory.devices
    assert not inventory.findings
    assert (first.index, first.model, first.memory) == (0, "Gaudi2", 96 * 2**30)
    assert (second.index, second.uuid) == (1, "01P4-HL2080A0-15-TNPS34-03-07-07")
    assert (third.model, third.memory) == ("HL-999", 0), "a card that the catalog lacks keeps its name"
    assert first.links == (second.uuid, third.uuid)
    assert environment_of([second, third])["HABANA_VISIBLE_MODULES"] == "1,2"
    assert gaudi.select_modules(inventory.devices, "2, 0") == [first, third]
    assert gaudi.select_modules(inventory.devices, "") == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo no driver >&2; exit 3", "it ended with 3: no driver"),
        ("echo 'ERROR: nothing'", "what it prints is not what it should be"),
        ("echo 'a, b, c, d'", "what it prints is not what it should be"),
    ],
)
def test_hl_smi_that_fails(script: str, why: str, tools: Path, tmp_path: Path) -> None:
    inventory = gaudi.probe(hl_smi(tools, script), tmp_path)
    (finding,) = inventory.findings
    assert not inventory.devices and finding.level == "error" and why in finding.why


def test_cards_without_their_tool(tmp_path: Path) -> None:
    assert gaudi.probe({"PATH": str(tmp_path)}, tmp_path).findings == ()
    card = tmp_path / "sys/bus/pci/devices/0000:19:00.0"
    card.mkdir(parents=True)
    (card / "vendor").write_text("0x1da3\n")
    (finding,) = gaudi.probe({"PATH": str(tmp_path)}, tmp_path).findings
    assert finding.level == "info" and "hl-smi" in finding.what


def held(*modules: int) -> tuple[Device, ...]:
    return tuple(Device(kind="gaudi", index=module, uuid=f"card-{module}", model="Gaudi2") for module in modules)


def test_the_gate(tmp_path: Path) -> None:
    def asked(value: str) -> Any:
        environment = {"HABANA_VISIBLE_MODULES": value}
        return gaudi.prove(GateRequest(devices=held(1, 2), environment=environment, root=tmp_path))

    absent = asked("1,2").problem
    assert absent is not None and absent.cause == status.NO_DRIVER
    files = tmp_path / "dev/accel"
    files.mkdir(parents=True)
    (files / "accel0").touch()
    (files / "accel_controlD0").touch()
    absent = asked("1,2").problem
    assert absent is not None and absent.cause == status.NO_GPU and "1 of 2" in absent.sentence
    (files / "accel1").touch()
    other = asked("0,1").problem
    assert other is not None and "'0,1'" in other.sentence
    assert asked("1,2").problem is None and "unproved" in asked("1,2").facts["devices"]


MEASURED = "card-0, 99, 90000, 500, 60\ncard-1, 80, 4096, 350, 55\n"


def test_a_receipt_has_what_hl_smi_tells(tools: Path, tmp_path: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    script = answering(MEASURED, "uuid,utilization.aip,memory.used,power.draw,temperature.aip")
    samples = sampled(tmp_path, step, CARD, 4, **hl_smi(tools, script))
    receipt = receipt_of(samples)
    use = receipt.devices[0]
    assert use.utilization_peak == 80 and use.memory_peak == 4 * 2**30
    assert use.power_mean == 350 and use.temperature_peak == 55
    assert use.own_memory_peak is None, "hl-smi does not tell whose memory it is"


def test_what_hl_smi_does_not_know_is_unknown(tools: Path, tmp_path: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    samples = sampled(tmp_path, step, CARD, 1, **hl_smi(tools, "echo 'card-1, N/A, N/A, N/A, N/A'; sleep 0.01"))
    receipt = receipt_of(samples)
    assert receipt.verdict == "unknown" and receipt.devices[0].power_mean is None


def test_an_hl_smi_that_ends(tools: Path, tmp_path: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    samples = sampled(tmp_path, step, CARD, 1, **hl_smi(tools, "echo lost >&2; exit 4"))
    assert [event["why"] for event in samples.events] == ["hl-smi: it ended with 4: lost"]
    assert receipt_of(samples).verdict == "unknown"
