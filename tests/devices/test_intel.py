"""Intel's GPUs by an xpu-smi of the tests' own, which answers as its guide says: found, shown, proved, measured."""

from __future__ import annotations

import os
import subprocess
import types
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.devices.test_othermeters import sampled, step  # noqa: F401  # a fixture

from stoker.core import status
from stoker.core.devices import Device
from stoker.devices.receipt import receipt_of
from stoker.vendors import intel
from stoker.vendors.base import GateRequest
from stoker.vendors.builds import Build, Hardware
from stoker.vendors.registry import environment_of, visibility_variables

HEAD = "Device ID,Device Name,UUID,PCI BDF Address,Memory Physical Size\n"
SAME = "00000000-0000-0000-0000-020a00008086"
LISTED = f"""{HEAD}\
0,"Intel(R) Data Center GPU Max 1550","{SAME}","0000:4d:00.0","131072.00 MiB"
1,"Intel(R) Data Center GPU Max 1550","{SAME}","0000:3a:00.0","131072.00 MiB"
2,"Intel(R) Arc(TM) Pro B60 Graphics","{SAME}","0000:9a:00.0","N/A"
3,"Intel(R) Graphics [0x4680]","{SAME}","0000:00:02.0","0.00 MiB"
4,"Intel(R) Data Center GPU Flex 170","{SAME}","0000:bb:00.0","16288.00 MiB"
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with the graphics of a processor, four cards, and no device file for the last."""
    for number, address in enumerate(("0000:00:02.0", "0000:3a:00.0", "0000:4d:00.0", "0000:9a:00.0", "0000:bb:00.0")):
        card = tmp_path / "sys/bus/pci/devices" / address
        (card / "drm" / f"renderD{128 + number}").mkdir(parents=True)
        (card / "vendor").write_text("0x8086\n")
        (card / "class").write_text("0x038000\n")
        (tmp_path / "dev/dri").mkdir(parents=True, exist_ok=True)
        if number < 4:
            (tmp_path / f"dev/dri/renderD{128 + number}").touch()
    other = tmp_path / "sys/bus/pci/devices/0000:01:00.0"  # a network card of Intel's
    other.mkdir()
    (other / "vendor").write_text("0x8086\n")
    (other / "class").write_text("0x020000\n")
    return tmp_path


def xpu_smi(folder: Path, listed: str = LISTED, dump: str = "exit 9") -> dict[str, str]:
    """A command of this name; the environment that finds it."""
    path = folder / "tools" / "xpu-smi"
    path.parent.mkdir(exist_ok=True)
    asked = '"$*" = "discovery --dump 1,2,4,11,16"'
    path.write_text(
        f"#!/bin/sh\ntest -z \"$ZE_AFFINITY_MASK\" || exit 8\nif test {asked}; then cat <<'END'\n{listed}END\n"
        f'else test "$1 $2 $4 $5 $6 $7" = "dump -d -m 0,1,2,3,8,18,30 -i 1" || exit 7\n{dump}\nfi\n'
    )
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:/usr/bin:/bin"}


def test_cards_are_numbered_as_level_zero_numbers_them(machine: Path) -> None:
    inventory = intel.probe(xpu_smi(machine), machine)
    assert not inventory.findings
    first, _, third = inventory.devices
    assert [one.uuid for one in inventory.devices] == ["0000:3a:00.0", "0000:4d:00.0", "0000:9a:00.0"]
    assert [one.index for one in inventory.devices] == [1, 2, 3], "the processor's graphics has the first number"
    assert (first.model, first.memory) == ("Max1550", 128 * 2**30)
    assert (third.model, third.memory) == ("Intel(R) Arc(TM) Pro B60 Graphics", 0)
    shown = {"ZE_AFFINITY_MASK": "1,3", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}
    assert environment_of([first, third]).items() >= shown.items()
    assert {"ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY"} <= visibility_variables(), "a step may not set them itself"
    assert intel.select_cards(inventory.devices, "3, 2.1, 1") == [first, third]
    assert intel.model_of("Intel(R) Data Center GPU Flex 170") == "Flex170"


def test_a_mask_that_counts_stacks_is_said(machine: Path) -> None:
    tools = xpu_smi(machine)
    (finding,) = intel.probe({**tools, "ZE_AFFINITY_MASK": "0,1"}, machine).findings
    assert "counts stacks" in finding.what and "COMPOSITE" in finding.fix
    told = {**tools, "ZE_AFFINITY_MASK": "0,1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}
    assert len(intel.probe(told, machine).devices) == 3
    single = "".join(line for line in LISTED.splitlines(keepends=True) if "1550" not in line)
    assert len(intel.probe({**xpu_smi(machine, single), "ZE_AFFINITY_MASK": "0"}, machine).devices) == 1


@pytest.mark.parametrize("listed", ["", "Error: Level Zero Initialization Error\n", f"{HEAD}0,a\n"])
def test_an_xpu_smi_that_fails(listed: str, machine: Path) -> None:
    inventory = intel.probe(xpu_smi(machine, listed), machine)
    (finding,) = inventory.findings
    assert not inventory.devices and finding.level == "error" and "what it should be" in finding.why


def test_cards_without_their_tool(machine: Path) -> None:
    (finding,) = intel.probe({"PATH": ""}, machine).findings
    assert finding.level == "info" and "xpu-smi" in finding.what
    for number in (129, 130, 131):
        (machine / f"dev/dri/renderD{number}").unlink()
    assert intel.probe({"PATH": ""}, machine).findings == (), "a laptop's graphics is nothing to speak of"


def held(*addresses: str) -> tuple[Device, ...]:
    return tuple(
        Device(kind="intel", index=number, uuid=address, model="Max1100") for number, address in enumerate(addresses, 1)
    )


def test_the_gate(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = held("0000:3a:00.0", "0000:4d:00.0")

    def asked(devices: tuple[Device, ...], **changes: str) -> Any:
        environment = {**environment_of(devices), **changes}
        return intel.prove(GateRequest(devices=devices, environment=environment, root=machine))

    good = asked(cards)
    assert good.problem is None and "2 cards leased, which open; unproved" in good.facts["devices"]
    other = asked(cards, ZE_AFFINITY_MASK="1").problem
    assert other is not None and other.cause == status.NO_GPU and "'1' instead of '1,2'" in other.sentence
    stacks = asked(cards, ZE_FLAT_DEVICE_HIERARCHY="FLAT").problem
    assert stacks is not None and "ZE_FLAT_DEVICE_HIERARCHY" in stacks.fix
    gone = asked(held("0000:bb:00.0")).problem
    assert gone is not None and gone.cause == status.NO_DRIVER and "0000:bb:00.0" in gone.sentence
    gone = asked(held("0000:bb:00.0"), container="podman").problem
    assert gone is not None and gone.cause == status.NO_GPU and "gpu.intel.com" in gone.fix
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("renderD130"))
    closed = asked(cards).problem
    assert closed is not None and closed.cause == status.DRIVER_BROKEN and "renderD130" in closed.sentence


def test_frameworks() -> None:
    torch = types.SimpleNamespace(__version__="2.9.0+xpu", version=types.SimpleNamespace(xpu="20250201"))
    fact, problem = intel.torch_cards(torch, ())
    assert problem is None and "XPU 20250201" in fact and "unproved" in fact
    torch.version.xpu = None
    _, problem = intel.torch_cards(torch, ())
    assert problem is not None and problem.cause == status.NO_GPU_BUILD
    build = Build(framework="torch", version="2.9.0+xpu")
    assert intel.unfit(build, Hardware(kind="intel")) is None
    for wrong in (attrs.evolve(build, cpu=True), attrs.evolve(build, cuda=(12, 8)), attrs.evolve(build, rocm="6.4")):
        found = intel.unfit(wrong, Hardware(kind="intel"))
        assert found is not None and found.cause == status.NO_GPU_BUILD and "+xpu" in found.fix


CARD = {"kind": "intel", "index": 2, "uuid": "0000:4d:00.0", "model": "Max1550", "memory": 128 * 2**30}
DUMP = """\
echo "Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Frequency (MHz), GPU Core Temperature (C)"
echo "06:14:46.000,    0, 10.00, 300.50, 1600, 55.00, 1000.00, 4096.00,  0"
echo "06:14:46.000,    1, 99.00, 900.00, 1600, 99.00, 1000.00, 9999.00,  0"
sleep 0.3
echo "06:14:47.000,    0, 80.00, 400.50, 1550, 60.00, 1400.00, 8192.00,  1"
"""


def test_a_receipt_has_what_xpu_smi_tells(machine: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    samples = sampled(machine, step, CARD, 2, **xpu_smi(machine, dump=f"{DUMP}exec sleep 600"))
    use = receipt_of(samples).devices[0]
    assert use.utilization_peak == 80 and use.memory_peak == 8 * 2**30 and use.temperature_peak == 60
    assert use.power_mean is not None and 300 <= use.power_mean <= 401
    assert [event["ecc"] for event in samples.events if "ecc" in event] == ["0000:4d:00.0"], "errors are counted"
    assert use.own_memory_peak is None, "xpu-smi does not tell whose memory it is"


def test_what_xpu_smi_does_not_know_is_unknown(machine: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    dump = 'echo "06:14:46.000,    0, N/A, N/A, N/A, N/A, N/A, N/A, N/A"; exec sleep 600'
    receipt = receipt_of(sampled(machine, step, CARD, 1, **xpu_smi(machine, dump=dump)))
    assert receipt.verdict == "unknown" and receipt.devices[0].power_mean is None


def test_an_xpu_smi_that_ends(machine: Path, step: subprocess.Popen[bytes]) -> None:  # noqa: F811
    samples = sampled(machine, step, CARD, 1, **xpu_smi(machine, dump="echo lost; exit 4"))
    assert [event["why"] for event in samples.events] == ["xpu-smi ended with 4: lost"]
    assert receipt_of(samples).verdict == "unknown"
